"""Results: the figures of every place, as a table, frame, labelled arrays or plot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from byname.analyse.results.tables import leaves_of, long_rows, path_of, rows_of, shown_rows, spare_columns
from byname.errors import NotCapturedError
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
        name: what they are results of.
        notes: what is to be said beside the figures, in sentences; they stand under the table.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, figures: Mapping[str, Mapping[Any, Any]], *, name: str, notes: Iterable[str] = ()) -> None:
        self._figures = {path: dict(of_place) for path, of_place in figures.items()}
        self.name = name
        self.notes = tuple(notes)

    def __getitem__(self, path: str) -> dict[Any, Any]:
        if path not in self._figures:
            raise NotCapturedError(
                f"{self.name.partition(',')[0]} has no figures of `{path}`; {self._what_there_is(path)}"
            )
        return self._figures[path]

    def _what_there_is(self, path: str) -> str:
        if self._figures:
            return f"there are those of {closest(path, self._figures)}"
        return "; ".join(self.notes) or "it has those of no place"

    def __iter__(self) -> Iterator[str]:
        return iter(self._figures)

    def __len__(self) -> int:
        return len(self._figures)

    def __eq__(self, other: object) -> bool:
        return same(self, other) if isinstance(other, Mapping) else NotImplemented

    @property
    def figures(self) -> tuple[str, ...]:
        """The names of the figures."""
        return tuple(dict.fromkeys(leaf.figure for leaf in leaves_of(self._figures)))

    def rows(self) -> list[Row]:
        """One dict of plain values a place, and class where there are classes.

        Numbers are as they are. A tensor ``mean`` is told by ``mean.min``, ``mean.mean`` and ``mean.max``, of its
        values that are not NaN; a dict by a column for each key, ``cka[fc2]``.
        """
        return rows_of(self._figures)

    def to_pandas(self, *, long: bool = False) -> pandas.DataFrame:
        """The figures as a DataFrame; needs pandas (``pip install "byname[frames]"``).

        Args:
            long: one row for each number: its place, class, figure, and index in the figure (a whole number, several,
                or a key). Otherwise one row a place and class, as `rows` has them.
        """
        with needs("to_pandas()", "pandas"):
            import pandas
        return pandas.DataFrame([*long_rows(self._figures)] if long else self.rows())

    def to_xarray(self) -> xarray.Dataset:
        """The figures as a Dataset, one variable each; needs xarray (``pip install "byname[frames]"``).

        The dimensions are ``place``, ``class`` where there are classes (and ``group`` for "class" and "rest"), and
        those of the figure, ``mean_dim_0`` and so on. Where the places differ in size, or in the number of dimensions,
        what a place does not have is NaN, and the coordinate ``mean_mask`` is False there. A figure that is a dict has
        the dimension ``other``.

        Raises:
            NotInstalledError: if xarray is not installed.
            BynameError: if nearly all of an array would be padding.
        """
        from byname.analyse.results.dataset import dataset_of

        return dataset_of(self._figures, self.name)

    def plot(self, figure: str | None = None, *, axes: Axes | None = None, ax: Axes | None = None) -> Axes:
        """Draws one of the figures; needs matplotlib (``pip install "byname[plot]"``).

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
        from byname.analyse.results.plots import plotted

        return plotted(self._figures, self.name, figure, ax if axes is None else axes)

    def by_path(self, name: str) -> dict[str, Any]:
        """The figures by paths ``<place>.<name>.<figure>``, or ``<place>.<name>.<class>.<figure>``."""
        return dict(pair for leaf in leaves_of(self._figures) for pair in path_of(leaf, name))

    def __repr__(self) -> str:
        rows = shown_rows(self._figures)
        return text(rows, title=self._title(), notes=self.notes, spare=spare_columns(rows, self._figures))

    def _repr_html_(self) -> str:
        return to_html(shown_rows(self._figures), title=self._title(), notes=self.notes)

    def _title(self) -> str:
        return f"{self.name}: {counted(len(self), 'place')}"


def same(one: Any, other: Any) -> bool:
    """Whether all numbers are equal, in dicts, lists, tensors and arrays; NaN is the same as NaN.

    >>> same({"dead": torch.tensor([1, 2])}, {"dead": [1.0, 2.0]})
    True
    """
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, Mapping) or isinstance(other, Mapping):
        return False
    if _is_array(one) or _is_array(other):
        return _same_arrays(one, other)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) or bool(one != one and other != other)  # NaN is not itself


def _is_array(value: Any) -> bool:
    import numpy as np

    return isinstance(value, Tensor | np.ndarray)


def _same_arrays(one: Any, other: Any) -> bool:
    try:
        mine, others = (torch.as_tensor(value).detach().cpu() for value in (one, other))
    except (TypeError, ValueError, RuntimeError):  # PyTorch's answers for what is no numbers
        return False
    if mine.shape != others.shape:
        return False
    return bool(((mine == others) | ((mine != mine) & (others != others))).all())
