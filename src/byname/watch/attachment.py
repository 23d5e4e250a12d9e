"""Attachment: the state of one attachment while the model runs, and the events that its callback is called with."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from byname.errors import NoMatchError, NothingSeenWarning
from byname.model.selectors import Selector
from byname.model.spot import Resolution
from byname.reading.frames import runs
from byname.source.tracebacks import warn
from byname.table import listed
from byname.tracing.muted import MUTED_RUNS, is_muted, muting, thread_state
from byname.watch.replacement import conversion_note
from byname.watch.requested import WARNED, Notes, PlaceNote, Requested, describe_request
from byname.watch.value_gradients import LeafHooks


@dataclass(slots=True, eq=False)
class Event:
    """A value at a place of a model; the argument of a callback.

    Attributes:
        path: the place, without wildcards: ``"layers.0.attn.softmax_1"``.
        module: the module that was called, or that owns the variable, operation or parameter.
        value: the value itself, not a copy.
        inputs: the arguments of the call, the positional ones first, then those given by keyword; empty if the place
            is not a call. A module that works in place has already changed them.
        call: how many times this place was reached before in this iteration.
        recomputed: whether a checkpoint runs this part a second time, for the backward pass.
        iteration: the number of the forward of the whole model, from 0; -1 if a part of the model runs before the
            first forward. During a backward, and so in the second run of a checkpoint, the number of the latest
            forward. The gradient of a value has the iteration and the call of the value.
        before: what ``before`` returned when the call began. For the gradient of a value: what ``stamp`` returned when
            the value was computed.
        kind: ``module`` (the output of a module), ``input`` (the arguments of a module), ``operation``, ``variable``,
            ``parameter`` or ``buffer``. The gradient of a value has the kind of the value.
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


Number = tuple[int, int, bool]
"""Of a value: its call, its iteration, and whether it is recomputed; see `Event`."""

Callback = Callable[[Event], Any]
Before = Callable[[str, nn.Module, tuple[Any, ...], dict[str, Any]], Any]

_OTHERWISE = "the model was changed, and this place is gone or holds something of another kind"

order_of_attaching = itertools.count()
"""Numbers the attachments, so that the callbacks at one place run in the order of attaching."""


class ThreadState:
    """The state of an attachment in one thread.

    Attributes:
        iteration: the number of the outermost forward that is running or ran last; -1 before the first.
        depth: the number of nested forwards of the model that are running.
        calls: how often each place was reached in this iteration.
        again: how often each place was reached in the second runs of checkpoints, in the backward of graph task `task`.
        inside: the number of running callbacks when the outermost forward began; -1 if one of them is attached to the
            same model.
        open: the calls that have begun, by the hooks that report their outputs.
        converted: sentences about replacements that have another dtype or device than the value that they replaced.
        whole: the number of the installation in which the outermost forward began; -1 if it is reported only in part.
    """

    def __init__(self) -> None:
        self.active_callbacks = thread_state.active_callbacks
        self.iteration = -1
        self.depth = 0
        self.calls: dict[str, int] = {}
        self.again: dict[str, int] = {}
        self.task = -1
        self.inside = 0
        self.converted: dict[str, None] = {}
        self.open: dict[object, list[list[tuple[Any, Any]]]] = {}
        self.mode: Any = None
        self.whole = -1
        self.succeeded = False


class _Thread(threading.local):
    def __init__(self) -> None:
        self.state = ThreadState()


