"""Text: strings made safe to print in a terminal, lines that fit its width, and a bar for what takes long."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import length_hint
from typing import Any, TextIO


def printable(words: str) -> str:
    r"""Return the text on one line, with every character that could control a terminal escaped (``\x1b``)."""
    if words.isprintable():
        return words
    return "".join(mark if mark.isprintable() else repr(mark)[1:-1] for mark in words)


def printable_lines(words: str) -> str:
    """Return the text with each line escaped as `printable` does; line breaks stay."""
    return words if words.isprintable() else "\n".join(map(printable, words.split("\n")))


def with_article(name: str) -> str:
    """Return a name with its article.

    >>> with_article("Mean"), with_article("Extremes")
    ('a Mean', 'an Extremes')
    """
    return f"{'an' if name[:1] in set('AEIOaeio') else 'a'} {name}"


def numbered(names: Iterable[str]) -> list[str]:
    """Return the names, with a number after the second and later ones of the same: ``class``, ``class_2``."""
    often: Counter[str] = Counter()
    found = []
    for name in names:
        often[name] += 1
        found.append(name if often[name] == 1 else f"{name}_{often[name]}")
    return found


def shortened(text: str) -> str:
    """Return a text, without its middle if it is longer than 44 characters."""
    return text if len(text) <= 44 else f"{text[:21]}…{text[-22:]}"


def shape_text(shape: Sequence[int] | None) -> str:
    """Return a shape as text, ``scalar`` for an empty one; an empty text if it is unknown."""
    return "" if shape is None else "×".join(map(str, shape)) or "scalar"


def quoted_for_dot(words: str) -> str:
    """Return text for the DOT language of Graphviz, escaped and in double quotes."""
    escaped = printable_lines(words).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def note_on(error: BaseException, sentence: str) -> None:
    """Add a note to an exception, with control characters escaped; see `BaseException.add_note`."""
    error.add_note(printable_lines(sentence))


def terminal_width(stream: TextIO | None) -> int | None:
    """Return the number of characters in a line: COLUMNS, or the width of the terminal; None without either."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    try:
        return None if stream is None else os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):  # no terminal; closed, or without a file
        return None


WIDE = 160
"""The number of characters in a line of a table without a terminal."""


def table_width(stream: TextIO | None) -> int:
    """Return the number of characters in a line of a table: `WIDE` without a terminal and COLUMNS."""
    return terminal_width(stream) or WIDE


def wrap_text(words: str, width: int | None) -> str:
    """Return a text with its long sentences broken at spaces, which break no path and no name; None is any width.

    Lines with columns (two spaces within) stay: tables fit already, and source lines are shown unchanged.
    """
    return words if width is None else "\n".join(_broken(line, max(width, LEAST)) for line in words.split("\n"))


LEAST = 20
"""The least number of characters to which sentences are broken, also in a narrower terminal."""


def _broken(line: str, width: int) -> str:
    if len(line) <= width or "  " in line.strip():
        return line
    rest = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.fill(line, width, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False)


PATIENCE, PAUSE = 1.0, 0.1
"""Seconds until a bar is shown, and until it is drawn again."""


def with_progress(
    items: Iterable[Any],
    words: str,
    *,
    wanted: bool | None = None,
    bytes_of: Callable[[Any], int] | None = None,
    total: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Any]:
    """Yield the items, with a labelled progress bar if they take longer than a second.

    By default the bar is shown only in a terminal; `wanted` shows it always, from the start, or never. It counts the
    items, or with `bytes_of` the bytes of each, of a `total`.
    """
    amount = bytes_of or (lambda _: 1)
    if not (_is_terminal(sys.stderr) if wanted is None else wanted):
        yield from items
        return
    begun, count, left = clock(), 0, iter(items)
    while not wanted and clock() - begun < PATIENCE:
        try:
            item = next(left)
        except StopIteration:
            return
        yield item
        count += amount(item)
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    counts = MofNCompleteColumn() if bytes_of is None else DownloadColumn()
    columns = TextColumn("{task.description}", markup=False), BarColumn(), counts, TimeRemainingColumn()
    # no thread of its own: it is drawn between two items
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task, drawn = bar.add_task(words, total=total or length_hint(items) or None, completed=count), clock()
        for item in left:
            yield item
            bar.advance(task, amount(item))
            if clock() - drawn > PAUSE:  # to draw it takes a millisecond
                bar.refresh()
                drawn = clock()


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # it was closed
        return False
