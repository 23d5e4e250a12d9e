"""Raises a KeyboardInterrupt at a chosen line of byname, as a tracing function can and as the signal does."""

import ast
import functools
import inspect
import itertools
import os
import signal
import sys
from pathlib import Path

import byname

PACKAGE = f"{Path(byname.__file__).parent}{os.sep}"
_STORE = ("log_file", "hdf5", "recording_file", "frame", "stored", "value_type", "descriptors")
GUARD = (f"reading{os.sep}interrupts.py", *(f"recording{os.sep}{name}.py" for name in _STORE))
"""These hold signals back themselves."""
assert all(Path(PACKAGE, name).is_file() for name in GUARD)


@functools.cache
def _statements(file):
    """The lines of ``try:`` in a file, and for the first line of each ``with`` those of its body."""
    nodes = [*ast.walk(ast.parse(Path(file).read_text(encoding="utf-8")))]
    withs = [one for one in nodes if isinstance(one, ast.With)]
    tries = {one.lineno for one in nodes if isinstance(one, ast.Try)}
    return tries, {one.lineno: range(one.body[0].lineno, one.end_lineno + 1) for one in withs}


def _nothing_can_come(file, line, last):
    """Whether Python does nothing there, at a ``try:``, or calls the ``__exit__`` of a ``with`` that ends.

    It looks for no signal there, and what is raised by a tracer is not handled by the statement, though it is inside.
    """
    tries, withs = _statements(file)
    return line in tries or last in withs.get(line, ())


class Lines:
    """Follows the lines of byname that a function executes, but for those in these files and below."""

    def __init__(self, at=None, throw=None, held=()):
        self.seen, self._at, self._throw = [], at, throw
        self._held = (*GUARD, *held)
        self._last = {}
        self.thrown = None

    def __call__(self, function):
        before = sys.gettrace()
        sys.settrace(self._follow)
        try:
            return function()
        finally:
            sys.settrace(before)
            self._last.clear()

    def _follow(self, frame, event, argument):
        file = frame.f_code.co_filename
        if not file.startswith(PACKAGE) or (event == "call" and self._is_held(frame)):
            return None
        if event == "line":
            last = self._last.get(frame)
            self._last[frame] = frame.f_lineno
            if not _nothing_can_come(file, frame.f_lineno, last):
                self.seen.append((file[len(PACKAGE) :], frame.f_lineno))
                if len(self.seen) - 1 == self._at:
                    self.thrown = f"{self.seen[-1][0]}:{self.seen[-1][1]}"
                    self._throw()
        return self._follow

    def _is_held(self, frame):
        while frame is not None and frame.f_code is not Lines.__call__.__code__:
            if frame.f_code.co_filename[len(PACKAGE) :].startswith(self._held):
                return True
            frame = frame.f_back
        return False


def lines_of(function, held=()):
    """The lines of byname that it executes, in order."""
    lines = Lines(held=held)
    lines(function)
    return lines.seen


def of_each_line(seen):
    """The moments at which to interrupt: the first and the last time of every line."""
    first, last = _first(seen), {line: moment for moment, line in enumerate(seen)}
    return sorted({*first.values(), *last.values()})


def of_some_lines(seen):
    """Every third of these."""
    return of_each_line(seen)[::3]


def of_each_line_once(seen):
    """The moments at which a line is executed for the first time."""
    return sorted(_first(seen).values())


def of_some_lines_once(seen):
    """Every third of these."""
    return of_each_line_once(seen)[::3]


def _first(seen):
    first = {}
    for moment, line in enumerate(seen):
        first.setdefault(line, moment)
    return first


def at_a_line():
    """What a tracer raises, which no guard against signals can hold back."""
    raise KeyboardInterrupt


def by_signal():
    """What Ctrl-C does."""
    signal.raise_signal(signal.SIGINT)


def interrupted(function, moment, throw, held=()):
    """Calls it with a KeyboardInterrupt at a moment; returns the line, None where there are fewer moments."""
    lines = Lines(moment, throw, held)
    try:
        lines(function)
    except KeyboardInterrupt:
        return lines.thrown
    assert lines.thrown is None, f"the interrupt at {lines.thrown} was lost"
    return None


def begin_of(function):
    """The first line that a function executes."""
    file = function.__code__.co_filename
    lines = sorted(
        {line for *_, line in function.__code__.co_lines() if line and line > function.__code__.co_firstlineno}
    )
    tries, _ = _statements(file)
    return file[len(PACKAGE) :], next(line for line in lines if line not in tries)


def signals_come():
    """Whether a Ctrl-C is heard at once."""
    try:
        signal.raise_signal(signal.SIGINT)
        for _ in itertools.repeat(None, 3):
            pass
    except KeyboardInterrupt:
        return True
    return False


class Calls(Lines):
    """Follows the moments at which Python looks for signals: a function of byname begins, or one of C has returned.

    The guard against signals is followed as well, and what runs before anything is held.
    """

    def __init__(self, at=None, throw=None, held=()):
        super().__init__(at, throw)
        self._begun = False

    def __call__(self, function):
        before = sys.getprofile()
        sys.setprofile(self._profile)
        try:
            return function()
        finally:
            sys.setprofile(before)

    def _profile(self, frame, event, argument):
        if event not in ("call", "c_return") or not frame.f_code.co_filename.startswith(PACKAGE):
            return
        if frame.f_code.co_flags & inspect.CO_GENERATOR:  # Python drops what is raised as one is closed
            return
        if not self._begun:  # the function itself begins, which nothing can help
            self._begun = True
            return
        self.seen.append((frame.f_code.co_filename[len(PACKAGE) :], frame.f_lineno))
        if len(self.seen) - 1 == self._at:
            self.thrown = f"{self.seen[-1][0]}:{self.seen[-1][1]}"
            self._throw()
