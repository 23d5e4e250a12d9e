"""What do the tasks and futures of ``asyncio`` hold, and which tasks are there? Asked only once it is loaded."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from itertools import chain
from types import FrameType
from typing import Any

from byname.naming.children.builtin import held_inside, leads_on
from byname.naming.children.step import Held, Step, attribute, same, suffix
from byname.reading.frames import locals_of
from byname.reading.objects import attributes_of, found_in, parents_of, reads_plainly

__all__ = ["FUTURES", "held_by_future", "is_late_future", "living_tasks"]


def _futures() -> tuple[Any, ...]:
    module: Any = sys.modules.get("_asyncio")
    return () if module is None else (module.Future, module.Task)


FUTURES = _futures()
"""The classes of tasks and futures, as ``asyncio`` has them in C; PyTorch has mostly loaded it."""


def is_late_future(kind: type) -> bool:
    """Whether a class is one of them where ``asyncio`` was loaded after byname."""
    return not FUTURES and issubclass(kind, _futures())


def held_by_future(obj: Any) -> Held:
    """A task's coroutine, a future's result or error, and who waits for it; not the loop, which holds every task."""
    tasks: Any = sys.modules["_asyncio"]
    known = [_field(obj, tasks.Future, "_loop")]
    if issubclass(type(obj), tasks.Task):
        coroutine = _field(obj, tasks.Task, "_coro")
        known.append(coroutine)
        if leads_on(coroutine):
            yield same, Step("task", suffix(".get_coro()"), _reads(obj, "get_coro")), coroutine
    for name in ("_result", "_exception"):
        value = _field(obj, tasks.Future, name)
        known.append(value)
        if leads_on(value):
            yield same, attribute(name, _reads(obj, name)), value
    for one in gc.get_referents(obj):
        if not any(one is value for value in known):
            yield from held_inside(one)


def _reads(obj: object, name: str) -> bool:
    """Whether an attribute of a future is the one that its class in C has."""
    kind = type(obj)
    own = next(parent for parent in parents_of(kind) if any(parent is future for future in _futures()))
    return reads_plainly(kind) and found_in(kind, name) is found_in(own, name)


def _field(obj: object, kind: type, name: str) -> Any:
    """One of a future's own fields, which asking for its result would mark as read; None before it has been set up."""
    try:
        return vars(kind)[name].__get__(obj)
    except RuntimeError:
        return None


def living_tasks() -> Iterator[tuple[str, object]]:
    """Every task of every event loop with its name, where the program uses ``asyncio`` at all."""
    tasks: Any = sys.modules.get("asyncio.tasks")
    if tasks is None:
        return
    kinds = [kind for kind in (vars(tasks).get("Task"), vars(tasks).get("_PyTask")) if kind is not None]
    for task in chain(_registered(tasks), _of_running_loops()):
        kind = next((kind for kind in kinds if issubclass(type(task), kind)), None)
        if kind is not None:
            yield str(kind.get_name(task)), task


def _registered(tasks: Any) -> Iterator[object]:
    """The tasks that ``asyncio`` has in sets of weak references: up to Python 3.13 all of them."""
    for registry in ("_scheduled_tasks", "_all_tasks"):
        found = vars(tasks).get(registry)
        references = attributes_of(found).get("data") if found is not None else None
        for reference in _steady(references):
            yield reference()


def _of_running_loops() -> Iterator[object]:
    """The tasks of the loops that run: since Python 3.14 they are in lists of C, and asked for by their loop."""
    tasks_of, loops = _of_module("_asyncio", "all_tasks"), _of_module("asyncio.base_events", "BaseEventLoop")
    if tasks_of is None or loops is None:
        return
    code = loops.run_forever.__code__
    for innermost in sys._current_frames().values():
        frame: FrameType | None = innermost
        while frame is not None:
            if frame.f_code is code:
                yield from tasks_of(dict(locals_of(frame))["self"])
            frame = frame.f_back


def _of_module(module: str, name: str) -> Any:
    """What a module defines, if it is loaded and does."""
    loaded = sys.modules.get(module)
    return None if loaded is None else vars(loaded).get(name)


def _steady(references: Any) -> list[Any]:
    """The members of a set that other threads may be changing."""
    for _ in range(5):
        try:
            return list(references) if type(references) is set else []
        except RuntimeError:
            continue
    return []
