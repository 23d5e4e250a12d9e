"""Spawned: byname in processes that a program starts with a new Python.

`multiprocessing` gives each of them some data to prepare itself, which they unpickle before anything else.
"""

from __future__ import annotations

import multiprocessing.spawn
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

from byname.undo import Patch

_BEGIN = """
try:
    from byname.cli.run import watch_spawned
except ImportError:
    pass
else:
    watch_spawned({!r})
"""


class _Begin:
    """Is nothing but a statement that runs where it is unpickled; a process that cannot import byname goes on."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str, dict[str, Any]]]:
        return exec, (_BEGIN.format(self._options), {})


@contextmanager
def same_options_in_spawned(options: dict[str, Any]) -> Iterator[None]:
    """Have processes that the program starts by ``spawn`` or ``forkserver`` in the block begin with these options."""
    begin = _Begin(options)
    patch = Patch(
        multiprocessing.spawn, "get_preparation_data", lambda data: lambda name: {**data(name), "byname": begin}
    )
    patch.install()
    try:
        yield
    finally:
        patch.remove()


def run_inside(watchers_of: Callable[[], Sequence[AbstractContextManager[object]]]) -> None:
    """Have this new process run its function inside contexts, if its program has imported PyTorch by then."""
    bootstrap: Any = BaseProcess._bootstrap  # type: ignore[attr-defined]

    def watched(process: Any, *args: Any, **named: Any) -> Any:
        if "torch" in sys.modules:
            if getattr(process._target, "__module__", None) == "torch.multiprocessing.spawn":  # catches what it raises
                process._args = (_inside(watchers_of, process._args[0]), *process._args[1:])
            else:
                process.run = _inside(watchers_of, process.run)
        return bootstrap(process, *args, **named)

    BaseProcess._bootstrap = watched  # type: ignore[attr-defined]


def _inside(
    watchers_of: Callable[[], Sequence[AbstractContextManager[object]]], function: Callable[..., Any]
) -> Callable[..., Any]:
    def inside(*args: Any) -> Any:
        with ExitStack() as stack:
            for watcher in watchers_of():
                stack.enter_context(watcher)
            return function(*args)

    return inside
