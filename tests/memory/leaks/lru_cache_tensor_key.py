# cause: lru-cache
# name: length_of (cached argument)
# count: 16
# bytes: 16 * (500 * 8)
# mended 1: length_of = lambda tokens: int((tokens != 0).sum())
# Tensors are their own keys: each one that was ever asked about stays. Two workers ask.
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import torch

length_of = lru_cache(maxsize=1024)(lambda tokens: int((tokens != 0).sum()))  #: 1
workers = ThreadPoolExecutor(max_workers=2)


class Collator:
    def __call__(self, samples):
        return max(workers.map(length_of, samples))


collate = Collator()


def step(i):
    collate([torch.randint(5, (500,)), torch.randint(5, (500,))])


def stop():
    workers.shutdown()
