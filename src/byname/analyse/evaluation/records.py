"""What has an evaluation found so far? Its snapshots, one record each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from byname.analyse.results.results import Results
from byname.analyse.results.rows import shown_rows, spare_columns
from byname.table import Row, Rows, counted

__all__ = ["Record", "Records"]


@dataclass(frozen=True, slots=True)
class Record:
    """One snapshot.

    Attributes:
        event: ``"start"``, ``"batch"``, ``"scheduled"`` or ``"end"``, or what `Evaluation.take` was given.
        epoch, batch, step: when it was, as far as it was told; `batch` is the number of the batch in its epoch, `step`
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
        name: what they are snapshots of.
    """

    __slots__ = ("_name", "items")

    def __init__(self, items: Iterable[Record], *, name: str) -> None:
        self.items = tuple(items)
        self._name = name

    def rows(self) -> list[Row]:
        """One dict for each record and place (and class)."""
        return [{**_when(one), **row} for one in self.items for row in one.result.rows()]

    def _shown(self) -> list[Row]:
        return [{**_when(one), **row} for one in self.items for row in shown_rows(one.result)]

    def _spare(self) -> list[str]:
        latest = self.items[-1].result if self.items else {}
        return spare_columns(shown_rows(latest), latest)

    def _title(self) -> str:
        return f"{self._name}: {counted(len(self), 'snapshot')}"


def _when(record: Record) -> Row:
    return {"event": record.event, "epoch": record.epoch, "batch": record.batch, "step": record.step}
