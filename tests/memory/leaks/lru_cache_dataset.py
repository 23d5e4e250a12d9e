# cause: lru-cache
# name: Pictures.__getitem__ (cached result)
# count: 8
# bytes: 8 * (500 * 4)
# mended 1: @functools.lru_cache(maxsize=1)
# A dataset whose items are cached, and all kept.
import functools

import torch
from torch.utils.data import Dataset


class Pictures(Dataset):
    def __len__(self):
        return 100

    @functools.cache  #: 1
    def __getitem__(self, index):
        return torch.randn(500)


pictures = Pictures()


def step(i):
    pictures[i].sum()
