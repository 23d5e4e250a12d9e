# cause: prefetch
# name: batches._task_info[*][*]
# warm: 0
# steps: 1
# count: 3
# bytes: 3 * (2 * 700 * 4)
# seen: on the heap
# mended 1: slow = False
# One worker is slow: what the other has made meanwhile waits in the loader. The first batch is the slow worker's; of
# its own four batches the other has then sent three, and holds the last one back.
import multiprocessing
import time

import torch
from torch.utils.data import DataLoader, Dataset

fork = multiprocessing.get_context("fork")
ahead, taken = fork.Event(), fork.Event()
slow = True  #: 1


class Samples(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        batch = index // 2
        if batch == 0 and slow:
            ahead.wait(10)
            time.sleep(0.2)
        elif batch == 7 or batch and not slow:
            ahead.set()
            taken.wait(10)
        return torch.full((700,), float(index))


loader = DataLoader(Samples(), batch_size=2, num_workers=2, prefetch_factor=4, multiprocessing_context=fork)
batches = iter(loader)


def step(i):
    next(batches).sum()


def stop():
    global batches
    taken.set()
    del batches
