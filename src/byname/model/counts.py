"""Counts: the whole numbers and slices that are given to selectors, checked."""

from __future__ import annotations

import operator

from byname.errors import BadArgumentError


def steps(within: int | None) -> int | None:
    """Return `within` if it is None or a whole number of at least 1; else raise BadArgumentError."""
    if within is not None and whole(within) < 1:
        raise BadArgumentError(f"within= counts the steps from one call to another, 1 for the next one; not {within}")
    return within


def bounds(part: slice) -> tuple[int | None, int | None, int | None]:
    """Return start, stop and step of a slice as ints; raise BadArgumentError if they are invalid."""
    start, stop, step = (None if one is None else whole(one) for one in (part.start, part.stop, part.step))
    if step == 0:
        raise BadArgumentError("a slice goes on by a step of 1 or more, or backwards by -1 or less, not by 0")
    return start, stop, step


def whole(position: object) -> int:
    """Return an integer of any class as an int; raise BadArgumentError for another value, also a bool."""
    if isinstance(position, bool) or not hasattr(type(position), "__index__"):
        raise BadArgumentError(f"a whole number is needed here, not {position!r}")
    return operator.index(position)  # type: ignore[arg-type]
