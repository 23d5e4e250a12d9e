# cause: growing-cache
# name: memory.rows['seen'][*]
# count: 8
# bytes: 8 * (17 * 131 * 4)
# mended 1: self.rows["seen"] = [row]
# What is there at the start is frozen, as servers do it before they fork: the collector no longer lists the cache.
import gc

import torch


class Memory:
    def __init__(self):
        self.rows = {"seen": []}

    def add(self, row):
        self.rows["seen"].append(row)  #: 1


memory = Memory()
gc.freeze()


def step(i):
    memory.add(torch.randn(17, 131))


def stop():
    gc.unfreeze()
