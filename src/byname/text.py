"""Text: strings made safe to print in a terminal, whatever control characters they hold."""

from __future__ import annotations


def printable(words: str) -> str:
    r"""Return the text on one line, with every character that could control a terminal escaped (``\x1b``)."""
    if words.isprintable():
        return words
    return "".join(mark if mark.isprintable() else repr(mark)[1:-1] for mark in words)


def printable_lines(words: str) -> str:
    """Return the text with each line escaped as `printable` does; line breaks stay."""
    return words if words.isprintable() else "\n".join(map(printable, words.split("\n")))


def note_on(error: BaseException, sentence: str) -> None:
    """Add a note to an exception, with control characters escaped; see `BaseException.add_note`."""
    error.add_note(printable_lines(sentence))
