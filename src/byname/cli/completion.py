"""Completion command: ``byname completion`` prints what makes a shell complete the commands of byname."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from byname.extras import needs

SHELLS = ("bash", "zsh")


class Completion:
    """Print a script with which a shell completes commands, options and files after `byname`.

    Needs shtab (pip install "byname[completion]") when it is printed, not when it is used.

    examples:
      byname completion bash > ~/.local/share/bash-completion/completions/byname
      byname completion zsh > ~/.zfunc/_byname
    """

    name = "completion"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the shell."""
        parser.add_argument("shell", choices=SHELLS, help="the shell that reads the script")

    def run(self, options: argparse.Namespace) -> int:
        """Print the script."""
        from byname.cli import parser

        with needs("completion", "shtab"):
            import shtab
        whole = parser()
        for action in _actions(whole):
            if action.metavar in ("FILE", "HTML") or action.dest == "program":
                action.complete = shtab.FILE  # type: ignore[attr-defined]  # where shtab looks for it
        print(shtab.complete(whole, options.shell), flush=True)
        return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the options and arguments of a parser and of its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for part in action.choices.values():
                yield from _actions(part)
