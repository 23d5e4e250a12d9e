"""What is made of a value before it is copied? It is reduced, and then converted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from byname.recording.options import Options
from byname.recording.values.reductions import conversion, reduction

__all__ = ["form_of"]


def form_of(options: Options, path: str) -> Callable[[Any], Any] | None:
    """The function that does it, where the values are; None if nothing is to be done.

    Args:
        options: what is asked of the place.
        path: the place, for errors.
    """
    reduce, dtype = reduction(options.reduce, path), conversion(options.dtype)
    if dtype is None:
        return reduce
    convert = reduction(lambda tensor: tensor.to(dtype), path)
    assert convert is not None
    return convert if reduce is None else lambda value: convert(reduce(value))
