"""Series by path: the results of a recorder, and the series of all places that fit a path with wildcards."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from byname.errors import BadPathError, NotCapturedError
from byname.extras import needs
from byname.place import Place, parse
from byname.recording import export
from byname.recording.dataset import Samples
from byname.recording.memory import SeriesOnDemand
from byname.recording.series import Series
from byname.table import SHOWN, Row, closest, counted, text, to_html
from byname.text import printable

if TYPE_CHECKING:
    import pandas
    import xarray
    from matplotlib.axes import Axes


class _OfPlaces:
    """What several series have in common, with a column for the path; for a mapping of paths to series."""

    items: Any

    def rows(self) -> list[Row]:
        """Return the rows of all series, as `Series.rows` does, each with its path. It reads every value."""
        return [{"path": path, **row} for path, series in self.items() for row in series.rows()]

    def head(self, most: int = SHOWN, *, width: int | None = None) -> str:
        """Return the table as text, with the first and last records of each place; it reads no other value.

        Args:
            most: how many rows.
            width: in characters; by default that of the terminal.
        """
        rows, notes = self._shown(most)
        return text(rows, title=self._title(), notes=notes, drop_order=export.SPARE, width=width, most=most)

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame with a row for each record: path, iteration, mode, rank, call and value."""
        with needs("to_pandas()", "pandas"):
            import pandas
        frames = [(path, series.to_pandas()) for path, series in self.items()]
        for path, frame in frames:
            frame.insert(0, "path", path)
        if not frames:
            return pandas.DataFrame(columns=["path", "iteration", "mode", "rank", "call", "value"])
        return pandas.concat([frame for _, frame in frames], ignore_index=True)

    def to_xarray(
        self,
        *,
        dims: Sequence[str] | None = None,
        fill: bool | Sequence[int] = False,
        chunks: int | str | Mapping[str, int | str] | None = None,
    ) -> xarray.DataArray:
        """Return the values of all places as one array, with ``path`` as its first dimension; needs xarray.

        The arguments are those of `Series.to_xarray`. Values of several shapes are a `BynameError`, as there.
        """
        with needs("to_xarray()", "xarray"):
            import xarray  # noqa: F401 - it is this import that says what is missing

            from byname.recording.to_xarray import together
        return together({path: series for path, series in self.items() if len(series)}, fill, chunks, dims)

    def plot(self, *, ax: Axes | None = None) -> Axes:
        """Draw the values of all places over iterations, each in a colour, as `Series.plot` does; needs matplotlib."""
        return export.plotted(dict(self.items()), ax)

    def dataset(self, *, samples: str = "tokens", shuffle: int | None = None) -> Samples:
        """Return a ``torch.utils.data.Dataset`` of the samples at all places: each is a dict of a tensor for each path.

        The arguments are those of `Series.dataset`. Places without the same records and samples are a `BynameError`.
        """
        return Samples(dict(self.items()), samples=samples, shuffle=shuffle)

    def _shown(self, most: int) -> tuple[list[Row], list[str]]:
        found = [(path, series) for path, series in self.items() if len(series)]
        share = max(2, most // max(len(found), 1))
        rows = [{"path": path, **row} for path, series in found[:most] for row in export.shown(series, share)[0]]
        left_out = sum(len(series) for _, series in found) - min(len(rows), most)
        return rows[:most], [f"{counted(left_out, 'record')} not shown; .rows() has them"] if left_out else []

    def _title(self) -> str:
        found = [series for _, series in self.items()]
        return f"{counted(len(found), 'place')}: {counted(sum(map(len, found)), 'record')}"


class SeriesByPath(dict[str, Series], _OfPlaces):
    """The series of all places that fit a path with wildcards: a dict by path, with a table of all records.

    >>> found = SeriesByPath(loss=Series("loss", [0.5, 0.25], [0, 1], [0, 0], [0, 0], ["train"] * 2, [()] * 2))
    >>> found["loss"].iterations, [(row["path"], row["iteration"], row["value"]) for row in found.rows()]
    ([0, 1], [('loss', 0, 0.5), ('loss', 1, 0.25)])
    """

    def __repr__(self) -> str:
        return self.head()

    def _repr_html_(self) -> str:
        rows, notes = self._shown(SHOWN)
        return to_html(rows, title=self._title(), notes=notes)


class RecordedSeries(SeriesOnDemand, _OfPlaces):
    """Series by path; a path with wildcards gives a dict of all that fit, with a table of their records.

    Places that were `listened` to and have reported nothing have an empty series.
    """

    def __init__(self, found: Mapping[str, Series], listened: Collection[str]) -> None:
        super().__init__(found, found.__getitem__)
        self._listened = listened

    def __getitem__(self, path: str) -> Any:
        nothing = [one for one in self._listened if one not in self]
        return asked_for(path, [*self, *nothing], self._series)

    def _series(self, path: str) -> Series:
        return super().__getitem__(path) if path in self else Series(path, [], [], [], [], [], [], [])

    def __repr__(self) -> str:
        return text(self._places(), title=self._title())

    def _repr_html_(self) -> str:
        return to_html(self._places(), title=self._title())

    def _places(self) -> list[Row]:
        return [place_row(path, series) for path in self if len(series := self._series(path))]


def place_row(path: str, series: Series) -> Row:
    """Return the columns of a `Recording` for which no value is read."""
    shapes = {*map(tuple, series.shapes)}
    ends = dict.fromkeys((min(series.iterations, default=""), max(series.iterations, default="")))
    return {
        "path": path,
        "shape": (shapes.pop() or None) if len(shapes) == 1 else "ragged" if shapes else None,
        "records": len(series),
        "iterations": "-".join(map(str, ends)),
    }


def asked_for(path: str, known: Collection[str], get: Callable[[str], Any]) -> Any:
    """Return the series at a path, by `get`, or a `SeriesByPath` for a path with wildcards."""
    if path in known:
        return get(path)
    asked = parse(path)
    if asked.wild:
        fitting = SeriesByPath({one: get(one) for one in known if _fits(asked, one)})
        if fitting:
            return fitting
    for one in (str(asked), path.removesuffix(".forward"), f"{path}.forward"):
        if one in known:
            return get(one)
    there = printable(closest(path, known)) or "nothing"
    raise NotCapturedError(f"nothing was recorded at `{printable(path)}`; recorded: {there}")


def _fits(asked: Place, path: str) -> bool:
    try:
        return asked.matches(path)
    except BadPathError:  # a file may have names that are no paths; they are reached as they are
        return False
