"""Errors: one family of exceptions, whose messages say what to try.

Every error is a ``BynameError`` and also the builtin error that fits, so that code without byname can catch it.
"""

from __future__ import annotations

from typing import Any

from byname.text import printable_lines


class _Printable:
    """Mixin that escapes control characters in a message, which names and files may bring into it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*(printable_lines(one) if isinstance(one, str) else one for one in args), **kwargs)


class BynameError(_Printable, Exception):
    """Base class of every error that byname raises on purpose."""


class NotATensorError(BynameError, TypeError):
    """Raised when an argument is not a tensor (or a node, or a sequence of these)."""


class NotAModuleError(BynameError, TypeError):
    """Raised when ``model=`` is not an ``nn.Module``."""


class NotAnOptimizerError(BynameError, TypeError):
    """Raised when ``optimizer=`` has no parameter groups."""


class NotAnErrorError(BynameError, TypeError):
    """Raised when `explain` is given something that is not an exception."""


class NotASelectorError(BynameError, TypeError):
    """Raised when an argument is not a selector, or when a selector is used as a truth value.

    Python's ``and``, ``or`` and ``not`` do not combine selectors.
    """


class NotAnInterjectionError(BynameError, TypeError):
    """Raised when `interject` is given something that it cannot call with a value."""


class BadExampleError(BynameError, TypeError):
    """Raised when ``example=`` cannot be the arguments of a call."""


class BadArgumentError(BynameError, ValueError):
    """Raised when an argument has the right type and an invalid value."""


class BadPathError(BynameError, ValueError):
    """Raised when a text is not a path."""


class NoMatchError(BynameError, LookupError):
    """Raised when a path or selector matches nothing in the model; the message names the closest matches."""


class NotCapturedError(NoMatchError, KeyError):
    """Raised when a capture, a recording or a result has no such place; the message lists the places it has."""

    __str__ = Exception.__str__  # a KeyError would print the quoted message


class NotInstalledError(BynameError, ImportError):
    """Raised when a package that byname needs is missing or too old; the message says how to install it."""


class NoGraphError(BynameError, ValueError):
    """Raised when a tensor belongs to no autograd graph; the message gives the likely reason."""


class DeadTensorError(BynameError, ReferenceError):
    """Raised when the tensor that a result describes is no longer alive."""


class InterjectionError(BynameError, ValueError):
    """Raised when the result of an interjection cannot replace the value or gradient that it was called with."""


class RewriteError(BynameError, ValueError):
    """Raised when a model cannot be copied with interjections in it, or an interjection could not act there."""


class NotStorableError(BynameError, TypeError):
    """Raised when a value at a recorded place has a type that no recording can hold."""


class NotReducibleError(NotStorableError, BadArgumentError):
    """Raised when a value at a recorded place does not have the metric of ``reduce=``."""


class RecordingError(BynameError, OSError):
    """Raised when a recording cannot be read or completely written; the message says what the file holds."""


class NoRecordingError(RecordingError, FileNotFoundError):
    """Raised when the recording to be opened does not exist."""


class NoFolderError(RecordingError, FileNotFoundError):
    """Raised when the folder of a recording to be written does not exist."""


class IsAFolderError(RecordingError, IsADirectoryError):
    """Raised when a recording is to be written to a path that is a folder."""


class NotAFolderError(RecordingError, NotADirectoryError):
    """Raised when a recording is to be written below a path that is a file, not a folder."""


class NotPermittedError(RecordingError, PermissionError):
    """Raised when the permissions of a file or folder forbid writing, reading or changing a recording."""


class RecordingExistsError(RecordingError, FileExistsError):
    """Raised when a recording is to be written to an existing file; ``overwrite=True`` replaces it."""


class ChangedInPlaceWarning(_Printable, UserWarning):
    """Issued when a captured tensor is read that was changed in place since it passed; the message says what to do."""


class NothingSeenWarning(_Printable, UserWarning):
    """Issued when a watched place was never observed; the message says why, and what to do."""


_ALSO: dict[type[OSError], type[RecordingError]] = {
    FileNotFoundError: NoFolderError,
    IsADirectoryError: IsAFolderError,
    NotADirectoryError: NotAFolderError,
    PermissionError: NotPermittedError,
    FileExistsError: RecordingExistsError,
}


def recording_error(message: str, reason: BaseException) -> RecordingError:
    """Return a recording error with the type and the ``errno`` of the operating system's error that caused it."""
    error = next((kind for also, kind in _ALSO.items() if isinstance(reason, also)), RecordingError)(message)
    if isinstance(reason, OSError):
        error.errno = reason.errno
    return error


class RecordingWarning(_Printable, UserWarning):
    """Issued when a recording lacks something; the recorded program goes on."""


class NotARecordingError(BynameError, ValueError):
    """Raised when the file to be opened is not a recording of byname."""
