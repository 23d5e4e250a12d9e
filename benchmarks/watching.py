"""How much slower is a training step while a model is watched, with a callback that is called and does nothing?

Everything is on one model, attached to it and taken off again between the variants; the step that binds what is only
known when the model runs does not count.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from time import process_time
from typing import Any

import torch
from torch import Tensor, nn

import byname
from benchmarks.contexts import Context, Contexts, rows_of, training_step
from benchmarks.models import GPT, resnet18, resnet50
from benchmarks.timing import Row, Variant, interleaved, small_heap
from benchmarks.tracking import NoOp
from benchmarks.watching_rivals import watching_rivals
from byname.model.call_graph import ModelCall
from byname.model.select import select
from byname.rewriting.rewrite import rewrite
from byname.watch.attach import attach
from byname.watch.attachment import Event
from byname.watch.handle import Handle
from byname.watch.interject import interject

__all__ = ["watching"]

_MILLI, _MICRO = 1e-3, 1e-6


def watching() -> list[Row]:
    """A step in which the interpreter counts, one in which PyTorch computes, and attaching alone."""
    gpt, ids = GPT(), torch.randint(64, (2, 32))
    resnet, images = resnet18(16), torch.randn(4, 3, 32, 32)
    return [
        *_rows("tiny GPT, AdamW", gpt, ids, "blocks.*.attn.softmax", "**.attn.forward.scores", rounds=20, times=40),
        *_rows("ResNet-18, AdamW", resnet, images, "stages.*.add_", "**.forward.identity", rounds=14, times=12),
        *_attaching(),
        *_exact_paths(),
        *_over_by_hand(),
        *_calls(),
        *_sweep(),
        *_rewritten(),
        *watching_rivals(),
    ]


def nothing(event: Event) -> None:
    """The callback."""


def _is_operation(call: ModelCall) -> bool:
    return call.kind == "operation"


def _rows(
    title: str, model: nn.Module, x: Tensor, operations: str, variables: str, rounds: int, times: int
) -> list[Row]:
    contexts: Contexts = {
        "again": ("plain again (A/A)", nullcontext, None),
        "hooks": ("a forward hook on every module that does nothing", lambda: _hooks(model), None),
        "mode": ("a function mode that does nothing, around the forward", lambda: _mode(model), None),
        "modules": ("all modules", _watched(model, "**"), 1.03),
        "tensor hooks": ("a hook on the output of every module that does nothing", lambda: _tensor_hooks(model), None),
        "gradients": ("the gradients of all modules", _watched(model, "**.grad"), 1.03),
        "few": (f"operations, {operations}", _watched(model, operations), 1.10),
        "all": ("all operations", _watched(model, select.where(_is_operation)), 1.17),
        "variables": (f"variables, {variables}", _watched(model, variables), 1.03),
        "every variable": ("all variables of all forwards", _watched(model, "**.forward.*"), None),
        "disabled": ("all of these, but disabled", lambda: _disabled(model, operations, variables), 1.01),
        "after": ("after all of these were removed", lambda: _removed(model, operations, variables), 1.01),
    }
    return rows_of(title, training_step(model, x), contexts, rounds, times)


def _watched(model: nn.Module, where: Any) -> Context:
    return lambda: attach(model, where, nothing)


@contextmanager
def _enabled(handle: Handle) -> Iterator[None]:
    handle.enabled = True
    yield
    handle.enabled = False


@contextmanager
def _disabled(model: nn.Module, operations: str, variables: str) -> Iterator[None]:
    with attach(model, ["**", "**.grad", operations, variables], nothing, enabled=False):
        yield


@contextmanager
def _removed(model: nn.Module, operations: str, variables: str) -> Iterator[None]:
    with attach(model, ["**", "**.grad", operations, variables], nothing):
        pass
    yield


@contextmanager
def _hooks(model: nn.Module) -> Iterator[None]:
    with _registered(model, lambda module, args, output: None):
        yield


@contextmanager
def _tensor_hooks(model: nn.Module) -> Iterator[None]:
    with _registered(model, lambda module, args, output: output.register_hook(_unchanged) and None):
        yield


def _unchanged(gradient: Tensor) -> None:
    return None


@contextmanager
def _registered(model: nn.Module, hook: Callable[[nn.Module, Any, Any], None]) -> Iterator[None]:
    hooks = [module.register_forward_hook(hook) for module in model.modules()]
    yield
    for one in hooks:
        one.remove()


@contextmanager
def _mode(model: nn.Module) -> Iterator[None]:
    """On from the beginning of the forward to its end, as it would be by a hook."""
    mode: AbstractContextManager[object] = NoOp()
    on = model.register_forward_pre_hook(lambda module, args: mode.__enter__() and None)
    off = model.register_forward_hook(lambda module, args, output: mode.__exit__(None, None, None))
    yield
    on.remove()
    off.remove()


def _attaching(rounds: int = 15) -> list[Row]:
    model = resnet50()
    convolutions = [name for name, module in model.named_modules() if isinstance(module, nn.Conv2d)]
    assert len(convolutions) == 53
    variants = {
        "class": _timed(model, nn.Conv2d),
        "paths": _timed(model, convolutions),
        "operations": _timed(model, [f"{name}.conv2d" for name in convolutions]),
        "variables": _timed(model, "**.forward.out"),
        "gradients": _timed(model, [f"{name}.grad" for name in convolutions]),
    }
    took = interleaved(variants, rounds)
    words = {
        "class": "nn.Conv2d",
        "paths": "by 53 paths",
        "operations": "53 operations",
        "variables": "a variable of 16 blocks",
        "gradients": "53 gradients",
    }
    return [
        Row(f"ResNet-50: attach and remove, {words[what]}", took.each(what, 1, _MILLI), "ms", 200) for what in variants
    ]


def _exact_paths(rounds: int = 15, times: int = 20) -> list[Row]:
    """What an exact path costs does not grow with the model."""
    models = {layers: GPT(layers=layers) for layers in (4, 24, 48)}
    bare = models[4].get_submodule("blocks.3.attn")
    variants = {
        str(layers): _of(partial(_attached, model, f"blocks.{layers - 1}.attn"), times)
        for layers, model in models.items()
    }
    variants["hook"] = _of(lambda: bare.register_forward_hook(_unseen).remove(), times)
    with small_heap():
        took = interleaved(variants, rounds)
    return [
        Row("attach and remove: one hook of PyTorch", took.each("hook", times, _MICRO), "µs"),
        *(
            Row(f"  one exact path, GPT of {layers} layers", took.each(str(layers), times, _MICRO), "µs", 60)
            for layers in models
        ),
    ]


def _over_by_hand(rounds: int = 25) -> list[Row]:
    """The same hooks by `attach` and by hand."""
    model = resnet50()
    limits = {nn.Conv2d: 2.0, "**.conv?": 2.5, select.conv: 3.0, select.module(nn.Conv2d): 6.0, "**": 2.5}
    variants = {str(where): _of(partial(_attached, model, where)) for where in limits}
    variants["convolutions"] = _of(lambda: _hooks_of(model, nn.Conv2d))
    variants["modules"] = _of(lambda: _hooks_of(model, nn.Module))
    with small_heap():
        took = interleaved(variants, rounds)
    rows = [Row("ResNet-50: 53 hooks by hand and their removal", took.each("convolutions", 1, _MILLI), "ms")]
    for where, limit in limits.items():
        floor = "modules" if where == "**" else "convolutions"
        words = "nn.Conv2d" if where is nn.Conv2d else where
        rows.append(Row(f"  attach, {words} / the same hooks by hand", took.ratio(str(where), floor), "×", limit))
    return rows


def _calls(rounds: int = 200, calls: int = 500) -> list[Row]:
    """One observed call of a module that does nothing, and one observed operation on four numbers."""
    model, operations = nn.Sequential(nn.Identity()), _Operations(calls)
    inner, x = model[0], torch.zeros(4)
    handle = attach(operations, ["tanh", "tanh_*"], nothing)
    operations(x)  # binds what is only known when the model runs
    handle.enabled = False

    def called(context: Context) -> Variant:
        def run() -> float:
            with context():
                return _of(lambda: inner(x), calls)()

        return run

    def computed(context: Context) -> Variant:
        def run() -> float:
            with context():
                operations(x)
            return operations.took

        return run

    variants = {
        "plain": called(nullcontext),
        "hook": called(lambda: _hooks(model)),
        "observed": called(lambda: attach(model, "0", nothing)),
        "operation": computed(nullcontext),
        "mode": computed(NoOp),
        "watched": computed(lambda: _enabled(handle)),
    }
    with small_heap():
        took = interleaved(variants, rounds)
    both = zip(*(took.each(one, calls, _MICRO, less="plain") for one in ("observed", "hook")), strict=True)
    return [
        Row(
            "a call of a module with a hook that does nothing, less plain",
            took.each("hook", calls, _MICRO, less="plain"),
            "µs",
        ),
        Row("  observed, less plain / that hook, less plain", [ours / theirs for ours, theirs in both], "×", 1.3),
        Row("an operation on four numbers", took.each("operation", calls, _MICRO), "µs"),
        Row("  under a function mode that does nothing", took.ratio("mode", "operation"), "×"),
        Row("  watched", took.ratio("watched", "operation"), "×", 2),
    ]


class _Operations(nn.Module):
    """Computes the same again and again, and measures how long that took."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times, self.took = times, 0.0

    def forward(self, x: Tensor) -> Tensor:
        start = process_time()
        for _ in range(self.times):
            torch.tanh(x)
        self.took = process_time() - start
        return x


