# cause: modified-in-place
# culprits: hidden
# kind: error
# mended 2: hidden = hidden + x
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        hidden = torch.tanh(self.linear(x))  #: 1
        hidden += x  #: 2
        return hidden


class Network(nn.Module):
    def __init__(self, width=4, depth=1):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


torch.manual_seed(0)
network = Network()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    loss = network(torch.randn(3, 4)).mean()
    loss.backward()  #: 3
    optimizer.step()
