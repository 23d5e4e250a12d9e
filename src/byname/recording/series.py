"""Series: the values of one place over a run, and where each of its moments is."""

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from byname.errors import BadArgumentError, NoMatchError
from byname.recording import export, to_xarray
from byname.recording.columns import SharedItems, distinct, end_to_end, picked
from byname.recording.dataset import Samples
from byname.recording.distributed.dtensor import Shard
from byname.recording.export import SeriesRecords
from byname.recording.lazy import Positions, after_each_other, one_each, taken
from byname.recording.sampling import Sampling
from byname.table import Row, counted, text, to_html
from byname.text import printable

if TYPE_CHECKING:
    import pandas
    import xarray
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True)
class _Sorted:
    """Some records in the order of their iterations, then calls, then as they came."""

    numbers: Positions
    iterations: Positions
    calls: Positions

    def last(self, iteration: int, call: int) -> int | None:
        """The last record of this moment or one before it."""
        low = bisect_left(self.iterations, iteration)
        high = bisect_right(self.iterations, iteration, lo=low)
        found = bisect_right(self.calls, call, lo=low, hi=high)
        return int(self.numbers[found - 1]) if found else None


class SortedRecords:
    """The records of a series, sorted once for each rank and mode that is asked for.

    Args:
        series: the records; they are taken as they are now.
    """

    __slots__ = ("_calls", "_found", "_here", "_iterations", "_modes", "_ranks", "several")

    def __init__(self, series: SeriesRecords) -> None:
        self._iterations, self._ranks, self._calls = (
            np.array(column, np.int64) for column in (series.iterations, series.ranks, series.calls)
        )
        known = distinct(series.modes)
        self.several = len(known) > 1
        modes = np.array([*series.modes] if self.several else [*known], np.str_)
        self._modes = np.broadcast_to(modes, len(self._iterations))
        self._found: dict[tuple[int, str | None], _Sorted] = {}
        self._here: dict[int, Positions] = {}

    def last(self, iteration: int, call: int, rank: int, mode: str | None) -> int | None:
        """The number of the record in force, of this rank or of one that stands for all; None where there is none."""
        known = self._found.get((rank, mode))
        if known is None:
            here = self.of_rank(rank)
            mine = here if mode is None else here[self._modes[here] == mode]
            order = mine[np.lexsort((mine, self._calls[mine], self._iterations[mine]))]
            known = self._found[rank, mode] = _Sorted(order, self._iterations[order], self._calls[order])
        return known.last(iteration, call)

    def following(self, number: int, rank: int) -> int | None:
        """The number of the next record of a rank, in the order in which they came."""
        here = self.of_rank(rank)
        after = int(np.searchsorted(here, number, side="right"))
        return int(here[after]) if after < len(here) else None

    def of_rank(self, rank: int) -> Positions:
        """The numbers of the records of a rank, and of those that stand for all."""
        if rank not in self._here:
            self._here[rank] = np.flatnonzero((self._ranks == rank) | (self._ranks == -1))
        return self._here[rank]

    def fits(self, series: Any, number: int | None) -> bool:
        """Whether the series is still as it was, as far as one record tells."""
        if len(series.iterations) != len(self._iterations):
            return False
        return number is None or (
            series.iterations[number] == self._iterations[number] and series.calls[number] == self._calls[number]
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Series:
    """The values of one place, in the order in which they were recorded.

    ``series[3]`` is the value of the fourth record and iterating gives the values; ``series[2:5]`` is a `Series` again,
    and so are ``series[[0, 4]]`` and ``series[mask]``, with one truth value a record.

    Attributes:
        path: the place, without wildcards.
        values: tensors or plain values, one a record; a sequence that reads from the file what is asked for, or, after
            `byname.stack`, one tensor whose first dimension is the record.
        iterations: the iteration of each record, from 0; where only changes were recorded, that of the change.
        ranks: the process of each record, 0 for the only one; -1 for a value that stands for several.
        calls: which of several values of the place in one iteration each is, from 0.
        modes: ``"train"`` or ``"eval"`` for each record; iterations of the two are counted apart.
        shapes: of each value, ``()`` for plain values; those from before it was padded.
        shards: for each record the part of a distributed tensor that it is, or None.
        sampling: what was asked of the place: where, every, start, stop, mode, reduce, dtype and more; None where that
            is not known (the file of an older byname, a series of your own).
        ends: the mode and iteration from which on nothing stood at the place any more, until the next record.

    >>> series = Series("loss", [0.5, 0.25, 0.125], [0, 1, 5], [0, 0, 0], [0, 0, 0], ["train"] * 3, [()] * 3)
    >>> series[1], list(series[1:]), series.at(3)
    (0.25, [0.25, 0.125], 0.25)
    >>> series.to_numpy()
    array([0.5  , 0.25 , 0.125])
    """

    path: str
    values: Sequence[Any] | Tensor
    iterations: Sequence[int]
    ranks: Sequence[int]
    calls: Sequence[int]
    modes: Sequence[str]
    shapes: Sequence[tuple[int, ...]]
    shards: Sequence[Shard | None] = ()
    sampling: Sampling | None = None
    ends: Sequence[tuple[str, int]] = ()
    _moments: SortedRecords | None = field(default=None, init=False)

    def __len__(self) -> int:
        return len(self.iterations)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __getitem__(self, which: int | slice | Sequence[int] | Tensor | np.ndarray[Any, Any]) -> Any:
        if isinstance(which, slice):
            return self._within(which)
        if isinstance(which, list | tuple | range | np.ndarray | Tensor) and np.ndim(which) == 1:
            return _picked(self, _numbers(which, self))
        number = operator.index(which)  # type: ignore[arg-type]
        if not -len(self) <= number < len(self):
            raise IndexError(
                f"there is no record {number} of {printable(self.path)}: it has {counted(len(self), 'record')}"
            )
        return self.values[number % len(self)]

    def _within(self, which: slice) -> Series:
        return _made(self, taken(self.values, which), [column[which] for column in _columns(self)])

    def at(self, iteration: int, rank: int = 0, call: int = 0, mode: str | None = None) -> Any:
        """The value in force at an iteration and call: the last that was stored then or before.

        Args:
            iteration: from 0.
            rank: the process; a value that stands for all ranks is one of each.
            call: which of several values in an iteration.
            mode: ``"train"`` or ``"eval"``; needed where the series has both, for these are counted apart.

        Raises:
            NoMatchError: nothing was stored yet, with the iterations that were; or nothing stands there any more.
            BadArgumentError: the value may have changed in the other mode, and no record tells which came first.
        """
        moments = self._moments or self._sorted()
        last = moments.last(iteration, call, rank, mode)
        if not moments.fits(self, last):  # the lists are the user's, who may have changed them
            moments = self._sorted()
            last = moments.last(iteration, call, rank, mode)
        if mode is None and moments.several:
            raise BadArgumentError(
                f'{self.path} was recorded in training and evaluation: say mode="train" or mode="eval"'
            )
        if last is None:
            here = [number for number in moments.of_rank(rank).tolist() if mode in (None, self.modes[number])]
            raise NoMatchError(self._nothing_at(iteration, rank, call, here))
        if moments.several and self.iterations[last] < iteration:
            following = moments.following(last, rank)
            if following is not None and self.modes[following] != mode:
                raise BadArgumentError(
                    f"{self.path} was stored at {mode} iteration {self.iterations[last]}, then changed in the other "
                    f"mode, and whether before iteration {iteration} no record tells; record with on_change=False"
                )
        for ended, end in self.ends:
            if ended == (mode or self.modes[last]) and self.iterations[last] < end <= iteration:
                raise NoMatchError(
                    f"{self.path} has no value at iteration {iteration}: it ended before iteration {end}"
                )
        return self.values[last]

    def _sorted(self) -> SortedRecords:
        found = SortedRecords(self)
        object.__setattr__(self, "_moments", found)
        return found

    def _nothing_at(self, iteration: int, rank: int, call: int, here: list[int]) -> str:
        if not len(self):
            return f"{self.path} has no records"
        asked = f"{self.path} has no value at iteration {iteration} or before it for rank {rank}, call {call}"
        there = sorted(distinct(picked(self.iterations, np.array(here, np.int64))))
        if there:
            return f"{asked}; its iterations are {_some(there)}"
        ranks, calls = (_some(sorted(distinct(column))) for column in (self.ranks, self.calls))
        return f"{asked}; there are ranks {ranks}, calls {calls} and mode {' and '.join(sorted(distinct(self.modes)))}"

    def with_values(self, values: Sequence[Any] | Tensor) -> Series:
        """The same records with other values, one for each: what a callback returns.

        Args:
            values: a sequence as long as the series, or a tensor whose first dimension is the record.

        >>> series = Series("fc1", [1.0, 2.0], [0, 1], [0, 0], [0, 0], ["train"] * 2, [()] * 2)
        >>> list(series.with_values([value * 10 for value in series]))
        [10.0, 20.0]
        """
        new, old = one_each(values, len(self), self.path), self.values
        before = [tuple(shape) for shape in self.shapes]
        as_before = isinstance(new, Tensor) and isinstance(old, Tensor) and new.shape == old.shape  # padded or not
        shapes = before if as_before else [_shape(value) for value in new]
        same = shapes == before
        return replace(self, values=new, shapes=shapes, shards=self.shards if same else ())

    def rows(self) -> list[Row]:
        """One dict a record: iteration, mode, rank, call, shape, type, and the value, or mean, min and max of a tensor.

        A tensor of one element has a value and no range. Every value is read.
        """
        return [export.row(self, number, value) for number, value in enumerate(self)]

    def head(self, most: int = export.SHOWN, *, width: int | None = None) -> str:
        """The table; that of a long series has its first and last records, and no other value is read.

        Args:
            most: how many rows.
            width: in characters; by default that of the terminal which shows the standard output.
        """
        rows, notes = export.shown(self, max(most, 1))
        return text(rows, title=export.title(self), notes=notes, spare=export.SPARE, width=width, most=len(rows))

    def __repr__(self) -> str:
        return self.head()

    def _repr_html_(self) -> str:
        rows, notes = export.shown(self)
        return to_html(rows, title=export.title(self), notes=notes)

    def to_numpy(self) -> export.AnyArray:
        """All values as one array, the record first, where their shapes agree; else an array of objects, one a record.

        Every number stays what it is. bfloat16 and float8 become float32, which holds each of their values. Values of
        types with nothing in common (integers and floats as tensors, numbers and None), strings, None and containers
        make an array of objects.

        >>> zeros = torch.zeros(2, 3)
        >>> Series("fc1", [zeros, zeros], [0, 1], [0, 0], [0, 0], ["train"] * 2, [(2, 3)] * 2).to_numpy().shape
        (2, 2, 3)
        """
        return export.to_numpy(self.values, self.shapes)

    def to_pandas(self) -> pandas.DataFrame:
        """One row a record: iteration, mode, rank, call and value. Needs pandas (``pip install "byname[frames]"``).

        Where every value is a single number the column holds numbers; tensors with more elements are arrays in it.
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
        from byname.recording.plot import plotted

        return plotted({self.path: self}, ax)

    def dataset(self, *, samples: str = "tokens", shuffle: int | None = None) -> Samples:
        """A ``torch.utils.data.Dataset`` of the samples in the values, for training on activations.

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
        """The values by iteration, rank, call and their own dimensions (``dim_0`` ...). Needs xarray.

        Where both modes were recorded, ``mode`` comes first. The coordinate ``recorded`` tells where there is a record;
        elsewhere stand NaN, or 0, False, "" or None where there is no NaN. Values of different sizes are padded in the
        same way at the end of each dimension; the coordinate ``mask`` is then true where there is a value.

        Args:
            dims: names of the values' own dimensions: ``("batch", "position", "feature")``.
            fill: True carries each value on, within its mode, rank and call, to the later iterations of the series at
                which nothing was stored; iterations (``range(100)``) carry it to these instead. The coordinate
                ``filled`` tells where. Right where nothing was stored because nothing had changed.
            chunks: read lazily with dask, for what is larger than memory: so many iterations in a piece, ``"auto"``, or
                a dict of sizes by dimension. For numbers of one shape.

        Raises:
            BadArgumentError: `dims` are not one name for each dimension of the values.
            BynameError: the values differ in their number of dimensions or have no type in common, two records are of
                the same iteration, rank and call, or the array would be huge and nearly empty.

        >>> ones = [torch.ones(3), torch.ones(3)]
        >>> Series("fc1", ones, [0, 4], [0, 0], [0, 0], ["train"] * 2, [(3,)] * 2).to_xarray().sizes
        Frozen({'iteration': 2, 'rank': 1, 'call': 1, 'dim_0': 3})
        """
        return to_xarray.to_xarray(self, fill, chunks, dims)


def _numbers(which: Any, series: Series) -> Positions:
    """Return the numbers of records that a list, or a mask with one truth value a record, means."""
    asked = np.asarray(which)
    size, path = len(series), printable(series.path)
    if asked.dtype == bool:
        if len(asked) != size:
            raise IndexError(f"the mask has {len(asked)} values, and {path} {counted(size, 'record')}")
        return np.flatnonzero(asked)
    if asked.size and asked.dtype.kind not in "iu":
        raise TypeError(f"records of {path} are picked by whole numbers or by a mask, not {asked.dtype}")
    numbers = asked.astype(np.int64)
    if numbers.size and not (-size <= numbers.min() and numbers.max() < size):
        raise IndexError(f"{path} has {counted(size, 'record')}; {numbers.tolist()[:8]} go beyond them")
    return numbers % max(size, 1)


def concatenated(parts: Sequence[Series]) -> Series:
    """Series of one place, one after the other.

    No value is read from a file. Tensors of stacked values become one where shape and type agree, else a list in which
    each has lost its padding.
    """
    paths = sorted({one.path for one in parts})
    if len(paths) != 1:
        raise BadArgumentError(f"series of one place can be joined, not of {', '.join(paths) or 'none'}")
    if len(parts) == 1:
        return parts[0]
    *of_each, shards = zip(*map(_columns, parts), strict=True)
    if any(map(len, shards)):
        shards = tuple(
            own if len(own) else SharedItems[Shard | None].all(None, len(one))
            for own, one in zip(shards, parts, strict=True)
        )
    columns = [end_to_end(several) for several in (*of_each, shards)]
    values = after_each_other([one.values for one in parts], [one.shapes for one in parts])
    sampling = next((one.sampling for one in parts if one.sampling is not None), None)
    return _made(replace(parts[0], sampling=sampling), values, columns)


def joined(parts: Sequence[Series]) -> Series:
    """Series of one place, of several processes, as one: by iteration, then rank and call, else in their own order.

    Where training and evaluation took turns, so do they here. No value is read from a file.

    >>> later = Series("loss", [0.2], [1], [0], [0], ["train"], [()])
    >>> first = Series("loss", [0.4], [0], [0], [0], ["train"], [()])
    >>> joined([later, first]).iterations
    [0, 1]
    """
    whole = concatenated(parts)
    turns = np.concatenate([_turns(one.modes) for one in parts])
    numbers = (np.array(column, np.int64) for column in (whole.calls, whole.ranks, whole.iterations))
    order = np.lexsort((*numbers, turns))
    if (order == np.arange(len(order))).all():
        return whole
    return _picked(whole, order)


def without_repeats(series: Series) -> Series:
    """The same without records that were stored twice: a process that was given up may have kept what did arrive."""
    seen: set[tuple[Any, ...]] = set()
    order = []
    for number, record in enumerate(zip(series.modes, series.iterations, series.ranks, series.calls, strict=True)):
        if record not in seen:
            seen.add(record)
            order.append(number)
    return series if len(order) == len(series) else _picked(series, np.array(order))


def _picked(series: Series, order: Positions) -> Series:
    columns = [picked(column, order) if len(column) else [] for column in _columns(series)]
    return _made(series, taken(series.values, order), columns)


def _made(of: Series, values: Sequence[Any] | Tensor, columns: Sequence[Any]) -> Series:
    """Other records of the same place."""
    iterations, ranks, calls, modes, shapes, shards = columns
    return Series(of.path, values, iterations, ranks, calls, modes, shapes, shards, of.sampling, of.ends)


def _turns(modes: Sequence[str]) -> Positions:
    """How often training and evaluation have taken turns before each record."""
    now = np.array(list(modes), np.str_)
    changed = now[1:] != now[:-1]
    return np.concatenate([np.zeros(min(len(now), 1), np.int64), np.cumsum(changed, dtype=np.int64)])


def _columns(series: Series) -> tuple[Any, ...]:
    return series.iterations, series.ranks, series.calls, series.modes, series.shapes, series.shards


def _shape(value: object) -> tuple[int, ...]:
    return tuple(value.shape) if issubclass(type(value), Tensor) else ()  # type: ignore[attr-defined]


def _some(numbers: list[int]) -> str:
    return (
        ", ".join(map(str, numbers)) if len(numbers) <= 8 else f"{', '.join(map(str, numbers[:7]))}, ... {numbers[-1]}"
    )
