# cause: not-in-optimizer
# culprits: model.prompts[1]
# kind: check
# A parameter is appended after the optimizer was built.
import torch
from torch import nn

import byname

FOUND = []


class Prompted(nn.Module):
    def __init__(self):
        super().__init__()
        self.prompts = nn.ParameterList([torch.randn(2, 4)])
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head(torch.cat([*self.prompts, x])).mean()

    def new_task(self):
        self.prompts.append(torch.randn(2, 4))


def train(model, optimizer, batches):
    for task, x in enumerate(batches):
        if task > 0:
            model.new_task()
        loss = model(x)
        optimizer.zero_grad()
        FOUND[:] = byname.check(loss, model=model, optimizer=optimizer)
        loss.backward()
        optimizer.step()


torch.manual_seed(0)
model = Prompted()
train(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(2, 3, 4))
