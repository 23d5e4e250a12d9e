# cause: optimizer-step-between
# culprits: model.head.weight
# kind: error
# mended 2: pass
# The forward is in a module of the program's own: the line that saved the weight is in it.
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 5)
        self.head = nn.Linear(5, 2)

    def forward(self, x):
        hidden = torch.relu(self.body(x))
        return self.head(hidden)  #: 1


def train(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x in batches:
        output = model(x)
        losses = {"size": output.square().mean(), "spread": output.var()}
        losses["size"].backward(retain_graph=True)
        optimizer.step()  #: 2
        losses["spread"].backward()  #: 3
        optimizer.zero_grad()


torch.manual_seed(0)
model = Model()
train(model, [torch.randn(4, 3)])
