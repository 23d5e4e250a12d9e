# cause: non-finite-gradient
# culprits: powers
# kind: non-finite
# first: forward
# exp overflows in the forward; a softmax subtracts the maximum first.
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)

    def weights(self, scores):
        powers = torch.exp(scores)  #: 1
        return powers / powers.sum(-1, keepdim=True)

    def forward(self, x):
        scores = self.query(x) @ self.key(x).transpose(-1, -2)
        return self.weights(scores) @ x


def step(model, optimizer, x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()


torch.manual_seed(0)
model = Attention(4)
step(model, torch.optim.SGD(model.parameters(), lr=0.1), 100 * torch.randn(5, 4))
