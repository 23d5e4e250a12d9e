# cause: stored-graph
# name: losses[*]
# count: 8
# bytes: 8 * (64 * 100 * 4 + 64 * 30 * 4 + 4)
# mended 1: losses.append(loss.item())
# Validation without no_grad: each loss keeps the batch (saved by the layer), the output (saved by the square), itself.
import torch

model = torch.nn.Linear(100, 30)
losses = []


def step(i):
    x = torch.randn(64, 100)
    loss = model(x).pow(2).mean()
    losses.append(loss)  #: 1
