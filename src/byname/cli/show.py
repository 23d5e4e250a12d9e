"""What does ``byname show`` do? It tells what is inside a recording, also while that is being written."""

from __future__ import annotations

import argparse
import sys

from byname.cli.running import positive


class Show:
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
    usage = "show [--place PATH | --tail] [--json] [--repair] [--top K] [--ranges | --no-ranges] FILE"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The file, and what of it."""
        what = parser.add_mutually_exclusive_group()
        what.add_argument("--place", metavar="PATH", help="show the records of one place, or of those that fit")
        what.add_argument("--tail", action="store_true", help="tell what comes, until the recording is closed")
        parser.add_argument(
            "--repair", action="store_true", help="first put what a crash has left into the file, for other readers"
        )
        parser.add_argument(
            "--json", action="store_true", help="print JSON, with all rows; with --tail a line of it for each change"
        )
        parser.add_argument("--top", type=positive, metavar="K", default=60, help="show at most K rows (60)")
        ranges = parser.add_mutually_exclusive_group()
        ranges.add_argument("--ranges", action="store_true", help="read all values for min, max and mean, however many")
        ranges.add_argument("--no-ranges", action="store_true", help="read no values, only how many there are")
        parser.add_argument("file", metavar="FILE", help="a file that byname.record has written")

    def run(self, options: argparse.Namespace) -> int:
        """Prints it."""
        from byname.cli import shown

        if options.repair:
            shown.repaired(options.file)
        if options.tail:
            return shown.tail(options.file, in_json=options.json)
        with shown.opened(options.file) as recording:
            if options.json:
                shown.as_json(recording, options.place, ranges=not options.no_ranges)
            elif options.place:
                shown.places(recording, options.place, options.top)
            else:
                few = options.ranges or shown.is_small(recording)
                shown.table(recording, options.file, options.top, ranges=few and not options.no_ranges)
                if not few and not options.no_ranges:
                    shown.say_how_to_get_ranges(options.file)
        sys.stdout.flush()  # a pipe that is closed is noticed here, not when Python ends
        return 0
