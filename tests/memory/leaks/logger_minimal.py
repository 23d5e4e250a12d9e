# cause: logger
# name: handler.buffer[*].args[*]
# count: 8
# bytes: 8 * (75 * 41 * 4)
# mended 1: log.info("outputs %s", tuple(outputs.shape))
# A handler that keeps records until something bad happens keeps their arguments too.
import logging
from logging.handlers import MemoryHandler

import torch

log = logging.getLogger("leaks.minimal")
log.setLevel(logging.INFO)
log.propagate = False
handler = MemoryHandler(capacity=100_000)
log.addHandler(handler)


def step(i):
    outputs = torch.randn(75, 41)
    log.info("outputs %s", outputs)  #: 1


def stop():
    log.removeHandler(handler)
