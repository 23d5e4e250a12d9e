"""Calls: each call of a module is shown to a function before it begins, until that has found its module."""

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


class _CallDepth(threading.local):
    depth = 0


class Calls:
    """Replacement of ``nn.Module.__call__`` that shows each call to a function, until that has found its module.

    The tracer of `torch.fx` replaces it, too. A global hook would come too late: hooks made inside of it are not run
    for that call, and `torch.compile` warns of global hooks. Until the module is found
    compiled functions run eagerly, for nothing could be seen in them.

    Args:
        look: called with a module and whether no other module calls it; returns True where that is the one.
    """

    def __init__(self, look: Callable[[nn.Module, bool], bool]) -> None:
        self._look = look
        self._looking = threading.Lock()
        self._thread = _CallDepth()
        self._process = os.getpid()
        self._patch = Patch(nn.Module, "__call__", self._shown)
        self._undo = Undo()
        self._found = False

    def begin(self) -> None:
        """Show calls from now on."""

        def compiled() -> None:
            """Do nothing when a compiled function is called."""

        try:
            self._undo.add(EAGERLY.release, compiled)
            EAGERLY.hold(compiled)
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
        """Show no more calls; a second time does nothing."""
        self._found = True
        self._undo()

    def _sees(self) -> bool:
        """Return whether a call that begins now is the program's, and not a tracer's or that of a forked process."""
        if self._found or asleep() or os.getpid() != self._process or torch._C._get_tracing_state() is not None:
            return False
        # In `torch.export` tensors have no values.
        return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is None

    def _show(self, module: nn.Module, outermost: bool) -> None:
        if self._looking.acquire(blocking=False):  # one thread finds it, and none waits
            try:
                if not self._found and self._look(module, outermost):
                    self.end()
            finally:
                self._looking.release()