def _hooks_of(model: nn.Module, kind: type[nn.Module]) -> None:
    hooks = [one.register_forward_hook(_unseen) for one in model.modules() if isinstance(one, kind)]
    for hook in hooks:
        hook.remove()


def _unseen(module: nn.Module, args: Any, output: Any) -> None:
    return None


def _sweep(layers: int = 48, rounds: int = 9) -> list[Row]:
    """Patching each layer in turn: attach at its path, a forward, and remove."""
    model, ids = GPT(layers=layers), torch.randint(64, (2, 32))
    paths = [f"blocks.{layer}.attn" for layer in range(layers)]

    def by_hand() -> None:
        for path in paths:
            hook = model.get_submodule(path).register_forward_hook(_unseen)
            model(ids)
            hook.remove()

    def by_path() -> None:
        for path in paths:
            with interject(model, path, _kept):
                model(ids)

    def swept() -> None:
        byname.sweep(
            model,
            lambda model, layer: interject(model, layer, _kept),
            over={"layer": paths},
            metric=lambda loss: loss,
            example=ids,
        )

    with torch.no_grad():
        took = interleaved({"by hand": _of(by_hand), "by path": _of(by_path), "swept": _of(swept)}, rounds)
    return [
        Row(f"GPT, a hook on each of {layers} layers in turn, a forward each", took.each("by hand", 1, _MILLI), "ms"),
        Row("  the same by interject, at the exact path", took.ratio("by path", "by hand"), "×", 1.2),
        Row("  by sweep", took.ratio("swept", "by hand"), "×", 1.1),
    ]


