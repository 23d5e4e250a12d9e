# cause: growing-cache
# name: cache[*]
# count: 8
# bytes: 8 * (60 * 88 * 4)
# mended 1: cache.clear(); cache[i] = torch.randn(60, 88)
# A dictionary by step number that nothing is ever taken out of.
import torch

cache = {}


def step(i):
    cache[i] = torch.randn(60, 88)  #: 1
