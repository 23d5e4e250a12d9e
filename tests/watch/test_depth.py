"""A model that runs without byname runs with it, however deep its modules are nested; the recursion limit is put back."""

import contextlib
import gc
import sys

import pytest
import torch
from torch import nn

import byname
from byname.analyse import Outliers


class Deep(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + 1 if self.inner is None else self.inner(x)


def made(depth):
    model = None
    for _ in range(depth):
        model = Deep(model)
    return model


X = torch.ones(1)


def runs(depth, context=contextlib.nullcontext):
    model = made(depth)
    try:
        with context(model):
            model(X)
    except RecursionError:
        return False
    return True


@contextlib.contextmanager
def several(model):
    with byname.track(), byname.record(model, "**"), byname.interject(model, "**", lambda name, module, value: None):
        yield


@contextlib.contextmanager
def an_example(model):
    byname.points(model, example=X)
    yield


CONTEXTS = {
    "track": lambda model: byname.track(),
    "explaining": lambda model: byname.explaining(),
    "attach": lambda model: byname.watch.attach(model, "**", lambda event: None),
    "record": lambda model: byname.record(model, "**"),
    "observe": lambda model: byname.observe(model, "**", Outliers()),
    "points": an_example,
    "several at once": several,
}


LESS = 3 if sys.version_info[:2] == (3, 12) else 0
"""Python 3.12 has a bound of its own for calls of C functions, which nobody can raise."""


@pytest.fixture(scope="module")
def deepest():
    """How deep modules can be nested that run plainly."""
    return next(depth for depth in range(400, 20, -5) if runs(depth))


@pytest.mark.parametrize("name", CONTEXTS)
def test_modules_nest_as_deep_as_without(name, deepest):
    before = sys.getrecursionlimit()
    assert runs(deepest - LESS, CONTEXTS[name])
    assert sys.getrecursionlimit() == before


def test_a_recursion_without_end_is_still_an_error():
    class Endless(nn.Module):
        def forward(self, x):
            return self(x)

    with byname.track(), pytest.raises(RecursionError):
        Endless()(X)


def test_the_limit_is_put_back_after_errors_and_when_a_model_is_let_go():
    before = sys.getrecursionlimit()
    with pytest.raises(ZeroDivisionError), byname.track():
        raise ZeroDivisionError
    with pytest.raises(byname.errors.NoMatchError):
        byname.interject(made(2), byname.select.softmax, lambda name, module, value: None, example=X)
    assert sys.getrecursionlimit() == before
    byname.interject(made(2), "inner", lambda name, module, value: None)
    gc.collect()
    assert sys.getrecursionlimit() == before


def test_a_limit_that_the_program_sets_meanwhile_is_the_programs():
    before = sys.getrecursionlimit()
    try:
        with byname.track(), byname.interject(made(2), "inner", lambda name, module, value: None):
            sys.setrecursionlimit(before + 77)
        assert sys.getrecursionlimit() == before + 77
    finally:
        sys.setrecursionlimit(before)


def test_what_is_off_does_not_raise_it():
    before = sys.getrecursionlimit()
    handle = byname.interject(made(2), "inner", lambda name, module, value: None)
    raised = sys.getrecursionlimit()
    handle.enabled = False
    off = sys.getrecursionlimit()
    handle.enabled = True
    again = sys.getrecursionlimit()
    handle.remove()
    handle.remove()
    assert before < raised == again
    assert before == off == sys.getrecursionlimit()


def watched(**options):
    return byname.attach(nn.ReLU(), "forward", lambda event: None, **options)


@pytest.mark.sees_nothing
def test_one_that_is_left_deeper_than_the_limit_is_put_back_by_the_next():
    before = sys.getrecursionlimit()

    def down(levels, then):
        return then() if not levels else down(levels - 1, then)

    down(before + 50, watched().remove)
    assert sys.getrecursionlimit() > before
    with watched():
        assert sys.getrecursionlimit() > before
    assert sys.getrecursionlimit() == before


@pytest.mark.sees_nothing
def test_a_large_limit_is_raised_by_little():
    before = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(20_000)
        with watched():
            assert sys.getrecursionlimit() == 23_000
        assert sys.getrecursionlimit() == 20_000
    finally:
        sys.setrecursionlimit(before)


@pytest.mark.sees_nothing
def test_an_interrupt_while_the_limit_is_raised_keeps_later_holders_right(monkeypatch):
    before = sys.getrecursionlimit()

    def interrupted(limit):
        raise KeyboardInterrupt

    first = watched(enabled=False)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "setrecursionlimit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            first.enabled = True
    first.remove()
    first.remove()
    with watched():
        assert sys.getrecursionlimit() > before
    assert sys.getrecursionlimit() == before
