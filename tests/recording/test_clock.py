"""Is the iteration of every value known, however late its gradient comes?"""

import random

import pytest
import torch
from torch import nn

import byname


@pytest.mark.parametrize("every", [1, 2, 7])
@pytest.mark.parametrize("seed", range(5))
def test_gradients_have_the_iterations_of_their_forwards_in_whatever_order_backwards_come(seed, every):
    chance, model, waiting, told = random.Random(seed), nn.Sequential(nn.Linear(1, 1)), [], []
    iterations = {"train": 0, "eval": 0}
    with byname.record(model, ["0", "0.grad"], mode="both", every=every) as recorder:
        for forward in range(100):
            if chance.random() < 0.1:
                model.train(not model.training)
            mode = "train" if model.training else "eval"
            waiting.append((mode, iterations[mode], float(forward), model(torch.ones(1, 1)).sum()))
            iterations[mode] += 1
            while waiting and chance.random() < 0.5:
                *time, factor, loss = waiting.pop(chance.randrange(len(waiting)))
                (loss * factor).backward()
                told.append((*time, factor))
    found = recorder.results["0.grad"]
    wanted = [one for one in told if one[1] % every == 0]
    assert [*zip(found.modes, found.iterations, map(float, found.values), strict=True)] == wanted
