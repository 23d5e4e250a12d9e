# cause: no-grad-path
# culprits: x
# kind: error
# mended 1: x = checkpoint(block, x, use_reentrant=False)
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4).requires_grad_(False)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.GELU()) for _ in range(2))
        self.head = nn.Linear(4, 10).requires_grad_(False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True)  #: 1
        return self.head(x)


torch.manual_seed(0)
net = Net()
tokens = torch.randint(0, 10, (2, 5))
loss = F.cross_entropy(net(tokens).flatten(0, 1), tokens.flatten())
loss.backward()  #: 2
