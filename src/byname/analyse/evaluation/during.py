"""How does a loop say where it is? `Snapshots` counts its steps, and has a snapshot taken when one is due."""

from __future__ import annotations

import weakref
from types import TracebackType
from typing import Protocol, Self

import torch
from torch import Tensor, nn

from byname.analyse.evaluation.records import Record
from byname.analyse.evaluation.schedule import Schedule

__all__ = ["LatestState", "Snapshots", "Taking"]


class Taking(Protocol):
    """What takes a snapshot."""

    def take(
        self,
        model: nn.Module,
        event: str | None = None,
        epoch: int | None = None,
        batch: int | None = None,
        step: int | None = None,
    ) -> Record:
        """Takes one, and adds it to the records."""


class LatestState:
    """The state of a model at the latest snapshot: the end of a training has no second one of the same state.

    >>> model, latest = nn.Linear(2, 2), LatestState()
    >>> latest.taken(model, step=10)
    >>> latest.same(model, step=10), latest.same(model, step=11)
    (True, False)
    """

    def __init__(self) -> None:
        self._step = -1
        self._tensors: list[weakref.ref[Tensor]] = []
        self._marks: list[tuple[int, str]] = []

    def taken(self, model: nn.Module, step: int) -> None:
        """A snapshot was taken."""
        self._step = step
        self._tensors = [weakref.ref(one) for one in _tensors_of(model)]
        self._marks = [*map(_mark, _tensors_of(model))]

    def same(self, model: nn.Module, step: int) -> bool:
        """Whether the model is as it was then: after the same step, with nothing changed or loaded since."""
        now = _tensors_of(model)
        return (
            step == self._step
            and len(now) == len(self._tensors)
            and all(one is before() for one, before in zip(now, self._tensors, strict=True))
            and self._marks == [*map(_mark, now)]
        )


def _tensors_of(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def _mark(tensor: Tensor) -> tuple[int, str]:
    """What changes with the values of a tensor: its version, and their sum.

    Changes through ``.data``, as averages of weights are often put in place, leave the version as it is.
    """
    return _version(tensor), _total(tensor)


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _total(tensor: Tensor) -> str:
    """The sum of the values as text, in which NaN is the same as NaN; none of a tensor that is no plain one."""
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided
    if not plain or not tensor.is_floating_point() or tensor.itemsize < 2 or tensor.device.type not in ("cpu", "cuda"):
        return ""
    return str(float(tensor.detach().sum(dtype=torch.float64)))


class Snapshots:
    """A training loop that snapshots are taken of; made by `Evaluation.during`.

    Attributes:
        schedule: when.
        epoch: written into the records.
        steps: how many steps are done.
    """

    def __init__(self, evaluation: Taking, model: nn.Module, schedule: Schedule, epoch: int | None = None) -> None:
        self.schedule = schedule
        self.epoch = epoch
        self.steps = 0
        self._evaluation = evaluation
        self._model = model
        self._over = False
        self._latest = LatestState()

    def step(self, *, batch: int | None = None) -> Record | None:
        """A step is done; the record of the snapshot, if one was due.

        Args:
            batch: the number of the batch in its epoch, to be written into the record.
        """
        self.steps += 1
        event = self.schedule.due(self.steps)
        return None if event is None else self._take(event, batch)

    def _take(self, event: str, batch: int | None = None) -> Record:
        record = self._evaluation.take(self._model, event, self.epoch, batch, self.steps)
        if self.schedule.end:
            self._latest.taken(self._model, self.steps)
        return record

    def __enter__(self) -> Self:
        self._over = False
        if self.schedule.start:
            self._take("start")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        unseen = not (self._over or self._latest.same(self._model, self.steps))
        if kind is None and self.schedule.end and unseen:
            self._take("end")
        self._over = True
