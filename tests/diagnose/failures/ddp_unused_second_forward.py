# cause: ddp-unused
# culprits: ddp.module.auxiliary.weight, ddp.module.auxiliary.bias
# kind: error
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(3, 4)
        self.boxes = nn.Linear(4, 2)
        self.auxiliary = nn.Linear(4, 2)

    def forward(self, x):
        features = torch.relu(self.backbone(x))
        return self.boxes(features)


def train(ddp, batches):
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for x in batches:
        optimizer.zero_grad()
        output = ddp(x)  #: 1
        output.square().mean().backward()
        optimizer.step()


torch.manual_seed(0)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
try:
    train(DistributedDataParallel(Detector()), torch.randn(2, 2, 3))
finally:
    dist.destroy_process_group()
