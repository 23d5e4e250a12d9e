"""What do watching, tracking, explaining and recording cost where the work is done by a GPU?

Only where there is one. Seconds are on the wall, from an idle GPU to an idle GPU: what is queued counts, and so does
waiting for it.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

import byname
from benchmarks.contexts import training_step
from benchmarks.models import GPT
from benchmarks.timing import Row, Variant, interleaved
from benchmarks.tracking import against_plain
from byname.watch.attach import attach
from byname.watch.attachment import Event

__all__ = ["gpu"]

_MILLI = 1e-3
_ALL = "blocks.*.attn.forward.weights"
_TIMES = 10

_Context = Callable[[], AbstractContextManager[object]]


def gpu() -> list[Row]:
    """A step that waits for the interpreter, and one that waits for the GPU; none where there is no GPU."""
    if not torch.cuda.is_available():
        print("gpu: left out, torch.cuda.is_available() is False")
        return []
    return [
        *_rows("GPU, 6 layers of width 64, AdamW", GPT(width=64, layers=6, length=32), torch.randint(64, (4, 32))),
        *_rows("GPU, 6 layers of width 512, AdamW", GPT(width=512, layers=6, length=256), torch.randint(64, (16, 256))),
    ]


def _rows(title: str, model: nn.Module, ids: Tensor, rounds: int = 9) -> list[Row]:
    model, ids = model.cuda(), ids.cuda()
    step = training_step(model, ids)
    step()
    with tempfile.TemporaryDirectory() as folder:
        words = _contexts(model, Path(folder) / "run.h5")
        variants = {what: _inside(context, step) for what, (_, context, _) in words.items()}
        took = interleaved({"plain": _inside(nullcontext, step), **variants}, rounds)
    return [
        Row(f"{title}: plain", took.each("plain", _TIMES, _MILLI), "ms"),
        *(against_plain(text, what, took, limit) for what, (text, _, limit) in words.items()),
        Row("waits for the GPU in a step that is recorded", _waits(model, step), "", 0),
    ]


def _contexts(model: nn.Module, file: Path) -> dict[str, tuple[str, _Context, float | None]]:
    return {
        "again": ("plain again (A/A)", nullcontext, None),
        "modules": ("all modules watched", lambda: attach(model, "**", _unheeded), 1.03),
        "variables": ("a variable of all layers watched", lambda: attach(model, _ALL, _unheeded), 1.03),
        "tracked": ("tracked", byname.track, None),
        "explaining": ("explaining", lambda: byname.explaining(model=model), None),
        "kept": ("a hook on each attention that keeps a copy on the GPU", lambda: _hooks(model, _on_gpu), None),
        "fetched": ("a hook on each attention that fetches a copy", lambda: _hooks(model, _on_cpu), None),
        "memory": ("all layers recorded in memory", _recorded(model), 1.05),
        "file": ("all layers recorded to a file", _recorded(model, to=file, overwrite=True), 1.05),
        "mean": ("the mean of each recorded", _recorded(model, reduce="mean"), None),
        "hundredth": ("every 100 iterations", _recorded(model, every=100), 1.01),
    }


def _inside(context: _Context, step: Callable[[], None]) -> Variant:
    def run() -> float:
        with context():
            for _ in range(3):
                step()
            torch.cuda.synchronize()
            start = perf_counter()
            for _ in range(_TIMES):
                step()
            torch.cuda.synchronize()
            return perf_counter() - start

    return run


def _waits(model: nn.Module, step: Callable[[], None], rounds: int = 3) -> list[float]:
    """How often PyTorch says that a step waits for the GPU, more than without the recorder."""
    found = []
    for _ in range(rounds):
        plain = _counted(step)
        with byname.record(model, _ALL):
            step()
            found.append(float(_counted(step) - plain))
    return found


def _counted(step: Callable[[], None]) -> int:
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(one.message) for one in told)


def _recorded(model: nn.Module, **options: Any) -> _Context:
    return lambda: byname.record(model, _ALL, **options)


def _unheeded(event: Event) -> None:
    """A callback that does nothing."""


def _on_gpu(output: Tensor) -> Tensor:
    return output.detach().clone()


def _on_cpu(output: Tensor) -> Tensor:
    return output.detach().cpu()


@contextmanager
def _hooks(model: nn.Module, copy: Callable[[Tensor], Tensor]) -> Iterator[None]:
    kept: list[Tensor] = []
    attentions = [module for path, module in model.named_modules() if path.endswith(".attn")]
    hooks = [one.register_forward_hook(lambda module, args, output: kept.append(copy(output))) for one in attentions]
    yield
    for one in hooks:
        one.remove()
