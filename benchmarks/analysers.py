"""How much slower is a training step with analysers at all ReLUs, against others that compute the same figures?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

import byname
from benchmarks.by_hand import Hook, in_numpy, in_torchmetrics
from benchmarks.contexts import Context, Contexts, rows_of, training_step
from benchmarks.models import GPT, resnet18
from benchmarks.timing import Row, interleaved, small_heap, timed
from byname.analyse import (
    Analyser,
    DeadUnits,
    Evaluation,
    FeatureStatistics,
    GradientStatistics,
    LinearProbe,
    Outliers,
    Quantile,
    Sample,
    Several,
    Similarity,
    Statistic,
)
from byname.model.select import select

__all__ = ["analysers"]

_FEW, _USUAL = 4, 32


def analysers() -> list[Row]:
    """A ResNet-18 on pictures of 32 by 32 has 17 ReLUs, which give 278,528 values together for each picture.

    With few pictures a step, what costs is keeping the state of each feature, with more the values themselves.
    """
    model = resnet18(32)
    with small_heap():
        return [
            *_steps(model, _FEW, rounds=7, times=3),
            *_steps(model, _USUAL, rounds=7, times=1),
            *_evaluating(model, torch.randn(_FEW, 3, 32, 32)),
            *_gradients(),
        ]


def _steps(model: nn.Module, pictures: int, *, rounds: int, times: int) -> list[Row]:
    contexts = {**_ours(model, pictures), **_others(model)}
    step = _step(model, torch.randn(pictures, 3, 32, 32))
    return rows_of(f"ResNet-18, SGD, {pictures} pictures", step, contexts, rounds=rounds, times=times)


def _ours(model: nn.Module, pictures: int) -> Contexts:
    several = lambda: Several(FeatureStatistics(), DeadUnits(), Outliers())  # noqa: E731  as the others here
    kinds: dict[str, Callable[[], Analyser]] = {
        "an analyser that does nothing": _Nothing,
        "FeatureStatistics": FeatureStatistics,
        "DeadUnits": DeadUnits,
        "Outliers": Outliers,
        "these three as Several": several,
        "Similarity": Similarity,
        "LinearProbe of channels": lambda: LinearProbe(10, features="pool"),
        "a quantile sketch of all values": _Quantiles,
    }
    limits = {"LinearProbe of channels": 1.1} if pictures == _FEW else {}
    contexts: Contexts = {
        "again": ("plain again (A/A)", nullcontext, None),
        **{name: (name, _observed(model, nn.ReLU, make, pictures), limits.get(name)) for name, make in kinds.items()},
        "weights": (
            "GradientStatistics at **.weight",
            _observed(model, "**.weight", GradientStatistics, pictures),
            None,
        ),
        "off": ("these three, disabled", _observed(model, nn.ReLU, several, pictures, enabled=False), 1.01),
    }
    return contexts


def _others(model: nn.Module) -> Contexts:
    """The same figures by forward hooks, for each of which there is one above."""
    each = {f"numpy, {name}": make for name, make in in_numpy().items()}
    each |= {f"torchmetrics, {name}": make for name, make in in_torchmetrics().items()}
    return {name: (name, _hooked(model, make), None) for name, make in each.items()}


def _observed(
    model: nn.Module, where: Any, make: Callable[[], Analyser], pictures: int, *, enabled: bool = True
) -> Context:
    def context() -> AbstractContextManager[object]:
        analyser = make()
        analyser.targets = torch.arange(pictures) % 10
        analyser.enabled = enabled
        return byname.observe(model, where, analyser)

    return context


def _hooked(model: nn.Module, make: Callable[[], Hook]) -> Context:
    @contextmanager
    def context() -> Iterator[None]:
        with ExitStack() as hooks:
            for module in model.modules():
                if isinstance(module, nn.ReLU):
                    hooks.callback(module.register_forward_hook(_given_outputs(make())).remove)
            yield

    return context


def _given_outputs(hook: Hook) -> Callable[[nn.Module, Any, Tensor], None]:
    return lambda module, args, output: hook(output.detach())


def _step(model: nn.Module, images: Tensor) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)

    def step() -> None:
        optimizer.zero_grad()
        model(images).backward()
        optimizer.step()

    return step


def _gradients(rounds: int = 14, times: int = 3) -> list[Row]:
    """The commonest use of all: what happens to the weights of a GPT while it learns."""
    model = GPT(vocabulary=64, width=192, layers=6, length=64)
    step = training_step(model, torch.randint(64, (8, 64)))
    contexts: Contexts = {
        "again": ("plain again (A/A)", nullcontext, None),
        "hooks": ("the norm of each gradient, by hooks", lambda: _norms_by_hand(model), None),
        "norms": (
            "the norms of all gradients recorded",
            lambda: byname.record(model, select.parameter.grad, reduce="norm"),
            None,
        ),
        "statistics": (
            "GradientStatistics at all weights",
            lambda: byname.observe(model, select.parameter, GradientStatistics()),
            1.15,
        ),
    }
    return rows_of("GPT of 6 layers, AdamW", step, contexts, rounds, times)


@contextmanager
def _norms_by_hand(model: nn.Module) -> Iterator[None]:
    kept: list[Tensor] = []

    def keep(parameter: Tensor) -> None:
        assert parameter.grad is not None
        kept.append(parameter.grad.norm())

    hooks = [
        parameter.register_post_accumulate_grad_hook(keep)  # type: ignore[no-untyped-call]
        for parameter in model.parameters()
    ]
    yield
    for one in hooks:
        one.remove()


def _evaluating(model: nn.Module, images: Tensor, batches: int = 4, rounds: int = 7) -> list[Row]:
    """A snapshot of an analyser, against a loop over the same batches with the same hooks."""
    units, loader = DeadUnits(), [images] * batches

    def bare(loader: list[Tensor]) -> None:
        model.eval()
        with torch.no_grad():
            for each in loader:
                model(each)
        model.train()

    with byname.observe(model, nn.ReLU, units):
        evaluation = Evaluation(units, loader)
        variants = {
            "bare": timed(lambda: (loader, None), bare),
            "again": timed(lambda: (loader, None), bare),
            "snapshot": timed(lambda: (model, None), evaluation.take),
        }
        took = interleaved(variants, rounds)
    return [
        Row(f"{batches} batches evaluated with DeadUnits, by a bare loop", took.each("bare", 1, 1e-3), "ms"),
        Row("  the loop again (A/A)", took.ratio("again", "bare"), "×"),
        Row("  as a snapshot of an Evaluation", took.ratio("snapshot", "bare"), "×", 1.2),
    ]


class _Nothing(Analyser):
    def begin(self, sample: Sample) -> dict[Any, Any]:
        return {}

    def take(self, kept: Any, sample: Sample) -> None:
        """Takes nothing."""

    def figures(self, kept: Any) -> dict[Any, Any]:
        return {}


class _Quantiles(Analyser):
    def begin(self, sample: Sample) -> Statistic:
        return Quantile()

    def take(self, kept: Any, sample: Sample) -> None:
        kept.add(sample.value.flatten())

    def figures(self, kept: Any) -> dict[Any, Any]:
        return {"quartiles": kept.quantile([0.25, 0.5, 0.75])}
