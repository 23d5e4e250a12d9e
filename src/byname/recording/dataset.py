"""Dataset: recorded values as a ``torch.utils.data.Dataset``, one sample an item, for training on activations.

Shuffling keeps neighbours together: records are taken in random order, a few at a time, and the samples of those few
are mixed. So a file is read once from one end of an epoch to the other, and what is in memory stays small.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from byname.errors import BadArgumentError, BynameError
from byname.recording.series_records import MOMENT, Positions, SeriesRecords
from byname.table import counted, listed
from byname.text import printable

MEMORY = 2**26
"""About how many bytes of values are mixed with one another, and held meanwhile."""

_LEADING = {"records": 0, "batch": 1}
"""The leading dimensions of a value that number its samples; of tokens all but the last."""


class Samples(torch.utils.data.Dataset[Any]):
    """The samples of one or several series, by path: ``dataset[i]`` is a tensor, or a dict of one for each path.

    >>> from byname.recording.series import Series
    >>> values = [torch.arange(6.0).reshape(1, 3, 2), torch.arange(6.0, 12.0).reshape(1, 3, 2)]
    >>> series = Series("h", values, [0, 1], [0, 0], [0, 0], ["train"] * 2, [(1, 3, 2)] * 2)
    >>> samples = Samples({"h": series}, samples="tokens")
    >>> len(samples), samples[4]
    (6, tensor([8., 9.]))

    Each record of one series has a record of the others. Tokens are positions, the last dimension being the features,
    which a value beside it may lack, such as token ids. `memory` is about how many bytes of values shuffling mixes.
    """

    def __init__(
        self,
        series: Mapping[str, SeriesRecords],
        *,
        samples: str = "tokens",
        shuffle: int | None = None,
        memory: int = MEMORY,
    ) -> None:
        if samples != "tokens" and samples not in _LEADING:
            raise BadArgumentError(f'samples= is "tokens", "batch" or "records", not {samples!r:.40}')
        if shuffle is not None and (type(shuffle) is not int or shuffle < 0):
            raise BadArgumentError(f"shuffle= takes None or a seed (an integer >= 0), not {shuffle!r:.40}")
        if not series:
            raise BynameError("a dataset needs at least one series")
        self._series = dict(series)
        self._samples = samples
        self._leading = _leading(self._series, samples)
        counts = _counts(self._series, self._leading)
        self._ends = np.cumsum(counts)
        self._order = None if shuffle is None else _mixed(counts, _together(self._series, memory), shuffle)
        self._held: dict[tuple[str, int], Tensor] = {}
        self._most = 1 if shuffle is None else max(1, _together(self._series, memory))

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: int) -> Any:
        if not -len(self) <= index < len(self):
            raise IndexError(f"there is no sample {index}: the dataset has {counted(len(self), 'sample')}")
        number = int(index) % len(self)
        number = number if self._order is None else int(self._order[number])
        record = int(np.searchsorted(self._ends, number, side="right"))
        row = number - (int(self._ends[record - 1]) if record else 0)
        found = {path: self._rows(path, record)[row] for path in self._series}
        return found if len(found) > 1 else next(iter(found.values()))

    def _rows(self, path: str, record: int) -> Tensor:
        """Return the samples of a record; the last few records are held."""
        rows = self._held.pop((path, record), None)
        if rows is None:
            value = self._series[path].values[record]
            dims = self._leading[path][record]
            rows = value.reshape(math.prod(value.shape[:dims]), *value.shape[dims:])
            while len(self._held) >= self._most * len(self._series):
                del self._held[next(iter(self._held))]
        self._held[path, record] = rows
        return rows

    def __repr__(self) -> str:
        paths = listed([printable(path) for path in self._series], 3)
        return f"<Dataset of {counted(len(self), 'sample')} ({self._samples}) of {paths}>"


def _leading(series: Mapping[str, SeriesRecords], samples: str) -> dict[str, list[int]]:
    """Return how many dimensions of each value are those of samples; refuse places with different records."""
    first = next(iter(series))
    for path, one in series.items():
        if not np.array_equal(one.records[MOMENT], series[first].records[MOMENT]):
            raise BynameError(
                f"{printable(path)} and {printable(first)} do not have the same records; make a dataset of each, or "
                "record both with on_change=False"
            )
    found: dict[str, list[int]] = {path: [] for path in series}
    for shapes in zip(*(one.shapes for one in series.values()), strict=True):
        tokens = max(shapes, key=len)[:-1]
        for path, shape in zip(series, shapes, strict=True):
            of_tokens = len(shape) if shape == tokens else max(len(shape) - 1, 0)
            found[path].append(of_tokens if samples == "tokens" else _LEADING[samples])
    return found


def _counts(series: Mapping[str, SeriesRecords], leading: Mapping[str, list[int]]) -> Positions:
    """Return the number of samples in each record, which is the same for every series."""
    first = next(iter(series))
    found: dict[str, Positions] = {}
    for path, one in series.items():
        at = [*zip(one.shapes, leading[path], strict=True)]
        if any(len(shape) < max(dims, 1) for shape, dims in at):
            raise BynameError(f'values of {printable(path)} have no dimension of samples: try samples="records"')
        found[path] = np.array([math.prod(shape[:dims]) for shape, dims in at], np.int64)
        if len(unequal := np.nonzero(found[path] != found[first])[0]):
            shapes = (
                f"{printable(which)} of shape {tuple(series[which].shapes[unequal[0]])}" for which in (path, first)
            )
            raise BynameError(f"{' and '.join(shapes)} do not have the same samples; make a dataset of each")
    return found[first]


def _together(series: Mapping[str, SeriesRecords], memory: int) -> int:
    """Return how many records of all series have about this many bytes, at four bytes an element."""
    elements = sum(math.prod(one.shapes[0]) for one in series.values() if len(one))
    return max(1, memory // max(4 * elements, 1))


def _mixed(counts: Positions, together: int, seed: int) -> Positions:
    """Return the samples in random order: records shuffled, and the samples of `together` records at a time."""
    random = np.random.default_rng(seed)
    starts = np.cumsum(counts) - counts
    records = random.permutation(len(counts))
    pieces = [
        random.permutation(np.concatenate([np.arange(starts[one], starts[one] + counts[one]) for one in some]))
        for first in range(0, len(records), together)
        if len(some := records[first : first + together])
    ]
    return np.concatenate([np.zeros(0, np.int64), *pieces])
