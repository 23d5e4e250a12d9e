"""Which topics are measured? ``python -m benchmarks [topic ...]``; all of them when none is named."""

from __future__ import annotations

import argparse
import platform
import sys
from time import perf_counter

import torch

from benchmarks.analysing import analysing
from benchmarks.explaining import explaining
from benchmarks.gpu import gpu
from benchmarks.memory import memory
from benchmarks.naming import naming
from benchmarks.recording import recording
from benchmarks.scaling import scaling
from benchmarks.timing import print_table
from benchmarks.tracking import tracking
from benchmarks.walking import walking
from benchmarks.watching import watching

_TOPICS = {
    "walking": walking,
    "naming": naming,
    "tracking": tracking,
    "explaining": explaining,
    "memory": memory,
    "watching": watching,
    "recording": recording,
    "scaling": scaling,
    "analysing": analysing,
    "gpu": gpu,
}


def main() -> None:
    """Measures the topics asked for and prints a table of each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measures byname against its floors.")
    parser.add_argument("topics", nargs="*", metavar="topic", help=f"one of {', '.join(_TOPICS)}")
    asked = parser.parse_args().topics or list(_TOPICS)
    if unknown := [topic for topic in asked if topic not in _TOPICS]:
        parser.error(f"no topic {unknown[0]!r}; there are {', '.join(_TOPICS)}")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"Python {platform.python_version()}, PyTorch {torch.__version__}, one thread", flush=True)
    for number, topic in enumerate(asked, 1):
        print(f"{number} of {len(asked)}: {topic}; some take ten minutes", file=sys.stderr, flush=True)
        start = perf_counter()
        rows = _TOPICS[topic]()
        if rows:
            print_table(f"{topic} ({perf_counter() - start:.0f} s)", rows)
            sys.stdout.flush()


main()
