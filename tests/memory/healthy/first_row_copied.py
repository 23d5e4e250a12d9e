# warm: 3
"""One row of each batch is kept, as a copy, until there are three; then they are joined and the list begins anew."""

import torch

kept, joined = [], torch.zeros(0)


def step(i):
    global joined
    kept.append(torch.randn(50, 70)[0].clone())
    if len(kept) == 3:
        joined = torch.stack(kept)
        kept.clear()


def train(steps):
    for i in steps:
        for part in range(3):
            step(3 * i + part)
