"""Show, diff and report commands: recordings, printed or as one HTML page."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from byname.cli.command import CommandError, positive, say, show
from byname.errors import BynameError
from byname.table import counted
from byname.text import printable, table_width, terminal_width, wrap_text

if TYPE_CHECKING:
    from byname.comparing.diff import Diff
    from byname.recording.recording import Recording
    from byname.recording.series import Series


class ShowCommand:
    """Show what is inside a recording: places, types, shapes, iterations, processes, and the range of the values.

    The file may still be written, or be what a crash has left; then the last lines say what is missing. Files of
    several processes (run.rank0.h5, run.rank1.h5, ...) are shown as one: byname show run.h5

    examples:
      byname show run.h5
      byname show --place 'blocks.*.attn.forward.scores' run.h5
      byname show --json run.h5
      byname show --tail run.h5
      byname show --repair run.h5
    """

    name = "show"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        what = parser.add_mutually_exclusive_group()
        what.add_argument("--place", metavar="PATH", help="show the records of one place, or of all that match")
        what.add_argument("--tail", action="store_true", help="print new records until the recording is closed")
        parser.add_argument(
            "--repair", action="store_true", help="first make a file from what a crash left, for other programs"
        )
        parser.add_argument(
            "--json", action="store_true", help="print JSON with all rows; with --tail, one line for each change"
        )
        parser.add_argument("--top", type=positive, metavar="K", default=60, help="show at most K rows (60)")
        ranges = parser.add_mutually_exclusive_group()
        ranges.add_argument("--ranges", action="store_true", help="read all values for min, max and mean, however many")
        ranges.add_argument("--no-ranges", action="store_true", help="read no values, only their number")
        parser.add_argument("file", metavar="FILE", help="a file written by byname.record")

    def run(self, options: argparse.Namespace) -> int:
        from byname.cli.tail import tail
        from byname.recording.recording import open as opened

        if options.repair:
            from byname.recording.finish import repair

            file = printable(options.file)
            say(f"{file} is repaired" if repair(options.file) else f"{file}: there was nothing to repair")
        if options.tail:
            return tail(options.file, in_json=options.json)
        with opened(options.file) as recording:
            if options.json:
                _print_json(recording, options.place, ranges=not options.no_ranges)
            elif options.place:
                for series in _found(recording, options.place):
                    show(series.head(options.top, width=table_width(sys.stdout)))
            else:
                _print_places(recording, options)
        sys.stdout.flush()  # a pipe that is closed is noticed here, not when Python ends
        return 0


SMALL = 64 << 20
"""Bytes of values that are read for their ranges without being asked for: that takes no second."""


class FinishCommand:
    """Make the HDF5 file of a recording that is still a log, and print its path.

    A recording is a log (run.h5.log) while it runs, after a crash, and where record(..., finish=False) was asked for.
    byname show reads it as it is; h5py, xarray and others read the file. Logs of several processes (run.rank0.h5.log,
    ...) are finished together: byname finish run.h5

    examples:
      byname finish run.h5.log
    """

    name = "finish"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("file", metavar="FILE", help="the log, or the file made from it")

    def run(self, options: argparse.Namespace) -> int:
        from byname.recording.finish import finish

        print(printable(str(finish(options.file))), flush=True)
        return 0


def _print_places(recording: Recording, options: argparse.Namespace) -> None:
    few = options.ranges or sum(row["bytes"] for row in recording.rows()) <= SMALL
    width = terminal_width(sys.stdout)
    for label, words in _header(recording, options.file):
        lines = wrap_text(printable(words), None if width is None else width - len(label)).split("\n")
        print(label + f"\n{' ' * len(label)}".join(lines))
    show(recording.head(options.top, width=table_width(sys.stdout), ranges=few and not options.no_ranges))
    if not few and not options.no_ranges:
        file = printable(options.file)
        say(f"min, max and mean are left out, since they need all values: byname show --ranges {file}")


def _header(recording: Recording, name: str) -> Iterator[tuple[str, str]]:
    """Yield labels and facts of the run, those that the file has."""
    run = recording.run
    state = "complete" if recording.complete else "not complete"
    yield "", f"{name}: a recording of {run.get('model', 'functions of a program')}, {state}"
    arguments = run.get("arguments")
    if isinstance(arguments, list) and arguments:
        yield "program:   ", " ".join(map(str, arguments))
    yield "started:   ", f"{run.get('started', 'unknown')}, last written {run.get('updated', 'unknown')}"
    versions = [f"{label} {run[label]}" for label in ("byname", "torch", "python") if label in run]
    commit = [f"commit {str(run['commit'])[:12]}"] if "commit" in run else []
    ranks = [f"{run['world_size']} processes"] if run.get("world_size", 1) != 1 else []
    yield "with:      ", ", ".join([*versions, *commit, *ranks])
    if "keep" in run:
        yield "kept:      ", f"{counted(run['keep'], 'iteration')} of largest {run['by']}"
    if "stopped" in run:
        yield "stopped:   ", str(run["stopped"])


def _found(recording: Recording, path: str) -> list[Series]:
    found = recording[path]
    return [*found.values()] if isinstance(found, dict) else [found]


def _print_json(recording: Recording, path: str | None, *, ranges: bool) -> None:
    """Print the places, or the records of those that fit a path, as one JSON object; docs/json.md has its schema."""
    facts: dict[str, Any] = {"run": dict(recording.run), "complete": recording.complete}
    facts["missing"] = list(recording.missing)
    if path is None:
        facts["places"] = recording.rows(ranges=ranges)
    else:
        facts["records"] = [record for series in _found(recording, path) for record in _records(series)]
    # Tuples become lists anyway; here tensors become nested lists, and everything else that JSON lacks text.
    print(json.dumps(facts, default=lambda value: value.tolist() if hasattr(value, "tolist") else str(value)))


def _records(series: Series) -> Iterator[dict[str, Any]]:
    columns = series.iterations, series.ranks, series.calls, series.modes, series.shapes, series.values
    for record in zip(*columns, strict=True):
        yield {"path": series.path, **dict(zip(_COLUMNS, record, strict=True))}


_COLUMNS = ("iteration", "rank", "call", "mode", "shape", "value")


PAUSE = 5.0
"""Seconds between two pages of a recording that is still being written."""


class ReportCommand:
    """Write one HTML page of recordings: their places, curves, heat maps and gradients.

    The page is one file, which needs no network and no other file. Files of several processes (run.rank0.h5,
    run.rank1.h5, ...) are one recording: byname report run.h5. Several recordings become sections of one page. A
    recording that is still being written is shown as far as it goes; with --tail the page is written anew until the
    recording is closed, and a browser that shows it follows.

    examples:
      byname report run.h5
      byname report run.h5 --to monday.html
      byname report before.h5 after.h5 --to compared.html
      byname report --tail run.h5
    """

    name = "report"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--to", metavar="HTML", default="report.html", help="the page (report.html); replaced")
        how = parser.add_mutually_exclusive_group()
        how.add_argument("--tail", action="store_true", help="keep rewriting it until the recording is closed")
        how.add_argument("--json", action="store_true", help="print JSON instead of the path of the page")
        parser.add_argument("files", metavar="FILE", nargs="+", help="a file written by byname.record")

    def run(self, options: argparse.Namespace) -> int:
        from byname.reporting.page import report

        if options.tail and len(options.files) > 1:
            raise CommandError("--tail follows one recording", exit_code=2)
        if options.tail:
            return _follow(options.files[0], options.to)
        page = report(*options.files, to=options.to)
        facts = {"page": str(page.absolute()), "bytes": page.stat().st_size, "files": options.files}
        print(json.dumps(facts) if options.json else printable(str(page)), flush=True)
        return 0


def _follow(file: str, to: str) -> int:
    """Write the page anew after each change of a recording, until that is closed or the user presses Ctrl-C."""
    from byname.cli.tail import states
    from byname.reporting.page import ready_to_write, report

    ready_to_write(to)
    printed = False
    try:
        for recording in states(file):
            page = report(recording, to=to, refresh=None if recording.ended else PAUSE)
            if not printed:
                printed = True
                print(printable(str(page)), flush=True)
            if not recording.ended:
                time.sleep(PAUSE)
    except KeyboardInterrupt:
        print(flush=True)
    return 0


class DiffCommand:
    """Say where two recordings differ first: the iteration, the place, how much, and what was equal just before.

    Exits with 0 if they are equal, with 1 if they differ, with 2 if a file cannot be read. Files are read piece by
    piece, also while they are being written. By default every difference counts, NaN being equal to NaN.

    examples:
      byname diff monday.h5 tuesday.h5
      byname diff --tolerance 1e-5 monday.h5 tuesday.h5
      byname diff --tolerance dtype --report diff.html monday.h5 tuesday.h5
      byname diff --json monday.h5 tuesday.h5
    """

    name = "diff"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--tolerance",
            type=_tolerance,
            metavar="ERROR",
            help="the largest absolute error to ignore; or dtype: the tolerances of assert_close",
        )
        parser.add_argument("--top", type=positive, metavar="K", default=60, help="show at most K rows (60)")
        parser.add_argument("--json", action="store_true", help="print JSON, with all places")
        parser.add_argument("--report", metavar="HTML", help="also write a page; replaced")
        parser.add_argument("a", metavar="FILE", help="a file written by byname.record")
        parser.add_argument("b", metavar="FILE", help="another one")

    def run(self, options: argparse.Namespace) -> int:
        from byname.comparing.diff import diff

        try:
            found = diff(options.a, options.b, tolerance=options.tolerance)
            if options.json:
                print(json.dumps(_diff_facts(found)))
            else:
                show(found.head(options.top, width=table_width(sys.stdout)))
            if options.report:
                from byname.reporting.page import report

                report(found, to=options.report)
        except KeyboardInterrupt:
            say("interrupted")
            return 130
        except BrokenPipeError:  # of the output, no file that cannot be read
            raise
        except (BynameError, OSError) as error:
            raise CommandError(str(error), exit_code=2) from None
        sys.stdout.flush()
        return int(not found.equal)


def _diff_facts(found: Diff) -> dict[str, Any]:
    """Return a difference as values that JSON has; docs/json.md has its schema."""
    firsts = {"first": found.first, "first_value": found.first_value}
    facts: dict[str, Any] = {"equal": found.equal, "names": found.names}
    facts |= {name: one and one.row() for name, one in firsts.items()}
    return facts | {"before": found.before, "only": found.only, "notes": found.notes, "places": found.rows()}


def _tolerance(word: str) -> float | dict[object, object]:
    if word == "dtype":
        return {}
    try:
        return float(word)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{word!r} is neither a number nor dtype") from None
