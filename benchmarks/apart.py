"""What is measured in a process of its own, so that what one leaves behind does not disturb the next?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict

from benchmarks.timing import Row, Variant

__all__ = ["answer", "asked", "hand_over", "rows_apart"]


def rows_apart(module: str, *arguments: str) -> list[Row]:
    """The rows that ``python -m module`` measures and hands over."""
    told = subprocess.run([sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return [Row(**row) for row in json.loads(told.stdout.splitlines()[-1])]


def hand_over(rows: Sequence[Row]) -> None:
    """What such a module does in the end."""
    print(json.dumps([asdict(row) for row in rows]))


@contextmanager
def asked(module: str, *arguments: str) -> Iterator[Variant]:
    """A variant that runs in a process of its own, which waits between the rounds."""
    with subprocess.Popen(
        [sys.executable, "-m", module, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        ask, told = process.stdin, process.stdout
        assert ask is not None
        assert told is not None

        def run() -> float:
            print("run", file=ask, flush=True)
            return float(told.readline())

        yield run
        ask.close()


def answer(run: Variant) -> None:
    """What such a process does: it runs once for every line that it reads."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    for _ in sys.stdin:
        print(run(), file=out, flush=True)
