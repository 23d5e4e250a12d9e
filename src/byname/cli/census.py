"""Census command: ``byname census`` runs a program as Python would, and lists the tensors that are alive in it."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager

from byname.cli.ask import add_pid, print_answer
from byname.cli.command import CommandError, positive
from byname.cli.run import add_program, run_program


class Census:
    """Run a program, and list which tensors are alive in it, or which grow in number.

    The program runs as under python: the same arguments, output, exit code and traceback. When its last line has run,
    a census goes to the standard error; when it fails, a census of the moment of the error, with the variables of the
    functions that failed.

    examples:
      byname census train.py --epochs 3
      byname census --every 100 --top 10 train.py
      byname census --growth --every 100 -m package.train
      byname census --every 100 --json alive.jsonl train.py

    With --pid it asks a process that runs already: one that was started by `byname run --census-on-signal` or `byname
    census --census-on-signal`, or, with Python 3.14 or newer, any process of the same Python.

      byname census --pid 4711
      byname census --pid 4711 --json -
    """

    name = "census"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the times of the looks, what they show, and the program."""
        parser.add_argument("--every", type=positive, metavar="N", help="look after every N optimizer steps, too")
        parser.add_argument("--top", type=positive, metavar="K", default=20, help="show the K largest (20)")
        parser.add_argument("--growth", action="store_true", help="tell what grew from the first to the last step")
        parser.add_argument(
            "--json",
            metavar="FILE",
            help="write it as lines of JSON, too; with --pid, - prints JSON instead of the table",
        )
        add_pid(parser)
        add_program(parser)

    def run(self, options: argparse.Namespace) -> int:
        """Run the program to its end, or ask the one that runs."""
        if options.pid is None:
            return run_program(options, _watchers)
        if options.json not in (None, "-"):
            raise CommandError("with --pid the census goes to the standard output: --json -", exit_code=2)
        return print_answer(options, "census", options.top, in_json=options.json == "-")


def _watchers(options: argparse.Namespace) -> list[AbstractContextManager[object]]:
    from byname.cli.findings_file import JsonLines
    from byname.cli.looks import CensusShown, GrowthShown

    lines = None if options.json is None else JsonLines(options.json)
    shown = (GrowthShown if options.growth else CensusShown)(options.every, options.top, lines)
    return [shown] if lines is None else [lines, shown]
