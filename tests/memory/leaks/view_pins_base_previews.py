# cause: view-pins-base
# name: preview.images[*]
# count: 8
# bytes: 8 * (16 * 3 * 12 * 12 * 4)
# left: 8 * (3 * 12 * 12 * 4)
# mended 1: self.images.append(images.narrow(0, 0, 1).detach().clone())
# A callback keeps the first picture of each batch to show later.
import torch
from torch import nn


class Preview:
    def __init__(self):
        self.images = []

    def on_batch(self, images):
        self.images.append(images.narrow(0, 0, 1).detach())  #: 1


class Trainer:
    def __init__(self, model, callback):
        self.model, self.callback = model, callback
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(self, images):
        self.optimizer.zero_grad()
        self.model(images).square().mean().backward()
        self.optimizer.step()
        self.callback.on_batch(images)


preview = Preview()
trainer = Trainer(nn.Conv2d(3, 2, 3), preview)


def step(i):
    trainer.step(torch.rand(16, 3, 12, 12))
