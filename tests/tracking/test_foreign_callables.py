"""Whatever PyTorch is called with, a program that runs without byname runs under `track`."""

import sys

import pytest
import torch
from torch.overrides import handle_torch_function, has_torch_function

import byname


@pytest.mark.parametrize(
    ("call", "operation"),
    [
        (lambda x: torch.relu_(input=x), "relu_"),
        (lambda x: torch.sigmoid_(input=x), "sigmoid_"),
        (lambda x: torch.dropout_(p=0.5, train=True, input=x), "dropout_"),
        (lambda x: torch._foreach_add_(self=[x], scalar=1.0), "_foreach_add_"),
        (lambda x: torch.relu_(x), "relu_"),
    ],
)
def test_what_is_changed_may_be_given_by_keyword(call, operation):
    x = torch.ones(3)
    with byname.track() as tracker:
        call(x)
        call(x)
        noted = [(one.operation, one.after - one.before) for one in tracker.mutations(x)]
    assert noted == [(operation, 1)] * 2


def test_the_source_of_what_is_changed_by_keyword_is_told():
    h = torch.ones(3)
    with byname.track() as tracker:
        torch.relu_(input=h)
        assert [one.changed for one in tracker.mutations(h)] == ["h"]


class Double:
    """A callable of somebody's that takes part in PyTorch's dispatch."""

    def __call__(self, x):
        if has_torch_function((x,)):
            return handle_torch_function(self, (x,), x)
        return x * 2


class Unhashable(Double):
    __hash__ = None
    __name__ = "double"


class Nameless(Double):
    @property
    def __name__(self):
        raise ValueError("nobody is to ask for it")


class Failing(Double):
    def __hash__(self):
        raise RuntimeError("no hash")


def named(name):
    return type("Named", (Double,), {"__name__": name})()


@pytest.mark.parametrize(
    "double",
    [Unhashable(), Nameless(), Failing(), *map(named, ("item", "requires_grad_", "__get__", "relu_", "grad"))],
    ids=lambda one: type(one).__name__ + str(vars(type(one)).get("__name__", "")),
)
def test_callables_of_anybody_run(double):
    x = torch.ones(1, requires_grad=True)
    with byname.track():
        assert [double(x).item(), double(x).item()] == [2, 2]


def test_callables_of_anybody_are_not_kept():
    double = Double()
    count = sys.getrefcount(double)
    with byname.track():
        double(torch.ones(1))
        assert sys.getrefcount(double) == count
