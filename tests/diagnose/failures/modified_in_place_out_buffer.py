# cause: modified-in-place
# culprits: scratch
# kind: error
# mended 2: scratch = torch.sub(x, 1)
# One buffer is filled twice with `out=` to save an allocation.
import torch
from torch import nn


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Parameter(torch.randn(4))
        self.down = nn.Parameter(torch.randn(4))

    def forward(self, x):
        scratch = torch.empty_like(x)
        torch.add(x, 1, out=scratch)
        above = scratch * self.up  #: 1
        torch.sub(x, 1, out=scratch)  #: 2
        below = scratch * self.down
        return above + below


def main():
    torch.manual_seed(0)
    model = Pair()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        loss = model(torch.randn(2, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()  #: 3
        optimizer.step()


if __name__ == "__main__":
    main()
