"""Command: the shape, the error and the messages that the commands of byname share."""

from __future__ import annotations

import argparse
import sys
from typing import Protocol

from byname.errors import BadArgumentError
from byname.text import printable_lines, terminal_width, wrap_text


class Command(Protocol):
    """One command of the command line: ``byname NAME ...``.

    A command is a class, and an entry of ``byname.cli.COMMANDS``. The docstring of the class is its help; the first
    line is the summary in ``byname --help``. A command that cannot do what was asked raises `CommandError`. What is
    heavy is imported in `run`, so that help comes at once.
    """

    @property
    def name(self) -> str:
        """The word after ``byname``."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the options of the command to its parser."""

    def run(self, options: argparse.Namespace) -> int | BaseException:
        """Run the command, and return the exit code, or the error that its program failed with."""


class CommandError(Exception):
    """Error of a command that cannot do what was asked; the text says why and what to try."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(printable_lines(message))
        self.exit_code = exit_code


def show(words: str) -> None:
    """Print a text that may hold anything, in lines that fit a terminal on the standard output."""
    print(wrap_text(printable_lines(words), terminal_width(sys.stdout)))


def say(message: object) -> None:
    """Write a message to the standard error, where it is seen at once and mixes with no output."""
    if sys.stderr is not None:  # print(file=None) would write into the program's output
        words = wrap_text(f"byname: {printable_lines(str(message))}", terminal_width(sys.stderr))
        print(words, file=sys.stderr, flush=True)


def positive(word: str) -> int:
    """Return the text of an option as a positive whole number."""
    if not word.isdecimal() or not int(word):
        raise argparse.ArgumentTypeError(f"{word!r} is not an integer of at least 1")
    return int(word)


def cause(word: str) -> str:
    """Return the text of an option as a cause of findings."""
    from byname.diagnose.handbook import known_causes

    try:
        return next(iter(known_causes(word)))
    except BadArgumentError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
