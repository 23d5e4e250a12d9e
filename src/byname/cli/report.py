"""Report command: ``byname report`` writes one HTML page of recordings."""

from __future__ import annotations

import argparse
import json
import time

from byname.cli.command import CommandError
from byname.text import printable

PAUSE = 5.0
"""Seconds between two pages of a recording that is still being written."""


class Report:
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
    usage = "report [--tail | --json] FILE [FILE ...] [--to report.html]"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The recordings, and the page."""
        parser.add_argument("--to", metavar="HTML", default="report.html", help="the page (report.html); replaced")
        how = parser.add_mutually_exclusive_group()
        how.add_argument("--tail", action="store_true", help="write it anew until the one recording is closed")
        how.add_argument("--json", action="store_true", help="print JSON instead of the path of the page")
        parser.add_argument("files", metavar="FILE", nargs="+", help="a file that byname.record has written")

    def run(self, options: argparse.Namespace) -> int:
        """Writes it, and prints where it is."""
        from byname.errors import BynameError

        if options.tail and len(options.files) > 1:
            raise CommandError("--tail follows one recording", exit_code=2)
        try:
            return _tail(options.files[0], options.to) if options.tail else _once(options)
        except BynameError as error:
            raise CommandError(str(error)) from None


def _once(options: argparse.Namespace) -> int:
    from byname.reporting.page import report

    page = report(*options.files, to=options.to)
    facts = {"page": str(page.absolute()), "bytes": page.stat().st_size, "files": options.files}
    print(json.dumps(facts) if options.json else printable(str(page)), flush=True)
    return 0


def _tail(file: str, to: str) -> int:
    """Writes a page of each state of a recording, until it is closed or somebody presses Ctrl-C."""
    from byname.cli.shown import states
    from byname.reporting.page import ready_to_write, report

    ready_to_write(to)
    told = False
    try:
        for recording in states(file):
            page = report(recording, to=to, refresh=None if recording.ended else PAUSE)
            if not told:
                told = True
                print(printable(str(page)), flush=True)
            if not recording.ended:
                time.sleep(PAUSE)
    except KeyboardInterrupt:
        print(flush=True)
    return 0
