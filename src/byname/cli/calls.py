"""Which modules does a program call, until one of them is the one looked for?"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.fx  # keeps for its traces the call of a module as it is now, so that none of theirs is shown
from torch import nn

from byname.reading.quiet import dynamo_skip
from byname.tracing.eager import EAGERLY
from byname.tracing.muted import asleep
from byname.undo import Patch, Undo


class _Thread(threading.local):
    depth = 0


class Calls:
    """Shows every call of a module to a function before it begins, until that has seen the one it looks for.

    It stands in for ``nn.Module.__call__``, as the tracer of `torch.fx` does. A global hook would come too late: hooks
    that are made inside of it are not run for that call, and `torch.compile` warns of global hooks. Until the one is
    found compiled functions run eagerly, for nothing could be seen in them.

    Args:
        look: is given a module and whether it is an outermost one, called inside no other; True ends the search.
    """

    def __init__(self, look: Callable[[nn.Module, bool], bool]) -> None:
        self._look = look
        self._looking = threading.Lock()
        self._thread = _Thread()
        self._process = os.getpid()
        self._patch = Patch(nn.Module, "__call__", self._shown)
        self._undo = Undo()
        self._found = False

    def begin(self) -> None:
        """From now on calls are shown."""

        def note() -> None:
            """Nobody wants to know of compiled functions that are called."""

        try:
            self._undo.add(EAGERLY.release, note)
            EAGERLY.hold(note)
            self._undo.add(self._patch.remove)
            self._patch.install()
        except BaseException:
            self._undo()
            raise

    def _shown(self, before: Callable[..., Any]) -> Callable[..., Any]:
        """Return a replacement for the call of a module."""

        @dynamo_skip
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not self._sees():
                return before(module, *args, **kwargs)
            outermost = not self._thread.depth
            self._thread.depth += 1
            try:
                self._show(module, outermost)
                return before(module, *args, **kwargs)
            finally:
                self._thread.depth -= 1

        return call

    def end(self) -> None:
        """No longer; once more does nothing."""
        self._found = True
        self._undo()

    def _sees(self) -> bool:
        """Whether a call that begins now is one of the program's, and not a tracer's or that of a forked process."""
        if self._found or asleep() or os.getpid() != self._process:
            return False
        return torch._C._get_tracing_state() is None and _fake_mode() is None

    def _show(self, module: nn.Module, outermost: bool) -> None:
        if self._looking.acquire(blocking=False):  # one thread finds it, and none waits
            try:
                if not self._found and self._look(module, outermost):
                    self.end()
            finally:
                self._looking.release()


def _fake_mode() -> Any:
    """The mode under which tensors have no values, as in `torch.export`; None outside of it."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
