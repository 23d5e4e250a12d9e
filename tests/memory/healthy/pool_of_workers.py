"""Batches are prepared in worker threads; every future is asked for its result and dropped."""

from concurrent.futures import ThreadPoolExecutor, wait

import torch
from torch import nn

model = nn.Linear(64, 8)


def prepare(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(6, 64, generator=generator)


def train(steps):
    optimizer = torch.optim.Adagrad(model.parameters())
    with ThreadPoolExecutor(max_workers=1) as workers:
        following = workers.submit(prepare, 0)
        for i in steps:
            batch, following = following.result(), workers.submit(prepare, i + 1)
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            wait([following])
