"""Sampling: how the values of a place were taken, which a recording keeps beside them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from byname.recording.schedule import Schedule
from byname.table import printable

__all__ = ["Sampling"]

_USUAL = Schedule()
_LARGEST = 2**63 - 1
"""What a file can hold; no run has so many iterations."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """What was asked of a place when it was recorded: the arguments of `byname.record` of the same names.

    Attributes:
        where: the entry of `where` that the place was matched by: a path, or a selector, class or analyser in words.
        every, start, stop, mode: in which iterations values were taken.
        on_change: whether only values that had changed were stored.
        reduce: the figure, or the tuple of figures, that stands in the place of a tensor; a function by its name.
        dtype: what tensors were converted to, by PyTorch's name; None where nothing was converted.
        count: what an iteration was: ``"forward"``, ``"step"``, or the class of an optimizer whose steps counted.
        on_value: the names of the functions that made the values of those that came; empty for none.

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

    def __str__(self) -> str:
        """In words, without what is so unless something else is asked for."""
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
        """Texts and numbers, as attributes in a file or of an array; what was not asked for is left out."""
        found: dict[str, str | int] = {}
        for field in fields(self):
            fact = getattr(self, field.name)
            if isinstance(fact, tuple):
                fact = ",".join(one.replace(",", ";") for one in fact)
            if fact is not None and fact != "":
                found[field.name] = printable(fact) if isinstance(fact, str) else min(int(fact), _LARGEST)
        return found

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Sampling:
        """What `facts` were made of."""
        read = {field.name: facts[field.name] for field in fields(cls) if field.name in facts}
        if "," in read.get("reduce", ""):
            read["reduce"] = tuple(read["reduce"].split(","))
        return cls(**read | {"on_change": bool(read["on_change"]), "on_value": _split(read.get("on_value", ""))})


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()
