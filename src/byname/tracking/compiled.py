"""Compiled functions under a tracker: they run compiled, with modes and patches out of the way.

The guards of compiled code check the stack of function modes and the functions that byname patches. So both are put
back as they were from the moment the compiler becomes active for a call until that call returns, and nothing is
compiled again. The log records the call as one. Where this is not possible (another version of the compiler, several
watched threads), compiled functions run eagerly instead, in the whole process.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any

import torch

from byname.reading.functions import MAKING
from byname.reading.modes import FUNCTIONS
from byname.reading.quiet import dynamo_skip
from byname.tracking.log import Called
from byname.tracking.mode import TrackingMode
from byname.undo import Patch

_SWITCH = "_maybe_set_eval_frame"
"""Name of the function by which PyTorch's compiler switches itself on for a call, and off after it (2.7 to 2.13)."""


@dataclass(frozen=True, slots=True)
class _Region:
    """A compiled function that is running."""

    frame: FrameType
    watches: list[TrackingMode]
    modes: list[Any]
    before: int


class Compiled:
    """The compiled functions that are running in watched threads.

    Args:
        watches: the tracking modes of each watched thread, by the thread's identifier.
        hide: a function that removes the patches.
        show: a function that puts them back.
    """

    def __init__(
        self, watches: Mapping[int, Sequence[TrackingMode]], hide: Callable[[], None], show: Callable[[], None]
    ) -> None:
        self._watches = watches
        self._hide, self._show = hide, show
        self._regions: dict[int, _Region] = {}
        self._patch: Patch | None = None
        self._stance: Any = None

    def watch(self) -> None:
        """Prepare compiled functions for being watched, if the compiler has been imported."""
        if "torch._dynamo" not in sys.modules:
            return
        frames = sys.modules["torch._dynamo.eval_frame"]
        if len(self._watches) > 1 or not self._can_switch(frames):
            self._run_eagerly()
        elif self._patch is None:
            self._patch = Patch(frames, _SWITCH, self._switching)
            self._patch.install()

    def unwatch(self) -> None:
        """Restore the compiler as it was."""
        self._regions.clear()
        if self._patch is not None:
            self._patch.remove()
            self._patch = None
        if self._stance is not None:
            self._stance.__exit__(None, None, None)
            self._stance = None

    def _run_eagerly(self) -> None:
        if self._stance is None:
            self._stance = torch.compiler.set_stance("force_eager")

    def _can_switch(self, frames: ModuleType) -> bool:
        active = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", None)
        if active is None or not callable(vars(frames).get(_SWITCH)):
            return False
        return self._patch is not None or active() is None

    def _switching(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a replacement for PyTorch's own switch: a compiled call begins and ends with a call of it."""

        @dynamo_skip
        def switch(callback: Any) -> Any:
            thread = threading.get_ident()
            region, frame = self._regions.get(thread), sys._getframe(1)
            if region is None:
                watches = list(self._watches.get(thread, ()))
                if watches and callback is not None and frame.f_code.co_name not in ("__enter__", "__exit__"):
                    self._begin(thread, frame, watches)
                return original(callback)
            prior = original(callback)
            if region.frame is frame:
                self._end(thread, region)
            return prior

        return switch

    def _begin(self, thread: int, frame: FrameType, watches: list[TrackingMode]) -> None:
        before = torch._C._autograd._get_sequence_nr()
        self._regions[thread] = _Region(frame, watches, FUNCTIONS.take_off(watches), before)
        self._hide()

    def _end(self, thread: int, region: _Region) -> None:
        del self._regions[thread]
        watching = [watch for watch in region.watches if not watch.stopped]
        self._show()
        FUNCTIONS.put_back(watching, region.modes)
        result = region.frame.f_locals.get("result")  # the frame is about to return it, and keeps it no longer
        for watch in watching:
            watch.note_unseen(_CALLED, (), result, region.before, region.frame)


_CALLED = Called("compiled", MAKING, False)
