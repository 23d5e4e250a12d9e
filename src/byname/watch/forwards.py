"""Forwards: when a forward of a model begins and ends; each outermost one is an iteration."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from torch import nn

from byname.watch.attachment import Running
from byname.watch.handle import Handle
from byname.watch.hooks import Hooks
from byname.watch.parameters import States

__all__ = ["Iterations", "follow_forwards"]


def follow_forwards(
    model: nn.Module,
    begun: Callable[[int], object],
    ended: Callable[[], object],
    *,
    enabled: bool = True,
    well: Callable[[], None] | None = None,
) -> Handle:
    """Call functions when outermost forwards of a model begin and end; compiled functions stay compiled.

        >>> import torch
        >>> model = torch.nn.Linear(2, 3)
        >>> with follow_forwards(model, begun=lambda number: print("forward", number), ended=lambda: print("ended")):
        ...     _ = model(torch.ones(1, 2))
        forward 0
        ended

    Args:
        model: the module itself, without wrappers.
        begun: is called with the number of each that begins.
        ended: is called after each, also one that raised.
        enabled: whether this is so at once; what is attached to the model later is told of a forward later, too.
        well: is called before `ended` where a forward did not raise and was told of as a whole; what it raises comes
            out of the forward.
    """
    running = Running(model, _nothing, reads=True)
    iterations = Iterations(running, States(running, ()), _nothing, well or _nothing, begun, ended)
    first, last = Hooks(model, running), Hooks(model, running)
    iterations.begin_with(first)
    iterations.end_with(last)
    handle = Handle([running, first, last, iterations], running.paths, running.notes)
    return handle.switched(enabled)


def _nothing(*_: object) -> None:
    """Do nothing with values."""


class _Here(threading.local):
    ended_well = False
    begun_in = -1


class Iterations:
    """Follow the forwards of a model, and run what is due when one begins or ends.

    Args:
        running: numbers the iterations.
        states: the parameters and buffers that are wanted.
        began: is called when an outermost forward begins, and when it has ended: nothing is open then.
        ended: is called when an outermost forward has ended well that was told as a whole; it may raise.
        numbered: is called with the number of an outermost forward that begins.
        over: is called when all is done after an outermost forward, also one that raised.
    """

    def __init__(
        self,
        running: Running,
        states: States,
        began: Callable[[], None],
        ended: Callable[[], None],
        numbered: Callable[[int], object] | None = None,
        over: Callable[[], object] | None = None,
    ) -> None:
        self._running = running
        self._states = states
        self._began = began
        self._ended = ended
        self._numbered = numbered
        self._over = over
        self._here = _Here()
        self._time = 0
        self._whole = False

    def install(self) -> None:
        """Begin to report; all taps are installed, so what runs from now on is reported completely."""
        self._time += 1
        self._whole = True

    def remove(self) -> None:
        """End; a forward that still runs is reported only in part."""
        self._whole = False

    def begin_with(self, hooks: Hooks) -> None:
        """Register the hook that must run before all others of the attachment."""
        hooks.before(self._running.model, self._begin)

    def end_with(self, hooks: Hooks) -> None:
        """Register the hooks that must run after all others of the attachment."""
        hooks.after(self._running.model, self._well)
        hooks.after(self._running.model, self._end, always=True)

    def _begin(self, *_: Any) -> None:
        if self._running.listening and self._running.enter():
            if self._numbered is not None:
                self._numbered(self._running.iteration)
            self._here.ended_well = False
            self._here.begun_in = self._time if self._whole else -1
            self._began()
            self._states.begin()

    def _well(self, *_: Any) -> None:
        if self._running.outermost:
            self._here.ended_well = True

    def _end(self, *_: Any) -> None:
        outermost = self._running.leave()
        if outermost:
            self._began()  # what is still open lost its hooks when another thread came to know what is wanted
            self._states.put_back()
            if not self._here.ended_well:
                self._running.spoil(sys.exception())
            else:
                self._here.ended_well = False
                self._states.end()
                if self._whole and self._here.begun_in == self._time:  # else another thread attached or removed it
                    self._ended()
            if self._over is not None:
                self._over()
