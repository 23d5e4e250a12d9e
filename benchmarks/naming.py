"""Naming: the time to find the name of a tensor, compared with one look at every object for tensors."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable

import torch

import byname
from benchmarks.graphs import attention
from benchmarks.timing import Rounds, Row, Variant, interleaved, timed

__all__ = ["naming"]

_MILLI = 1e-3


def naming(rounds: int = 20) -> list[Row]:
    """The model and the tensors asked about are variables of this function, which runs meanwhile."""
    model = attention()
    tokens = torch.zeros(2, 16, dtype=torch.long)
    local = torch.zeros(2)
    trainer = _Trainer()
    leaves = byname.leaves(model(tokens).sum())
    assert all(leaf.name.path.startswith("model.") for leaf in leaves)
    variants = {
        "scan": timed(_nothing, lambda _: tensors_alive()),
        "scan again": timed(_nothing, lambda _: tensors_alive()),
        "leaves": timed(lambda: (model(tokens).sum(), None), byname.leaves),
        "local": _asking(lambda: local, "local"),
        "deep": _asking(lambda: trainer.state.best["weights"][0], "trainer.state.best['weights'][0]"),
        "unnamed": _asking(lambda: torch.zeros(2), ""),
    }
    return [*_rows(interleaved(variants, rounds), len(leaves)), _first()]


_FIRST = """
import time, torch
y = torch.ones(1, requires_grad=True) + 1
start = time.process_time()
import byname
byname.leaves(y)
print(time.process_time() - start)
"""


def _first(rounds: int = 7) -> Row:
    """What the first question costs a process that has loaded PyTorch, with compiled files as pip installs them."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [sys.executable, "-c", _FIRST]
        printed = [
            subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
            for _ in range(rounds + 1)
        ]
    return Row("first leaves in a process", [float(one) / _MILLI for one in printed[1:]], "ms", 22.5)


def _nothing() -> tuple[None, None]:
    return None, None


class _State:
    def __init__(self) -> None:
        self.best = {"weights": [torch.zeros(2)]}


class _Trainer:
    def __init__(self) -> None:
        self.state = _State()


def tensors_alive() -> int:
    """The floor: the class of every object that the collector knows; how many tensors there are."""
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


def _asking(make: Callable[[], torch.Tensor], expected: str) -> Variant:
    """Asks for the name of a tensor, after making sure that this is the name it has."""
    found = byname.name(make())
    assert (found.path if found.how != "unnamed" else "") == expected, found
    return timed(_nothing, lambda _: byname.name(make()))


def _rows(took: Rounds, leaves: int) -> list[Row]:
    words = {
        "leaves": f"leaves of a model of {leaves} parameters",
        "local": "name of a local variable",
        "deep": "name of an item four steps into a local",
        "unnamed": "name of a tensor that nothing names",
    }
    rows = [
        Row(f"scan of {len(gc.get_objects()):,} objects for tensors", took.each("scan", 1, _MILLI), "ms"),
        Row("  scan again / scan (A/A)", took.ratio("scan again", "scan"), "×"),
    ]
    for what, said in words.items():
        rows.append(Row(said, took.each(what, 1, _MILLI), "ms", 50 if what == "leaves" else None))
        rows.append(Row("  / scan", took.ratio(what, "scan"), "×"))
    return rows
