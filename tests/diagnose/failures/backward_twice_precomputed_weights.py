# cause: backward-twice
# culprits: weights
# kind: error
# mended 1: weights = F.softplus(raw).detach()
# The class weights are made once, before the loop, from a tensor that is trained.
import torch
import torch.nn.functional as F
from torch import nn


def weighted_loss(logits, target, weights):
    per_sample = F.cross_entropy(logits, target, reduction="none")
    return (per_sample * weights[target]).mean()


def fit(model, raw, loader):
    weights = F.softplus(raw)  #: 1
    optimizer = torch.optim.SGD([*model.parameters(), raw], lr=0.1)
    history = []
    for x, target in loader:
        optimizer.zero_grad()
        loss = weighted_loss(model(x), target, weights)
        loss.backward()  #: 2 3
        optimizer.step()
        history.append(loss.item())
    return history


torch.manual_seed(0)
raw = torch.zeros(3, requires_grad=True)
loader = [(torch.randn(6, 4), torch.randint(0, 3, (6,))) for _ in range(2)]
fit(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), raw, loader)
