"""What do two processes pay for bringing the values of all to rank 0, against files of their own and against pickles?

A program of its own, which `benchmarks.recording` starts; it starts the second process itself. Every variant runs in
both processes at once, and what counts is the time on the wall in rank 0, in which it may wait for the other.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

import byname
from benchmarks.apart import hand_over
from benchmarks.contexts import training_step
from benchmarks.models import GPT
from benchmarks.timing import Row, Variant, interleaved

__all__: list[str] = []

_ALL = "blocks.*.attn.forward.weights"
_EVERY, _TIMES, _ROUNDS = 5, 10, 9

_Context = Callable[[], AbstractContextManager[Callable[[], None]]]
"""Gives what is to be done after each step."""


def _main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        spawn(_in_rank, (folder,), nprocs=2)  # type: ignore[no-untyped-call]


def _in_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    rows = _rows(Path(folder))
    if rank == 0:
        hand_over(rows)
    dist.destroy_process_group()


def _rows(folder: Path) -> list[Row]:
    model = GPT(vocabulary=64, width=192, layers=3, length=64)
    step = training_step(model, torch.randint(64, (8, 64)))
    own, gathered = folder / "own.h5", folder / "gathered.h5"
    words: dict[str, tuple[str, _Context]] = {
        "again": ("plain again (A/A)", _plain),
        "own": ("each rank writes a file of its own", _recorded(model, to=own)),
        "gathered": (f"gather_every={_EVERY}, to a file of rank 0", _recorded(model, to=gathered, gather_every=_EVERY)),
        "memory": (f"gather_every={_EVERY}, in memory", _recorded(model, gather_every=_EVERY)),
        "pickled": (f"gather_object of copies every {_EVERY} steps", lambda: _pickled(model)),
    }
    variants = {what: _inside(context, step) for what, (_, context) in words.items()}
    took = interleaved({"plain": _inside(_plain, step), **variants}, _ROUNDS)
    return [
        Row("two ranks, 1.5 MB each a step: plain", took.each("plain", _TIMES, 1e-3), "ms"),
        *(Row(text, took.ratio(what, "plain"), "×") for what, (text, _) in words.items()),
        Row("gathered / gather_object", took.ratio("gathered", "pickled"), "×"),
        Row("gathered less own files, a step", took.each("gathered", _TIMES, 1e-3, less="own"), "ms"),
        Row("gather_object less own files, a step", took.each("pickled", _TIMES, 1e-3, less="own"), "ms"),
    ]


def _inside(context: _Context, step: Callable[[], None]) -> Variant:
    """Closing counts here: it is what waits for the last window of the other rank."""

    def run() -> float:
        dist.barrier()
        with context() as after:
            step()
            start = perf_counter()
            for _ in range(_TIMES):
                step()
                after()
        return perf_counter() - start

    return run


def _nothing() -> None:
    """Nothing is to be done after a step."""


def _plain() -> AbstractContextManager[Callable[[], None]]:
    return nullcontext(_nothing)


def _recorded(model: nn.Module, **options: Any) -> _Context:
    @contextmanager
    def context() -> Iterator[Callable[[], None]]:
        with byname.record(model, _ALL, overwrite=True, **options):
            yield _nothing

    return context


@contextmanager
def _pickled(model: nn.Module) -> Iterator[Callable[[], None]]:
    """What one writes by hand: hooks that copy, and a collective that pickles."""
    kept: list[Tensor] = []
    steps = 0
    found = [module for path, module in model.named_modules() if path.endswith(".attn")]
    hooks = [module.register_forward_hook(lambda module, args, output: _keep(kept, output)) for module in found]

    def after() -> None:
        nonlocal steps
        steps += 1
        if not steps % _EVERY:
            dist.gather_object(kept, [None, None] if dist.get_rank() == 0 else None)
            kept.clear()

    yield after
    for one in hooks:
        one.remove()


def _keep(kept: list[Tensor], output: Tensor) -> None:
    """As many bytes as the weights of an attention have: its output is half as large."""
    kept.append(output.detach().repeat(2, 1, 1))


if __name__ == "__main__":
    _main()
