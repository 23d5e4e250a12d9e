"""A replay buffer of fixed size that is written in place, and sampled."""

import torch
from torch import nn


class Replay:
    def __init__(self, size, width):
        self.rows, self.next = torch.zeros(size, width), 0

    def add(self, row):
        self.rows[self.next % len(self.rows)] = row
        self.next += 1

    def sample(self, count):
        return self.rows[torch.randint(len(self.rows), (count,))]


replay = Replay(4, 90)
policy = nn.Linear(90, 2)
optimizer = torch.optim.RMSprop(policy.parameters())


def step(i):
    replay.add(torch.randn(90))
    optimizer.zero_grad()
    policy(replay.sample(8)).square().mean().backward()
    optimizer.step()
