"""Which iteration is it? Forwards of the whole model are counted, train and eval apart, or steps are."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from byname.errors import BadArgumentError
from byname.recording.schedule import Time
from byname.undo import Undo
from byname.watch.forwards import follow_forwards
from byname.watch.handle import Handle

__all__ = ["Clock"]


class _Here(threading.local):
    """What one thread is at."""

    time: Time | None = None
    inside = False


class Clock:
    """Counts the iterations of a run.

    Args:
        model: the model whose outermost forwards are counted.
        count: ``"forward"``; ``"step"``, by which only `step` counts; or an optimizer, whose steps count.

    Attributes:
        latest: the iteration that values belong to now.
        forwards: how many outermost forwards have begun in each mode.
        counted: what an iteration is, in a word.
    """

    def __init__(self, model: nn.Module, count: Any) -> None:
        if not (count in ("forward", "step") if isinstance(count, str) else _is_optimizer(count)):
            raise BadArgumentError(
                f"count is 'forward', 'step' or an optimizer whose steps are counted, not {count!r:.60}"
            )
        self.latest = Time("train" if model.training else "eval", 0)
        self.forwards = {"train": 0, "eval": 0}
        self._differentiable: Time | None = None
        self._modes: set[str] = set()
        self.by_steps = count != "forward"
        self.counted = count if isinstance(count, str) else type(count).__name__
        self._by_hand = count == "step"
        self._model = weakref.ref(model)
        self._optimizer = None if isinstance(count, str) else count
        self._began: Callable[[], object] = lambda: None
        self._ended: Callable[[], object] = lambda: None
        self._next = {"train": 0, "eval": 0}
        self._steps = 0
        self._counting = threading.Lock()
        self._here = _Here()
        # before the listeners are attached, so that it is told of a forward before they are
        self._handle: Handle = follow_forwards(model, self._forward, self._over, enabled=False)
        self._hooks = Undo()

    def start(self, began: Callable[[], object], ended: Callable[[], object]) -> None:
        """Counts from now on.

        Args:
            began: is called when an iteration begins; all before it have ended, backward included.
            ended: is called when a forward has ended, so that what comes next can be prepared.
        """
        self._began, self._ended = began, ended
        self._handle.enabled = True
        if self._optimizer is not None:
            self._hooks.register(self._optimizer.register_step_post_hook, lambda *_: self._step())

    def stop(self) -> None:
        """Counts no longer, and nothing is left on the model and the optimizer."""
        try:
            self._handle.remove()
        finally:
            self._hooks()

    def step(self) -> None:
        """The user says that a step is done.

        Raises:
            BadArgumentError: if it is something else that counts.
        """
        if not self._by_hand:
            counted = "an optimizer's steps" if self.by_steps else "forwards"
            raise BadArgumentError(f"this recorder counts {counted}; `step()` is for record(..., count='step')")
        self._step()

    def _step(self) -> None:
        """What comes now belongs to the next iteration."""
        with self._counting:
            self._steps += 1
        self.latest = Time(self.latest.mode, self._steps)
        self._differentiable = None
        self._began()

    @property
    def mode(self) -> str:
        """The mode that the model is in now."""
        model = self._model()
        return "train" if model is None or model.training else "eval"

    @property
    def differentiable(self) -> Time:
        """The latest that a backward can come to; what ran under ``no_grad`` since then does not count.

        Where no forward of the whole model has run, it is of the mode that the model is in.
        """
        return self._differentiable or Time(self.mode, self.latest.iteration)

    @property
    def inside(self) -> bool:
        """Whether an outermost forward runs in this thread."""
        return self._here.inside

    def iterations(self) -> dict[str, int]:
        """How many there have been in each mode; where steps are counted, as far as something has passed in it."""
        if not self.by_steps:
            return dict(self.forwards)
        return {mode: self._steps + 1 for mode, number in self.forwards.items() if number or mode in self._modes}

    def passing(self) -> Time:
        """The step of a value that passes now, in the mode that the model is in: it may pass outside of a forward."""
        mode = self.mode
        self._modes.add(mode)
        if self.latest.mode != mode and not self._here.inside:
            self.latest = Time(mode, self.latest.iteration)
        return self.latest

    def now(self) -> Time:
        """The iteration that the forward of this thread is."""
        return self.latest if self.by_steps else self._here.time or self.latest

    def coming(self) -> tuple[Time, Time]:
        """The iteration that comes next, in either mode."""
        if self.by_steps:
            return Time("train", self._steps), Time("eval", self._steps)
        return Time("train", self._next["train"]), Time("eval", self._next["eval"])

    def _forward(self, _: int) -> None:
        mode = self.mode
        with self._counting:
            self.forwards[mode] += 1
        self._here.inside = True
        if self.by_steps:
            number = self._steps
        else:
            self._began()
            with self._counting:
                number = self._next[mode]
                self._next[mode] = number + 1
        self.latest = self._here.time = Time(mode, number)
        if torch.is_grad_enabled():
            self._differentiable = self.latest

    def _over(self) -> None:
        self._here.inside = False
        self._ended()


def _is_optimizer(given: object) -> bool:
    from torch.optim import Optimizer

    return isinstance(given, Optimizer)
