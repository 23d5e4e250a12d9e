"""Results are remembered for as long as the tensor they belong to lives."""

import weakref

import torch

norms = weakref.WeakValueDictionary()


def normalised(batch, number):
    norms[number] = result = batch / batch.norm()
    return result


def step(i):
    result = normalised(torch.randn(60, 20), i)
    assert norms[i] is result
