"""Which operation first turned finite numbers into NaN or Inf? A watch over the forward pass and over every backward.

In the forward pass a function mode follows them from the call that made them. In backward a hook on every node finds
the first whose incoming gradients are finite and whose outgoing ones are not.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from byname.autograd.walk import Walk
from byname.diagnose.finding import Finding
from byname.diagnose.nonfinite.backward import WatchedRun, of_backward
from byname.diagnose.nonfinite.forward import of_forward
from byname.diagnose.nonfinite.numbers import is_finite
from byname.diagnose.nonfinite.origins import Origins, OriginsMode
from byname.errors import NoGraphError, NotATensorError
from byname.reading.frames import caller
from byname.source.location import locate

__all__ = ["FiniteWatch"]


class FiniteWatch:
    """Reports, once for each line, what first turned finite numbers into NaN or Inf.

    Args:
        report: is called with each finding, in the thread that ran backward.
    """

    def __init__(self, report: Callable[[Finding], None]) -> None:
        self._report = report
        self._origins = Origins()
        self._told: set[tuple[Any, ...]] = set()
        self._local = threading.local()

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Follows what this thread computes."""
        mode = self.following()
        try:
            mode.start()
            yield
        finally:
            mode.stop()

    def following(self) -> OriginsMode:
        """What follows the computations of this thread from its ``start()`` to its ``stop()``."""
        return OriginsMode(self._origins)

    def before_backward(self, roots: Sequence[Any], inputs: Any = None) -> None:
        """To be called before each run of the engine, in its thread, and always followed by `after_backward`."""
        runs = self._runs()
        runs.append(None)
        walk = _walk(roots)
        if walk is None:
            return
        frame = caller()
        place = None if frame is None else locate(frame.f_code, frame.f_lasti)
        bad = [root for root in walk.tensors if not is_finite(root)]
        if bad:
            self._tell(*of_forward(walk, bad[0], self._origins, place))
        else:
            runs[-1] = WatchedRun(walk, place)

    def after_backward(self) -> None:
        """Takes the hooks away again, and reports."""
        run = self._runs().pop()
        if run is None:
            return
        run.remove_hooks()
        if run.offence is not None:
            for outer in self._runs():
                if outer is not None:
                    outer.done = True
            self._tell(*of_backward(run, run.offence))

    def _tell(self, key: tuple[Any, ...], finding: Finding) -> None:
        if key not in self._told:
            self._told.add(key)
            self._report(finding)

    def _runs(self) -> list[WatchedRun | None]:
        if not hasattr(self._local, "runs"):
            self._local.runs = []
        runs: list[WatchedRun | None] = self._local.runs
        return runs


def _walk(roots: Sequence[Any]) -> Walk | None:
    compiled = sys.modules.get("torch._dynamo.compiled_autograd")
    if compiled is not None and compiled.compiled_autograd_enabled:
        return None  # hooks would be compiled into the graph
    try:
        return Walk(tuple(roots))
    except (NoGraphError, NotATensorError):  # the engine says so itself, and better
        return None
