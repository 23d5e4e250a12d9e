"""How much slower is a training step while its errors are explained, and what does a look before backward cost?

A program is explained from its beginning to its end, so a step is timed inside a context that was entered before, and
after a first step in it; where the first ones are looked at, after those. Every other variant is timed in the same way.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from time import process_time
from typing import Any

import torch
from torch import nn

import byname
from benchmarks.graphs import Built, chain, encoder, residual, rnn, tiny_step, transformer_step
from benchmarks.timing import Rounds, Row, Variant, interleaved, small_heap, timed
from benchmarks.tracking import CONTEXTS, afterwards, against_plain, floor
from benchmarks.walking import bare_walk
from byname.diagnose.explaining import Explaining

__all__ = ["explaining"]

_MILLI = 1e-3
_FIRST = 64
"""Steps that ``byname run --check`` looks at more closely: so many run before those that are timed."""

_Step = Callable[[], None]
_Context = Callable[[], AbstractContextManager[object]]


def explaining() -> list[Row]:
    """Steps, looks before backward, and the start of a program."""
    graphs = {"12-layer encoder": encoder, "chain": chain, "RNN": rnn, "residual": residual}
    rows = [
        *_steps("transformer, 4 blocks, AdamW", transformer_step(), limits=(1.05, 1.1), rounds=50, times=2),
        *_steps("205 operations on 4×4 matrices, SGD", tiny_step(), limits=(1.6, 1.6), rounds=100, times=5),
        *_steps("30 × Categorical: sample, log_prob, entropy", _distributions(), limits=(2.5, 2.5), rounds=30, times=3),
    ]
    with small_heap():
        rows += [row for name, build in graphs.items() for row in _checks(name, build)]
    return rows + _start()


def _steps(title: str, step: _Step, limits: tuple[float, float], rounds: int, times: int) -> list[Row]:
    took = interleaved(_variants(step, times), rounds)
    return [
        *floor(f"{title}: plain step", took, times),
        against_plain("tracked, in a context entered once", "tracked", took),
        against_plain("explained, in a context entered once", "explained", took, limits[0]),
        Row("  explained / tracked", took.ratio("explained", "tracked"), "×"),
        against_plain("explained, and followed for NaN and Inf", "non-finite", took),
        against_plain(f"explained and checked, after {_FIRST} steps", "checked", took, limits[1]),
        against_plain("under set_detect_anomaly", "anomaly", took),
        against_plain("after a context that is still held", "after", took),
    ]


def _distributions(times: int = 30) -> Callable[[], None]:
    """What a step of reinforcement learning asks of its policy: hundreds of small calls inside PyTorch."""
    logits = torch.zeros(8, 2, requires_grad=True)

    def step() -> None:
        for _ in range(times):
            policy = torch.distributions.Categorical(logits=logits)
            policy.log_prob(policy.sample())  # type: ignore[no-untyped-call]
            policy.entropy()  # type: ignore[no-untyped-call]

    return step


def _variants(step: _Step, times: int) -> dict[str, Variant]:
    contexts: dict[str, _Context] = {
        **CONTEXTS,
        "explained": byname.explaining,
        "non-finite": lambda: Explaining(non_finite=_ignore),
    }
    return {
        **{what: _inside(context, step, times) for what, context in contexts.items()},
        "checked": _inside(lambda: Explaining(checked=_ignore), step, times, first=_FIRST),
        "after": afterwards(byname.explaining, step, times),
    }


def _ignore(_: object) -> None:
    pass


def _inside(context: _Context, step: _Step, times: int, first: int = 1) -> Variant:
    def run() -> float:
        with context():
            for _ in range(first):
                step()
            start = process_time()
            for _ in range(times):
                step()
            return process_time() - start

    return run


def _checks(name: str, build: Callable[[], Built], rounds: int = 21) -> list[Row]:
    nodes = bare_walk(build().loss)
    took = interleaved(
        {
            "bare": timed(build, bare_walk, collector=False),
            "bare again": timed(build, bare_walk, collector=False),
            "check": timed(lambda: _to_check(build), lambda given: given()),
        },
        rounds,
    )
    return [
        Row(f"{name} of {nodes:,} nodes: bare walk", took.each("bare", 1, _MILLI), "ms"),
        Row("  bare walk again / bare walk (A/A)", took.ratio("bare again", "bare"), "×"),
        Row("  check / bare walk", took.ratio("check", "bare"), "×", 3),
    ]


def _to_check(build: Callable[[], Built]) -> tuple[Callable[[], object], object]:
    """A check of a healthy loss whose leaves are all in an optimizer, which the program holds."""
    loss, holds = build()
    model = holds if isinstance(holds, nn.Module) else None
    optimizer = torch.optim.SGD(list(_weights(holds)), lr=1e-3)

    def check() -> object:
        found = byname.check(loss, model=model, optimizer=optimizer)
        assert not found, found
        return found

    return check, (holds, optimizer)


def _weights(holds: Any) -> Iterator[torch.Tensor]:
    if isinstance(holds, nn.Module):
        return holds.parameters()
    return iter(holds.values() if isinstance(holds, dict) else [holds])


def _start(rounds: int = 10) -> list[Row]:
    """An empty program under ``byname run``, against a Python that imports PyTorch."""
    plain = [sys.executable, "-c", "import torch"]
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder, "empty.py")
        empty.touch()
        explained = [sys.executable, "-m", "byname", "run", str(empty)]
        commands = {"torch": plain, "torch again": plain, "run": explained}
        took = interleaved({what: _process(command) for what, command in commands.items()}, rounds)
    return _start_rows(took)


def _start_rows(took: Rounds) -> list[Row]:
    return [
        Row('start: python -c "import torch"', took.each("torch", 1, 1), "s"),
        Row("  again, less the first (A/A)", took.each("torch again", 1, 1, less="torch"), "s"),
        Row("  byname run empty.py, less that", took.each("run", 1, 1, less="torch"), "s", 0.2),
    ]


def _process(command: list[str]) -> Variant:
    def run() -> float:
        before = os.times()
        subprocess.run(command, check=True)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    return run
