# cause: backward-twice
# culprits: shared
# kind: error
# mended 2: depth_loss.backward(retain_graph=True)
import torch
import torch.nn.functional as F
from torch import nn


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
        self.depth = nn.Linear(8, 1)
        self.normal = nn.Linear(8, 3)


def train(model, optimizer, batches):
    for x, depth, normal in batches:
        shared = model.encoder(x)  #: 1
        depth_loss = F.mse_loss(model.depth(shared), depth)
        normal_loss = F.mse_loss(model.normal(shared), normal)
        optimizer.zero_grad()
        depth_loss.backward()  #: 2
        normal_loss.backward()  #: 3
        optimizer.step()


torch.manual_seed(0)
model = TwoHeads()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train(model, optimizer, [(torch.randn(5, 4), torch.randn(5, 1), torch.randn(5, 3)) for _ in range(2)])
