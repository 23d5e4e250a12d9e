"""What does ``byname census`` do? It runs a program as Python would, and tells which tensors are alive in it."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager

from byname.cli.asking import add_pid, asked_by
from byname.cli.running import add_program, positive, run_program

__all__ = ["Census"]


class Census:
    """Run a program, and tell which tensors are alive in it, or which become more and more.

    The program runs as under python: the same arguments, output, exit code and traceback. When its last line has run,
    a census goes to the standard error; when it fails, a census of the moment of the error, with the variables of the
    functions that failed.

    examples:
      byname census train.py --epochs 3
      byname census --every 100 --top 10 train.py
      byname census --growth --every 100 -m package.train

    With --pid it asks a process that runs already: one that was started by `byname run --census-on-signal` or `byname
    census --census-on-signal`, or, with Python 3.14 or newer, any process of the same Python.

      byname census --pid 4711
    """

    name = "census"
    usage = (
        "census [--every N] [--top K] [--growth] [--census-on-signal] (script.py | -m module | --pid N) "
        "[arguments of the program ...]"
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """When to look, what to show, and the program."""
        parser.add_argument("--every", type=positive, metavar="N", help="look after every N optimizer steps, too")
        parser.add_argument("--top", type=positive, metavar="K", default=20, help="show the K largest (20)")
        parser.add_argument("--growth", action="store_true", help="tell what grew from the first to the last step")
        add_pid(parser)
        add_program(parser, required=False)

    def run(self, options: argparse.Namespace) -> int:
        """Runs the program to its end, or asks the one that runs."""
        if options.pid is not None:
            return asked_by(options, "census", options.top)
        return run_program(options, _shown(options))


def _shown(options: argparse.Namespace) -> AbstractContextManager[object]:
    from byname.cli.looks import CensusShown, GrowthShown

    return GrowthShown(options.every, options.top) if options.growth else CensusShown(options.every, options.top)
