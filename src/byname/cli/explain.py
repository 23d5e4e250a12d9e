"""What does ``byname explain`` do? It tells what a process is doing that runs already."""

from __future__ import annotations

import argparse
import json

from byname.cli.asking import add_pid, asked_by
from byname.cli.command import show


class Explain:
    """Show what a running process is doing, and how many tensors are alive in it.

    For each of its threads: the lines of the program, the module that is being called, and the function of the library
    it is in. The process goes on unchanged. It has to be one that was started by `byname run --census-on-signal` or
    `byname census --census-on-signal`, or, with Python 3.14 or newer, any process of the same Python.

    examples:
      byname explain --pid 4711
      byname explain --pid 4711 --timeout 60
      byname explain --pid 4711 --json
    """

    name = "explain"
    usage = "explain --pid N [--timeout SECONDS] [--json]"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Which process."""
        add_pid(parser, required=True)
        parser.add_argument("--json", action="store_true", help="print JSON")

    def run(self, options: argparse.Namespace) -> int:
        """Asks the process and prints its answer."""
        answer = asked_by(options, "explain", 0, facts=options.json)
        print(json.dumps(answer.facts)) if options.json else show(answer.text)
        return 0
