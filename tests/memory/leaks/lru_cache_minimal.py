# cause: lru-cache
# name: positions (cached result)
# count: 8
# bytes: 8 * (30000 * 4)
# mended 1: @functools.lru_cache(maxsize=1)
# A table for each offset, and the offset is another at every step. The mended one keeps the last table.
import functools

import torch


@functools.cache  #: 1
def positions(length, offset):
    return torch.arange(length, dtype=torch.float32) + offset


def step(i):
    positions(30000, i)
