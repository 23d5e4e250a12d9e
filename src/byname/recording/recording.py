"""Recording: `open` a file, and what was recorded in it, by place."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from byname.errors import (
    BadArgumentError,
    BynameError,
    NoRecordingError,
    NotARecordingError,
    RecordingError,
)
from byname.extras import needs
from byname.recording.distributed.ranks import rank_file, rank_files
from byname.recording.series import Series, joined, without_repeats
from byname.recording.series_by_path import asked_for
from byname.recording.stores.described import Extent, Stored
from byname.recording.stores.parts import Form
from byname.recording.stores.reader import FileSource, StoredPlaces
from byname.recording.stores.target import nearest, needs_h5py
from byname.table import SHOWN, Row, counted, listed, text, to_html
from byname.text import printable

if TYPE_CHECKING:
    import pandas


def open(path: str | os.PathLike[str]) -> Recording:
    """Opens what `byname.record` wrote: one file, or the files of all ranks of a run as one.

    Nothing is read before it is asked for, so that a recording may be larger than memory. It can be opened while it is
    being written, and after its process was killed; `Recording.complete` and `Recording.missing` tell.

    Args:
        path: of the file; for a run of several ranks the path that was recorded to, such as ``"run.h5"`` for
            ``run.rank0.h5``, ``run.rank1.h5`` and so on.

    Raises:
        NotARecordingError: if the file is something else.
        NoRecordingError: if there is no such file; a FileNotFoundError, too.
        RecordingError: if it is damaged, or cannot be read.
        BadArgumentError: if the path is none.

    Examples:
        >>> import tempfile
        >>> file = tempfile.mkdtemp() + "/run.h5"
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2))
        >>> with byname.record(model, "0", to=file):
        ...     for _ in range(3):
        ...         _ = model(torch.ones(5, 4))
        >>> with byname.open(file) as recording:
        ...     recording.paths, recording["0"].to_numpy().shape, recording.complete
        (('0',), (3, 5, 2), True)
    """
    needs_h5py("opening a recording")
    named = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(named, str):
        raise BadArgumentError(f"a recording is opened by the path of its file, not by {type(path).__name__}")
    try:
        return _opened(Path(named), printable(named))
    except BynameError:
        raise
    except (OSError, ValueError) as reason:
        shown = printable(named if len(named) <= _LONG else f"{named[:_LONG]}... ({len(named)} characters)")
        words = printable(str(getattr(reason, "strerror", None) or reason))
        if isinstance(reason, ValueError) or reason.errno == errno.ENAMETOOLONG:  # no file can have such a name
            raise NoRecordingError(f"there is no file {shown}: {words}") from None
        raise RecordingError(f"{shown} cannot be read: {words}") from reason


_LONG = 200
"""Characters of a path that are shown where there can be no such file."""


def _opened(asked: Path, shown: str) -> Recording:
    if asked.is_dir():
        inside = sorted(one.name for one in asked.iterdir() if one.suffix in (".h5", ".hdf5"))
        there = listed(inside, 12) or "no .h5 file"
        raise NotARecordingError(f"{shown} is a directory; in it: {printable(there)}")
    ranks = rank_files(asked)
    if asked.exists():
        return _with_late_ranks(FileSource(asked), ranks)
    if not ranks:
        raise NoRecordingError(f"there is no file {shown}; {nearest(asked.absolute())}")
    return _of_ranks(asked, ranks)


def _with_late_ranks(main: FileSource, ranks: dict[int, Path]) -> Recording:
    """The file in which all ranks were gathered, and what single ranks wrote when that was no longer possible."""
    further, missing = [], []
    for path in ranks.values():
        try:
            source = FileSource(path)
        except (RecordingError, NotARecordingError) as reason:
            missing.append(f"{printable(path.name)} cannot be read: {reason}")
            continue
        if _same_run(source, main):
            further.append(source)
        else:
            source.close()  # of an older run
    return _recording([main, *further], missing)


def _of_ranks(asked: Path, ranks: dict[int, Path]) -> Recording:
    sources, missing = [], []
    for rank, path in ranks.items():
        try:
            sources.append(FileSource(path))
        except (RecordingError, NotARecordingError) as reason:
            missing.append(f"rank {rank}: {reason}")
    if not sources:
        raise RecordingError(f"no file of {printable(str(asked))} can be read: {'; '.join(missing)}")
    chief = next((one for one in sources if one.run.get("rank") == 0), None)  # each run has one, and writes it anew
    chief = chief or max(sources, key=lambda source: str(source.run.get("started", "")))
    for source in [one for one in sources if not _same_run(one, chief)]:
        missing.append(f"{printable(source.path.name)} is of another run, and was left out")
        sources.remove(source)
        source.close()
    world = chief.run.get("world_size")
    world = world if type(world) is int and 0 < world < 10**6 else len(ranks)
    gone = [rank for rank in range(world) if rank not in ranks]
    missing += [f"rank {rank} of {world}: no file {printable(rank_file(asked, rank).name)}" for rank in gone[:20]]
    if len(gone) > 20:
        missing.append(f"and no files of {len(gone) - 20} further ranks")
    return _recording(sources, missing)


def _recording(sources: list[FileSource], missing: list[str]) -> Recording:
    try:
        return Recording(sources, missing)
    except BaseException:
        for source in sources:
            source.close()
        raise


def _same_run(one: FileSource, other: FileSource) -> bool:
    return bool(one.run.get("run_id") == other.run.get("run_id"))


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
        return text(rows, title=self._title(), notes=self.missing, spare=_SPARE, width=width, most=most)

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a DataFrame, one a place; those of records are ``recording["*"].to_pandas()``. Needs pandas."""
        with needs("to_pandas()", "pandas"):
            import pandas
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
        extents = [results.extent(path) for results in having]
        places = [results.places[path] for results in having]
        shapes = {_shape(part.form) for place in places for part in place.parts}
        numbers = any(part.form.kind not in ("str", "nested") for place in places for part in place.parts)
        row = {
            "path": path,
            "kind": ", ".join(dict.fromkeys(_kind(place) for place in places)),
            "shape": "ragged" if len(shapes) > 1 or None in shapes else shapes.pop() if numbers else None,
            "records": sum(place.count for place in places),
            "iterations": _span([one for one in extents if one.first <= one.last]),
            "ranks": tuple(sorted(frozenset().union(*(one.ranks for one in extents)))),
            "bytes": sum(one.size for one in extents),
        }
        how = dict.fromkeys(str(place.sampling) for place in places if place.sampling is not None)
        row |= {"how": "; ".join(filter(None, how))} if any(how) else {}
        return {**row, **_range(self._series(path))} if ranges else row


_SPARE = ("bytes", "ranks", "kind", "mean", "iterations", "how", "shape")
"""The columns that a narrow terminal may do without."""


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


def _span(extents: Sequence[Extent]) -> str:
    if not extents:
        return ""
    first, last = min(one.first for one in extents), max(one.last for one in extents)
    return str(first) if first == last else f"{first}-{last}"


def _range(series: Series) -> Row:
    """The smallest and largest number in a series and their mean; a part of it is read at a time."""
    from byname.recording.export import NumberRange

    found = NumberRange()
    for value in iter(series.values):
        found.add(value)
    return found.row()
