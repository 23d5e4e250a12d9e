# cause: no-grad-path
# culprits: wrong
# kind: error
# mended 1: wrong = torch.sigmoid(logits) - target
import torch
from torch import nn


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict({"body": nn.Linear(3, 4), "head": nn.Linear(4, 1)})

    def forward(self, x):
        hidden = torch.relu(self.layers["body"](x))
        return self.layers["head"](hidden).squeeze(-1)


def loss_function(logits, target):
    wrong = (logits > 0) != target  #: 1
    return wrong.float().mean()


torch.manual_seed(0)
detector = Detector()
optimizer = torch.optim.SGD(detector.parameters(), lr=0.1)
data = torch.randn(6, 3)
labels = data[:, 0] > 0
sum_of_losses = torch.zeros(())
for batch, target in zip(data.split(3), labels.float().split(3), strict=True):
    sum_of_losses = sum_of_losses + loss_function(detector(batch), target)
optimizer.zero_grad()
sum_of_losses.backward()  #: 2
optimizer.step()
