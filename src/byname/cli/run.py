"""What does ``byname run`` do? It runs a program as Python would, and explains what autograd finds wrong in it."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager

from byname.cli.command import say
from byname.cli.running import add_program, run_program

__all__ = ["Run"]


class Run:
    """Run a program, and explain in its own words what autograd refuses.

    The program runs as under python: the same arguments, output, exit code and traceback. An error of autograd gets
    a note that says which variables and lines it comes from. Options of Python stand before the module byname:
    python -W error -m byname run script.py

    examples:
      byname run train.py --epochs 3
      byname run --check --non-finite train.py
      byname run --census-on-signal train.py      and from elsewhere: kill -USR1 PID
      byname run -m package.train --epochs 3
    """

    name = "run"
    usage = "run [--check] [--non-finite] [--census-on-signal] (script.py | -m module) [arguments of the program ...]"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Which errors to look for, and the program."""
        parser.add_argument("--check", action="store_true", help="look at each loss before its line's first backward")
        parser.add_argument("--non-finite", action="store_true", help="tell where gradients become infinite or NaN")
        add_program(parser)

    def run(self, options: argparse.Namespace) -> int:
        """Runs the program to its end."""
        return run_program(options, _explaining(options))


def _explaining(options: argparse.Namespace) -> AbstractContextManager[object]:
    from byname.autograd.explaining import Explaining

    return Explaining(checked=say if options.check else None, non_finite=say if options.non_finite else None)
