"""Target: the file that is to be written, whether it may be, and the closest that there is to one that is missing."""

from __future__ import annotations

import os
from pathlib import Path

from byname.errors import (
    IsAFolderError,
    NoFolderError,
    NotAFolderError,
    RecordingExistsError,
    recording_error,
)
from byname.extras import needs
from byname.table import closest
from byname.text import printable


def needs_h5py(what: str) -> None:
    """Checks that h5py is installed.

    Raises:
        NotInstalledError: if it is not; it says how to install it.
    """
    with needs(what, "h5py"):
        import h5py  # noqa: F401 - to see whether it is there


def target(to: str | os.PathLike[str], *, overwrite: bool) -> Path:
    """The path of a file that may be written.

    Args:
        to: as the user gave it.
        overwrite: whether a file that is there may be replaced.

    Raises:
        IsAFolderError, NoFolderError, NotAFolderError: if there is a directory of that name, or no directory for it;
            also IsADirectoryError, FileNotFoundError, NotADirectoryError.
        RecordingExistsError: if there is a file, and it may not be replaced.
    """
    path = Path(os.fspath(to)).absolute()
    shown = printable(str(to))
    try:
        is_directory, has_parent, is_there = path.is_dir(), path.parent.is_dir(), path.exists()
    except OSError as reason:  # a name that is too long
        raise recording_error(f"{shown} cannot be written: {reason.strerror}", reason) from None
    if is_directory:
        raise IsAFolderError(f"{shown} is a directory; name a file in it: {printable(str(Path(to) / 'run.h5'))}")
    if not has_parent:
        file = next((one for one in path.parents if one.exists() and not one.is_dir()), None)
        if file is not None:
            raise NotAFolderError(f"{shown} cannot be written: {printable(str(file))} is a file, not a directory")
        raise NoFolderError(f"there is no directory {printable(str(path.parent))} to write to; {nearest(path.parent)}")
    if is_there and not overwrite:
        raise RecordingExistsError(f"{shown} is there already, and was not touched; overwrite=True replaces it")
    return path


def nearest(path: Path) -> str:
    """What there is in the place of something that is not there: the closest directory, and the names in it."""
    above = next(one for one in path.parents if one.is_dir())
    try:
        names = sorted(one.name for one in above.iterdir())
    except OSError as reason:
        return f"{printable(str(above))} is there, and cannot be listed ({reason.strerror})"
    missing = path.relative_to(above).parts[0]
    inside = f"; in it: {printable(closest(missing, names))}" if names else ", and is empty"
    return f"the closest there is: {printable(str(above))}{inside}"
