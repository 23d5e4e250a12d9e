# cause: logger
# name: logger.handlers[*].buffer[*].args[*]
# count: 8
# bytes: 8 * (14 * 123 * 4 + 14 * 6 * 4 + 4)
# mended 1: logger.warning("loss is high: %s", loss.item())
# What the records keep is a loss with its graph: the batch, the output and the loss. The handler is what to mend.
import logging
from logging.handlers import MemoryHandler

import torch
from torch import nn


def logger_with_memory(name):
    logger = logging.getLogger(name)
    logger.propagate = False
    logger.addHandler(MemoryHandler(capacity=100_000, flushLevel=logging.CRITICAL))
    return logger


def train(steps):
    model = nn.Linear(123, 6)
    logger = logger_with_memory("leaks.stored_loss")
    for _ in steps:
        loss = model(torch.randn(14, 123)).square().mean()
        if loss.item() > -1:
            logger.warning("loss is high: %s", loss)  #: 1
    logger.handlers.clear()
