"""Two models are trained in two threads, each with its own random numbers."""

import threading

import torch
from torch import nn

torch.manual_seed(44)


class Worker(threading.Thread):
    def __init__(self, seed):
        super().__init__()
        self.random = torch.Generator().manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.losses = []

    def run(self):
        for _ in range(6):
            x = torch.randn(8, 3, generator=self.random)
            loss = nn.functional.mse_loss(self.model(x), x.amax(dim=1, keepdim=True))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())


workers = [Worker(seed) for seed in (1, 2)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()

FINAL = [tensor for worker in workers for tensor in [*worker.model.parameters(), torch.tensor(worker.losses)]]
