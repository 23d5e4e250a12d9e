"""Tail: a recording followed while it is written: a line for each change, and sparklines of the newest values."""

from __future__ import annotations

import json
import math
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from byname.cli.command import say, show
from byname.errors import BynameError
from byname.recording.distributed.ranks import rank_files
from byname.recording.export import as_float
from byname.recording.recording import Recording
from byname.recording.recording import open as opened
from byname.recording.recording_file import file_of, log_of
from byname.table import Row, counted
from byname.text import printable, table_width

PAUSE = 0.25
"""Seconds between two looks at a file that is being written."""
PATIENCE = 5.0
"""Seconds in which a file that has just come may still be no recording."""


def tail(name: str, *, in_json: bool = False) -> int:
    """Print a line for each change, until the recording is closed or the user presses Ctrl-C.

    The file need not be there yet. A line is a JSON object, or in words; then a terminal also shows sparklines.
    """
    before: dict[str, int] = {}
    sparklines = Sparklines() if sys.stdout.isatty() and not in_json else None
    try:
        for recording in states(name):
            rows = recording.rows(ranges=False)
            came = {row["path"]: row["records"] - before.get(row["path"], 0) for row in rows}
            before = {row["path"]: row["records"] for row in rows}
            if in_json:
                print(json.dumps(_object(recording, rows, came)), flush=True)
                continue
            if any(came.values()):
                print(_line(rows, came), flush=True)
                if sparklines is not None:
                    sparklines.add(recording, came)
                    print("\n".join(sparklines.lines(table_width(sys.stdout))), flush=True)
            if recording.ended:
                state = "complete" if recording.complete else f"not complete: {'; '.join(recording.missing)}"
                show(f"{printable(name)} is closed and {state}")
                sys.stdout.flush()
    except KeyboardInterrupt:
        print(flush=True)
    return 0


def states(name: str) -> Iterator[Recording]:
    """Yield the recording after each change of its files, the last time when it is closed."""
    last, waiting, since = None, False, time.monotonic()
    while True:
        state = written(file_of(Path(name)))
        if not state and not waiting:
            waiting = True
            say(f"waiting for {printable(name)}")
        if not state:
            since = time.monotonic()
        elif state != last:
            try:
                recording = opened(name)
            except (BynameError, OSError):
                if time.monotonic() - since > PATIENCE:
                    raise
            else:
                last = state
                with recording:
                    yield recording
                    if recording.ended:
                        return
        time.sleep(PAUSE)


def written(path: Path) -> list[tuple[str, int, int]]:
    """Return when and how far the files of a recording were written: those of all ranks, and the logs."""
    found = []
    for one in [path, *rank_files(path).values()]:
        for file in (one, log_of(one)):
            with suppress(OSError):  # there is none, or it has just gone
                facts = file.stat()
                found.append((file.name, facts.st_size, facts.st_mtime_ns))
    return found


def _object(recording: Recording, rows: list[Row], came: dict[str, int]) -> dict[str, Any]:
    """Return a line of JSON; docs/json.md has its schema."""
    return {
        "iteration": max((_last(row) for row in rows), default=None),
        "came": {path: count for path, count in came.items() if count},
        "records": {row["path"]: row["records"] for row in rows},
        "ended": recording.ended,
        "complete": recording.complete,
        "missing": list(recording.missing),
    }


def _line(rows: list[Row], came: dict[str, int]) -> str:
    last = max(_last(row) for row in rows if came[row["path"]])
    new = f"{counted(sum(came.values()), 'record')} of {counted(sum(map(bool, came.values())), 'place')}"
    return f"{time.strftime('%H:%M:%S')}  to iteration {last}: {new}, {sum(row['records'] for row in rows)} in all"


def _last(row: Row) -> int:
    return int(row["iterations"].rpartition("-")[2])


BARS = "▁▂▃▄▅▆▇█"
RECORDS = 40
"""Number of records of a place that are shown, the newest, and that are read of a window."""
PLACES = 8
"""Number of places that are shown, those that come first."""
_LEAST = 24
"""Characters of a name at least, where the terminal has room for no more beside the line."""


def sparkline(numbers: Iterable[float]) -> str:
    """Return numbers as bars between the smallest and the largest; what is not finite is a dot.

    >>> sparkline([0.0, 1.0, 7.0, float("nan"), 3.5]), sparkline([2.0, 2.0])
    ('▁▂█·▅', '▁▁')
    """
    several = list(numbers)
    finite = [number for number in several if math.isfinite(number)]
    if not finite:
        return "·" * len(several)
    low, high = min(finite), max(finite)
    step = high / (len(BARS) - 1) - low / (len(BARS) - 1) or 1.0  # high - low may be infinite
    return "".join(BARS[round(one / step - low / step)] if math.isfinite(one) else "·" for one in several)


class Sparklines:
    """The newest numbers of places while a recording grows: values that are one number, and the means of tensors."""

    def __init__(self) -> None:
        self._numbers: dict[str, deque[float]] = {}

    def add(self, recording: Recording, came: Mapping[str, int]) -> None:
        """Read the newest records; `came` is the number of new ones of each place."""
        for path, count in came.items():
            if count and (path in self._numbers or len(self._numbers) < PLACES):
                numbers = [number for value in recording[path][-min(count, RECORDS) :] for number in _number(value)]
                self._numbers.setdefault(path, deque(maxlen=RECORDS)).extend(numbers)

    def lines(self, width: int) -> list[str]:
        """Return a line for each place, no longer than `width` where that is possible."""
        room = max(_LEAST, width - RECORDS - _NUMBER)
        places = [(printable(path), [*numbers]) for path, numbers in self._numbers.items() if numbers]
        lines = [(name if len(name) <= room else f"…{name[1 - room :]}", numbers) for name, numbers in places]
        longest = max((len(name) for name, _ in lines), default=0)
        shown = max(1, min(RECORDS, width - longest - _NUMBER))
        return [f"  {name:{longest}}  {sparkline(numbers[-shown:])}  {numbers[-1]:.4g}" for name, numbers in lines]


_NUMBER = 17
"""Characters of a line beside the name and the bars: a number, and spaces."""


def _number(value: Any) -> list[float]:
    if isinstance(value, Tensor):
        return [float(value.double().mean())] if value.numel() and not value.is_complex() else []
    return [as_float(value)] if isinstance(value, bool | int | float) else []
