"""Snapshots: when they are taken during a training (`Schedule`), and what they have found (`Record`, `Records`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdRef

from byname.analyse.results import Results
from byname.analyse.tables import shown_rows, spare_columns
from byname.errors import BadArgumentError
from byname.reading.tensor import version_of
from byname.table import Row, Rows, counted


@dataclass(frozen=True, slots=True)
class Schedule:
    """The moments of a training at which snapshots are taken. Steps are counted from 1.

        >>> schedule = Schedule(every=100, at=(10, 50))
        >>> [(step, schedule.due(step)) for step in (10, 20, 50, 100)]
        [(10, 'scheduled'), (20, None), (50, 'scheduled'), (100, 'batch')]

    Attributes:
        start: whether one is taken before the first step.
        every: one after every `every` steps; None for none.
        at: after these steps.
        end: whether one is taken when the training has ended without an exception. There is none where the latest was
            taken after the last step, and nothing has changed since.

    Raises:
        BadArgumentError: for invalid steps.
    """

    start: bool = True
    every: int | None = None
    at: tuple[int, ...] = ()
    end: bool = True

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "at", tuple(sorted(set(self.at))))
        except TypeError:
            raise BadArgumentError(f"at is a sequence of steps, such as (10, 100), not {self.at!r:.60}") from None
        if self.every is not None:
            _checked("every", self.every)
        for step in self.at:
            _checked("a step of at", step)

    def due(self, step: int, since: int | None = None) -> str | None:
        """Return the event of a snapshot after this step: ``"scheduled"``, ``"batch"``, or None if none is due.

        Args:
            step: the number of steps done.
            since: that number at the last call, if more than one step has been done since.
        """
        before = step - 1 if since is None else since
        if any(before < one <= step for one in self.at):
            return "scheduled"
        if self.every is not None and step // self.every > before // self.every:
            return "batch"
        return None


def _checked(name: str, step: object) -> None:
    if type(step) is not int or step < 1:
        raise BadArgumentError(f"{name} is an integer of at least 1, not {step!r:.60}; start=True is before step 1")


@dataclass(frozen=True, slots=True)
class Record:
    """One snapshot.

    Attributes:
        event: ``"start"``, ``"batch"``, ``"scheduled"`` or ``"end"``, or what `Evaluation.take` was given.
        epoch, batch, step: when it was taken, as far as known; `batch` is the number of the batch in its epoch, `step`
            how many steps had been done.
        result: the figures of the analyser. Tensors are on the CPU.
    """

    event: str | None
    epoch: int | None
    batch: int | None
    step: int | None
    result: Results = field(hash=False)


class Records(Rows[Record]):
    """The snapshots of an evaluation, in the order in which they were taken.

    Args:
        items: the snapshots.
        name: a title.
    """

    __slots__ = ("_name", "items")

    def __init__(self, items: Iterable[Record], *, name: str) -> None:
        self.items = tuple(items)
        self._name = name

    def rows(self) -> list[Row]:
        """Return one dict for each record and place (and class)."""
        return [{**_when(one), **row} for one in self.items for row in one.result.rows()]

    def _shown(self) -> list[Row]:
        return [{**_when(one), **row} for one in self.items for row in shown_rows(one.result)]

    def _drop_order(self) -> list[str]:
        latest = self.items[-1].result if self.items else {}
        return spare_columns(shown_rows(latest), latest)

    def _title(self) -> str:
        return f"{self._name}: {counted(len(self), 'snapshot')}"


def _when(record: Record) -> Row:
    return {"event": record.event, "epoch": record.epoch, "batch": record.batch, "step": record.step}


def state_of(model: nn.Module, step: int) -> object:
    """Return a state that equals a later one only after the same step, and if nothing was changed or loaded since.

    >>> model = nn.Linear(2, 2)
    >>> state_of(model, step=10) == state_of(model, step=10), state_of(model, step=10) == state_of(model, step=11)
    (True, False)
    """
    return step, [(WeakIdRef(one), _mark(one)) for one in (*model.parameters(), *model.buffers())]


def _mark(tensor: Tensor) -> tuple[int | None, str]:
    """Return facts that change with a tensor: its version, and of a plain one its sum, as text, so that NaN equals NaN.

    Changes through ``.data``, which programs often use for averaged weights, keep the version.
    """
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided
    if not plain or not tensor.is_floating_point() or tensor.itemsize < 2 or tensor.device.type not in ("cpu", "cuda"):
        return version_of(tensor), ""
    return version_of(tensor), str(float(tensor.detach().sum(dtype=torch.float64)))
