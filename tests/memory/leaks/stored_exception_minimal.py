# cause: stored-exception
# name: scores (local of check, kept by the traceback of errors[*])
# count: 8
# bytes: 8 * (80 * 90 * 4)
# mended 1: errors.append(str(error))
# The traceback of a stored error keeps the local variables of every function it went through.
import torch

errors = []


def check(limit):
    scores = torch.randn(80, 90)
    if scores.max() < limit:
        raise ValueError(f"scores below {limit}")


def step(i):
    try:
        check(1000)
    except ValueError as error:
        errors.append(error)  #: 1
