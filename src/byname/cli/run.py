"""What does ``byname run`` do? It runs a program as Python would, and explains what autograd finds wrong in it."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager

from byname.cli.command import CommandError, say
from byname.cli.program import Module, Program, Script, ended_with, report

__all__ = ["Run"]


class Run:
    """Run a program, and explain in its own words what autograd refuses.

    The program runs as under python: the same arguments, output, exit code and traceback. An error of autograd gets
    a note that says which variables and lines it comes from. Options of Python stand before the module byname:
    python -W error -m byname run script.py

    examples:
      byname run train.py --epochs 3
      byname run --check --non-finite train.py
      byname run -m package.train --epochs 3
    """

    name = "run"
    usage = "run [--check] [--non-finite] (script.py | -m module) [arguments of the program ...]"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Everything after the script or the module belongs to the program."""
        parser.add_argument("--check", action="store_true", help="look at each loss before its line's first backward")
        parser.add_argument("--non-finite", action="store_true", help="tell where gradients become infinite or NaN")
        parser.add_argument("-m", dest="is_module", action="store_true", help="run a module, as python -m does")
        parser.add_argument("program", help="a script, a folder or zip file with a __main__.py, or with -m a module")
        parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the program finds in sys.argv")

    def run(self, options: argparse.Namespace) -> int:
        """Runs the program to its end."""
        explaining = _explaining(options)  # first of all: it imports from where byname, not the program, looks
        program = _program(options)
        program.take_place()
        error = ended_with(program, explaining)
        return 0 if error is None else report(error)


def _program(options: argparse.Namespace) -> Program:
    if options.is_module:
        return Module(options.program, options.arguments)
    try:
        return Script(options.program, options.arguments)
    except OSError as error:
        advice = "Give the path of a script, or -m and the name of a module."
        text = f"can't open file {error.filename!r}: [Errno {error.errno}] {error.strerror}. {advice}"
        raise CommandError(text, exit_code=2) from None


def _explaining(options: argparse.Namespace) -> AbstractContextManager[object]:
    from byname.autograd.explaining import Explaining

    return Explaining(checked=say if options.check else None, non_finite=say if options.non_finite else None)
