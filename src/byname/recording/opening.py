"""Which files make up a recording? One, or one of each rank; what is missing of them is said."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from byname.errors import BadArgumentError, BynameError, NoRecordingError, NotARecordingError, RecordingError
from byname.recording.processes.ranks import rank_file, rank_files
from byname.recording.recording import Recording
from byname.recording.stores.layout.targets import nearest, needs_h5py
from byname.recording.stores.stored.source import FileSource
from byname.table import listed, printable

__all__ = ["open"]


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
