"""A function without source is read by tracing its runs, and by nothing else."""

import sys
import threading

import pytest
import torch
from listening import Told, listen
from torch import nn

import byname
from byname.model.scopes import variables_of


def sourceless(text, name="f", **scope):
    exec(compile(text, "<no source>", "exec"), scope)
    return scope[name]


F = """
k = 10
def make():
    out = 100
    def f(self, x, *args, z=3, **kw):
        h = x + 1
        h.add_(1)
        for i in range(2):
            h = h * 2
        g = lambda: h
        return h + out + z
    return f
f = make()
"""


def test_values_are_read_and_nothing_is_replaced():
    f, owner, told = sourceless(F), nn.Identity(), Told(lambda name, value, moment: None)
    original, tracer = f.__code__, sys.gettrace()
    with listen(f, owner, ["x", "args", "h", "i", "return"], told) as listening:
        assert not listening.replaces
        assert f(owner, torch.zeros(1), 7, z=4).item() == 112.0
        assert f(nn.Identity(), torch.zeros(1)).item() == 111.0
    assert f.__code__ is original and sys.gettrace() is tracer
    assert told.events == [
        ("entry", "x", [0.0]), ("entry", "args", (7,)),
        ("assigned", "h", [1.0]), ("changed", "h", [2.0]),
        ("assigned", "i", 0), ("assigned", "h", [4.0]), ("assigned", "i", 1), ("assigned", "h", [8.0]),
        ("exit", "x", [0.0]), ("exit", "args", (7,)), ("exit", "i", 1), ("exit", "h", [8.0]), ("returned", "return", [112.0]),
    ]  # fmt: skip


def test_signature_and_defaults_stay():
    import inspect

    f = sourceless("def f(a, /, b, *, c=1, **kw): return (a, b, c, kw)\n")
    before = inspect.signature(f)
    with listen(f, 1, ["b"], Told()):
        assert inspect.signature(f) == before
        assert f(1, 2, z=5) == f(1, b=2, z=5) == (1, 2, 1, {"z": 5})


def test_a_tracer_that_was_there_sees_everything_and_stays():
    f, owner, told, seen = sourceless(F), nn.Identity(), Told(), []

    def tracer(frame, event, value):
        if frame.f_code.co_filename == "<no source>":
            seen.append((frame.f_code.co_name, event, frame.f_lineno))
        return tracer

    def run():
        before = sys.gettrace()
        sys.settrace(tracer)
        try:
            f(owner, torch.zeros(1))
            assert sys.gettrace() is tracer
        finally:
            sys.settrace(before)

    run()
    bare = list(seen)
    seen.clear()
    with listen(f, owner, ["h"], told):
        run()
    own = [one for one in seen if one[2] != 5 or one in bare]
    assert [one for one in own if one[2] > 5] == [one for one in bare if one[2] > 5]
    assert len(told.of("assigned", "changed")) == 4


def test_an_exception_leaves_no_tracer_and_no_exit():
    f, told = sourceless("def f(x):\n    h = x\n    return 1 / h\n"), Told()
    before = sys.gettrace()
    with listen(f, 0, ["h", "return"], told), pytest.raises(ZeroDivisionError):
        f(0)
    assert sys.gettrace() is before
    assert told.events == [("assigned", "h", 0)]


def test_an_exception_that_is_caught_does_not_hide_the_exit():
    f, told = (
        sourceless("def f(x):\n    try:\n        1 / x\n    except ZeroDivisionError:\n        h = 1\n    return h\n"),
        Told(),
    )
    with listen(f, 0, ["h", "return"], told):
        f(0)
    assert told.events == [("assigned", "h", 1), ("exit", "h", 1), ("returned", "return", 1)]


def test_other_threads_are_told_of_too():
    f, owner, told = sourceless(F), nn.Identity(), Told()
    with listen(f, owner, ["i"], told):
        thread = threading.Thread(target=f, args=(owner, torch.zeros(1)))
        thread.start()
        thread.join()
    assert told.of("assigned") == [("i", 0), ("i", 1)]


def test_lambdas_are_read_too():
    f, told = (lambda x: [(h := x), h][1]), Told()
    with listen(f, 3, ["x", "h"], told) as listening:
        assert f(3) == 3
    assert not listening.replaces
    assert told.of("entry", "assigned", "exit") == [("x", 3), ("h", 3), ("x", 3), ("h", 3)]


def test_what_cannot_be_read_is_refused():
    generator = sourceless("def f(x):\n    h = x\n    yield h\n")
    code = generator.__code__
    with pytest.raises(byname.BynameError, match="runs after its call"):
        listen(generator, 2, ["h"], Told())
    assert generator.__code__ is code
    with pytest.raises(byname.BynameError, match="not a builtin"):
        listen(len, 2, ["h"], Told())
    assert variables_of(sourceless(F)) == ("self", "x", "z", "args", "kw", "i", "g", "h")
