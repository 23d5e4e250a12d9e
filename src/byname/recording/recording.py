"""What was recorded? A `Recording`: the files of a run as one, from which a path gives the values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy

from byname.errors import BynameError
from byname.recording.results import asked_for
from byname.recording.series import Series, joined, without_repeats
from byname.recording.stores.layout.parts import Form
from byname.recording.stores.stored.results import Stored, StoredPlaces
from byname.recording.stores.stored.source import FileSource
from byname.table import SHOWN, Row, counted, printable, text, to_html

if TYPE_CHECKING:
    import pandas

__all__ = ["Recording"]


class Recording(Mapping[str, Any]):
    """The recorded values of a run; `byname.open` gives one.

    ``recording[path]`` is a `Series`, and with a wildcard a dict of these. Nothing is read before it is asked for.
    What is seen is what the file held when it was opened, also while it is being written; open it again to see more.

    Attributes:
        run: the attributes of the run: versions, arguments, times and what else was noted.
        complete: whether the run came to its end and everything is there; False while it still goes on.
        ended: whether nothing is written any more; also so where an error ended the run.
        missing: what was lost, in words; empty when nothing was.
    """

    def __init__(self, sources: Sequence[FileSource], missing: Sequence[str]) -> None:
        self._sources = list(sources)
        self._results = [StoredPlaces(source) for source in sources]
        self.run: dict[str, Any] = dict(sources[0].run)
        self.missing = tuple(map(printable, (*missing, *_of_all(self._sources, self._results))))
        self.ended = all(source.ended for source in sources)
        self.complete = all(source.complete for source in sources) and not self.missing

    @property
    def paths(self) -> tuple[str, ...]:
        """The recorded places."""
        return tuple(dict.fromkeys(path for results in self._results for path in results))

    def __len__(self) -> int:
        return len(self.paths)

    def __iter__(self) -> Iterator[str]:
        return iter(self.paths)

    def __contains__(self, path: object) -> bool:
        return any(path in results.places for results in self._results)

    def __getitem__(self, path: str) -> Any:
        return asked_for(path, self.paths, self._series)

    def rows(self, *, ranges: bool = False) -> list[Row]:
        """One dict a place: path, kind, shape, records, iterations, ranks and bytes; how, if not by default.

        Args:
            ranges: whether to read all numbers for their smallest, largest and mean; how many are NaN, if any.
        """
        return [self._row(path, ranges) for path in self.paths]

    def head(self, most: int = SHOWN, *, width: int | None = None, ranges: bool = False) -> str:
        """The table of the places.

        Args:
            most: how many rows.
            width: in characters; by default that of the terminal which shows the standard output.
            ranges: whether to read all numbers for their ranges.
        """
        rows = self.rows(ranges=ranges)
        return text(rows, title=self._title(), notes=self.missing, spare=("bytes", "ranks"), width=width, most=most)

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a DataFrame, one a place; those of records are ``recording["*"].to_pandas()``. Needs pandas."""
        try:
            import pandas
        except ImportError as missing:
            raise BynameError('to_pandas() needs pandas: pip install "byname[frames]"') from missing
        return pandas.DataFrame(self.rows())

    def close(self) -> None:
        """Closes the files; series that were taken out can then no longer be read."""
        for source in self._sources:
            source.close()

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return self.head()

    def _repr_html_(self) -> str:
        return to_html(self.rows(), title=self._title(), notes=self.missing)

    def _title(self) -> str:
        names = ", ".join(source.path.name for source in self._sources)
        return f"{names}: {counted(len(self), 'place')}{'' if self.complete else ', not complete'}"

    def _series(self, path: str) -> Series:
        parts = [results[path] for results in self._results if path in results.places]
        return parts[0] if len(parts) == 1 else without_repeats(joined(parts))

    def _row(self, path: str, ranges: bool) -> Row:
        having = [results for results in self._results if path in results.places]
        indexes = [results.index(path) for results in having]
        places = [results.places[path] for results in having]
        shapes = {_shape(part.form) for place in places for part in place.parts}
        row = {
            "path": path,
            "kind": ", ".join(dict.fromkeys(_kind(place) for place in places)),
            "shape": shapes.pop() if len(shapes) == 1 and None not in shapes else "ragged",
            "records": sum(place.count for place in places),
            "iterations": _span(numpy.concatenate([index.iterations for index in indexes])),
            "ranks": tuple(numpy.unique(numpy.concatenate([index.ranks for index in indexes])).tolist()),
            "bytes": sum(results.size(path) for results in having),
        }
        how = dict.fromkeys(str(place.sampling) for place in places if place.sampling is not None)
        row |= {"how": "; ".join(filter(None, how))} if any(how) else {}
        return {**row, **_range(self._series(path))} if ranges else row


def _of_all(sources: Sequence[FileSource], results: Sequence[StoredPlaces]) -> list[str]:
    """What each file says is missing, and what was left out of it, with its name where there are several."""
    return [
        sentence if len(sources) == 1 else f"{printable(source.path.name)}: {sentence}"
        for source, held in zip(sources, results, strict=True)
        for sentence in (*source.missing, *held.missing)
    ]


def _shape(form: Form) -> tuple[int, ...] | None:
    return None if form.padded or form.layout == "flat" else form.shape


def _kind(place: Stored) -> str:
    return ", ".join(dict.fromkeys(part.form.dtype or part.form.kind for part in place.parts))


def _span(iterations: Any) -> str:
    if not len(iterations):
        return ""
    first, last = int(iterations.min()), int(iterations.max())
    return str(first) if first == last else f"{first}-{last}"


def _range(series: Series) -> Row:
    """The smallest and largest number in a series and their mean; a part of it is read at a time."""
    from byname.recording.ranges import Range

    found = Range()
    for value in iter(series.values):
        found.add(value)
    return found.row()
