"""Small models of which every value is known by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from byname import attach


class Attention(nn.Module):
    """Two softmaxes, locals with known names, a child that is called and one that is not."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.spare = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(-1, -2)
        weights = F.softmax(scores, -1)
        weights = F.softmax(weights, -1)
        return self.proj(weights @ v)


class Net(nn.Module):
    """Blocks in a list, a dict of intermediate values, an in-place activation, a buffer that counts."""

    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.blocks = nn.ModuleList(Attention() for _ in range(blocks))
        self.head = nn.Linear(8, 2)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x)
        cache: dict[str, Any] = {}
        for i, block in enumerate(self.blocks):
            h = h + block(h)
            cache[f"h{i}"] = [h, h.mean()]
        h = F.relu_(h)
        self.seen += 1
        return self.head(h)


def net() -> tuple[Net, torch.Tensor]:
    """A model and its input, always the same."""
    torch.manual_seed(0)
    return Net(), torch.randn(2, 5, 4)


def events_of(model: nn.Module, where: Any, *inputs: Any, **options: Any) -> list[Any]:
    """What is told while a model runs once."""
    events: list[Any] = []
    with attach(model, where, events.append, **options):
        model(*inputs)
    return events


@contextmanager
def nothing_left(model: nn.Module) -> Iterator[None]:
    """Checks that a model is afterwards as it was before."""
    before = footprint(model)
    yield
    after = footprint(model)
    for key in before:
        assert after[key] == before[key], key
    assert torch._C._len_torch_function_stack() == 0


def footprint(model: nn.Module) -> dict[str, Any]:
    """What must not change by watching: identities, hooks, attributes, flags and code."""
    found: dict[str, Any] = {"state": [*model.state_dict()], "parameters": [id(one) for one in model.parameters()]}
    for name, module in model.named_modules():
        held = module.__dict__
        found[f"{name} attributes"] = [*held]
        found[f"{name} hooks"] = {key: dict(one) for key, one in held.items() if "hooks" in key and one is not None}
        found[f"{name} flags"] = {key: one for key, one in held.items() if isinstance(one, bool | int | float | str)}
        found[f"{name} parameters"] = [(key, id(one)) for key, one in held["_parameters"].items()]
        found[f"{name} gradient hooks"] = [
            (one._backward_hooks, one._post_accumulate_grad_hooks)
            for one in held["_parameters"].values()
            if one is not None
        ]
        found[f"{name} code"] = [
            (kind, key, id(one.__code__))
            for kind in type(module).__mro__
            for key, one in vars(kind).items()
            if hasattr(one, "__code__")
        ]
    return found
