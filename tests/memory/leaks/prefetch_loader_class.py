# cause: prefetch
# name: loader.ready.queue[*]['image']
# count: 8
# bytes: 8 * (5 * 3 * 16 * 16 * 4)
# cause: prefetch
# name: loader.ready.queue[*]['label']
# count: 8
# bytes: 8 * (5 * 8)
# mended 1: self.ahead = 1
# A loader that wraps a DataLoader in a thread and reads two batches ahead for every batch that is asked for.
import queue
import threading

import torch
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return {"image": torch.full((3, 16, 16), float(index)), "label": index % 10}


class Prefetcher:
    def __init__(self, loader):
        self.loader = loader
        self.ready, self.asked = queue.Queue(), queue.Queue()
        self.ahead = 2  #: 1
        self.thread = threading.Thread(target=self.fill, daemon=True)
        self.thread.start()

    def fill(self):
        batches = iter(self.loader)
        while (wanted := self.asked.get()) is not None:
            for _ in range(wanted):
                self.ready.put(next(batches))
            self.asked.task_done()

    def next(self):
        self.asked.put(self.ahead)
        self.asked.join()
        return self.ready.get()


class Trainer:
    def __init__(self, loader):
        self.loader = loader
        self.model = torch.nn.Conv2d(3, 2, 3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def step(self):
        batch = self.loader.next()
        self.optimizer.zero_grad()
        self.model(batch["image"]).mean().backward()
        self.optimizer.step()


loader = Prefetcher(DataLoader(Images(), batch_size=5))
trainer = Trainer(loader)


def step(i):
    trainer.step()


def stop():
    loader.asked.put(None)
    loader.thread.join()
