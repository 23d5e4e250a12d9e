"""How much slower is a training step while values of it are recorded, and how fast are recordings written and opened?

The recorder is open already when a step is timed, and is closed afterwards: what is timed are the steps of a long run,
with the windows that are written meanwhile.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import byname
from benchmarks.apart import rows_apart
from benchmarks.contexts import Context, Contexts, rows_of, training_step
from benchmarks.in_the_step import in_the_step
from benchmarks.models import GPT, resnet18, resnet50
from benchmarks.storing import storing
from benchmarks.timing import Row
from byname.watch.attach import attach
from byname.watch.attachment import Event

__all__ = ["recording"]

_ALL, _ONE = "blocks.*.attn.forward.weights", "blocks.1.attn.forward.weights"
_NEVER = 1 << 60


def recording() -> list[Row]:
    """A model in which the interpreter counts, one in which PyTorch computes, the file, and several processes."""
    tiny = GPT(vocabulary=8, width=8, layers=12, length=4)
    ids = torch.randint(8, (1, 4))
    return [
        *_tiny("12 tiny layers, forward alone", tiny, lambda: tiny(ids), rounds=20),
        *_tiny("12 tiny layers, AdamW", tiny, training_step(tiny, ids), rounds=14),
        *_large("3 layers of width 192, AdamW", rounds=14, times=12),
        *_outputs("GPT of width 192, AdamW", *_gpt(), limits=(1.09, None), rounds=14, times=6),
        *_outputs("ResNet-18, AdamW", *_resnet(), limits=(1.10, 1.06), rounds=14, times=3),
        *_convolutions(),
        *in_the_step(),
        *storing(),
        *rows_apart("benchmarks.gathering"),
    ]


def _tiny(title: str, model: nn.Module, step: Callable[[], object], rounds: int) -> list[Row]:
    """Steps of which each takes less than what a careless recorder would add."""
    contexts: Contexts = {
        "again": ("plain again (A/A)", nullcontext, None),
        "hooks": ("a hook on each attention that does nothing", lambda: _hooks(model, _nothing), None),
        "clones": ("a hook on each attention that keeps a copy", lambda: _keeping(model), None),
        "watched": ("a variable of all layers watched, none copied", lambda: attach(model, _ALL, _unheeded), 1.03),
        "one": ("a variable of one layer recorded", _recorded(model, _ONE), 1.05),
        "all": ("a variable of all layers recorded", _recorded(model, _ALL), None),
        "outputs": ("the outputs of all attentions recorded", _recorded(model, "blocks.*.attn"), None),
        "gradients": ("the gradients of the variable recorded", _recorded(model, f"{_ALL}.grad"), None),
        "hundredth": ("a variable of all layers, every 100 iterations", _recorded(model, _ALL, every=100), 1.01),
        "never": ("a recorder by which nothing is due", _recorded(model, _ALL, start=_NEVER), 1.01),
    }
    return rows_of(title, step, contexts, rounds, times=100)


def _large(title: str, rounds: int, times: int) -> list[Row]:
    """Steps of about 60 ms, in each of which 1.5 MB are recorded."""
    model = GPT(vocabulary=64, width=192, layers=3, length=64)
    ids = torch.randint(64, (8, 64))
    with tempfile.TemporaryDirectory() as folder:
        contexts: Contexts = {
            "again": ("plain again (A/A)", nullcontext, None),
            "clones": ("a hook on each attention that keeps a copy", lambda: _keeping(model), None),
            "memory": ("all layers (1.5 MB) recorded in memory", _recorded(model, _ALL), 1.05),
            "file": ("all layers recorded to a file", _to_a_file(model, Path(folder)), 1.05),
            "hundredth": ("every 100 iterations, to a file", _to_a_file(model, Path(folder), every=100), 1.01),
            "mean": ("the mean of each alone", _recorded(model, _ALL, reduce="mean"), None),
            "std": ("the standard deviation", _recorded(model, _ALL, reduce="std"), None),
            "norm": ("the norm", _recorded(model, _ALL, reduce="norm"), None),
            "histogram": ("the histogram", _recorded(model, _ALL, reduce="histogram"), None),
            "half": ("as bfloat16", _recorded(model, _ALL, dtype="bfloat16"), None),
        }
        return rows_of(title, training_step(model, ids), contexts, rounds, times)


def _gpt() -> tuple[nn.Module, Tensor]:
    return GPT(vocabulary=64, width=192, layers=4, length=64), torch.randint(64, (8, 64))


def _resnet() -> tuple[nn.Module, Tensor]:
    return resnet18(), torch.randn(4, 3, 32, 32)


def _outputs(
    title: str, model: nn.Module, x: Tensor, limits: tuple[float, float | None], rounds: int, times: int
) -> list[Row]:
    """The outputs of all modules in a training step."""
    modules = sum(1 for _ in model.modules())
    contexts: Contexts = {
        "again": ("plain again (A/A)", nullcontext, None),
        "clones": (
            f"hooks that keep copies of the outputs of all {modules} modules",
            lambda: _keeping(model, ""),
            None,
        ),
        "memory": ("the same recorded in memory", _recorded(model, "**"), limits[0]),
        "mean": ("the mean of each", _recorded(model, "**", reduce="mean"), limits[1]),
    }
    return rows_of(title, training_step(model, x), contexts, rounds, times)


def _convolutions(rounds: int = 14) -> list[Row]:
    model, images = resnet50(32).eval(), torch.randn(2, 3, 32, 32)

    def forward() -> None:
        with torch.no_grad():
            model(images)

    contexts: Contexts = {
        "again": ("plain again (A/A)", nullcontext, None),
        "recorded": ("the outputs of 53 convolutions recorded", _recorded(model, nn.Conv2d), 1.15),
    }
    return rows_of("ResNet-50, forward alone", forward, contexts, rounds, times=10)


def _recorded(model: nn.Module, where: Any, **options: Any) -> Context:
    return lambda: byname.record(model, where, **options)


def _to_a_file(model: nn.Module, folder: Path, **options: Any) -> Context:
    return lambda: byname.record(model, _ALL, to=folder / "run.h5", overwrite=True, **options)


def _unheeded(event: Event) -> None:
    """A callback that does nothing."""


def _nothing(module: nn.Module, args: object, output: Tensor) -> None:
    """A hook that does nothing."""


@contextmanager
def _keeping(model: nn.Module, ending: str = ".attn") -> Iterator[None]:
    """The least that a recorder can do: no path, no iteration, no change detection, no schedule."""
    kept: list[Tensor] = []
    with _hooks(model, lambda module, args, output: kept.append(output.detach().clone()), ending):
        yield


@contextmanager
def _hooks(model: nn.Module, hook: Callable[[nn.Module, Any, Tensor], None], ending: str = ".attn") -> Iterator[None]:
    modules = [module for path, module in model.named_modules() if path.endswith(ending)]
    hooks = [module.register_forward_hook(hook) for module in modules]
    yield
    for one in hooks:
        one.remove()
