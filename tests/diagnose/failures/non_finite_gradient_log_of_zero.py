# cause: non-finite-gradient
# culprits: self.information
# kind: non-finite
# first: forward
# The forward is the first to be non-finite: the log of a probability of 0.
import torch
from torch import nn


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(3, 4)
        self.information = None

    def forward(self, x):
        positive = torch.relu(self.score(x)) + 1e-3 * torch.tensor([1.0, 0.0, 0.0, 0.0])
        probability = positive / positive.sum(-1, keepdim=True)
        self.information = torch.log(probability)  #: 1
        return -(probability * self.information).sum(-1)


def train(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in batches:
        entropy = model(x).mean()
        optimizer.zero_grad()
        entropy.backward()
        optimizer.step()


torch.manual_seed(0)
model = Sparse()
train(model, [torch.randn(5, 3)])
