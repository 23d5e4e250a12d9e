"""Recording: `open` a file, and the series in it, by place."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from byname.errors import BynameError, NoRecordingError, NotARecordingError, RecordingError
from byname.extras import needs
from byname.recording.distributed.ranks import rank_file, rank_files
from byname.recording.export import NumberRange
from byname.recording.frame import StoredPlace
from byname.recording.recording_file import RecordingFile, file_of, is_log, log_of, name_of, nearest, no_such_file
from byname.recording.series import Series, joined, without_repeats
from byname.recording.series_by_path import asked_for
from byname.recording.stored import OpenFile
from byname.table import SHOWN, Row, counted, listed, text, to_html
from byname.text import printable

if TYPE_CHECKING:
    import pandas


def open(path: str | os.PathLike[str]) -> Recording:
    """Open a recording: one file, or the files of all ranks of a run as one.

    byname reads values when you ask for them, so a recording may be larger than memory. You can open it while it is
    being written, and after its process was killed; see `Recording.complete` and `Recording.missing`.

    Args:
        path: the file; for a run of several ranks the path that was recorded to, such as ``"run.h5"`` for
            ``run.rank0.h5``, ``run.rank1.h5`` and so on.

    Raises:
        NotARecordingError: if the file is something else.
        NoRecordingError: if there is no such file; a FileNotFoundError, too.
        RecordingError: if it is damaged, or cannot be read.
        BadArgumentError: if it is no path.

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
    named = name_of(path, "open")
    with no_such_file(named):
        return _opened(Path(named), printable(named))


def _opened(asked: Path, shown: str) -> Recording:
    if asked.is_dir():
        inside = sorted(one.name for one in asked.iterdir() if one.suffix in (".h5", ".hdf5"))
        there = listed(inside, 12) or "no .h5 file"
        raise NotARecordingError(f"{shown} is a directory; in it: {printable(there)}")
    found, named = _file(asked), file_of(asked)
    ranks = rank_files(named)
    if found is not None:
        return _with_late_ranks(found, ranks)
    if not ranks:
        raise NoRecordingError(f"there is no file {shown}; {nearest(asked.absolute())}")
    return _of_ranks(named, ranks)


def _file(asked: Path) -> RecordingFile | None:
    """Open the file of a recording, or its log where it is not finished; None where there is neither."""
    for _ in range(_TRIES):
        path = file_of(asked)
        log = asked if path != asked and asked.exists() else log_of(path)
        with suppress(FileNotFoundError):  # it was finished in between
            if not is_log(log):
                if path.exists():
                    return RecordingFile(OpenFile(path))
                continue  # there is none, or a new log has taken its place in between
            running = RecordingFile(OpenFile(log))
            if path.exists():  # finished, but for the removal of the log; or of an older recording
                with suppress(BynameError):
                    made = RecordingFile(OpenFile(path))
                    if made.identity == running.identity:
                        return made
            return running
    return None


_TRIES = 5
"""Looks at a recording that is being finished or replaced."""


def _with_late_ranks(main: RecordingFile, ranks: dict[int, Path]) -> Recording:
    """Return the file in which all ranks were gathered, with what single ranks wrote when that was not possible."""
    further, missing = _readable({f"{printable(path.name)} cannot be read": path for path in ranks.values()})
    return Recording([main, *(one for one in further if _same_run(one, main))], missing)


def _readable(paths: dict[str, Path]) -> tuple[list[RecordingFile], list[str]]:
    """Open files; return also a sentence for each that cannot be read, which begins with its key."""
    sources, missing = [], []
    for words, path in paths.items():
        try:
            found = _file(path)
            if found is None:
                raise NoRecordingError(f"there is no file {printable(str(path))}")
            sources.append(found)
        except (RecordingError, NotARecordingError) as reason:
            missing.append(f"{words}: {reason}")
    return sources, missing


def _of_ranks(asked: Path, ranks: dict[int, Path]) -> Recording:
    sources, missing = _readable({f"rank {rank}": path for rank, path in ranks.items()})
    if not sources:
        raise RecordingError(f"no file of {printable(str(asked))} can be read: {'; '.join(missing)}")
    chief = next((one for one in sources if one.run.get("rank") == 0), None)  # each run has one, and writes it anew
    chief = chief or max(sources, key=lambda source: str(source.run.get("started", "")))
    others = [one for one in sources if not _same_run(one, chief)]
    missing += [f"{printable(one.file.path.name)} is from another run and was left out" for one in others]
    world = chief.run.get("world_size")
    world = world if type(world) is int and 0 < world < 10**6 else len(ranks)
    gone = [rank for rank in range(world) if rank not in ranks]
    missing += [f"rank {rank} of {world}: no file {printable(rank_file(asked, rank).name)}" for rank in gone[:20]]
    if len(gone) > 20:
        missing.append(f"and no files of {len(gone) - 20} further ranks")
    return Recording([one for one in sources if one not in others], missing)


