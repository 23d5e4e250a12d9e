"""Results: the figures of every place, as a table, frame, arrays with named dimensions, or plot."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from byname.analyse.state import equal_numbers
from byname.analyse.tables import (
    ResultLeaf,
    column_name,
    keys_of,
    levels_of,
    long_rows,
    path_of,
    result_leaves,
    shown_rows,
    spare_columns,
    table_rows,
)
from byname.errors import BynameError, NotCapturedError
from byname.extras import needs
from byname.table import Row, closest, counted, text, to_html

if TYPE_CHECKING:
    import pandas
    import xarray
    from matplotlib.axes import Axes


class Results(Mapping[str, Any]):
    """``{path: {figure: value}}``; of classes ``{path: {class: {figure: value}}}``.

    Values are numbers, tensors where a figure has one value a feature, channel or unit, and dicts where it has one for
    each of several things, as ``{"cka": {other path: number}}``.

        >>> import torch
        >>> found = Results({"fc1": {"dead": 3, "fired": torch.tensor([0.25, 0.5])}}, name="DeadUnits")
        >>> found
        DeadUnits: 1 place
        path   dead   fired
        ───────────────────────────────────
        fc1       3   2: 0.25 … 0.375 … 0.5
        >>> found["fc1"]["fired"]
        tensor([0.2500, 0.5000])
        >>> found["fc2"]
        Traceback (most recent call last):
        byname.errors.NotCapturedError: DeadUnits has no figures of `fc2`; there are those of fc1
        >>> found == {"fc1": {"dead": 3, "fired": [0.25, 0.5]}}
        True

    It equals another mapping with equal numbers; NaN is the same as NaN.

    Attributes:
        name: the class of the analyser.
        notes: sentences about the figures, which the table shows below.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, figures: Mapping[str, Mapping[Any, Any]], *, name: str, notes: Iterable[str] = ()) -> None:
        self._figures = {path: dict(of_place) for path, of_place in figures.items()}
        self.name = name
        self.notes = tuple(notes)

    def __getitem__(self, path: str) -> dict[Any, Any]:
        if path not in self._figures:
            others = f"there are those of {closest(path, self._figures)}" if self._figures else "; ".join(self.notes)
            name = self.name.partition(",")[0]
            raise NotCapturedError(f"{name} has no figures of `{path}`; {others or 'it has none at all'}")
        return self._figures[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._figures)

    def __len__(self) -> int:
        return len(self._figures)

    def __eq__(self, other: object) -> bool:
        return equal_numbers(self, other) if isinstance(other, Mapping) else NotImplemented

    @property
    def figures(self) -> tuple[str, ...]:
        """The names of the figures."""
        return tuple(dict.fromkeys(leaf.figure for leaf in result_leaves(self._figures)))

    def rows(self) -> list[Row]:
        """Return one dict of plain values a place, and class where there are classes.

        Numbers are as they are. A tensor ``mean`` has columns ``mean.min``, ``mean.mean`` and ``mean.max``, of its
        values that are not NaN; a dict has a column for each key, ``cka[fc2]``.
        """
        return table_rows(self._figures)

    def to_pandas(self, *, long: bool = False) -> pandas.DataFrame:
        """Return the figures as a DataFrame; needs pandas (``pip install "byname[frames]"``).

        Args:
            long: one row for each number: its place, class, figure, and index in the figure (a whole number, several,
                or a key). Otherwise one row a place and class, as `rows` has them.
        """
        with needs("to_pandas()", "pandas"):
            import pandas
        return pandas.DataFrame([*long_rows(self._figures)] if long else self.rows())

    def to_xarray(self) -> xarray.Dataset:
        """Return the figures as a Dataset, one variable each; needs xarray (``pip install "byname[frames]"``).

        The dimensions are ``place``, ``class`` where there are classes (and ``group`` for "class" and "rest"), and
        those of the figure, ``mean_dim_0`` and so on. Where the places differ in size, or in the number of dimensions,
        what a place does not have is NaN, and the coordinate ``mean_mask`` is False there. A figure that is a dict has
        the dimension ``other``.

        Raises:
            NotInstalledError: if xarray is not installed.
            BynameError: if nearly all of an array would be padding.
        """
        with needs("to_xarray()", "xarray"):
            import xarray
        leaves = [*result_leaves(self._figures)]
        coords = _coordinates(self._figures, leaves)
        variables: dict[str, Any] = {}
        masks: dict[str, Any] = {}
        for figure in self.figures:
            dims, data, mask = _variable(figure, [leaf for leaf in leaves if leaf.figure == figure], coords)
            variables[column_name(figure, coords)] = dims, data
            if mask is not None:
                masks[f"{figure}_mask"] = dims, mask
        return xarray.Dataset(variables, {**coords, **masks}, attrs={"analyser": self.name})

    def plot(self, figure: str | None = None, *, axes: Axes | None = None, ax: Axes | None = None) -> Axes:
        """Draw one of the figures; needs matplotlib (``pip install "byname[plot]"``).

        Numbers become bars, one a place in the order of the model; numbers of classes, and dicts such as ``cka``, a
        heat map; tensors a box a place, from the smallest to the largest value; spectra curves with two logarithmic
        axes. In a notebook, and wherever pyplot is loaded, it is a figure of pyplot's: a cell shows it, and so does
        ``plt.show()``. Elsewhere pyplot is not touched: ``axes.figure.savefig("dead.png")``.

        Args:
            figure: its name; the first if None.
            axes: what to draw in; a new figure of a fitting size if None.
            ax: the same, for a single one.

        Raises:
            NotInstalledError: if matplotlib is not installed; it is also an ImportError.
            BadArgumentError: if there is no such figure, or it has no numbers.
        """
        from byname.analyse.plots import plotted_figures

        return plotted_figures(self._figures, self.name, figure, ax if axes is None else axes)

    def by_path(self, name: str) -> dict[str, Any]:
        """Return the figures by paths ``<place>.<name>.<figure>``, or ``<place>.<name>.<class>.<figure>``."""
        return dict(pair for leaf in result_leaves(self._figures) for pair in path_of(leaf, name))

    def __repr__(self) -> str:
        rows = shown_rows(self._figures)
        return text(rows, title=self._title(), notes=self.notes, drop_order=spare_columns(rows, self._figures))

    def _repr_html_(self) -> str:
        return to_html(shown_rows(self._figures), title=self._title(), notes=self.notes)

    def _title(self) -> str:
        return f"{self.name}: {counted(len(self), 'place')}"


