"""Programs to listen to: made from source that can be read, and what is told while they run."""

import itertools
import linecache
import textwrap

import torch

from byname.model.scopes import variables_of
from byname.watch.variables.subscribe import FunctionReceiver, Listening

_NUMBERS = itertools.count()


class listen(Listening):
    """A subscription that calls ``receive(run, variable, value, moment)``; also a context manager."""

    def __init__(self, function, owner, variables, receive, **options):
        super().__init__(function, owner, variables, FunctionReceiver(receive), **options)
        try:
            self.begin()
        except BaseException:
            self.remove()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.remove()


def made(source, name="f", flags=0, **scope):
    """What a program defines; its source can be read as if it were in a file."""
    text = textwrap.dedent(source)
    file = f"<listening {next(_NUMBERS)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    scope |= {"torch": torch, "__name__": "made"}
    exec(compile(text, file, "exec", flags=flags, dont_inherit=True), scope)
    return scope[name]


class Told:
    """A receiver that keeps what it is told, as plain values."""

    def __init__(self, change=None):
        self.events = []
        self.change = change

    def __call__(self, activation, variable, value, moment):
        self.events.append((moment, variable, plain(value)))
        return value if self.change is None else self.change(variable, value, moment)

    def of(self, *moments):
        return [(variable, value) for moment, variable, value in self.events if moment in moments]


def plain(value):
    """A value that can be compared, and that later changes do not reach."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().tolist()
    if type(value) in (list, tuple, set):
        return type(value)(plain(one) for one in value)
    if type(value) is dict:
        return {key: plain(one) for key, one in value.items()}
    return value if type(value) in (int, float, str, bool, bytes, type(None)) else type(value).__name__


def told_by(function, *arguments, only=None, change=None, **keywords):
    """What a function tells when it runs, all its variables listened to, and what it returns."""
    told = Told(change)
    wanted = [*variables_of(function), "return"] if only is None else only
    before = function.__code__
    with listen(function, arguments[0] if arguments else None, wanted, told) as listening:
        result = function(*arguments, **keywords)
    assert function.__code__ is before
    assert listening.notes == ()
    return told, result
