"""Attachment: the state of one attachment while the model runs, and the events that it makes for its callback."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import nn

from byname.errors import NoMatchError
from byname.model.selectors import Selector
from byname.model.spot import Meaning
from byname.reading.frames import CODE_OF_A_MODULES_CALL
from byname.text import note_on
from byname.tracing.muted import asleep, of_thread, unheard
from byname.watch.heard import Heard, in_words
from byname.watch.replacement import conversion
from byname.watch.value_gradients import of_thread as hooked
from byname.watch.value_gradients import without_superseded

__all__ = ["Before", "Callback", "Event", "Running", "order_of_attaching", "runs"]


@dataclass(slots=True, eq=False)
class Event:
    """A value at a place, as a callback gets it.

    Attributes:
        path: the place, without wildcards: ``"layers.0.attn.softmax_1"``.
        module: the module called, or the one that owns the variable, operation or parameter.
        value: the value itself, not a copy.
        inputs: what the call was given, positional arguments first, then those given by keyword; empty for places that
            are no calls. A module that works in place has changed them by now.
        call: how many times this place was reached before in this iteration.
        recomputed: whether a checkpoint runs this part a second time, for the backward pass.
        iteration: the number of the forward of the whole model, from 0; -1 where a part of the model runs before the
            first. In a backward, and so in the second run of a checkpoint, it is that of the latest forward; the
            gradient of a value has the iteration and call of the value.
        before: what ``before`` returned when the call began; of the gradient of a value what ``stamp`` returned when
            the value passed.
        kind: what is at the place: ``module`` (what a module returned), ``input`` (what it was called with),
            ``operation``, ``variable``, ``parameter`` or ``buffer``; that of its gradient is the same.
    """

    path: str
    module: nn.Module
    value: Any
    inputs: tuple[Any, ...]
    call: int
    recomputed: bool
    iteration: int
    before: Any = None
    kind: str = ""


Callback = Callable[[Event], Any]
Before = Callable[[str, nn.Module, tuple[Any, ...], dict[str, Any]], Any]

order_of_attaching = itertools.count()
"""Numbers attachments, so that those of one place run in the order in which they were made."""


class Here:
    """The state of an attachment in one thread.

    Attributes:
        iteration: the number of the outermost forward that runs, or ran last; -1 before the first.
        calls: how often each place was reached in it.
        again: the same for the second runs of checkpoints, in the backward that is known by `task`.
        inside: in how many callbacks the outermost forward runs that runs now; -1 in one of the model's own.
        converted: what was put in of another dtype, or on another device, in sentences.
        busy, modes: those of `byname.tracing.muted.of_thread`.
        latest: the latest hook of a hidden base, of any attachment.
    """

    __slots__ = (
        "again",
        "busy",
        "calls",
        "converted",
        "depth",
        "inside",
        "iteration",
        "latest",
        "modes",
        "task",
    )

    def __init__(self) -> None:
        self.latest = hooked.latest
        self.busy = of_thread.busy
        self.modes = of_thread.modes
        self.iteration = -1
        self.depth = 0
        self.calls: dict[str, int] = {}
        self.again: dict[str, int] = {}
        self.task = -1
        self.inside = 0
        self.converted: dict[str, None] = {}


class _Thread(threading.local):
    """The states of all threads, each made on first use."""

    def __init__(self) -> None:
        self.here = Here()


class Running:
    """The running attachment: it numbers the values and calls the callback with them.

    Args:
        model: the model of which the outermost forward is an iteration.
        callback: is called with an `Event`.
        before: is called when a matched call begins.
        reads: whether the callback only looks.

    Attributes:
        reader: the callback that only looks, or the object that it is a method of; None for one that takes part.
        order: the number of the attachment.
        needs_forward: whether places are wanted that are told only while the model's own forward runs.
        listening: whether anything is to be told; what was hooked to an earlier graph is silent once it is not.
        everything: whether every call of a place is told; not while only some of them are selected.
        thread: what it knows of the thread that asks.
        stamp: is called with the number of the forward when a value passes of which the gradient is waited for.
        begun: is called when a forward of the model begins, with its number, before anything of it is told.
        unmatched: is given an error for each path or selector of which the first forward came to nothing; what is
            attached then stays, for the sake of the others.
        hooked: hooks on tensors that outlive their graph.
        standing_in: what stands in the place of parameters at the moment.
        notes, paths: what the `Handle` shows.
        heard: which of the places that were asked for have told something.
        only: of places that are called several times and of which some calls were selected, the numbers of these.
    """

    def __init__(
        self, model: nn.Module, callback: Callback, before: Before | None = None, *, reads: bool = False
    ) -> None:
        self.model = model
        self.callback = callback
        self.before = before
        self.reader: object | None = getattr(callback, "__self__", callback) if reads else None
        self.reads = reads
        self.order = next(order_of_attaching)
        self.listening = False
        self.stamp: Callable[[int], object] | None = None
        self.begun: Callable[[int], object] | None = None
        self.unmatched: Callable[[NoMatchError], None] | None = None
        self.needs_forward = False
        self.hooked: dict[tuple[str, int], list[Any]] = {}
        self.standing_in: list[Any] = []
        self.notes: dict[str, None] = {}
        self.paths: dict[str, None] = {}
        self.heard = Heard(model, self.notes)
        self.only: dict[str, set[int]] = {}
        self.everything = False
        self.thread = _Thread()
        self._iterations = itertools.count()
        self._latest = -1

    @property
    def iteration(self) -> int:
        """The number of the forward that runs in this thread; if none runs, as in a backward, of the latest one."""
        mine = self.thread.here.iteration
        return mine if mine >= 0 else self._latest

    @property
    def label(self) -> str:
        """What the callback calls itself."""
        name = getattr(self.callback, "label", None) or getattr(self.callback, "__qualname__", None)
        return str(name or type(self.callback).__name__)

    def ask(self, meaning: Meaning, selectors: Iterable[Selector]) -> None:
        """Note what was requested, and show the places that are known already."""
        for asked, spots in meaning.asked:
            self.heard.ask(in_words(asked), spots)
        for selector in selectors:
            self.heard.ask(in_words(selector), (), selector)
        self.notes.update(dict.fromkeys(meaning.notes))
        self.paths.update((spot.full, None) for spot in meaning.spots if not spot.items and spot.kind != "operation")

    def install(self) -> None:
        """Begin to report values."""
        self.listening = True
        self.everything = not self.only

    def remove(self) -> None:
        """Stop reporting."""
        if self.listening and self.needs_forward and self._latest < 0:
            self.notes.setdefault(
                "no forward of the model began while this was attached: its operations, parameters and buffers are "
                "told only in one"
            )
        self.listening = self.everything = False
        for hooks in self.hooked.values():
            for hook in hooks:
                hook.remove()
        self.hooked.clear()

    def hook_leaf(self, key: tuple[str, int], hook: Any) -> None:
        """Keep the hook of a leaf, which outlives the graph, and remove the one of an earlier iteration."""
        self.hooked[key] = [*without_superseded(self.hooked.get(key, ()), hook), hook]

    def unreached(self, paths: Iterable[str]) -> set[str]:
        """Return those of some places that this thread's iteration has not reached, nor an item of them."""
        called = self.thread.here.calls
        reached = set(called)
        for path in called:
            reached.update(path[:at] for at, mark in enumerate(path) if mark in "[.")
        return {path for path in paths if path not in reached}

    def enter(self) -> bool:
        """Note the beginning of a forward of the model; return whether it is an outermost one."""
        thread = self.thread.here
        if thread.depth and not runs(self.model, 2):
            thread.depth = 0  # an interrupt came between the hooks of an earlier forward
        thread.depth += 1
        if thread.depth > 1:
            return False
        busy = thread.busy
        thread.inside = -1 if any(one.model is self.model for one in busy) else len(busy)
        thread.converted.clear()
        if not self.hears():
            return False
        self._latest = thread.iteration = next(self._iterations)
        self.heard.forwards += 1
        thread.calls.clear()
        return True

    def leave(self) -> bool:
        """Note the end of a forward of the model; return whether it was an outermost one."""
        thread = self.thread.here
        if not thread.depth:  # it had begun when this was attached
            return False
        hears = self.hears()
        thread.depth -= 1
        return thread.depth == 0 and hears

    @property
    def outermost(self) -> bool:
        """Return whether the forward of the model that runs in this thread is inside no other."""
        return self.thread.here.depth == 1

    def hears(self) -> bool:
        """Return whether values of this thread are reported: not those of an example run or of calls by a callback.

        What a callback calls of a model whose forward has come to the callback is no part of that forward. Another
        model that it runs is told of.
        """
        if asleep(self.reader):
            return False
        thread = self.thread.here
        busy = thread.busy
        if not busy:
            return True
        if thread.depth:
            return len(busy) <= thread.inside
        return not any(one.model is self.model for one in busy)

    def spoil(self, error: BaseException | None) -> None:
        """Add to the error of an outermost forward what was put in and may be the reason."""
        if isinstance(error, RuntimeError | TypeError | IndexError | ValueError):
            for sentence in self.thread.here.converted:
                if sentence not in getattr(error, "__notes__", ()):
                    error.add_note(sentence)

    def replaced(self, event: Event, new: Any) -> None:
        """Note whether a replacement has another dtype or device."""
        change = conversion(event.value, new)
        if change:
            self.notes.setdefault(f"`{event.path}`: {change}")
            self.thread.here.converted.setdefault(f"byname: at `{event.path}` {change}")

    def event(
        self,
        path: str,
        module: nn.Module,
        value: Any,
        inputs: tuple[Any, ...] = (),
        before: Any = None,
        kind: str = "",
    ) -> Any:
        """Report a value; return what replaces it."""
        if not self.hears():
            return value
        recomputed = _graph_task() != -1
        thread = self.thread.here
        calls = self._again() if recomputed else thread.calls
        call = calls.get(path, 0)
        calls[path] = call + 1
        iteration = thread.iteration if thread.iteration >= 0 else self._latest
        return self.told(Event(path, module, value, inputs, call, recomputed, iteration, before, kind))

    def number(self, path: str) -> tuple[int, int, bool]:
        """Return iteration, call and whether it is recomputed, for a value whose gradient alone will be reported."""
        recomputed = _graph_task() != -1
        calls = self._again() if recomputed else self.thread.here.calls
        call = calls.get(path, 0)
        calls[path] = call + 1
        return self.iteration, call, recomputed

    def told(self, event: Event) -> Any:
        """Call the callback, unless this call was not selected; return what replaces the value."""
        value = event.value
        if not self.listening or (self.only and event.call not in self.only.get(event.path, (event.call,))):
            return value
        if event.path not in self.heard.reached:
            self.heard.reached.add(event.path)
            self.paths.setdefault(event.path)
        return self.call(event)

    def call(self, event: Event) -> Any:
        """Call the callback, whose own calls are not reported; return what replaces the value."""
        here = self.thread.here
        modes, busy = here.modes, here.busy
        try:
            busy.append(self)
            if not modes:
                result = self.callback(event)
            elif len(modes) == 1:  # the most frequent case, written out because every value pays for it
                mode = modes[0]
                frame, mode.frame = mode.frame, None
                try:
                    result = self.callback(event)
                finally:
                    if not mode.gone:
                        mode.frame = frame
            else:
                with unheard():
                    result = self.callback(event)
        except Exception as error:
            self.blame(event, error)
            raise
        finally:
            if busy and busy[-1] is self:  # an interrupt may have come before it was known to begin
                busy.pop()
        value = event.value
        if result is None or result is value:
            return value
        self.replaced(event, result)
        return result

    def blame(self, event: Event, error: Exception) -> None:
        """Add the place to an error of the callback."""
        note_on(error, f"byname: at `{event.path}` (call {event.call} of iteration {event.iteration})")

    def begins(self, path: str, module: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Handle the beginning of a matched call; return what the callback will find in ``event.before``."""
        if self.before is None or not self.hears():
            return None
        with unheard(self):
            return self.before(path, module, inputs, kwargs)

    def _again(self) -> dict[str, int]:
        thread = self.thread.here
        task = _graph_task()
        if task != thread.task:
            thread.task = task
            thread.again.clear()
        return thread.again


def runs(model: nn.Module, calls: int = 1) -> bool:
    """Return whether this module is being called in this thread, or `calls` times, one inside the other."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is CODE_OF_A_MODULES_CALL and frame.f_locals.get("self") is model:
            calls -= 1
            if not calls:
                return True
        frame = frame.f_back
    return False


_graph_task: Callable[[], int] = torch._C._current_graph_task_id
