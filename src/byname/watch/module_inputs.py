"""Module inputs: hooks that report the arguments of modules, and may replace them, before their forwards run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import nn

from byname.model.spot import Spot
from byname.watch.attachment import Running
from byname.watch.delivery import Deliver
from byname.watch.hooks import Hooks

Given = dict[int | str, Any]
"""The arguments of a call, positional ones by their index, the others by their name."""


def hook_inputs(hooks: Hooks, running: Running, spots: Sequence[tuple[Spot, Deliver]]) -> None:
    """Add hooks that report the arguments of modules.

    Args:
        hooks: the hooks of the attachment.
        running: the attachment.
        spots: the places of inputs, each with the function that reports its values.
    """
    by_module: dict[int, tuple[nn.Module, list[tuple[Spot, Deliver]]]] = {}
    for spot, deliver in spots:
        by_module.setdefault(id(spot.module), (spot.module, []))[1].append((spot, deliver))
    for module, found in by_module.values():
        hooks.before(module, partial(_deliver, running, found))


def _deliver(
    running: Running,
    found: list[tuple[Spot, Deliver]],
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Report the arguments at each of the places; return what replaces them all, or None."""
    given: Given = dict(enumerate(args))
    given.update(kwargs)
    inputs = tuple(given.values())
    now = dict(given)
    for spot, deliver in found:
        if spot.items:
            now = deliver(now, inputs)
        elif now:
            first = next(iter(now))
            now[first] = deliver(now[first], inputs)
        elif running.hears():
            running.heard.lacking.setdefault(spot.full, f"{type(module).__name__} was called without an argument")
    if all(now[key] is one for key, one in given.items()):
        return None
    return tuple(now[at] for at in range(len(args))), {name: now[name] for name in kwargs}
