# cause: stored-graph
# name: window[*][*]
# count: 8
# bytes: 8 * (48 * 90 * 4 + 48 * 4 + 4)
# mended 1: reports.put((i, loss.item()))
# A thread collects what the training reports, in a list of its own, until there is enough for an average.
import queue
import threading

import torch
from torch import nn

model = nn.Linear(90, 1)
reports = queue.Queue()


def collect():
    window = []
    while (report := reports.get()) is not None:
        window.append(report)
        if len(window) == 100:
            window.clear()
        del report
        reports.task_done()


collector = threading.Thread(target=collect, daemon=True)
collector.start()


def step(i):
    loss = model(torch.randn(48, 90)).square().mean()
    reports.put((i, loss))  #: 1
    reports.join()


def stop():
    reports.put(None)
    collector.join()
