"""Clock: counts iterations, and numbers the values of a place within one."""

from __future__ import annotations

import sys
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.optim import Optimizer

from byname.errors import BadArgumentError
from byname.recording.sampling import Time
from byname.undo import Undo
from byname.watch.attachment import Event
from byname.watch.forwards import watch_forwards
from byname.watch.handle import Handle
from byname.watch.variables.subscribe import Subscription


class NumbersInOrder:
    """Values that come in order, in an iteration that holds several forwards, or none."""

    __slots__ = ("_latest",)

    def __init__(self) -> None:
        self._latest: dict[str, tuple[int, int]] = {}

    def next(self, time: Time, event: Event | None = None) -> int:
        """Return how many have come before; modes may take turns within one iteration."""
        iteration, number = self._latest.get(time.mode, (-1, 0))
        number = number + 1 if iteration == time.iteration else 0
        self._latest[time.mode] = time.iteration, number
        return number

    def settled(self, records: Sequence[tuple[Time, Any]]) -> list[int]:
        """Return the numbers of the values of a window, from their iterations and what `next` said of them."""
        return [number for _, number in records]


class BackwardNumbers:
    """Gradients of values, which have the numbers of the values; those of further backwards are numbered on.

    In the second run of a reentrant checkpoint the values are not known to be those of the first. Their gradients come
    in the opposite order, by which they are numbered once all have come.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[Time, _IterationNumbers] = {}

    def next(self, time: Time, event: Event) -> int:
        """Return the number, or a negative one for the second run of a checkpoint."""
        numbers = self._known.get(time)
        if numbers is None:
            numbers = self._known[time] = _IterationNumbers()
        if event.recomputed:
            numbers.again -= 1
            return numbers.again
        if event.call in numbers.calls:
            numbers.first = numbers.free
            numbers.calls.clear()
        numbers.calls.add(event.call)
        number = numbers.first + event.call
        numbers.free = max(numbers.free, number + 1)
        return number

    def settled(self, records: Sequence[tuple[Time, Any]]) -> list[int]:
        ends: dict[Time, int] = {}
        for time, number in records:
            if number < 0:
                numbers = self._known[time]
                ends[time] = numbers.free - numbers.again
        for time, end in ends.items():
            self._known[time].free, self._known[time].again = end, 0
        for time in [*self._known][:-_REMEMBERED]:
            del self._known[time]
        return [number if number >= 0 else ends[time] + number for time, number in records]


@dataclass(slots=True)
class _IterationNumbers:
    """The numbers of the gradients of one iteration.

    Attributes:
        calls: the values whose gradients the latest backward has computed so far.
        first: the number of the first value in it.
        free: the next number that is free.
        again: how many are of second runs since the last window, negative.
    """

    calls: set[int] = field(default_factory=set)
    first: int = 0
    free: int = 0
    again: int = 0


_REMEMBERED = 64
"""Iterations before the open window that may have further backwards, in turns; first ones may come at any time."""


class StepNumbers:
    """Gradients of values where steps are counted: those of the last forward come first.

    They are numbered in the order of the values they belong to, as far as they have come when a window ends.
    """

    __slots__ = ("_keys", "_places", "_settled")

    def __init__(self) -> None:
        self._keys: dict[Time, list[tuple[int, int]]] = {}
        self._settled: dict[Time, int] = {}
        self._places: defaultdict[tuple[Time, Any], list[int]] = defaultdict(list)

    def next(self, time: Time, event: Event) -> tuple[int, int]:
        """Return the forward and the call of the value; of second runs of checkpoints the last come first."""
        keys = self._keys.setdefault(time, [])
        key = event.iteration, -len(keys) if event.recomputed else event.call
        keys.append(key)
        return key

    def settled(self, records: Sequence[tuple[Time, Any]]) -> list[int]:
        for time, keys in self._keys.items():
            before = self._settled.get(time, 0)
            for place, key in reversed([*enumerate(sorted(keys), before)]):
                self._places[time, key].append(place)
            self._settled[time] = before + len(keys)
        latest = max(time.iteration for time in self._settled)
        self._settled = {time: count for time, count in self._settled.items() if time.iteration == latest}
        self._keys.clear()
        numbers = [self._places[record].pop() for record in records]
        for time, key in [one for one in self._places if one[0].iteration != latest]:
            del self._places[time, key]  # what is left waits for a value that is on its way, if a callback flushes
        return numbers


ValueNumbers: TypeAlias = NumbersInOrder | BackwardNumbers | StepNumbers


class _ThreadTime(threading.local):
    """The iteration of one thread, and whether it is inside of a forward."""

    time: Time | None = None
    inside = False


class Clock:
    """Counts the iterations of a run: outermost forwards of a model, or steps.

    Attributes:
        latest: the iteration that values belong to now.
        forwards: how many outermost forwards have begun in each mode.
        counted: what an iteration is, in a word.
        calls: counts the calls of a function of the program, if there is one; without a model they are the forwards.
        thread: the iteration of this thread's latest outermost forward, and whether it is running.
    """

    def __init__(self, model: nn.Module, count: Any) -> None:
        if not (count in ("forward", "step") if isinstance(count, str) else isinstance(count, Optimizer)):
            raise BadArgumentError(
                f"count= takes 'forward', 'step' or an optimizer (to count its steps), not {count!r:.60}"
            )
        self.latest = Time("train" if model.training else "eval", 0)
        self.forwards = {"train": 0, "eval": 0}
        self._differentiable: Time | None = None
        self._backward = -1, self.latest
        self._modes: set[str] = set()
        self.by_steps = count != "forward"
        self.counted = count if isinstance(count, str) else type(count).__name__
        self._by_hand = count == "step"
        self._model = weakref.ref(model)
        self.calls: Subscription | None = None
        self._optimizer = None if isinstance(count, str) else count
        self._began: Callable[[], object] = lambda: None
        self._ended: Callable[[], object] = lambda: None
        self._next = {"train": 0, "eval": 0}
        self._steps = 0
        self._late = False
        self._counting = threading.Lock()
        self.thread = _ThreadTime()
        # before the listeners are attached, so that it observes a forward before they do
        self._handle: Handle = watch_forwards(model, self._forward, self._over, follow=self._catch_up)
        self._hooks = Undo()

    def start(self, began: Callable[[], object], ended: Callable[[], object]) -> None:
        """Count from now on.

        `began` is called when an iteration begins, and all before it have ended, backward included; `ended` when a
        forward has ended, to prepare for the next.
        """
        self._began, self._ended = began, ended
        self._handle.enabled = True
        if self.calls is not None:
            self._hooks.add(self.calls.remove)
            self.calls.begin()
        if self._optimizer is not None:
            self._hooks.register(self._optimizer.register_step_post_hook, lambda *_: self._step())

    def stop(self) -> None:
        """Count no longer, and leave nothing on the model and the optimizer."""
        try:
            self._handle.remove()
        finally:
            self._hooks()

    def step(self) -> None:
        """Count a step, which the user says is done."""
        if not self._by_hand:
            counted = "an optimizer's steps" if self.by_steps else "forwards"
            raise BadArgumentError(f"this recorder counts {counted}; `step()` is for record(..., count='step')")
        self._step()

    def _step(self) -> None:
        with self._counting:
            self._steps += 1
        self.latest = Time(self.latest.mode, self._steps)
        self._differentiable = None
        self._began()

    @property
    def mode(self) -> str:
        model = self._model()
        return "train" if model is None or model.training else "eval"

    def of_backward(self) -> Time:
        """Return the latest iteration that a backward can reach; what ran under ``no_grad`` since then does not count.

        Where no forward of the whole model has run with gradients, each backward is an iteration of the mode it is in.
        """
        if self._differentiable is not None or self.by_steps:
            return self._differentiable or Time(self.mode, self.latest.iteration)
        task = torch._C._current_graph_task_id()
        with self._counting:
            if task != self._backward[0]:
                mode = self.mode
                self._backward = task, Time(mode, self._next[mode])
                self._next[mode] += 1
            return self._backward[1]

    def iterations(self) -> dict[str, int]:
        """Return how many there were in each mode; where steps are counted, as far as something has passed in it."""
        if not self.by_steps:
            return dict(self.forwards)
        return {mode: self._steps + 1 for mode, number in self.forwards.items() if number or mode in self._modes}

    def passing(self) -> Time:
        """Return the step of a value that passes now, in the mode of the model: it may pass outside of a forward."""
        mode = self.mode
        self._modes.add(mode)
        if self.latest.mode != mode and not self.thread.inside:
            self.latest = Time(mode, self.latest.iteration)
        return self.latest

    def now(self) -> Time:
        """Return the iteration that the forward of this thread is."""
        return self.latest if self.by_steps else self.thread.time or self.latest

    def coming(self) -> tuple[Time, Time]:
        """Return the iteration that comes next, in either mode."""
        if self.by_steps:
            return Time("train", self._steps), Time("eval", self._steps)
        return Time("train", self._next["train"]), Time("eval", self._next["eval"])

    def _forward(self, _: int) -> None:
        mode, thread = self.mode, self.thread
        thread.inside = True
        if not self.by_steps:
            self._began()
        with self._counting:
            self.forwards[mode] += 1
            number = self._steps if self.by_steps else self._next[mode]
            if not self.by_steps:
                self._next[mode] += 1
        self.latest = thread.time = Time(mode, number)
        if torch.is_grad_enabled():
            self._differentiable = self.latest

    def _over(self) -> None:
        self.thread.inside = False
        self._late = sys.exception() is not None
        if not self._late:
            self._ended()

    def _catch_up(self) -> bool:
        """Report a forward that raised, as PyTorch then went through its hooks, or was interrupted; at the next one."""
        late, self._late = self._late or self.thread.inside, False
        if late:
            self._ended()
        return late
