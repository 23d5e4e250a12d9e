# cause: prefetch
# name: pipeline.pending[*]._result
# count: 8
# bytes: 8 * (9 * 210 * 4)
# mended 1: self.ahead = 1
# Batches are futures: two are submitted for each one that is taken, and finished ones keep their result.
from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait

import torch


def load(index):
    return torch.full((9, 210), float(index))


class Pipeline:
    def __init__(self):
        self.workers = ThreadPoolExecutor(max_workers=1)
        self.pending = deque([self.workers.submit(load, -1)])
        self.ahead = 2  #: 1

    def advance(self, index):
        self.pending.extend(self.workers.submit(load, index + part) for part in range(self.ahead))
        wait(self.pending)
        self.pending.popleft().result()


pipeline = Pipeline()


def step(i):
    pipeline.advance(2 * i)


def stop():
    pipeline.workers.shutdown()
