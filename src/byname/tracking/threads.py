"""How does what goes on in a thread reach the threads that are started there? By a context around each thread's run."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from byname.reading.objects import attributes_of, found_in
from byname.source.tracebacks import clean

__all__ = ["NEW_THREADS"]

_Context = Callable[[], AbstractContextManager[Any]]


class _NewThreads:
    """Puts contexts around whatever a thread started meanwhile runs; ``Thread.start`` is wrapped for that long."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._contexts: tuple[_Context, ...] = ()
        self._original: Callable[..., None] | None = None
        self._ours: Any = None

    def begin(self, context: _Context) -> None:
        """Threads that are started from now on run in a context of their own, which `context` makes."""
        with self._lock:
            self._contexts = (*self._contexts, context)
            if self._ours is None:
                self._wrap()

    def end(self, context: _Context) -> None:
        """Those that are started from now on do not; once more does nothing."""
        with self._lock:
            self._contexts = tuple(one for one in self._contexts if one is not context)
            if not self._contexts:
                self._unwrap()

    def _wrap(self) -> None:
        original = threading.Thread.start

        def start(thread: threading.Thread) -> None:
            if _is_computed(found_in(type(thread), "run")):
                return original(thread)
            own = attributes_of(thread)
            former = own.get("run", _NONE)
            own["run"] = ours = functools.partial(_in_contexts, thread, former, self._contexts)
            try:
                original(thread)
            except BaseException:
                if own.get("run") is ours:
                    _restore(own, former)
                raise
            return None

        self._original, self._ours = original, start
        threading.Thread.start = start  # type: ignore[method-assign, assignment]

    def _unwrap(self) -> None:
        """Puts the original back, unless somebody else has replaced it since."""
        if self._ours is not None and threading.Thread.start is self._ours:
            threading.Thread.start = self._original  # type: ignore[method-assign, assignment]
        self._original = self._ours = None


def _in_contexts(thread: threading.Thread, former: object, contexts: tuple[_Context, ...]) -> None:
    """Runs a thread within the contexts that were there when it was started, and leaves the thread as it was."""
    _restore(attributes_of(thread), former)
    with ExitStack() as entered:
        for context in contexts:
            entered.enter_context(context())
        try:
            thread.run()
        except BaseException:
            _report_cleaned(attributes_of(thread))
            raise


def _report_cleaned(own: dict[str, Any]) -> None:
    """Lets a thread report its error without the frame that stands here between the thread and its ``run``."""
    report = own.get("_invoke_excepthook")
    if report is None:  # private to Thread: a version without it shows the frame
        return

    def cleaned(thread: threading.Thread) -> None:
        own["_invoke_excepthook"] = report
        error = sys.exc_info()[1]
        if error is not None:
            clean(error)
        report(thread)

    own["_invoke_excepthook"] = cleaned


def _is_computed(attribute: object) -> bool:
    """Whether a class computes an attribute, as by a property, so that one of the object's own would not be seen."""
    return hasattr(type(attribute), "__set__")


def _restore(own: dict[str, Any], former: object) -> None:
    """Puts back a thread's own ``run``, which most threads have none of."""
    if former is _NONE:
        own.pop("run", None)
    else:
        own["run"] = former


_NONE = object()

NEW_THREADS = _NewThreads()
"""One for the process, because what it wraps is an attribute of the process; it is empty while nobody asks."""
