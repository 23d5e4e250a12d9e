# cause: non-finite-gradient
# culprits: gamma
# kind: non-finite
# first: backward
# Forward and loss are finite; the slope of x ** 0.5 at a pixel of 0 is infinite.
import torch
from torch import nn


class Brighten(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.zeros(3))

    def forward(self, image):
        lifted = image + self.gain.unsqueeze(-1)
        gamma = lifted**0.5  #: 1
        return gamma


def fit(model, image, target):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = (model(image) - target).abs().mean()
        loss.backward()
        losses.append(loss.item())
    return losses


torch.manual_seed(0)
model = Brighten()
fit(model, torch.tensor([[0.0, 0.2], [0.4, 0.6], [0.8, 1.0]]), torch.full((3, 2), 0.7))
