"""Series: the values of one place over a run, and where each of its moments is."""

from __future__ import annotations

import operator
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from byname.errors import BadArgumentError, NoMatchError
from byname.extras import needs
from byname.recording import export
from byname.recording.dataset import Samples
from byname.recording.series_records import (
    MODES,
    MOMENT,
    LazySelection,
    Positions,
    SeriesRecords,
    Values,
    cropped,
    one_each,
)
from byname.table import Row, counted, text, to_html
from byname.text import printable

if TYPE_CHECKING:
    import pandas
    import xarray
    from matplotlib.axes import Axes


class Series(SeriesRecords):
    """The values of one place, in the order in which they were recorded.

    ``series[3]`` is the value of the fourth record and iterating gives the values; ``series[2:5]`` is a `Series` again,
    and so are ``series[[0, 4]]`` and ``series[mask]``, with one truth value a record.

    Attributes:
        path: the place, without wildcards.
        values: tensors or plain values, one a record; a sequence that reads a value from the file when you ask for it,
            or, after `byname.stack`, one tensor whose first dimension is the record.
        iterations: the iteration of each record, from 0; where only changes were recorded, that of the change.
        ranks: the process of each record, 0 for the only one; -1 for a value that stands for several.
        calls: which of several values of the place in one iteration each is, from 0.
        modes: ``"train"`` or ``"eval"`` for each record; iterations of the two are counted separately.
        shapes: of each value, ``()`` for plain values; those from before it was padded.
        shards: for each record the part of a distributed tensor that it is, or None.
        sampling: the arguments of `byname.record` for the place: where, every, start, stop, mode, reduce, dtype and
            more; None if they are not known (a series of your own).
        ends: the modes and iterations from which on the model had nothing at the place, until the next record.

    >>> series = Series("loss", [0.5, 0.25, 0.125], [0, 1, 5], [0, 0, 0], [0, 0, 0], ["train"] * 3, [()] * 3)
    >>> series[1], list(series[1:]), series.at(3)
    (0.25, [0.25, 0.125], 0.25)
    >>> series.to_numpy()
    array([0.5  , 0.25 , 0.125])
    """

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __getitem__(self, which: int | slice | Sequence[int] | Tensor | np.ndarray[Any, Any]) -> Any:
        if isinstance(which, slice):
            return self.picked(which)
        if isinstance(which, list | tuple | range | np.ndarray | Tensor) and np.ndim(which) == 1:
            return self.picked(_numbers(which, self))
        number = operator.index(which)  # type: ignore[arg-type]
        if not -len(self) <= number < len(self):
            raise IndexError(
                f"there is no record {number} of {printable(self.path)}: it has {counted(len(self), 'record')}"
            )
        return self.values[number % len(self)]

    def at(self, iteration: int, rank: int = 0, call: int = 0, mode: str | None = None) -> Any:
        """Return the value of the place at an iteration and call: the last that was stored until then.

        Args:
            iteration: from 0.
            rank: the process; a value that stands for all ranks is one of each.
            call: which of several values in an iteration.
            mode: ``"train"`` or ``"eval"``; needed where the series has both, for these are counted separately.

        Raises:
            NoMatchError: nothing was stored yet, with the iterations that were; or nothing stands there any more.
            BadArgumentError: the value may have changed in the other mode, and no record tells which came first; or the
                iteration is no whole number.
        """
        if not hasattr(iteration, "__index__"):
            raise BadArgumentError(f"at() takes the number of an iteration, not {iteration!r}")
        if mode is None and self._several:
            raise BadArgumentError(
                f'{self.path} was recorded in training and evaluation: give mode="train" or mode="eval"'
            )
        order, iterations, calls = self._in_order(rank, mode)
        low = bisect_left(iterations, iteration)
        found = bisect_right(calls, call, lo=low, hi=bisect_right(iterations, iteration, lo=low))
        if not found:
            raise NoMatchError(self._nothing_at(iteration, rank, call, iterations))
        last = int(order[found - 1])
        stored, mode = int(iterations[found - 1]), MODES[self.records["eval"][last].item()]
        if self._several and stored < iteration and self._changed_in_the_other_mode(last, rank):
            raise BadArgumentError(
                f"{self.path} was stored at {mode} iteration {stored}, then changed in the other "
                f"mode; no record tells whether before iteration {iteration}. Record with on_change=False"
            )
        for ended, end in self.ends:
            if ended == mode and stored < end <= iteration:
                raise NoMatchError(
                    f"{self.path} has no value at iteration {iteration}: it ended before iteration {end}"
                )
        return self.values[last]

    @cached_property
    def _several(self) -> bool:
        return len(np.unique(self.records["eval"])) > 1

    @cached_property
    def _orders(self) -> dict[tuple[int, str | None], tuple[Positions, Positions, Positions]]:
        return {}

    def _in_order(self, rank: int, mode: str | None) -> tuple[Positions, Positions, Positions]:
        """Return the numbers of a rank's records by iteration, then call, then as they came; and both of each."""
        if (rank, mode) not in self._orders:
            mine = np.isin(self.records["rank"], (rank, -1))
            if mode is not None:
                mine &= self.mode_names == mode
            order = np.flatnonzero(mine)
            order = order[np.lexsort((self.records["call"][order], self.records["iteration"][order]))]
            self._orders[rank, mode] = order, self.records["iteration"][order], self.records["call"][order]
        return self._orders[rank, mode]

    def _changed_in_the_other_mode(self, number: int, rank: int) -> bool:
        """Return whether the next record of the rank, in the order in which they came, is of the other mode."""
        later = self.records[number + 1 :]
        following = later["eval"][np.isin(later["rank"], (rank, -1))][:1]
        return bool((following != self.records["eval"][number]).any())

    def _nothing_at(self, iteration: int, rank: int, call: int, there: Positions) -> str:
        if not len(self):
            return f"{self.path} has no records"
        asked = f"{self.path} has no value at iteration {iteration} or before it for rank {rank}, call {call}"
        if len(there):
            return f"{asked}; its iterations are {_some(there)}"
        ranks, calls = (_some(self.records[name]) for name in ("rank", "call"))
        return f"{asked}; there are ranks {ranks}, calls {calls} and mode {' and '.join(sorted({*self.modes}))}"

    def with_values(self, values: Sequence[Any] | Tensor) -> Series:
        """Return the same records with other values, one for each, as a callback does.

        Args:
            values: a sequence as long as the series, or a tensor whose first dimension is the record.

        >>> series = Series("fc1", [1.0, 2.0], [0, 1], [0, 0], [0, 0], ["train"] * 2, [()] * 2)
        >>> list(series.with_values([value * 10 for value in series]))
        [10.0, 20.0]
        """
        new, old = one_each(values, len(self), self.path), self.values
        before = [tuple(shape) for shape in self.shapes]
        as_before = isinstance(new, Tensor) and isinstance(old, Tensor) and new.shape == old.shape  # padded or not
        shapes = before if as_before else [value_shape(value) for value in new]
        if shapes == before:
            return self.replace(values=new)
        columns = self.iterations, self.ranks, self.calls, self.modes
        return type(self)(self.path, new, *columns, shapes, (), self.sampling, self.ends)

    def rows(self) -> list[Row]:
        """Return a dict for each record: iteration, mode, rank, call, shape, type, and the value; it reads every value.

        A tensor of several elements has mean, min and max in place of the value.
        """
        return [export.record_row(self, number, value) for number, value in enumerate(self)]

    def head(self, most: int = export.SHOWN, *, width: int | None = None) -> str:
        """Return the table as text; that of a long series has its first and last records, and reads no other value.

        Args:
            most: how many rows.
            width: in characters; by default that of the terminal.
        """
        rows, notes = export.shown(self, max(most, 1))
        return text(rows, title=export.title(self), notes=notes, drop_order=export.SPARE, width=width, most=len(rows))

    def __repr__(self) -> str:
        return self.head()

    def _repr_html_(self) -> str:
        rows, notes = export.shown(self)
        return to_html(rows, title=export.title(self), notes=notes)

    def to_numpy(self) -> export.AnyArray:
        """Return the values as one array, the record first, if their shapes agree; else as an array of objects.

        No number changes. bfloat16 and float8 become float32, which holds each of their values. Values of
        types with nothing in common (integers and floats as tensors, numbers and None), strings, None and containers
        make an array of objects.

        >>> zeros = torch.zeros(2, 3)
        >>> Series("fc1", [zeros, zeros], [0, 1], [0, 0], [0, 0], ["train"] * 2, [(2, 3)] * 2).to_numpy().shape
        (2, 2, 3)
        """
        return export.to_numpy(self.values, self.shapes)

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame with a row for each record: iteration, mode, rank, call and value.

        If every value is a single number, the column holds numbers; tensors with more elements are arrays in it. It
        needs pandas (``pip install "byname[frames]"``).
        """
        return export.to_pandas(self)

    def plot(self, *, ax: Axes | None = None) -> Axes:
        """Draw the values over iterations; needs matplotlib (``pip install "byname[plot]"``).

        Numbers become a line. Of tensors it is the median, with the bands that hold 50 and 90 % of the values. NaN and
        infinities are left out.
        In a notebook, and wherever pyplot is loaded, it is a figure of pyplot's; elsewhere
        ``axes.figure.savefig("run.png")`` writes it.

        Args:
            ax: what to draw in; a new figure if None.

        Raises:
            BynameError: there are no numbers to draw.
            NotInstalledError: matplotlib is not installed; it is also an ImportError.
        """
        return export.plotted({self.path: self}, ax)

    def dataset(self, *, samples: str = "tokens", shuffle: int | None = None) -> Samples:
        """Return a ``torch.utils.data.Dataset`` of the samples in the values, for training on activations.

        >>> values = [torch.zeros(2, 3, 5)] * 4
        >>> series = Series("h", values, [0, 1, 2, 3], [0] * 4, [0] * 4, ["train"] * 4, [(2, 3, 5)] * 4)
        >>> len(series.dataset()), series.dataset()[0].shape, len(series.dataset(samples="batch"))
        (24, torch.Size([5]), 8)

        Args:
            samples: ``"tokens"``: each position is one, the last dimension being the features; ``"batch"``: each
                element of the first dimension; ``"records"``: each value as it is.
            shuffle: the seed of a random order, in which records of a file are still read once each.

        Raises:
            BadArgumentError: an argument is invalid.
            BynameError: the values have no dimensions.
        """
        return Samples({self.path: self}, samples=samples, shuffle=shuffle)

    def to_xarray(
        self,
        *,
        dims: Sequence[str] | None = None,
        fill: bool | Sequence[int] = False,
        chunks: int | str | Mapping[str, int | str] | None = None,
    ) -> xarray.DataArray:
        """Return the values by iteration, rank, call and their own dimensions (``dim_0`` ...); needs xarray.

        Where both modes were recorded, ``mode`` comes first. The coordinate ``recorded`` tells where there is a record;
        elsewhere stand NaN, or 0, False, "" or None where there is no NaN. Values of different sizes are padded in the
        same way at the end of each dimension; the coordinate ``mask`` is then true where there is a value.

        Args:
            dims: names of the values' own dimensions: ``("batch", "position", "feature")``.
            fill: True carries each value on, within its mode, rank and call, to the later iterations of the series at
                which nothing was stored; iterations (``range(100)``) carry it to these instead. The coordinate
                ``filled`` tells where. Right where nothing was stored because nothing had changed.
            chunks: read lazily with dask, for what is larger than memory: iterations in a piece, ``"auto"``, or
                a dict of sizes by dimension. For numbers of one shape.

        Raises:
            BadArgumentError: `dims` are not one name for each dimension of the values.
            BynameError: the values differ in their number of dimensions or have no type in common, two records are of
                the same iteration, rank and call, or the array would be huge and nearly empty.

        >>> ones = [torch.ones(3), torch.ones(3)]
        >>> Series("fc1", ones, [0, 4], [0, 0], [0, 0], ["train"] * 2, [(3,)] * 2).to_xarray().sizes
        Frozen({'iteration': 2, 'rank': 1, 'call': 1, 'dim_0': 3})
        """
        with needs("to_xarray()", "xarray"):
            import xarray  # noqa: F401 - it is this import that says what is missing

            from byname.recording.to_xarray import to_xarray
        return to_xarray(self, fill, chunks, dims)


def _numbers(which: Any, series: Series) -> Positions:
    """Return the numbers of records that a list, or a mask with one truth value a record, means."""
    asked = np.asarray(which)
    size, path = len(series), printable(series.path)
    if asked.dtype == bool:
        if len(asked) != size:
            raise IndexError(f"the mask has {len(asked)} values, but {path} has {counted(size, 'record')}")
        return np.flatnonzero(asked)
    if asked.size and asked.dtype.kind not in "iu":
        raise TypeError(f"index records of {path} with integers or a mask, not with {asked.dtype}")
    numbers = asked.astype(np.int64)
    if numbers.size and not (-size <= numbers.min() and numbers.max() < size):
        raise IndexError(f"{path} has {counted(size, 'record')}; {numbers.tolist()[:8]} is out of range")
    return numbers % max(size, 1)


def concatenated(parts: Sequence[Series]) -> Series:
    """Return series of one place, one after the other.

    No value is read from a file. Tensors of stacked values become one where shape and type agree, else a list in which
    each has lost its padding.
    """
    paths = sorted({one.path for one in parts})
    if len(paths) != 1:
        raise BadArgumentError(f"only series of one place can be joined, not of {', '.join(paths) or 'none'}")
    if len(parts) == 1:
        return parts[0]
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kind for one in parts for kind in one.kinds))}
    records = np.concatenate([one.records for one in parts])
    records["kind"] = np.concatenate(
        [np.array([numbers[kind] for kind in one.kinds], np.int32)[one.records["kind"]] for one in parts]
    )
    sampling = next((one.sampling for one in parts if one.sampling is not None), None)
    return parts[0].replace(values=_end_to_end(parts), records=records, kinds=tuple(numbers), sampling=sampling)


def _end_to_end(parts: Sequence[Series]) -> Values:
    """Return all values: one tensor where all are and fit, a list in memory, else read when asked for."""
    every = [one.values for one in parts if len(one)]
    tensors = [values for values in every if isinstance(values, Tensor)]
    if every and len(tensors) == len(every) and len({(one.dtype, one.shape[1:]) for one in tensors}) == 1:
        return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
    if all(isinstance(values, list | tuple | array | Tensor) for values in every):
        return [one for part in parts for one in _without_padding(part)]
    return every[0] if len(every) == 1 else LazySelection.of(every)


def _without_padding(part: Series) -> Sequence[Any]:
    if isinstance(part.values, Tensor):
        return [cropped(value, shape) for value, shape in zip(part.values, part.shapes, strict=True)]
    return part.values


def joined(parts: Sequence[Series]) -> Series:
    """Return series of one place, of several processes, as one: by iteration, then rank and call, else in their order.

    Where training and evaluation took turns, so do they here. No value is read from a file.

    >>> later = Series("loss", [0.2], [1], [0], [0], ["train"], [()])
    >>> first = Series("loss", [0.4], [0], [0], [0], ["train"], [()])
    >>> joined([later, first]).iterations
    [0, 1]
    """
    whole = concatenated(parts)
    turns = np.concatenate([_turns(one.records["eval"]) for one in parts])
    order = np.lexsort((*(whole.records[name] for name in ("call", "rank", "iteration")), turns))
    return whole if (order == np.arange(len(order))).all() else whole.picked(order)


def without_repeats(series: Series) -> Series:
    """Return a series without records stored twice: a process that was given up may have kept what did arrive."""
    first: dict[tuple[Any, ...], int] = {}
    for number, moment in enumerate(series.records[MOMENT].tolist()):
        first.setdefault(moment, number)
    return series if len(first) == len(series) else series.picked(np.array([*first.values()]))


def _turns(evaluation: np.ndarray[Any, Any]) -> Positions:
    """Return how often training and evaluation have taken turns before each record."""
    return np.cumsum(np.diff(evaluation, prepend=evaluation[:1]), dtype=np.int64)


def value_shape(value: object) -> tuple[int, ...]:
    """Return the shape of a tensor or array, and () for all else."""
    return tuple(value.shape) if issubclass(type(value), Tensor | np.ndarray) else ()  # type: ignore[attr-defined]


def _some(numbers: Positions) -> str:
    several = np.unique(numbers).tolist()
    if len(several) <= 8:
        return ", ".join(map(str, several))
    return f"{', '.join(map(str, several[:7]))}, ... {several[-1]}"
