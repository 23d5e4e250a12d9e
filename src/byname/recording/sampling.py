"""Sampling: in which iterations values are taken, and how those of a place were."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from byname.errors import BadArgumentError
from byname.text import printable

MODES = ("train", "eval", "both")


class Time(NamedTuple):
    """A moment of a run: the iteration, counted from 0 in its mode."""

    mode: str
    iteration: int


@dataclass(frozen=True, slots=True)
class IterationSchedule:
    """The iterations that are recorded: the arguments of `byname.record` of the same names, checked."""

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
                    "iteration left out"
                )
        if self.mode not in MODES:
            raise BadArgumentError(f"mode is one of {', '.join(map(repr, MODES))}, not {self.mode!r}")

    def due(self, time: Time) -> bool:
        after = time.iteration - self.start
        return (
            after >= 0
            and not after % self.every
            and (self.stop is None or time.iteration < self.stop)
            and self.mode in (time.mode, "both")
        )

    @property
    def always(self) -> bool:
        return self.every == 1 and not self.start and self.stop is None and self.mode == "both"

    def over(self, *coming: Time) -> bool:
        """Return whether nothing is recorded any more, with these iterations still to come."""
        mine = [time for time in coming if self.mode in (time.mode, "both")]
        return self.stop is not None and all(time.iteration >= self.stop for time in mine)


def _whole(name: str, number: object, least: int) -> None:
    if type(number) is not int or number < least:
        raise BadArgumentError(f"{name}= takes an integer of at least {least}, not {number!r}")


_USUAL = IterationSchedule()
_NUMBERS = ("every", "start", "stop", "on_change")
_LARGEST = 2**63 - 1
"""What a file can hold; no run has so many iterations."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the values of a place were recorded: the arguments of `byname.record` of the same names.

    Attributes:
        where: the entry of `where` that the place was matched by: a path, or a selector, class or analyser in words.
        every, start, stop, mode: the iterations whose values were recorded.
        on_change: whether only values that had changed were stored.
        reduce: the figure, or the tuple of figures, that replaces a tensor; a function by its name.
        dtype: the dtype that tensors were converted to, by PyTorch's name; None if they were not converted.
        count: the unit of an iteration: ``"forward"``, ``"step"``, or the class of an optimizer whose steps counted.
        on_value: the names of the functions that replaced the values; empty for none.
        state: ``"parameter"`` for a parameter, which is read when the forward that used it has ended; else empty.

    >>> print(Sampling("fc1", every=3, reduce="norm"))
    norm, every 3
    """

    where: str
    every: int = 1
    start: int = 0
    stop: int | None = None
    mode: str = _USUAL.mode
    on_change: bool = True
    reduce: str | tuple[str, ...] | None = None
    dtype: str | None = None
    count: str = "forward"
    on_value: tuple[str, ...] = ()
    state: str = field(default="", compare=False)

    def __str__(self) -> str:
        """Return it in words, without options that have their defaults."""
        said = [
            *((self.reduce,) if isinstance(self.reduce, str) else self.reduce or ()),
            f"as {self.dtype}" if self.dtype else "",
            f"every {self.every}" if self.every != 1 else "",
            f"from {self.start}" if self.start else "",
            "" if self.stop is None else f"before {self.stop}",
            f"mode {self.mode}" if self.mode != _USUAL.mode else "",
            "" if self.on_change else "changed or not",
            f"by {', '.join(self.on_value)}" if self.on_value else "",
            f"count {self.count}" if self.count != "forward" else "",
        ]
        return ", ".join(one for one in said if one)

    def facts(self) -> dict[str, str | int]:
        """Return the given arguments as texts and numbers, for attributes of a file or an array."""
        found: dict[str, str | int] = {}
        for one in fields(self):
            fact = getattr(self, one.name)
            if isinstance(fact, tuple):
                fact = ",".join(name.replace(",", ";") for name in fact)
            if fact is not None and fact != "":
                found[one.name] = printable(fact) if isinstance(fact, str) else min(int(fact), _LARGEST)
        return found

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Sampling:
        """Return the sampling that `facts` describe; a TypeError or KeyError if they are not such facts."""
        read = {name: facts[name] for name in cls.__slots__ if name in facts}
        if any(type(fact) is not (int if name in _NUMBERS else str) for name, fact in read.items()):
            raise TypeError("an entry has the wrong type")
        if "," in read.get("reduce", ""):
            read["reduce"] = tuple(read["reduce"].split(","))
        return cls(**read | {"on_change": bool(read["on_change"]), "on_value": _split(read.get("on_value", ""))})


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()
