# cause: no-grad-path
# culprits: model.body.weight, model.body.bias, model.head.weight, model.head.bias
# kind: error
# mended 1: model.body.requires_grad_(False)
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


def freeze(model):
    model.eval()
    model.requires_grad_(False)  #: 1
    return model


def finetune(model, x, y):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()  #: 2
    optimizer.step()


torch.manual_seed(0)
net = freeze(Net())
finetune(net, torch.randn(3, 4), torch.tensor([0, 1, 0]))
