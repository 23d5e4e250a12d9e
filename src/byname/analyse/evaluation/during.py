"""How does a loop say where it is? `Snapshots` counts its steps, and has a snapshot taken when one is due."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from torch import nn

from byname.analyse.evaluation.records import Record
from byname.analyse.evaluation.schedule import Schedule

__all__ = ["Snapshots", "Taking"]


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

    def step(self, *, batch: int | None = None) -> Record | None:
        """A step is done; the record of the snapshot, if one was due.

        Args:
            batch: the number of the batch in its epoch, to be written into the record.
        """
        self.steps += 1
        event = self.schedule.due(self.steps)
        return None if event is None else self._take(event, batch)

    def _take(self, event: str, batch: int | None = None) -> Record:
        return self._evaluation.take(self._model, event, self.epoch, batch, self.steps)

    def __enter__(self) -> Self:
        self._over = False
        if self.schedule.start:
            self._take("start")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None and self.schedule.end and not self._over:
            self._take("end")
        self._over = True
