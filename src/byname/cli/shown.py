"""How is a recording shown in a terminal? As a table of places, as the records of one, and line by line."""

from __future__ import annotations

import glob
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from byname.cli.command import CommandError, say, show
from byname.cli.sparklines import Sparklines
from byname.cli.width import fitted, table_width, width_of
from byname.errors import BynameError
from byname.table import Row, counted
from byname.text import printable

if TYPE_CHECKING:
    from byname.recording.recording import Recording
    from byname.recording.series import Series

PAUSE = 0.25
"""Seconds between two looks at a file that is being written."""
PATIENCE = 5.0
"""Seconds in which a file that has just come may still be no recording."""


def opened(name: str) -> Recording:
    """Opens a recording, or says why not."""
    from byname.recording.recording import open as opening

    try:
        return opening(name)
    except (BynameError, OSError) as error:
        raise CommandError(printable(str(error))) from None


def repaired(name: str) -> None:
    """Puts what a killed writer left into the file, and says whether there was something."""
    from byname.recording.stores.repair import repair

    try:
        done = repair(name)
    except (BynameError, OSError) as error:
        raise CommandError(printable(str(error))) from None
    say(f"{printable(name)} is repaired" if done else f"{printable(name)}: there was nothing to put back")


def table(recording: Recording, name: str, most: int, *, ranges: bool) -> None:
    """Prints what is inside.

    Args:
        recording: the recording.
        name: what the user calls it.
        most: how many places.
        ranges: whether the values are read, to tell between which numbers they lie.
    """
    for label, words in _header(recording, name):
        _print_labelled(label, printable(words))
    show(recording.head(most, width=table_width(sys.stdout), ranges=ranges))


SMALL = 64 << 20
"""Bytes of values that are read for their ranges without being asked for: that takes no second."""


def is_small(recording: Recording) -> bool:
    """Whether the ranges of all values are there at once."""
    size: int = sum(row["bytes"] for row in recording.rows())
    return size <= SMALL


def say_how_to_get_ranges(name: str) -> None:
    """Tell why the table has no ranges."""
    say(f"min, max and mean are left out, since all values would be read: byname show --ranges {printable(name)}")


def _print_labelled(label: str, words: str) -> None:
    width = width_of(sys.stdout)
    lines = fitted(words, None if width is None else width - len(label)).split("\n")
    print(label + f"\n{' ' * len(label)}".join(lines))


def _header(recording: Recording, name: str) -> Iterator[tuple[str, str]]:
    """Yield labels and what there is to know of the run; what is not in the file is left out."""
    run = recording.run
    state = "complete" if recording.complete else "not complete"
    yield "", f"{name}: a recording of {run.get('model', 'an unknown model')}, {state}"
    arguments = run.get("arguments")
    if isinstance(arguments, list) and arguments:
        yield "program:   ", " ".join(map(str, arguments))
    yield "started:   ", f"{run.get('started', 'unknown')}, last written {run.get('updated', 'unknown')}"
    versions = [f"{label} {run[label]}" for label in ("byname", "torch", "python") if label in run]
    commit = [f"commit {str(run['commit'])[:12]}"] if "commit" in run else []
    ranks = [f"{run['world_size']} processes"] if run.get("world_size", 1) != 1 else []
    yield "with:      ", ", ".join([*versions, *commit, *ranks])


def places(recording: Recording, path: str, most: int) -> None:
    """Prints the records of one place, or of each that fits."""
    for series in _found(recording, path):
        show(series.head(most, width=table_width(sys.stdout)))


def _found(recording: Recording, path: str) -> list[Series]:
    try:
        found = recording[path]
    except BynameError as error:
        raise CommandError(printable(str(error))) from None
    return [*found.values()] if isinstance(found, dict) else [found]


def as_json(recording: Recording, path: str | None, *, ranges: bool) -> None:
    """Prints the places, or the records of those that fit a path, as one JSON object; docs/json.md has its schema."""
    facts: dict[str, Any] = {"run": dict(recording.run), "complete": recording.complete}
    facts["missing"] = list(recording.missing)
    if path is None:
        facts["places"] = recording.rows(ranges=ranges)
    else:
        facts["records"] = [record for series in _found(recording, path) for record in _records(series)]
    print(json.dumps(facts, default=_plain))


def _records(series: Series) -> Iterator[dict[str, Any]]:
    columns = series.iterations, series.ranks, series.calls, series.modes, series.shapes, series.values
    for record in zip(*columns, strict=True):
        yield {"path": series.path, **dict(zip(_COLUMNS, record, strict=True))}


_COLUMNS = ("iteration", "rank", "call", "mode", "shape", "value")


def _plain(value: Any) -> Any:
    """What JSON does not have: tuples are lists there already, tensors become nested lists, others their text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def tail(name: str, *, in_json: bool = False) -> int:
    """Prints a line for what comes, until the recording is closed or somebody presses Ctrl-C.

    Args:
        name: the file, which need not be there yet.
        in_json: whether each line is a JSON object; else it is in words, and a terminal also shows how values went.
    """
    before: dict[str, int] = {}
    course = Sparklines() if sys.stdout.isatty() and not in_json else None
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
                if course is not None:
                    course.add(recording, came)
                    print("\n".join(course.lines(table_width(sys.stdout))), flush=True)
            if recording.ended:
                state = "complete" if recording.complete else f"not complete: {'; '.join(recording.missing)}"
                show(f"{printable(name)} is closed, and {state}")
                sys.stdout.flush()
    except KeyboardInterrupt:
        print(flush=True)
    return 0


def states(name: str) -> Iterator[Recording]:
    """The recording after each change of its files, the last time when it is closed."""
    last, told, since = None, False, time.monotonic()
    while True:
        state = _written(name)
        if not state and not told:
            told = True
            say(f"waiting for {printable(name)}")
        if not state:
            since = time.monotonic()
        elif state != last:
            try:
                recording = opened(name)
            except CommandError:
                if time.monotonic() - since > PATIENCE:
                    raise
            else:
                last = state
                with recording:
                    yield recording
                    if recording.ended:
                        return
        time.sleep(PAUSE)


def _written(name: str) -> list[tuple[str, int, int]]:
    """When and how far the files of a recording were written: those of all ranks, and the journals."""
    path = Path(name)
    found = []
    for one in sorted(path.parent.glob(f"{glob.escape(path.stem)}.*")):
        try:
            facts = one.stat()
        except FileNotFoundError:  # a journal that has just gone
            continue
        found.append((one.name, facts.st_size, facts.st_mtime_ns))
    return found


def _object(recording: Recording, rows: list[Row], came: dict[str, int]) -> dict[str, Any]:
    """What a line of JSON tells; docs/json.md has its schema."""
    return {
        "iteration": max((_last(row) for row in rows), default=None),
        "came": {path: count for path, count in came.items() if count},
        "records": {row["path"]: row["records"] for row in rows},
        "ended": recording.ended,
        "complete": recording.complete,
        "missing": list(recording.missing),
    }


def _line(rows: list[Row], came: dict[str, int]) -> str:
    """What came: until which iteration, how much, and how much there is."""
    last = max(_last(row) for row in rows if came[row["path"]])
    new = f"{counted(sum(came.values()), 'record')} of {counted(sum(map(bool, came.values())), 'place')}"
    return f"{time.strftime('%H:%M:%S')}  to iteration {last}: {new}, {sum(row['records'] for row in rows)} in all"


def _last(row: Row) -> int:
    """The last iteration of a place."""
    return int(row["iterations"].rpartition("-")[2])
