"""Text that may hold anything: what is shown of it in a terminal steers none."""

from __future__ import annotations

__all__ = ["note_on", "printable", "printable_lines"]


def printable(words: str) -> str:
    r"""The text with everything that could steer a terminal written as an escape (``\x1b``), on one line."""
    if words.isprintable():
        return words
    return "".join(mark if mark.isprintable() else repr(mark)[1:-1] for mark in words)


def printable_lines(words: str) -> str:
    """The same of a text of several lines, which stay lines."""
    return words if words.isprintable() else "\n".join(map(printable, words.split("\n")))


def note_on(error: BaseException, sentence: str) -> None:
    """Adds a note to an exception that goes on, see `BaseException.add_note`."""
    error.add_note(printable_lines(sentence))
