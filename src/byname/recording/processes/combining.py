"""What do the windows of several ranks make together? One window with the records of all, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from byname.recording.processes.wire import Window
from byname.recording.series import Series

__all__ = ["combined"]


def combined(windows: Sequence[Window]) -> dict[str, Series]:
    """One window from those of several ranks.

    Args:
        windows: the values by path, of one rank after another; each may have other places, and more or fewer records.

    Returns:
        For each place that any of them has, all records by iteration, then rank, each rank's own in the order in which
        they were recorded. Where training and evaluation take turns, so do they here.
    """
    parts: dict[str, list[Series]] = {}
    for window in windows:
        for path, series in window.items():
            parts.setdefault(path, []).append(series)
    return {path: some[0] if len(some) == 1 else _joined(path, some) for path, some in parts.items()}


def _joined(path: str, parts: Sequence[Series]) -> Series:
    keys = [key for part in parts for key in _keys(part)]
    order = sorted(range(len(keys)), key=keys.__getitem__)

    def ordered(name: str) -> list[Any]:
        column = [one for part in parts for one in getattr(part, name)]
        return [column[number] for number in order]

    names = ("iterations", "ranks", "calls", "modes", "shapes")
    iterations, ranks, calls, modes, shapes = (ordered(name) for name in names)
    found = [one for part in parts for one in part.shards or [None] * len(part)]
    shards = [found[number] for number in order] if any(found) else []
    return Series(path, _values(parts, order), iterations, ranks, calls, modes, shapes, shards)


def _keys(series: Series) -> list[tuple[int, int, int]]:
    """What the records are ordered by; the first counts how often training and evaluation have taken turns."""
    turn, before, keys = 0, "", []
    for mode, iteration, rank in zip(series.modes, series.iterations, series.ranks, strict=True):
        turn += bool(before) and mode != before
        before = mode
        keys.append((turn, iteration, rank))
    return keys


def _values(parts: Sequence[Series], order: Sequence[int]) -> Any:
    """The values in order: one tensor where every part is one that fits to the others, else a list."""
    tensors = [part.values for part in parts if type(part.values) is Tensor]
    if len(tensors) == len(parts) and len({(one.dtype, one.shape[1:]) for one in tensors}) == 1:
        return torch.cat(tensors)[list(order)]
    values = [one for part in parts for one in part.values]
    return [values[number] for number in order]
