# cause: view-pins-base
# name: kept[*]
# count: 8
# bytes: 8 * (64 * 200 * 4)
# left: 8 * (200 * 4)
# mended 1: kept.append(batch[0].clone())
# One row is kept of each batch, and with it the batch.
import torch

kept = []


def step(i):
    batch = torch.randn(64, 200)
    kept.append(batch[0])  #: 1
