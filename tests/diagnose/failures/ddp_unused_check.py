# cause: ddp-unused
# culprits: ddp.module.experts[1].weight, ddp.module.experts[1].bias, ddp.module.scale
# kind: check
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import byname

FOUND = []


class Routed(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 2)])
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x, expert):
        return self.experts[expert](x)


def train(ddp, optimizer, batches):
    for x in batches:
        loss = ddp(x, 0).square().mean()
        FOUND.extend(byname.check(loss, model=ddp, optimizer=optimizer))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


torch.manual_seed(0)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
try:
    ddp = DistributedDataParallel(Routed())
    train(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1), torch.randn(1, 2, 3))
finally:
    dist.destroy_process_group()
