"""How long does it take to have the output of every module of one forward, with byname and with installed rivals?"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.models import GPT, resnet18
from benchmarks.timing import Row, Variant, interleaved, timed
from byname.watch.attach import attach

__all__ = ["watching_rivals"]

Way = Callable[[nn.Module, Tensor], object]


def watching_rivals(rounds: int = 7) -> list[Row]:
    """A row for each way, on two models; for those that are installed (the extra ``rivals``)."""
    torch.manual_seed(0)
    models = {
        "a GPT of 4 layers": (GPT(), torch.randint(0, 64, (8, 32)), 1.35),
        "ResNet-18": (resnet18(), torch.randn(2, 3, 32, 32), 1.20),
    }
    return [row for title, (model, x, limit) in models.items() for row in _of(title, model.eval(), x, limit, rounds)]


def _of(title: str, model: nn.Module, x: Tensor, limit: float, rounds: int) -> list[Row]:
    ways: dict[str, Way] = {
        "hooks by hand": _by_hand,
        "byname.attach": _byname,
        "byname.attach, attached before": _attached(model),
    }
    if find_spec("torchlens"):
        ways["torchlens.trace"] = _torchlens
    if find_spec("nnsight"):
        ways["nnsight's trace"] = partial(_nnsight, paths=_order(model, x))
    with torch.no_grad():
        variants = {what: _timed(way, model, x) for what, way in {"plain": _plain, **ways}.items()}
        took = interleaved(variants, rounds)
    limits = {"byname.attach": limit}
    return [
        Row(
            f"{title}: the outputs of all modules, {what} / a forward", took.ratio(what, "plain"), "×", limits.get(what)
        )
        for what in ways
    ]


def _timed(way: Way, model: nn.Module, x: Tensor) -> Variant:
    return timed(lambda: (x, None), lambda given: way(model, given))


def _plain(model: nn.Module, x: Tensor) -> object:
    return model(x)


def _by_hand(model: nn.Module, x: Tensor) -> object:
    found: dict[str, Tensor] = {}

    def of(path: str) -> Callable[[nn.Module, Any, Tensor], None]:
        return lambda module, args, output: found.update({path: output.detach()})

    hooks = [module.register_forward_hook(of(path)) for path, module in model.named_modules()]
    model(x)
    for one in hooks:
        one.remove()
    return found


def _byname(model: nn.Module, x: Tensor) -> object:
    found: dict[str, Tensor] = {}
    with attach(model, "**", lambda event: found.update({event.path: event.value.detach()})):
        model(x)
    return found


def _attached(model: nn.Module) -> Way:
    """As in a training that is watched: attached once, and enabled for what is measured."""
    found: dict[str, Tensor] = {}
    handle = attach(model, "**", lambda event: found.update({event.path: event.value.detach()}), enabled=False)

    def way(model: nn.Module, x: Tensor) -> object:
        handle.enabled = True
        model(x)
        handle.enabled = False
        return found

    return way


def _torchlens(model: nn.Module, x: Tensor) -> object:
    return import_module("torchlens").trace(model, x)


def _nnsight(model: nn.Module, x: Tensor, paths: list[str]) -> object:
    logging.disable(logging.WARNING)
    net = import_module("nnsight").NNsight(model)
    found = {}
    with net.trace(x):
        for path in paths:  # in the order in which they run, or nnsight refuses; the first call of each
            found[path] = net.get(path).output.save()
    return found


def _order(model: nn.Module, x: Tensor) -> list[str]:
    paths: list[str] = []
    with attach(model, "**", lambda event: paths.append(event.path)):
        model(x)
    modules = dict(model.named_modules())
    return [path for path in dict.fromkeys(paths) if path in modules]
