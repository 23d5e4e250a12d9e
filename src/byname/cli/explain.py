"""What does ``byname explain`` do? It tells what a process is doing that runs already."""

from __future__ import annotations

import argparse

from byname.cli.asking import add_pid, asked_by

__all__ = ["Explain"]


class Explain:
    """Tell what a process is doing at this moment, and how much is alive in it.

    For each of its threads: the lines of the program, the module that is being called, and the function of the library
    it is in. The process goes on unchanged. It has to be one that was started by `byname run --census-on-signal` or
    `byname census --census-on-signal`, or, with Python 3.14 or newer, any process of the same Python.

    examples:
      byname explain --pid 4711
      byname explain --pid 4711 --timeout 60
    """

    name = "explain"
    usage = "explain --pid N [--timeout SECONDS]"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Which process."""
        add_pid(parser, required=True)

    def run(self, options: argparse.Namespace) -> int:
        """Asks the process and prints its answer."""
        return asked_by(options, "explain", 0)
