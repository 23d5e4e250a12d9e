"""Repair: what a killed process left of a recording, put back for readers that are not byname."""

from __future__ import annotations

import os
from pathlib import Path

from byname.errors import BynameError, NoRecordingError, NotARecordingError, RecordingError, recording_error
from byname.recording.distributed.ranks import rank_files
from byname.recording.stores.journal.journal import put_back, remove_left
from byname.recording.stores.reader import is_whole
from byname.recording.stores.target import nearest, needs_h5py
from byname.text import printable


def repair(path: str | os.PathLike[str]) -> bool:
    """Put what a killed writer left beside a recording into its file, for readers that are not byname.

    A process that is killed while somebody reads its file leaves a journal (``run.h5.journal``) with what came last.
    `byname.open` reads it, and puts it into the file itself where it may write; h5py, xarray and others do not know
    it. Afterwards the file has all of it, and the journal is gone. A file that nothing was left beside stays as it is.

    Args:
        path: of the file; for a run of several ranks the path that was recorded to, such as ``"run.h5"`` for
            ``run.rank0.h5``, ``run.rank1.h5`` and so on.

    Returns:
        Whether there was something to put back.

    Raises:
        NoRecordingError: if there is no such file; a FileNotFoundError, too.
        NotARecordingError: if the file is something else.
        RecordingError: if it is still written, or read by another process, or may not be changed (then a
            PermissionError, too), or if its journal is damaged.

    Examples:
        >>> import tempfile
        >>> file = tempfile.mkdtemp() + "/run.h5"
        >>> model = torch.nn.Linear(4, 2)
        >>> with byname.record(model, "forward", to=file):
        ...     output = model(torch.ones(1, 4))
        >>> byname.repair(file)
        False
    """
    needs_h5py("repairing a recording")
    asked = Path(os.fspath(path))
    if asked.is_dir():
        raise NotARecordingError(f"{printable(str(path))} is a directory; name the file in it that is to be repaired")
    files = [*([asked] if asked.exists() else []), *rank_files(asked).values()]
    if not files:
        raise NoRecordingError(f"there is no file {printable(str(path))}; {nearest(asked.absolute())}")
    return bool(sum([_repaired(one) for one in files]))  # all of them


def _repaired(path: Path) -> bool:
    shown = printable(str(path))
    try:
        return put_back(path, is_whole, surely=False) | remove_left(Path(os.path.realpath(path)))
    except BynameError as reason:
        if shown in str(reason):
            raise
        raise type(reason)(f"{shown} cannot be repaired: {reason}") from reason.__cause__
    except OSError as reason:
        raise recording_error(f"{shown} cannot be repaired: {printable(str(reason))}", reason) from reason
    except (RuntimeError, KeyError, ValueError, TypeError) as reason:  # HDF5's errors become one of these
        raise RecordingError(f"{shown} is damaged or cut off: {printable(str(reason))}") from reason
