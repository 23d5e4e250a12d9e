"""What `byname run --check` and `--non-finite` look for, in programs that a test runs in its own process."""

import random

import torch

from byname.diagnose.explaining import Explaining


def checking(report=None, *, non_finite=None):
    """The context that these options put around a program; each function given is called with its findings."""
    return Explaining(checked=report, non_finite=non_finite)


def findings_of(program, *args):
    """What `--check` finds in a program that returns what is to be alive at the end."""
    found = []
    torch.manual_seed(0)
    random.seed(0)
    with checking(found.append):
        alive = program(*args)
    assert alive is not None
    return found
