"""Programs to listen to: made from source that can be read, and what is told while they run."""

import itertools
import linecache
import textwrap

import torch
from torch import nn

from byname import attach

_NUMBERS = itertools.count()


def made(source, name="f", flags=0, **scope):
    """What a program defines; its source can be read as if it were in a file."""
    text = textwrap.dedent(source)
    file = f"<listening {next(_NUMBERS)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    scope |= {"torch": torch, "nn": nn, "__name__": "made"}
    exec(compile(text, file, "exec", flags=flags, dont_inherit=True), scope)
    return scope[name]


def method(function):
    """A module that has a function as its method `f`."""
    return type("Made", (nn.Module,), {"f": function})()


class Told(list):
    """A callback that keeps what it is told, as variables and plain values; what `f` returns is told as of `f`."""

    def __init__(self, change=None):
        super().__init__()
        self.change = change

    def __call__(self, event):
        variable = event.path.removeprefix("f.")
        self.append((variable, plain(event.value)))
        return None if self.change is None else self.change(variable, event.value)


def plain(value):
    """A value that can be compared, and that later changes do not reach."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().tolist()
    if type(value) in (list, tuple, set):
        return type(value)(plain(one) for one in value)
    if type(value) is dict:
        return {key: plain(one) for key, one in value.items()}
    return value if type(value) in (int, float, str, bool, bytes, type(None)) else type(value).__name__


def told_by(function, *arguments, only, change=None, **keywords):
    """What a method tells of some variables when it runs, and what it returns; ``f`` stands for the latter."""
    module, told, before = method(function), Told(change), function.__code__
    with attach(module, ["f" if name == "f" else f"f.{name}" for name in only], told) as handle:
        result = module.f(*arguments, **keywords)
    assert function.__code__ is before
    assert not any("other code" in note for note in handle.notes)
    return told, result
