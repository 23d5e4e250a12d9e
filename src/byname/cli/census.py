"""What does ``byname census`` do? It runs a program as Python would, and tells which tensors are alive in it."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager

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
    """

    name = "census"
    usage = (
        "census [--every N] [--top K] [--growth] [--census-on-signal] (script.py | -m module) "
        "[arguments of the program ...]"
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """When to look, what to show, and the program."""
        parser.add_argument("--every", type=positive, metavar="N", help="look after every N optimizer steps, too")
        parser.add_argument("--top", type=positive, metavar="K", default=20, help="show the K largest (20)")
        parser.add_argument("--growth", action="store_true", help="tell what grew from the first to the last step")
        add_program(parser)

    def run(self, options: argparse.Namespace) -> int:
        """Runs the program to its end."""
        return run_program(options, _shown(options))


def _shown(options: argparse.Namespace) -> AbstractContextManager[object]:
    from byname.cli.looks import CensusShown, GrowthShown

    return GrowthShown(options.every, options.top) if options.growth else CensusShown(options.every, options.top)
