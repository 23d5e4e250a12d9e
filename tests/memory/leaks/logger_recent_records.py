# cause: logger
# name: recent.records[*].gradient
# count: 8
# bytes: 8 * (52 * 63 * 4)
# mended 1: logging.getLogger("leaks.recent").info("norm", extra={"gradient": gradient.norm().item()})
# A handler of the project's own, filled from a worker thread; the tensor is an extra attribute of the record.
import logging
import threading

import torch
from torch import nn


class RecentRecords(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)


def report(gradient):
    logging.getLogger("leaks.recent").info("norm", extra={"gradient": gradient})  #: 1


logging.getLogger("leaks.recent").setLevel(logging.INFO)
logging.getLogger("leaks.recent").propagate = False
recent = RecentRecords()
logging.getLogger("leaks.recent").addHandler(recent)
model = nn.Linear(63, 52, bias=False)


def step(i):
    model(torch.randn(3, 63)).square().sum().backward()
    reporter = threading.Thread(target=report, args=(model.weight.grad.clone(),))
    reporter.start()
    reporter.join()


def stop():
    logging.getLogger("leaks.recent").removeHandler(recent)
