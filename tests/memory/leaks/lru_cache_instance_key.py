# cause: lru-cache
# name: Batch.norm (cached argument).data
# count: 8
# bytes: 8 * (70 * 31 * 4)
# mended 1: def norm(self, power): return (self.data ** power).sum().item()
# The result is a number; what the cache keeps is its key: the batch whose method it is.
from functools import cache

import torch


class Batch:
    def __init__(self, rows):
        self.data = torch.rand(rows, 31)

    norm = cache(lambda self, power: (self.data**power).sum().item())  #: 1


def train(steps):
    for _ in steps:
        batch = Batch(70)
        for _ in range(3):
            batch.norm(2)
