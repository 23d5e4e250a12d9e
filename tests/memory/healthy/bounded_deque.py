# warm: 6
"""The last five outputs are kept, with their graphs, in a deque that knows its length."""

from collections import deque

import torch
from torch import nn


class Monitor:
    def __init__(self, length):
        self.recent = deque(maxlen=length)

    def see(self, output):
        self.recent.append({"output": output, "norm": output.norm()})


model = nn.Linear(25, 61)
monitor = Monitor(5)


def step(i):
    monitor.see(model(torch.randn(14, 25)))
