"""Finish: makes the HDF5 file of a log, when the recorder is closed or later."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from byname.errors import (
    BynameError,
    NoRecordingError,
    NotARecordingError,
    RecordingError,
    RecordingExistsError,
    RecordingWarning,
    recording_error,
)
from byname.reading.interrupts import defer_signals
from byname.recording.descriptors import link_as, lock_exclusive, same_file, write_at
from byname.recording.distributed.ranks import rank_files
from byname.recording.hdf5 import BUFFER, ByteRange, laid_out
from byname.recording.recording_file import (
    RecordingFile,
    file_of,
    is_log,
    log_of,
    marked,
    name_of,
    nearest,
    needs_h5py,
    no_such_file,
)
from byname.recording.stored import OpenFile
from byname.source.tracebacks import warn
from byname.text import printable, with_progress


def finish(path: str | os.PathLike[str]) -> Path:
    """Make the HDF5 file of a recording that is a log, and remove the log.

    A recording is a log (``run.h5.log``) while it runs; closing the recorder makes an HDF5 file of it, unless
    ``record(..., finish=False)`` was asked for or the process was killed. `byname.open` reads both; h5py, xarray and
    other programs read only the file. It needs as much room as the log, which is kept until the file is there.

    Args:
        path: of the log or of the file that it becomes; for a run of several ranks the path that was recorded to, such
            as ``"run.h5"`` for ``run.rank0.h5.log``, ``run.rank1.h5.log`` and so on.

    Returns:
        The path of the file. A recording that is finished stays as it is.

    Raises:
        NoRecordingError: if there is no such recording; a FileNotFoundError, too.
        NotARecordingError: if the file is something else.
        RecordingExistsError: if the file is there, and is another recording.
        RecordingError: if it is still written, or is damaged, or the file cannot be written.
        BadArgumentError: if it is no path.

    Examples:
        >>> import tempfile
        >>> file = tempfile.mkdtemp() + "/run.h5"
        >>> model = torch.nn.Linear(4, 2)
        >>> with byname.record(model, "forward", to=file, finish=False):
        ...     output = model(torch.ones(1, 4))
        >>> len(byname.open(file)["forward"]), byname.finish(file + ".log").name
        (1, 'run.h5')
    """
    _all_of(path, "finished")
    asked = Path(os.fspath(path))
    return file_of(asked) if asked.suffix == ".log" and not asked.exists() else asked


def repair(path: str | os.PathLike[str]) -> bool:
    """Make the HDF5 file of what a killed process has left, for readers that are not byname.

    It is what `finish` does: `byname.open` reads the log (``run.h5.log``) of a killed process as it is, and h5py,
    xarray and others do not know it. A recording that is finished stays as it is.

    Args:
        path: of the file; for a run of several ranks the path that was recorded to, such as ``"run.h5"`` for
            ``run.rank0.h5``, ``run.rank1.h5`` and so on.

    Returns:
        Whether there was something to repair.

    Raises:
        NoRecordingError: if there is no such recording; a FileNotFoundError, too.
        NotARecordingError: if the file is something else.
        RecordingError: if it is still written, or is damaged, or the file may not be written (then a PermissionError,
            too).
        BadArgumentError: if it is no path.

    Examples:
        >>> import tempfile
        >>> file = tempfile.mkdtemp() + "/run.h5"
        >>> model = torch.nn.Linear(4, 2)
        >>> with byname.record(model, "forward", to=file):
        ...     output = model(torch.ones(1, 4))
        >>> byname.repair(file)
        False
    """
    return _all_of(path, "repaired")


def _all_of(path: str | os.PathLike[str], done: str) -> bool:
    """Finish the recording, of all ranks; return whether there was something to do."""
    needs_h5py("making the HDF5 file of a recording")
    named = name_of(path, done.removesuffix("ed"))
    asked = Path(named)
    with no_such_file(named):
        if asked.is_dir():
            raise NotARecordingError(f"{printable(named)} is a directory; name a file in it to be {done}")
        one = file_of(asked)
        files = [*([one] if one.exists() or log_of(one).exists() else []), *rank_files(one).values()]
        if not files:
            raise NoRecordingError(f"there is no file {printable(named)}; {nearest(asked.absolute())}")
        return bool(sum([_finished(file, done) for file in files]))  # all of them


def _finished(path: Path, done: str) -> bool:
    shown = printable(str(path))
    try:
        log = log_of(path)
        if is_log(log):
            _finish_alone(log, path)
            return True
        RecordingFile(OpenFile(path))
        return remove_left(path)
    except BynameError as reason:
        if shown in str(reason):
            raise
        raise type(reason)(f"{shown} cannot be {done}: {reason}") from reason.__cause__
    except OSError as reason:
        raise recording_error(f"{shown} cannot be {done}: {printable(str(reason))}", reason) from reason
    except (RuntimeError, KeyError, ValueError, TypeError) as reason:  # HDF5's errors become one of these
        raise RecordingError(f"{shown} cannot be {done}: {printable(str(reason))}") from reason


def _finish_alone(log: Path, path: Path) -> None:
    """Finish a log while nobody else does, least of all its writer."""
    with closing(OpenFile(log)) as file:
        if lock_exclusive(file.descriptor) is False:
            raise RecordingError(
                f"{file.shown} is still being written, by this or another process. Try again when it is closed"
            )
        left = RecordingFile(file)
        remove_left(path)
        if not path.exists():
            finish_log(left, path)
            if left.damage:
                warn(
                    f"{printable(str(path))} lacks a part of {file.shown}, which was removed: {left.damage}",
                    RecordingWarning,
                )
        elif _identity(path) != left.identity:
            raise RecordingExistsError(f"{printable(str(path))} exists, and is not from {file.shown}; move it away")
        else:
            log.unlink()  # the file was there already when its process was killed


def _identity(path: Path) -> bytes:
    with closing(OpenFile(path)) as file, suppress(BynameError):
        return RecordingFile(file).identity
    return b""


def new_name(path: Path) -> Path:
    """Return a name beside a file for what will take its place; nobody else chooses the same."""
    real = Path(os.path.realpath(path))
    return real.with_name(f"{real.name}.{os.urandom(6).hex()}.new")


def remove_left(path: Path) -> bool:
    """Remove what killed processes have left of files that were to take this name; return whether there was some."""
    real = Path(os.path.realpath(path))
    shape = re.compile(re.escape(real.name) + r"\.[0-9a-f]{12}\.new")
    with os.scandir(real.parent) as entries:
        left = [Path(entry.path) for entry in entries if shape.fullmatch(entry.name)]
    found = False
    for one in left:
        with suppress(OSError):  # somebody else removes it, or it may not be
            one.unlink()
            found = True
    return found


def finish_log(log: RecordingFile, path: Path) -> None:
    """Make the HDF5 file of a log, in one piece, and remove the log."""
    new = new_name(path)
    try:
        _write(log, new)
        with defer_signals(also_repeated=True):
            if not same_file(log.file.descriptor, log.file.path):
                raise OSError("it was removed or replaced meanwhile")
            try:
                link_as(new, Path(os.path.realpath(path)))
            except FileExistsError:
                raise OSError(f"another file {printable(path.name)} exists now; it was not changed") from None
            log.file.path.unlink()
            new.unlink(missing_ok=True)
    finally:
        new.unlink(missing_ok=True)


def _write(log: RecordingFile, new: Path) -> None:
    """Write the HDF5 file of a log; signals wait while HDF5 works, and not while values are copied."""
    import h5py

    with defer_signals(also_repeated=True), h5py.File(new, "x", libver=("v108", "v110")) as made:
        mark, index, copies = laid_out(made, log, log.level)
    with defer_signals():
        file = OpenFile(new, flags=os.O_RDWR)  # closes its descriptor itself, wherever an interrupt comes
    total, words = sum(place.size for place in log.places.values()), f"finishing {printable(log.file.path.name)}"
    with closing(file):
        for at, piece in with_progress(_placed(copies), words, bytes_of=lambda one: _size(one[1]), total=total):
            if type(piece) is ByteRange:
                _copy(log.file, piece, file.descriptor, at)
            else:
                write_at(file.descriptor, piece, at)
        whole = marked(log.identity, os.fstat(file.descriptor).st_size, index)
        write_at(file.descriptor, whole, mark)  # last: until then it is no recording


def _placed(copies: Iterable[tuple[int, Iterable[Any]]]) -> Iterator[tuple[int, Any]]:
    """Yield all pieces, each with its place in the file."""
    for at, pieces in copies:
        for piece in pieces:
            yield at, piece
            at += _size(piece)


def _size(piece: Any) -> int:
    return piece.size if type(piece) is ByteRange else len(piece)


def _copy(file: OpenFile, run: ByteRange, descriptor: int, to: int) -> None:
    """Copy bytes of a log into a file, by the system itself where it can."""
    done = 0
    with suppress(OSError, AttributeError):  # another system or file system cannot; a full disk fails again below
        while done < run.size:
            got = os.copy_file_range(file.descriptor, descriptor, run.size - done, run.at + done, to + done)
            if not got:
                break
            done += got
    while done < run.size:
        piece = file.read(run.at + done, min(BUFFER, run.size - done))
        write_at(descriptor, piece.data, to + done)
        done += len(piece)
