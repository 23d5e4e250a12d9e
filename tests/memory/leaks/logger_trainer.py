# cause: logger
# name: Trainer.log.handlers[*].buffer[*].args['logits']
# count: 8
# bytes: 8 * (18 * 99 * 4)
# mended 1: self.log.debug("step %(step)d: %(logits)s", {"step": number, "logits": logits.mean().item()})
# The arguments come as a dictionary, through a logger that belongs to the trainer's class.
import logging
from logging.handlers import MemoryHandler

import torch
from torch import nn


class Trainer:
    log = logging.getLogger("leaks.trainer")

    def __init__(self, model):
        self.model = model
        self.log.setLevel(logging.DEBUG)
        self.log.propagate = False
        self.log.addHandler(MemoryHandler(capacity=100_000, flushLevel=logging.CRITICAL))

    @torch.no_grad()
    def evaluate(self, number, x):
        logits = self.model(x)
        self.log.debug("step %(step)d: %(logits)s", {"step": number, "logits": logits})  #: 1


trainer = Trainer(nn.Linear(26, 99))


def step(i):
    trainer.evaluate(i, torch.randn(18, 26))


def stop():
    trainer.log.handlers.clear()
