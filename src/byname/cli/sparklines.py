"""Sparklines: how the values of each place went lately, in one line of a terminal."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from byname.text import printable

if TYPE_CHECKING:
    from byname.recording.recording import Recording

BARS = "▁▂▃▄▅▆▇█"
RECORDS = 40
"""The newest records of a place that are shown, and so many are read of a window at most."""
PLACES = 8
"""Places that are shown; those that come first."""
_LEAST = 24
"""Characters of a name at least, where the terminal has room for no more beside the line."""


def sparkline(numbers: Iterable[float]) -> str:
    """Numbers as bars between the smallest and the largest; what is not finite is a dot.

    >>> sparkline([0.0, 1.0, 7.0, float("nan"), 3.5]), sparkline([2.0, 2.0])
    ('▁▂█·▅', '▁▁')
    """
    several = list(numbers)
    finite = [number for number in several if math.isfinite(number)]
    if not finite:
        return "·" * len(several)
    low, high = min(finite), max(finite)
    step = high / (len(BARS) - 1) - low / (len(BARS) - 1) or 1.0  # high - low may be infinite
    return "".join(BARS[round(one / step - low / step)] if math.isfinite(one) else "·" for one in several)


class Sparklines:
    """The newest numbers of places while a recording grows: values that are one number, and the means of tensors."""

    def __init__(self) -> None:
        self._numbers: dict[str, deque[float]] = {}

    def add(self, recording: Recording, came: Mapping[str, int]) -> None:
        """Reads what came.

        Args:
            recording: as it is now.
            came: how many records each place got.
        """
        for path, count in came.items():
            if count and (path in self._numbers or len(self._numbers) < PLACES):
                numbers = [number for value in recording[path][-min(count, RECORDS) :] for number in _number(value)]
                self._numbers.setdefault(path, deque(maxlen=RECORDS)).extend(numbers)

    def lines(self, width: int) -> list[str]:
        """One line a place, no longer than so many characters where that is possible."""
        room = max(_LEAST, width - RECORDS - _NUMBER)
        told = [(_end_of(printable(path), room), numbers) for path, numbers in self._numbers.items() if numbers]
        longest = max((len(name) for name, _ in told), default=0)
        shown = max(1, min(RECORDS, width - longest - _NUMBER))
        return [f"  {name:{longest}}  {sparkline(list(numbers)[-shown:])}  {numbers[-1]:.4g}" for name, numbers in told]


_NUMBER = 17
"""Characters of a line beside the name and the bars: a number, and spaces."""


def _end_of(name: str, room: int) -> str:
    """The name, or its end where it is too long."""
    return name if len(name) <= room else f"…{name[1 - room :]}"


def _number(value: Any) -> list[float]:
    """The number that stands for a value; none for text and the like."""
    if isinstance(value, Tensor):
        return [float(value.double().mean())] if value.numel() and not value.is_complex() else []
    if not isinstance(value, bool | int | float):
        return []
    try:
        return [float(value)]
    except OverflowError:  # a whole number beyond the floats
        return [math.inf if value > 0 else -math.inf]
