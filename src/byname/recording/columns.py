"""What has come at one place since the last window? Its values, and when they came."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from byname.recording.numbering import Numbers
from byname.recording.processes.shard import Shard
from byname.recording.sampling import Sampling
from byname.recording.schedule import Time
from byname.recording.series import Series
from byname.recording.values.change import NOTHING, Last, same

__all__ = ["Column", "Record"]


class Record(NamedTuple):
    """One value that was recorded.

    Attributes:
        time: its iteration.
        call: which of several values of the iteration it is, or what will tell it, see `Numbers`.
        value: a copy.
        shard: the part of a distributed tensor that it is.
        before: the copy stored before it, where only the content tells whether the value is another, and was not there
            to be asked (on a GPU); else `NOTHING`.
    """

    time: Time
    call: Any
    value: Any
    shard: Shard | None
    before: Any = NOTHING

    @property
    def is_another(self) -> bool:
        """Whether the value differs from the one before; asked once the copies are there."""
        return self.before is NOTHING or not same(self.value, self.before)


class Column:
    """The values of one place, in one listener.

    Args:
        path: the place.
        last: tells whether a value is another than the one stored last; None where each is stored.
        form: what is made of a value before it is copied; None for nothing.
        exact: whether it was asked for by this very path, not by a wildcard.
        gradient: whether the values are gradients.
        by_forward: whether a value belongs to the iteration of the forward that it was told of, and not to the latest.
        numbers: numbers the values of an iteration, where its forwards do not.

    Attributes:
        records: those of the open window.
        stored: whether anything ever was.
        refused: whether the place turned out to hold what cannot be stored.
    """

    __slots__ = (
        "by_forward",
        "exact",
        "form",
        "gradient",
        "last",
        "numbers",
        "path",
        "records",
        "refused",
        "sampling",
        "stored",
    )

    def __init__(
        self,
        path: str,
        *,
        last: Last | None,
        form: Callable[[Any], Any] | None,
        exact: bool,
        gradient: bool,
        by_forward: bool,
        numbers: Numbers | None,
        sampling: Sampling,
    ) -> None:
        self.path = path
        self.last = last
        self.form = form
        self.exact = exact
        self.gradient = gradient
        self.by_forward = by_forward
        self.numbers = numbers
        self.sampling = sampling
        self.records: list[Record] = []
        self.stored = False
        self.refused = False

    def closed(self, rank: int) -> Series | None:
        """The window as a series, and a new one begins; None if nothing came. Its copies must be there."""
        records, self.records = [record for record in self.records if record.is_another], []
        if not records:
            return None
        if self.numbers is not None:
            calls = self.numbers.settled([(record.time, record.call) for record in records])
            records = [record._replace(call=call) for record, call in zip(records, calls, strict=True)]
        if self.gradient and self.by_forward and len({record.time.mode for record in records}) == 1:
            # a backward comes to the last call first
            records.sort(key=lambda record: (record.time.iteration, record.call))
        return Series(
            path=self.path,
            values=[record.value for record in records],
            iterations=[record.time.iteration for record in records],
            ranks=[rank] * len(records),
            calls=[record.call for record in records],
            modes=[record.time.mode for record in records],
            shapes=[tuple(record.value.shape) if isinstance(record.value, Tensor) else () for record in records],
            shards=[record.shard for record in records],
            sampling=self.sampling,
        )
