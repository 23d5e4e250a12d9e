"""Runs the loop: forward, backward and step are called here, far from the user's lines."""

from contextlib import contextmanager

import torch
from torch import nn


class Task(nn.Module):
    def training_step(self, batch):
        raise NotImplementedError

    def configure_optimizers(self):
        raise NotImplementedError

    def on_epoch_end(self, metrics):
        pass


class Trainer:
    def __init__(self, epochs=1, accumulate=1, clip=None):
        self.epochs, self.accumulate, self.clip = epochs, accumulate, clip
        self.metrics = []

    @contextmanager
    def _training(self, task):
        task.train()
        try:
            yield
        finally:
            task.eval()

    def fit(self, task, loader):
        optimizer, scheduler = task.configure_optimizers()
        for _ in range(self.epochs):
            with self._training(task):
                losses = [self._step(task, optimizer, batch, number) for number, batch in enumerate(loader)]
            scheduler.step()
            self.metrics.append(torch.stack(losses).mean().item())
            task.on_epoch_end(self.metrics)

    def _step(self, task, optimizer, batch, number):
        def closure():
            loss = task.training_step(batch)
            (loss / self.accumulate).backward()
            return loss

        if (number + 1) % self.accumulate:
            return closure().detach()
        loss = closure()
        if self.clip is not None:
            nn.utils.clip_grad_norm_(task.parameters(), self.clip)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()
