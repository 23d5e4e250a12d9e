"""Which positions and distances may a selector be given? Whole numbers; anything else is refused when it is made."""

from __future__ import annotations

import operator

from byname.errors import BadArgumentError

__all__ = ["bounds", "steps", "whole"]


def steps(within: int | None) -> int | None:
    """A number of steps from one call to another, or None for any."""
    if within is not None and whole(within) < 1:
        raise BadArgumentError(f"within= counts the steps from one call to another, 1 for the next one; not {within}")
    return within


def bounds(part: slice) -> tuple[int | None, int | None, int | None]:
    """Start, stop and step of a slice."""
    start, stop, step = (None if one is None else whole(one) for one in (part.start, part.stop, part.step))
    if step == 0:
        raise BadArgumentError("a slice goes on by a step of 1 or more, or backwards by -1 or less, not by 0")
    return start, stop, step


def whole(position: object) -> int:
    """A whole number, whatever class it has."""
    if isinstance(position, bool) or not hasattr(type(position), "__index__"):
        raise BadArgumentError(f"a whole number is needed here, not {position!r}")
    return operator.index(position)  # type: ignore[arg-type]