MOST = 2**26
"""The number of elements up to which an array may have any share of padding."""

Array = np.ndarray[Any, np.dtype[Any]]


def _coordinates(figures: Mapping[str, Any], leaves: list[ResultLeaf]) -> dict[str, list[Any]]:
    """Return the names along the dimensions that figures share."""
    coords: dict[str, dict[Any, None]] = {"place": dict.fromkeys(figures)}
    for leaf in leaves:
        for level, label in zip(levels_of(leaf.labels), leaf.labels, strict=True):
            coords.setdefault(level, {})[label] = None
    if any(isinstance(leaf.value, Mapping) for leaf in leaves):
        coords["other"] = dict.fromkeys(keys_of(leaves, figures))
    return {name: [*labels] for name, labels in coords.items()}


def _variable(
    figure: str, leaves: list[ResultLeaf], coords: Mapping[str, list[Any]]
) -> tuple[tuple[str, ...], Array, Array | None]:
    """Return the dimensions and the array of one figure, and its mask where something was padded."""
    several = any(isinstance(leaf.value, Mapping) for leaf in leaves)
    levels = [*dict.fromkeys(level for leaf in leaves for level in levels_of(leaf.labels))]
    if any(len(leaf.labels) != len(levels) or several != isinstance(leaf.value, Mapping) for leaf in leaves):
        raise BynameError(f"only some places have classes or keys in `{figure}`: use to_pandas(long=True)")
    outer = ["place", *levels, *(["other"] if several else [])]
    cells: dict[tuple[int, ...], Array] = {}
    for leaf in leaves:
        for key, value in leaf.value.items() if several else [(None, leaf.value)]:
            labels = (leaf.path, *leaf.labels, *([key] if several else []))
            cells[tuple(coords[level].index(one) for level, one in zip(outer, labels, strict=True))] = _array(value)
    data, mask = _filled(figure, tuple(len(coords[level]) for level in outer), cells)
    return (*outer, *(f"{figure}_dim_{number}" for number in range(data.ndim - len(outer)))), data, mask


def _array(value: Any) -> Array:
    if isinstance(value, Tensor):
        kept = value.detach().cpu()
        return np.asarray((kept.float() if kept.dtype.itemsize < 4 and kept.is_floating_point() else kept).numpy())
    if isinstance(value, bool | int | float | complex):
        return np.asarray(value)
    array = np.empty((), object)  # texts and lists of them stay what they are
    array[()] = value
    return array


def _filled(figure: str, shape: tuple[int, ...], cells: Mapping[tuple[int, ...], Array]) -> tuple[Array, Array | None]:
    """Return all values in one array, smaller ones at its beginning, and its mask."""
    deepest = max((array.ndim for array in cells.values()), default=0)
    shaped = {at: array.reshape(array.shape + (1,) * (deepest - array.ndim)) for at, array in cells.items()}
    inner = tuple(max(sizes) for sizes in zip(*(array.shape for array in shaped.values()), strict=True))
    elements, own = math.prod(shape) * math.prod(inner), sum(array.size for array in shaped.values())
    if elements > MOST and elements > 4 * own:
        raise BynameError(
            f"one array of `{figure}`, of shape {shape + inner}, would have {elements:,} elements, of which {own:,} "
            "have a value: use the tensors of each place, or to_pandas(long=True)"
        )
    whole = elements == own
    dtype = np.result_type(*(array.dtype for array in shaped.values())) if shaped else np.dtype(np.float64)
    if not whole and dtype.kind in "biu":
        dtype = np.dtype(np.float64)
    data = np.full((*shape, *inner), None if dtype.kind == "O" else np.nan if dtype.kind in "fc" else 0, dtype)
    mask = np.zeros(data.shape, bool)
    for at, array in shaped.items():
        here: tuple[int | slice, ...] = (*at, *(slice(0, size) for size in array.shape))
        data[here] = array if array.ndim else array[()]  # else a list would stay in an array of its own
        mask[here] = True
    return data, None if whole else mask
