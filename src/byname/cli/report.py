"""Report command: ``byname report`` writes one HTML page of recordings."""

from __future__ import annotations

import argparse

from byname.cli.command import CommandError
from byname.text import printable

__all__ = ["Report"]


class Report:
    """Write one HTML page of a recording: its places, curves, heat maps and gradients.

    The page is one file, which needs no network and no other file. Files of several processes (run.rank0.h5,
    run.rank1.h5, ...) are one recording: byname report run.h5. Several recordings become sections of one page. A
    recording that is still being written is shown as far as it goes.

    examples:
      byname report run.h5
      byname report run.h5 --to monday.html
      byname report before.h5 after.h5 --to compared.html
    """

    name = "report"
    usage = "report FILE [FILE ...] [--to report.html]"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The recordings, and the page."""
        parser.add_argument("--to", metavar="HTML", default="report.html", help="the page (report.html); replaced")
        parser.add_argument("files", metavar="FILE", nargs="+", help="a file that byname.record has written")

    def run(self, options: argparse.Namespace) -> int:
        """Writes it, and prints where it is."""
        from byname.errors import BynameError
        from byname.reporting.page import report

        try:
            print(printable(str(report(*options.files, to=options.to))))
        except BynameError as error:
            raise CommandError(str(error)) from None
        return 0
