"""A function without source is read by tracing its runs, and by nothing else."""

import sys
import threading

import pytest
import torch
from listening import Told, method

import byname
from byname import attach
from byname.errors import NothingSeenWarning


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
    f, told = sourceless(F), Told()
    module = method(f)
    original, tracer = f.__code__, sys.gettrace()
    with attach(module, ["f.{x,args,h,i}", "f.{x,args,h}@-1", "f"], told) as handle:
        assert module.f(torch.zeros(1), 7, z=4).item() == 112.0
        assert method(f).f(torch.zeros(1)).item() == 111.0
    assert "its variables are observed, but cannot be changed" in str(handle.notes)
    assert f.__code__ is original and sys.gettrace() is tracer
    assert told == [
        ("x", [0.0]), ("args", (7,)),
        ("h", [1.0]), ("h", [2.0]), ("i", 0), ("h", [4.0]), ("i", 1), ("h", [8.0]),
        ("x@-1", [0.0]), ("args@-1", (7,)), ("h@-1", [8.0]), ("f", [112.0]),
    ]  # fmt: skip


def test_signature_and_defaults_stay():
    import inspect

    f = sourceless("def f(self, a, /, b, *, c=1, **kw): return (a, b, c, kw)\n")
    module, before = method(f), inspect.signature(f)
    with attach(module, "f.b", Told()):
        assert inspect.signature(f) == before
        assert module.f(1, 2, z=5) == module.f(1, b=2, z=5) == (1, 2, 1, {"z": 5})


def test_a_tracer_that_was_there_sees_everything_and_stays():
    module, told, seen = method(sourceless(F)), Told(), []

    def tracer(frame, event, value):
        if frame.f_code.co_filename == "<no source>":
            seen.append((frame.f_code.co_name, event, frame.f_lineno))
        return tracer

    def run():
        before = sys.gettrace()
        sys.settrace(tracer)
        try:
            module.f(torch.zeros(1))
            assert sys.gettrace() is tracer
        finally:
            sys.settrace(before)

    run()
    bare = list(seen)
    seen.clear()
    with attach(module, "f.h", told):
        run()
    own = [one for one in seen if one[2] != 5 or one in bare]
    assert [one for one in own if one[2] > 5] == [one for one in bare if one[2] > 5]
    assert len(told) == 4


def test_an_exception_leaves_no_tracer_and_no_exit():
    module, told = method(sourceless("def f(self, x):\n    h = x\n    return 1 / h\n")), Told()
    before = sys.gettrace()
    with pytest.warns(NothingSeenWarning, match="`f.x@-1`, `f`"), attach(module, ["f.h", "f.x@-1", "f"], told):
        with pytest.raises(ZeroDivisionError):
            module.f(0)
    assert sys.gettrace() is before
    assert told == [("h", 0)]


def test_an_exception_that_is_caught_does_not_hide_the_exit():
    f = sourceless(
        "def f(self, x):\n    try:\n        1 / x\n    except ZeroDivisionError:\n        h = 1\n    return h\n"
    )
    module, told = method(f), Told()
    with attach(module, ["f.h", "f.h@-1", "f"], told):
        module.f(0)
    assert told == [("h", 1), ("h@-1", 1), ("f", 1)]


def test_other_threads_are_told_of_too():
    module, told = method(sourceless(F)), Told()
    with attach(module, "f.i", told):
        thread = threading.Thread(target=module.f, args=(torch.zeros(1),))
        thread.start()
        thread.join()
    assert told == [("i", 0), ("i", 1)]


def test_lambdas_are_read_too():
    module, told = method(lambda self, x: [(h := x), h][1]), Told()
    with attach(module, ["f.{x,h}", "f.{x,h}@-1"], told):
        assert module.f(3) == 3
    assert told == [("x", 3), ("h", 3), ("x@-1", 3), ("h@-1", 3)]


def test_what_cannot_be_read_is_refused():
    generator = sourceless("def f(self, x):\n    h = x\n    yield h\n")
    code = generator.__code__
    with pytest.raises(byname.BynameError, match="is a generator or coroutine without source"):
        attach(method(generator), "f.h", Told())
    assert generator.__code__ is code
    with pytest.raises(byname.BynameError, match="no Python code"):
        attach(method(len), "f.h", Told())
    names = "x z args kw i g h".split()
    assert byname.points(method(sourceless(F)), "f.*").paths == tuple(f"f.{name}" for name in names)
