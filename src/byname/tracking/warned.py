"""Warned: PyTorch's warnings are about the program's line, where byname stands between the program and PyTorch."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from types import FrameType

from byname.source.tracebacks import meant_frame


def about_the_program(show: Callable[[warnings.WarningMessage], None]) -> Callable[[warnings.WarningMessage], None]:
    """Return a wrapper of ``warnings._showwarnmsg`` that issues a warning about byname's line for the program's line.

    So the program's filters decide about it, and Python's memory of what was shown is that of the program's line.
    """

    @functools.wraps(show)
    def showing(message: warnings.WarningMessage) -> None:
        found = meant_frame(message.filename, message.lineno)
        if found is None:
            show(message)
        else:
            _forget(message, found[0])
            _issue(message, found[1])

    return showing


def _forget(message: warnings.WarningMessage, frame: FrameType) -> None:
    """Remove a warning from Python's memory of what was shown, once a line and once at all, of a frame's module."""
    key = str(message.message), message.category
    frame.f_globals.get("__warningregistry__", {}).pop((*key, message.lineno), None)
    vars(warnings).get("onceregistry", {}).pop(key, None)


def _issue(message: warnings.WarningMessage, frame: FrameType) -> None:
    warnings.warn_explicit(
        message.message,
        message.category,
        frame.f_code.co_filename,
        frame.f_lineno or 0,
        frame.f_globals.get("__name__"),
        frame.f_globals.setdefault("__warningregistry__", {}),
        source=message.source,
    )
