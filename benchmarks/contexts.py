"""How much slower are steps inside of a context? The same steps in each context, in turns, as ratios to plain ones."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from time import process_time

import torch
from torch import Tensor, nn

from benchmarks.timing import Row, Variant, interleaved
from benchmarks.tracking import against_plain

__all__ = ["Context", "Contexts", "rows_of", "training_step"]

Context = Callable[[], AbstractContextManager[object]]
Contexts = dict[str, tuple[str, Context, float | None]]
"""By a short name: what it is called in the table, the context, and the ratio that is aimed at."""

_MILLI = 1e-3


def rows_of(title: str, step: Callable[[], object], contexts: Contexts, rounds: int, times: int) -> list[Row]:
    """One row for the plain step, and one for each context."""
    variants = {what: _inside(context, step, times) for what, (_, context, _) in contexts.items()}
    took = interleaved({"plain": _inside(nullcontext, step, times), **variants}, rounds)
    return [
        Row(f"{title}: plain", took.each("plain", times, _MILLI), "ms"),
        *(against_plain(words, what, took, limit) for what, (words, _, limit) in contexts.items()),
    ]


def training_step(model: nn.Module, x: Tensor) -> Callable[[], None]:
    """Forward, backward and AdamW of a model that returns its loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step() -> None:
        optimizer.zero_grad()
        model(x).backward()
        optimizer.step()

    return step


def _inside(context: Context, step: Callable[[], object], times: int) -> Variant:
    """Entering and leaving do not count."""

    def run() -> float:
        with context():
            for _ in range(5):  # until places are bound and the interpreter has adapted to what runs now
                step()
            start = process_time()
            for _ in range(times):
                step()
            return process_time() - start

    return run