def _rewritten(rounds: int = 25, times: int = 10) -> list[Row]:
    """A second model with interjections in it: making one, and a forward of it."""
    model, ids = GPT(), torch.randint(64, (2, 32))
    modules, operations = "blocks.*.attn", "blocks.*.attn.softmax"
    models = {"plain": model, "again": model, "hooks": copy.deepcopy(model)}
    for block in models["hooks"].get_submodule("blocks").children():
        block.get_submodule("attn").register_forward_hook(_unseen)
    models |= {where: rewrite(model, where, _kept, example=ids) for where in (modules, operations)}
    took = interleaved({what: _of(partial(_forwards, one, ids, times)) for what, one in models.items()}, rounds)
    limits = {"again": None, "hooks": None, modules: 1.10, operations: 1.15}
    words = {
        "again": "the same again (A/A)",
        "hooks": "the same with 4 hooks by hand",
        modules: f"the same rewritten, {modules}",
        operations: f"the same rewritten, {operations}",
    }
    with small_heap():
        making = interleaved(
            {
                "copy": _of(lambda: copy.deepcopy(model)),
                "rewrite": _of(lambda: rewrite(model, modules, _kept)),
                "example": _of(lambda: rewrite(model, operations, _kept, example=ids)),
            },
            rounds,
        )
    return [
        Row("tiny GPT: a forward", took.each("plain", times, _MILLI), "ms"),
        *(Row(words[one], took.ratio(one, "plain"), "×", limits[one]) for one in limits),
        Row("tiny GPT: copy.deepcopy", making.each("copy", 1, _MILLI), "ms"),
        Row(f"rewrite, {modules}", making.each("rewrite", 1, _MILLI), "ms", 10),
        Row(f"rewrite, {operations}, with an example", making.each("example", 1, _MILLI), "ms", 50),
    ]


def _forwards(model: nn.Module, ids: Tensor, times: int) -> None:
    for _ in range(times):
        model(ids)


def _kept(name: str, module: nn.Module | None, value: Any) -> None:
    return None


def _timed(model: nn.Module, where: Any) -> Variant:
    return _of(partial(_attached, model, where))


def _attached(model: nn.Module, where: Any) -> None:
    attach(model, where, nothing).remove()


def _of(work: Callable[[], object], times: int = 1) -> Variant:
    def run() -> float:
        start = process_time()
        for _ in range(times):
            work()
        return process_time() - start

    return run
