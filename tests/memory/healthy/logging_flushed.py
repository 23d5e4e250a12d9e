# warm: 4
# steps: 8
"""A handler that holds records back, up to four of them, and then hands them on to one that drops them."""

import logging
from logging.handlers import MemoryHandler

import torch

log = logging.getLogger("healthy.flushed")
log.setLevel(logging.INFO)
log.propagate = False
handler = MemoryHandler(capacity=4, target=logging.NullHandler())
log.addHandler(handler)


def step(i):
    log.info("outputs %s", torch.randn(40, 50))


def stop():
    log.removeHandler(handler)
