"""What does a training step take where byname is not imported, is imported and not called, or has been called?

A program of its own, which `benchmarks.memory` starts once for each of these and asks for one run after another.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from importlib import import_module
from time import process_time
from typing import Any

import torch

from benchmarks.apart import answer
from benchmarks.graphs import transformer_step

__all__ = ["TIMES"]

TIMES = 3


def _main(state: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    step = transformer_step()
    step()
    held = _looked(state)
    step()

    def run() -> float:
        start = process_time()
        for _ in range(TIMES):
            step()
        return process_time() - start

    answer(run)
    del held


def _looked(state: str) -> Any:
    """What the program holds of byname, which it imports only if it is said to."""
    if state == "absent":
        assert "byname" not in sys.modules
        return None
    byname: Any = import_module("byname")
    if state == "imported":
        return byname
    grown = getattr(byname, "growth", nullcontext)()
    with grown:
        census = byname.census()
    return census, byname.holders(torch.zeros(2)), grown


if __name__ == "__main__":
    _main(sys.argv[1])
