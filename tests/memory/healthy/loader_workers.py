# seen: on the heap
"""PyTorch's own loader with a worker process; the loop is in a function, and so is the batch."""

import multiprocessing

import torch
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        return torch.full((500,), float(index))


def train(steps):
    fork = multiprocessing.get_context("fork")
    loader = DataLoader(Rows(), batch_size=4, num_workers=1, multiprocessing_context=fork)
    for _, batch in zip(steps, loader, strict=False):
        batch.mean().item()
