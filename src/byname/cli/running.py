"""What do the commands that run a program share? The program's part of the command line, and the way to its end."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager

from byname.cli.command import CommandError
from byname.cli.program import Module, Program, Script, ended_with, report


def add_program(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Tells the parser of the program; everything after the script or the module belongs to it."""
    parser.add_argument("--census-on-signal", action="store_true", help="at SIGUSR1, tell which tensors are alive")
    parser.add_argument("-m", dest="is_module", action="store_true", help="run a module, as python -m does")
    words = "a script, a folder or zip file with a __main__.py, or with -m a module"
    parser.add_argument("program", nargs=None if required else "?", help=words)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the program finds in sys.argv")


def run_program(
    options: argparse.Namespace, context_of: Callable[[argparse.Namespace], AbstractContextManager[object]]
) -> int:
    """Runs the program to its end, within the context that the options ask for, and returns the exit code.

    What the context needs is imported before the program runs: it is to come from where byname, not the program, looks.
    """
    program = _program(options)
    context = context_of(options)
    if options.census_on_signal:
        from byname.cli.signals import answer_signals

        answer_signals()
    program.take_place()
    error = ended_with(program, context)
    return 0 if error is None else report(error)


def _program(options: argparse.Namespace) -> Program:
    if options.program is None:
        raise CommandError("it needs a program: a script, or -m and the name of a module", exit_code=2)
    if options.is_module:
        return Module(options.program, options.arguments)
    try:
        return Script(options.program, options.arguments)
    except OSError as error:
        advice = "Give the path of a script, or -m and the name of a module."
        text = f"can't open file {error.filename!r}: [Errno {error.errno}] {error.strerror}. {advice}"
        raise CommandError(text, exit_code=2) from None


def positive(word: str) -> int:
    """A whole number from 1 on, as an option has it."""
    if not word.isdecimal() or not int(word):
        raise argparse.ArgumentTypeError(f"{word!r} is no whole number from 1 on")
    return int(word)
