"""Which roots has a program besides its variables? Tasks, errors that Python remembers, hooks for every module."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

from byname.naming.children.futures import living_tasks
from byname.naming.children.hooks import hooks_for_all

__all__ = ["hidden_places"]


def hidden_places() -> Iterator[tuple[str, object, str, bool]]:
    """What each is called, the object, the scope, and whether what it is called evaluates there."""
    for name, task in living_tasks():
        yield f"task {name}", task, "asyncio", False
    for module, source, hooks in hooks_for_all():
        yield source, hooks, module, True
    yield from _errors()


def _errors() -> Iterator[tuple[str, object, str, bool]]:
    """The last error that nobody caught, as an interactive session keeps it, and those that are being handled."""
    for name in ("last_exc", "last_value"):
        error = vars(sys).get(name)
        if error is not None:
            yield f"sys.{name}", error, "__main__", vars(sys.modules["__main__"]).get("sys") is sys
    handled: Any = getattr(sys, "_current_exceptions", dict)()
    for ident, error in handled.items():
        error = error[1] if type(error) is tuple else error  # up to Python 3.11: class, error, traceback
        if error is not None:
            yield _handled_in(ident), error, "sys", False


def _handled_in(ident: int) -> str:
    if ident == threading.get_ident():
        return "sys.exc_info()[1]"
    threads = {thread.ident: thread.name for thread in list(vars(threading)["_active"].values())}
    return f"the error handled in {threads.get(ident, 'a thread')}"
