"""How far is a long pass? A bar on standard error, in a terminal, that is gone afterwards."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["followed"]

PATIENCE = 1.0
"""Seconds that a pass may take before a bar is shown."""
PAUSE = 0.1
"""Seconds between two changes of the bar."""


def followed(
    batches: Iterable[Any], words: str, *, wanted: bool | None = None, clock: Callable[[], float] = time.monotonic
) -> Iterator[Any]:
    """The batches, with a bar that shows how many there were when it takes longer than a second.

    Args:
        batches: a loader; its length is shown if it has one.
        words: what stands before the bar.
        wanted: False for no bar, True for one from the beginning, also where standard error is no terminal; None for
            one in a terminal if it takes long.
        clock: tells the time in seconds.
    """
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        yield from batches
        return
    begun = shown = clock()
    bar: Progress | None = None
    try:
        for count, batch in enumerate(batches):
            now = clock()
            if bar is None and (wanted or now - begun >= PATIENCE):
                bar = _bar(words, _length(batches))
            if bar is not None and (now - shown >= PAUSE or not count):
                shown = now
                bar.update(bar.task_ids[0], completed=count, refresh=True)
            yield batch
    finally:
        if bar is not None:
            bar.stop()


def _bar(words: str, total: int | None) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    # no thread of its own: it is drawn between two batches
    bar = Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
    bar.add_task(words, total=total)
    bar.start()
    return bar


def _length(batches: Iterable[Any]) -> int | None:
    try:
        return len(batches)  # type: ignore[arg-type]
    except TypeError:
        return None
