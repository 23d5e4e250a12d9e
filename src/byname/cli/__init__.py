"""Command line: ``byname`` hands its arguments to one of its commands."""

from __future__ import annotations

import argparse
import difflib
import inspect
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from typing import Any, NoReturn

from byname.cli.ask import StatusCommand
from byname.cli.command import Command, CommandError, cause, say
from byname.cli.program import end_with
from byname.cli.run import CensusCommand, RunCommand
from byname.cli.show import DiffCommand, FinishCommand, ReportCommand, ShowCommand
from byname.errors import BynameError
from byname.extras import needs
from byname.text import printable_lines

SHELLS = ("bash", "zsh")


class ExplainCommand:
    """Explain a cause of findings, or list all causes.

    It prints the section of docs/failures.md about the cause: what has happened, a program, and what helps. In a
    terminal it is formatted, in a pipe it is plain markdown.

    examples:
      byname explain
      byname explain double-softmax
    """

    name = "explain"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("cause", nargs="?", metavar="CAUSE", type=cause, help="the first word of a finding")

    def run(self, options: argparse.Namespace) -> int:
        from byname.diagnose.handbook import sections

        words = "\n".join(sections()) if options.cause is None else sections()[options.cause].rstrip()
        if options.cause is None or not sys.stdout.isatty():
            print(words)
            return 0
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(words))
        return 0


class CompletionCommand:
    """Print a script with which a shell completes commands, options and files after `byname`.

    Needs shtab (pip install "byname[completion]") when it is printed, not when it is used.

    examples:
      byname completion bash > ~/.local/share/bash-completion/completions/byname
      byname completion zsh > ~/.zfunc/_byname
    """

    name = "completion"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("shell", choices=SHELLS, help="the shell to make the script for")

    def run(self, options: argparse.Namespace) -> int:
        with needs("completion", "shtab"):
            import shtab
        whole = parser()
        for action in _actions(whole):
            if action.metavar in ("FILE", "HTML") or action.dest == "program":
                action.complete = shtab.FILE  # type: ignore[attr-defined]  # where shtab looks for it
        print(shtab.complete(whole, options.shell), flush=True)
        return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for part in action.choices.values():
                yield from _actions(part)


COMMANDS: tuple[Command, ...] = (
    RunCommand(),
    CensusCommand(),
    StatusCommand(),
    ExplainCommand(),
    ShowCommand(),
    DiffCommand(),
    FinishCommand(),
    ReportCommand(),
    CompletionCommand(),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, and return its exit code.

    >>> from byname.cli import main
    >>> main(["run", "no_such_script.py"])
    2
    """
    words = [*(sys.argv[1:] if arguments is None else arguments)]
    if words[:1] == ["explain"] and any(word.startswith("--pid") for word in words):
        words[:1] = ["status"]  # which had this name before
    options, unknown = parser().parse_known_args(words)
    if unknown:
        options.parser.refuse(unknown)
    command: Command = options.command
    try:
        ended = command.run(options)
    except BrokenPipeError:  # the reader of the standard output has closed it, as ``| head`` does
        with open(os.devnull, "w") as nowhere:  # noqa: PTH123 - a device
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return 1
    except (CommandError, BynameError, OSError) as error:
        say(str(error))
        return error.exit_code if isinstance(error, CommandError) else 1
    return ended if isinstance(ended, int) else end_with(ended)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Exit with a message, in which control characters are escaped."""
        super().error(printable_lines(message))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a command, or a value of an option, that is none of the choices; say which is the closest."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message = "; the closest is ".join([error.message, *_closest(value, action.choices or ())])
            raise

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Exit with a message that names the unknown arguments, and the option closest to the first of them."""
        near = _closest(unknown[0].partition("=")[0], self._option_string_actions)
        self.error("; the closest option is ".join([f"unrecognized arguments: {' '.join(unknown)}", *near]))


def _closest(word: str, there: Iterable[str]) -> list[str]:
    return difflib.get_close_matches(word, there, n=1)


def parser() -> argparse.ArgumentParser:
    whole = _Parser(
        prog="byname",
        description="Explain errors, list live tensors and record values of a PyTorch program, without changing it.",
    )
    python = sys.version.split()[0]
    known = f"byname {version('byname')} (PyTorch {version('torch')}, Python {python})"
    whole.add_argument("--version", action="version", version=known, help="show the versions, and exit")
    commands = whole.add_subparsers(title="commands", metavar="command", required=True)
    for command in COMMANDS:
        text = inspect.getdoc(type(command)) or ""
        part = commands.add_parser(
            command.name,
            help=text.partition("\n")[0],
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.add_arguments(part)
        part.set_defaults(command=command, parser=part)
    return whole