def _same_run(one: RecordingFile, other: RecordingFile) -> bool:
    return bool(one.run.get("run_id") == other.run.get("run_id"))


class Recording(Mapping[str, Any]):
    """The recorded values of a run, as `byname.open` returns them.

    ``recording[path]`` is a `Series`, and with a wildcard a dict of these. It has the values that the file held when it
    was opened, even if it is still being written; open it again to see more.

    Attributes:
        run: the attributes of the run: versions, arguments, times and what else was noted.
        complete: whether the run ended without an error and nothing is missing; False while it still runs.
        ended: whether nothing is written any more; also so where an error ended the run.
        missing: what was lost, in words; empty when nothing was.
    """

    def __init__(self, sources: Sequence[RecordingFile], missing: Sequence[str]) -> None:
        self._sources = list(sources)
        self.run: dict[str, Any] = dict(sources[0].run)
        for source in sources:
            name = f"{printable(source.file.path.name)}: " if len(sources) > 1 else ""
            missing = [*missing, *(f"{name}{sentence}" for sentence in source.missing)]
        self.missing = tuple(map(printable, missing))
        self.ended = all(source.ended for source in sources)
        self.complete = all(source.complete for source in sources) and not self.missing

    @property
    def paths(self) -> tuple[str, ...]:
        """The recorded places."""
        return tuple(dict.fromkeys(path for source in self._sources for path in source.places))

    def __len__(self) -> int:
        return len(self.paths)

    def __iter__(self) -> Iterator[str]:
        return iter(self.paths)

    def __contains__(self, path: object) -> bool:
        return any(path in source.places for source in self._sources)

    def __getitem__(self, path: str) -> Any:
        return asked_for(path, self.paths, self._series)

    def rows(self, *, ranges: bool = False) -> list[Row]:
        """Return a dict for each place: path, kind, shape, records, iterations, ranks, bytes, and options as ``how``.

        Args:
            ranges: whether to read all numbers for their smallest, largest and mean; how many are NaN, if any.
        """
        return [self._row(path, ranges) for path in self.paths]

    def head(self, most: int = SHOWN, *, width: int | None = None, ranges: bool = False) -> str:
        """Return the table of the places as text.

        Args:
            most: how many rows.
            width: in characters; by default that of the terminal.
            ranges: as in `rows`.
        """
        rows = self.rows(ranges=ranges)
        return text(rows, title=self._title(), notes=self.missing, drop_order=_SPARE, width=width, most=most)

    def to_pandas(self) -> pandas.DataFrame:
        """Return the rows, one for each place, as a DataFrame; ``recording["*"].to_pandas()`` has the records."""
        with needs("to_pandas()", "pandas"):
            import pandas
        return pandas.DataFrame(self.rows())

    def close(self) -> None:
        """Close the files; series of the recording can then no longer be read."""
        for source in self._sources:
            source.file.close()

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
        names = ", ".join(source.file.path.name for source in self._sources)
        return f"{names}: {counted(len(self), 'place')}{'' if self.complete else ', not complete'}"

    def _series(self, path: str) -> Series:
        parts = [source.series[path] for source in self._sources if path in source.places]
        return parts[0] if len(parts) == 1 else without_repeats(joined(parts))

    def _row(self, path: str, ranges: bool) -> Row:
        places = [source.places[path] for source in self._sources if path in source.places]
        types = [kind for place in places for kind in place.types]
        shapes = {None if kind.unpadded is not None else kind.shape for kind in types}
        numbers = any(kind.kind not in ("str", "nested") for kind in types)
        row = {
            "path": path,
            "kind": ", ".join(dict.fromkeys(kind.dtype or kind.kind for kind in types)),
            "shape": "ragged" if len(shapes) > 1 or None in shapes else shapes.pop() if numbers else None,
            "records": sum(place.count for place in places),
            "iterations": _span(places),
            "ranks": tuple(sorted(frozenset().union(*(one.ranks for one in places)))),
            "bytes": sum(one.size for one in places),
        }
        how = dict.fromkeys(str(place.sampling) for place in places if place.sampling is not None)
        row |= {"how": "; ".join(filter(None, how))} if any(how) else {}
        return {**row, **_range(self._series(path))} if ranges else row


_SPARE = ("bytes", "ranks", "kind", "mean", "iterations", "how", "shape")
"""The columns that a narrow terminal may do without."""


def _span(places: Sequence[StoredPlace]) -> str:
    first, last = min(one.first for one in places), max(one.last for one in places)
    return str(first) if first == last else f"{first}-{last}"


def _range(series: Series) -> Row:
    found = NumberRange()
    for value in series:
        found.add(value)
    return found.row()
