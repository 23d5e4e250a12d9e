"""What can go wrong in a question put to byname? One family of errors, each saying what to try.

Every error is a ``BynameError`` and also the builtin error that fits, so that code which knows nothing of byname can
catch it.
"""

from __future__ import annotations

from typing import Any

from byname.text import printable_lines

__all__ = [
    "BadArgumentError",
    "BadExampleError",
    "BadPathError",
    "BynameError",
    "DeadTensorError",
    "InterjectionError",
    "IsAFolderError",
    "NoFolderError",
    "NoGraphError",
    "NoMatchError",
    "NoRecordingError",
    "NotAFolderError",
    "NotARecordingError",
    "NotAModuleError",
    "NotASelectorError",
    "NotATensorError",
    "NotAnErrorError",
    "NotAnInterjectionError",
    "NotAnOptimizerError",
    "NotInstalledError",
    "NotPermittedError",
    "NotReducibleError",
    "NotStorableError",
    "NothingSeenWarning",
    "RecordingError",
    "RecordingExistsError",
    "RecordingWarning",
    "RewriteError",
    "recording_error",
]


class _Printable:
    """An error or a warning whose text steers no terminal, whatever names and files it speaks of."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*(printable_lines(one) if isinstance(one, str) else one for one in args), **kwargs)


class BynameError(_Printable, Exception):
    """The parent of every error that byname raises on purpose."""


class NotATensorError(BynameError, TypeError):
    """A tensor (or a node, or a sequence of these) was asked for and something else was given."""


class NotAModuleError(BynameError, TypeError):
    """``model=`` was given something that is not an ``nn.Module``."""


class NotAnOptimizerError(BynameError, TypeError):
    """``optimizer=`` was given something that has no parameter groups."""


class NotAnErrorError(BynameError, TypeError):
    """`explain` was given something that is not an exception."""


class NotASelectorError(BynameError, TypeError):
    """A selector was asked for, or used as a truth value: ``and``, ``or`` and ``not`` do not combine selectors."""


class NotAnInterjectionError(BynameError, TypeError):
    """`interject` was given something that it cannot call with a value."""


class BadExampleError(BynameError, TypeError):
    """``example=`` was given something that stands for no arguments."""


class BadArgumentError(BynameError, ValueError):
    """An argument has the right type and an impossible value."""


class BadPathError(BynameError, ValueError):
    """A path that cannot be read."""


class NoMatchError(BynameError, LookupError):
    """A path or selector matches nothing in the model; the message names what comes close."""


class NotInstalledError(BynameError, ImportError):
    """Something of byname needs a package that is not installed, or is too old; the message says how to get it."""


class NoGraphError(BynameError, ValueError):
    """The tensor belongs to no autograd graph; the message says why, as far as it can be known."""


class DeadTensorError(BynameError, ReferenceError):
    """The tensor that a result speaks of is no longer alive."""


class InterjectionError(BynameError, ValueError):
    """An interjection returned what cannot take the place of the value, or of the gradient, it was given."""


class RewriteError(BynameError, ValueError):
    """A model cannot be written as a graph; the message says which statement of it is in the way."""


class NotStorableError(BynameError, TypeError):
    """A value at a recorded place is of a type that no recording can hold."""


class NotReducibleError(NotStorableError, BadArgumentError):
    """A value at a recorded place has no such figure as was asked for with ``reduce=``."""


class RecordingError(BynameError, OSError):
    """A recording could not be written to its end, or cannot be read; the message says what is in the file."""


class NoRecordingError(RecordingError, FileNotFoundError):
    """There is no file where a recording was to be opened."""


class NoFolderError(RecordingError, FileNotFoundError):
    """A recording was to be written into a folder that is not there."""


class IsAFolderError(RecordingError, IsADirectoryError):
    """A recording was to be written to a path that is a folder."""


class NotAFolderError(RecordingError, NotADirectoryError):
    """A recording was to be written below a path that is a file, not a folder."""


class NotPermittedError(RecordingError, PermissionError):
    """A recording may not be written, read or changed, by the permissions of its file or folder."""


class RecordingExistsError(RecordingError, FileExistsError):
    """A recording was to be written to a file that is there already; ``overwrite=True`` replaces it."""


class NothingSeenWarning(_Printable, UserWarning):
    """A place that something was attached to has told nothing; the message says why, and what to do."""


_ALSO: dict[type[OSError], type[RecordingError]] = {
    FileNotFoundError: NoFolderError,
    IsADirectoryError: IsAFolderError,
    NotADirectoryError: NotAFolderError,
    PermissionError: NotPermittedError,
    FileExistsError: RecordingExistsError,
}


def recording_error(message: str, reason: BaseException) -> RecordingError:
    """The error about a recording that is also the operating system's error behind it, with its number."""
    error = next((kind for also, kind in _ALSO.items() if isinstance(reason, also)), RecordingError)(message)
    if isinstance(reason, OSError):
        error.errno = reason.errno
    return error


class RecordingWarning(_Printable, UserWarning):
    """Something is missing in a recording; the program that is recorded goes on."""


class NotARecordingError(BynameError, ValueError):
    """A file was to be opened that is no recording of byname."""
