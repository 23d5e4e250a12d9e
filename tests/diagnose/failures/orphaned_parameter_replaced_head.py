# cause: orphaned-parameter
# culprits: optimizer.param_groups[0]["params"][2], optimizer.param_groups[0]["params"][3]
# kind: check
# The new head's parameters are in no optimizer as well: not-in-optimizer, model.head.weight and model.head.bias.
import torch
import torch.nn.functional as F
from torch import nn

import byname

FOUND = []


class Network(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body = nn.Linear(4, 5)
        self.head = nn.Linear(5, classes)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


def finetune(model, optimizer, batches):
    for x, y in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        FOUND.extend(byname.check(loss, model=model, optimizer=optimizer))
        loss.backward()
        optimizer.step()


torch.manual_seed(0)
model = Network(classes=10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.head = nn.Linear(5, 2)
finetune(model, optimizer, [(torch.randn(3, 4), torch.tensor([0, 1, 0]))])
