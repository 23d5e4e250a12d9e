# warm: 5
"""A cache with a limit that the warm-up reaches: what comes in pushes out what was there."""

from functools import lru_cache

import torch


@lru_cache(maxsize=4)
def window(step):
    return torch.hann_window(3000) + step


def step(i):
    window(i).sum()
