"""How does what goes on in a thread reach the threads that are started there? By a context around each thread's run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

__all__ = ["NEW_THREADS"]

_Context = Callable[[], AbstractContextManager[Any]]


class _NewThreads:
    """Puts contexts around whatever a thread started meanwhile runs; ``Thread.start`` is wrapped for that long."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._contexts: tuple[_Context, ...] = ()
        self._original: Callable[..., None] | None = None
        self._ours: Any = None

    @contextmanager
    def within(self, context: _Context) -> Iterator[None]:
        """Threads started in this block run in a context of their own, which `context` makes."""
        with self._lock:
            self._contexts = (*self._contexts, context)
            if self._original is None:
                self._wrap()
        try:
            yield
        finally:
            with self._lock:
                self._contexts = tuple(one for one in self._contexts if one is not context)
                if not self._contexts:
                    self._unwrap()

    def _wrap(self) -> None:
        original = self._original = threading.Thread.start

        def start(thread: threading.Thread) -> None:
            contexts = self._contexts
            run = thread.run
            if contexts and "__dict__" in dir(thread):
                thread.run = lambda: _in_contexts(thread, run, contexts)  # type: ignore[method-assign]
            original(thread)

        self._ours = start
        threading.Thread.start = start  # type: ignore[method-assign, assignment]

    def _unwrap(self) -> None:
        """Puts the original back, unless somebody else has replaced it since."""
        if threading.Thread.start is self._ours:
            threading.Thread.start = self._original  # type: ignore[method-assign, assignment]
        self._original = self._ours = None


def _in_contexts(thread: threading.Thread, run: Callable[[], None], contexts: tuple[_Context, ...]) -> None:
    """Runs a thread within the contexts that were there when it was started, and leaves the thread as it was."""
    vars(thread).pop("run", None)
    with ExitStack() as entered:
        for context in contexts:
            entered.enter_context(context())
        run()


NEW_THREADS = _NewThreads()
"""One for the process, because what it wraps is an attribute of the process; it is empty while nobody asks."""
