"""What does an error keep alive? The variables of every function that it passed, and what was put into it."""

from __future__ import annotations

import gc
import types
from typing import Any

from byname.naming.children.attributes import own_attribute
from byname.naming.children.step import ATOMS, Held, Step, attribute, same, suffix
from byname.reading.frames import in_a_module, locals_of, stacks
from byname.reading.objects import attributes_of, found_in, namespace_of, parents_of, reads_plainly, snapshot
from byname.source.location import is_torch

__all__ = ["held_by_error", "held_by_frame", "held_by_traceback"]


def held_by_error(obj: Any) -> Held:
    """The variables along an error's traceback, its arguments and fields, other errors, and its attributes."""
    kind = type(obj)
    own = reads_plainly(kind)
    traceback = _traceback_of(obj)
    if traceback is not None:
        evaluates = own and found_in(kind, "__traceback__") is _TRACEBACK
        yield from _variables_along(traceback, ".__traceback__", "the traceback of ", evaluates)
    for name in ("args", "__cause__", "__context__"):
        descriptor: Any = namespace_of(BaseException)[name]
        value = descriptor.__get__(obj)
        if type(value) not in ATOMS:
            yield same, attribute(name, own and found_in(kind, name) is descriptor), value
    for parent in parents_of(kind):
        for name, field in list(namespace_of(parent).items()):
            if type(field) is types.MemberDescriptorType:
                yield from _field(obj, name, field, own and found_in(kind, name) is field)
    if any(type(held) is dict for held in gc.get_referents(obj)):  # asking for the dict would make one
        for name, value in snapshot(attributes_of(obj)):
            if type(name) is str and type(value) not in ATOMS:
                yield own_attribute, (kind, name), value


_TRACEBACK: Any = namespace_of(BaseException)["__traceback__"]


def _traceback_of(error: Any) -> types.TracebackType | None:
    found: types.TracebackType | None = _TRACEBACK.__get__(error)
    return found


def _field(obj: Any, name: str, field: types.MemberDescriptorType, evaluates: bool) -> Held:
    """What an error has in a field of its class: the value of a StopIteration, the errors of a group, a slot."""
    try:
        value = field.__get__(obj)
    except AttributeError:
        return
    if type(value) not in ATOMS and type(value) is not dict:
        yield same, attribute(name, evaluates), value


def held_by_traceback(obj: types.TracebackType) -> Held:
    """The variables of the functions that a traceback tells of."""
    return _variables_along(obj, "", "", True)


def held_by_frame(obj: types.FrameType) -> Held:
    """The variables of a function that has returned, and of those above it that have; running ones are roots."""
    running = stacks()
    if id(obj) in running:
        return
    for name, value in _variables_of(obj, running):
        yield _kept_by_frame, (name, obj.f_code.co_name), value
    above = obj.f_back
    if above is not None and id(above) not in running:
        yield same, attribute("f_back"), above


def _variables_along(traceback: types.TracebackType, start: str, owner: str, evaluates: bool) -> Held:
    running = stacks()
    here: types.TracebackType | None = traceback
    depth = 0
    while here is not None:
        frame = here.tb_frame
        for name, value in _variables_of(frame, running):
            yield _kept_by_traceback, (name, frame.f_code.co_name, depth, start, owner, evaluates), value
        here, depth = here.tb_next, depth + 1


def _variables_of(frame: types.FrameType, running: frozenset[int]) -> list[tuple[str, Any]]:
    """The variables of a frame at rest; none of PyTorch's own functions."""
    if id(frame) in running or is_torch(frame.f_code.co_filename) or in_a_module(frame):
        return []
    return [(name, value) for name, value in locals_of(frame) if type(value) not in ATOMS]


def _kept_by_traceback(found: tuple[str, str, int, str, str, bool]) -> Step:
    name, function, depth, start, owner, evaluates = found
    source = f"{start}{'.tb_next' * depth}.tb_frame.f_locals[{name!r}]"
    return Step(
        "traceback",
        suffix(source),
        evaluates and depth < _WRITABLE,
        label=name,
        note=lambda before: f"local of {function}, kept by {owner}{before}",
    )


_WRITABLE = 500
"""How many ``.tb_next`` Python's parser takes in a row, and more than anybody reads."""


def _kept_by_frame(found: tuple[str, str]) -> Step:
    name, function = found
    source = suffix(f".f_locals[{name!r}]")
    return Step("traceback", source, label=name, note=lambda before: f"local of {function}, kept by {before}")
