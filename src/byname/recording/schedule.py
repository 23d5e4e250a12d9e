"""In which iterations is a value recorded?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from byname.errors import BadArgumentError

__all__ = ["MODES", "Schedule", "Time"]

MODES = ("train", "eval", "both")


class Time(NamedTuple):
    """A moment of a run: the iteration, counted from 0 in its mode."""

    mode: str
    iteration: int

    @property
    def next(self) -> Time:
        """The iteration after it."""
        return Time(self.mode, self.iteration + 1)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Which iterations are recorded.

        >>> schedule = Schedule(every=10, start=5, stop=30)
        >>> [iteration for iteration in range(50) if schedule.due(Time("train", iteration))]
        [5, 15, 25]

    Attributes:
        every: one iteration of so many, counted from `start`.
        start: the first.
        stop: the first that is no longer recorded; None for none.
        mode: ``"train"`` and ``"eval"`` for the iterations in which the model is in that mode, or ``"both"``.

    Raises:
        BadArgumentError: for a schedule by which nothing can ever be recorded, or that has no meaning.
    """

    every: int = 1
    start: int = 0
    stop: int | None = None
    mode: str = "both"

    def __post_init__(self) -> None:
        _whole("every", self.every, 1)
        _whole("start", self.start, 0)
        if self.stop is not None:
            _whole("stop", self.stop, 1)
            if self.stop <= self.start:
                raise BadArgumentError(
                    f"stop={self.stop} is not after start={self.start}: nothing would be recorded; `stop` is the first "
                    "iteration that is left out"
                )
        if self.mode not in MODES:
            raise BadArgumentError(f"mode is one of {', '.join(map(repr, MODES))}, not {self.mode!r}")

    def due(self, time: Time) -> bool:
        """Whether something is recorded in this iteration."""
        after = time.iteration - self.start
        return (
            after >= 0
            and not after % self.every
            and (self.stop is None or time.iteration < self.stop)
            and self.mode in (time.mode, "both")
        )

    def over(self, *coming: Time) -> bool:
        """Whether nothing is recorded any more, with these iterations still to come."""
        mine = [time for time in coming if self.mode in (time.mode, "both")]
        return self.stop is not None and all(time.iteration >= self.stop for time in mine)


def _whole(name: str, number: object, least: int) -> None:
    if type(number) is not int or number < least:
        raise BadArgumentError(f"{name} is a whole number from {least} on, not {number!r}")