class Attachment:
    """The state of one attachment: it numbers the values and calls the callback with them.

    Its arguments, and `stamp`, `begun`, `unmatched` and `ended`, are those of `attach`.

    Attributes:
        reader: the read-only callback, or the object whose method it is; None if the callback may replace values.
        order: the number of the attachment.
        active: whether the callback may be called. Hooks on an earlier graph do nothing once this is False.
        everything: whether every call of a place is reported; False if only some calls were selected.
        hooked: hooks on leaf tensors, which outlive the graph.
        substitutes: the tensors that replace parameters at the moment.
        only: the numbers of the selected calls, for each place whose calls were selected by number.
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
        self.active = False
        self.stamp: Callable[[int], object] | None = None
        self.begun: Callable[[int], object] | None = None
        self.unmatched: Callable[[NoMatchError], None] | None = None
        self.ended: Callable[[Collection[str], str], None] | None = None
        self.hooked = LeafHooks()
        self.substitutes: list[Any] = []
        self.notes: Notes = {}
        self.paths: dict[str, None] = {}
        self.requested = Requested(model, self.notes)
        self.only: dict[str, set[int]] = {}
        self.everything = False
        self.thread = _Thread()
        self._iterations = itertools.count()
        self.latest = -1

    @property
    def iteration(self) -> int:
        """The number of this thread's latest forward; in a thread without forwards, that of the latest in any thread.

        The backward of a GPU runs in such a thread.
        """
        mine = self.thread.state.iteration
        return mine if mine >= 0 else self.latest

    @property
    def label(self) -> str:
        """The ``label`` of the callback, or else its qualified name or its class."""
        name = getattr(self.callback, "label", None) or getattr(self.callback, "__qualname__", None)
        return str(name or type(self.callback).__name__)

    def add_request(self, resolution: Resolution, selectors: Iterable[Selector]) -> None:
        """Note the requested places, and add those that are known already to `paths`."""
        for asked, spots in resolution.requests:
            self.requested.add_request(describe_request(asked), spots)
        for selector in selectors:
            self.requested.add_request(describe_request(selector), (), selector)
        self.notes.update(dict.fromkeys(resolution.notes))
        self.paths.update((spot.full, None) for spot in resolution.spots if not spot.items and spot.kind != "operation")

    def note(self, place: str, reason: str) -> None:
        self.notes.setdefault(PlaceNote(place, reason))

    def end(self, paths: Collection[str], why: str = _OTHERWISE) -> None:
        """Report that these places report nothing from this forward on, since the model was changed."""
        if paths:
            (self.ended or self._warn_of_ends)(sorted(paths), why)

    def _warn_of_ends(self, paths: Collection[str], why: str) -> None:
        sentence = f"nothing is observed at {{}} from forward {self.iteration} on: {why}"
        self.notes.setdefault(sentence.format(listed([f"`{path}`" for path in paths], len(paths))))
        warn(sentence.format(listed([f"`{path}`" for path in paths], WARNED)), NothingSeenWarning)

    def install(self) -> None:
        self.active = True
        self.everything = not self.only

    def remove(self) -> None:
        self.active = self.everything = False
        self.hooked.remove()

    def unreached(self, paths: Iterable[str]) -> set[str]:
        """Return the places that were not reached in this thread's iteration, neither as a whole nor by an item."""
        called = self.thread.state.calls
        missing = {path for path in paths if path not in called}
        return {one for one in missing if not any(path.startswith((f"{one}.", f"{one}[")) for path in called)}

    def enter(self) -> bool:
        """Note the beginning of a forward of the model; return whether it is an outermost one that is reported."""
        thread = self.thread.state
        if thread.depth and not runs(self.model, 2):
            thread.depth = 0  # an interrupt came between the hooks of an earlier forward
        thread.depth += 1
        if thread.depth > 1:
            return False
        active_callbacks = thread.active_callbacks
        thread.inside = -1 if any(one.model is self.model for one in active_callbacks) else len(active_callbacks)
        thread.converted.clear()
        if not self.observes():
            return False
        self.latest = thread.iteration = next(self._iterations)
        self.requested.forwards += 1
        thread.calls.clear()
        return True

    def leave(self) -> bool:
        """Note the end of a forward of the model; return whether it was an outermost one that is reported."""
        thread = self.thread.state
        if not thread.depth:  # it had begun when this was attached
            return False
        observes = self.observes()
        thread.depth -= 1
        return thread.depth == 0 and observes

    def observes(self) -> bool:
        """Return whether values of this thread are reported.

        Values of an example run are not. Neither are calls that a callback makes during a forward of this model, or
        that a callback of this model makes: they are not part of a forward. A callback may run another model, whose
        values are reported.
        """
        thread = self.thread.state
        active_callbacks = thread.active_callbacks
        if MUTED_RUNS and is_muted(self.reader):
            return False
        if not active_callbacks:
            return True
        if thread.depth:
            return len(active_callbacks) <= thread.inside
        return not any(one.model is self.model for one in active_callbacks)

    def annotate_error(self, error: BaseException | None) -> None:
        """Add notes to the error of an outermost forward: replacements of another dtype or device, a possible cause."""
        if isinstance(error, RuntimeError | TypeError | IndexError | ValueError):
            for sentence in self.thread.state.converted:
                if sentence not in getattr(error, "__notes__", ()):
                    error.add_note(sentence)

    def replaced(self, event: Event, new: Any) -> None:
        """Note whether a replacement has another dtype or device."""
        change = conversion_note(event.value, new)
        if change:
            self.note(event.path, change)
            self.thread.state.converted.setdefault(f"byname: at `{event.path}` {change}")

    def run_before(self, path: str, module: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Handle the beginning of a matched call; return what the callback will find in ``event.before``."""
        if self.before is None or not self.observes():
            return None
        with muting(self.model):
            return self.before(path, module, inputs, kwargs)

    def again(self) -> dict[str, int]:
        """Return how often each place was reached in this second run of a checkpoint."""
        thread = self.thread.state
        task = graph_task()
        if task != thread.task:
            thread.task = task
            thread.again.clear()
        return thread.again


graph_task: Callable[[], int] = torch._C._current_graph_task_id
