"""How are the outputs of modules got at? By forward hooks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from byname.model.spot import Spot
from byname.reading.tensor import is_tensor
from byname.watch.attachment import Running, runs
from byname.watch.delivery import Deliver
from byname.watch.hooks import Hooks
from byname.watch.inplace import overwrite

__all__ = ["Wanting", "hook_calls", "hook_outputs"]

Wanting = Callable[[], Sequence[tuple[Spot, Deliver]]]
"""Says who wants the output of a call that begins."""


def hook_outputs(hooks: Hooks, running: Running, spots: Sequence[tuple[Spot, Deliver]]) -> None:
    """Hooks modules so that their outputs are delivered.

    Args:
        hooks: the hooks of the attachment.
        running: knows the calls.
        spots: places of modules, and where their values go.
    """
    by_module: dict[int, tuple[nn.Module, list[tuple[Spot, Deliver]]]] = {}
    for spot, deliver in spots:
        by_module.setdefault(id(spot.module), (spot.module, []))[1].append((spot, deliver))
    for module, found in by_module.values():
        if running.before is not None:
            hook_calls(hooks, running, module, _always(found))
        else:
            delivers = [deliver for _, deliver in found]
            hooks.after(module, _one(running, *delivers) if len(found) == 1 else _several(running, delivers))


def hook_calls(hooks: Hooks, running: Running, module: nn.Module, wanting: Wanting) -> None:
    """Hooks a module so that whoever wants its output is found when its call begins.

    Args:
        hooks: the hooks of the attachment.
        running: knows the calls.
        module: the module.
        wanting: is asked when a call begins.
    """
    calls = _Calls(running, wanting)
    hooks.before(module, calls.begin)
    hooks.after(module, calls)
    hooks.after(module, calls.ended, always=True)


def _always(found: list[tuple[Spot, Deliver]]) -> Wanting:
    return lambda: found


def _one(running: Running, deliver: Deliver) -> Any:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        new = deliver(output, (*args, *kwargs.values()) if kwargs else args)
        return new if new is output else _put(running, module, args, output, new)

    return hook


def _several(running: Running, delivers: list[Deliver]) -> Any:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        new = output
        for deliver in delivers:
            new = deliver(new, (*args, *kwargs.values()))
        return new if new is output else _put(running, module, args, output, new)

    return hook


def _put(running: Running, module: nn.Module, args: tuple[Any, ...], output: Any, new: Any) -> Any:
    """What takes the place of an output: a module that works in place may be called for its effect alone."""
    in_place = module.__dict__.get("inplace") is True and args and args[0] is output and is_tensor(output)
    if not in_place:
        return new
    if torch.is_grad_enabled() and output.requires_grad and output._is_view():
        running.notes.setdefault(
            f"a {type(module).__name__} works in place on a view: what takes the place of its value is seen by who "
            "reads what it returns, not by who goes on with the tensor that it was given"
        )
        return new
    overwrite(output, new)
    return output


class _Calls:
    """Delivers the outputs of a module together with what was noted when the call began."""

    def __init__(self, running: Running, wanting: Wanting) -> None:
        self._running = running
        self._wanting = wanting
        self._here = _Here()

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The call begins."""
        if self._here.begun and not runs(module, 2):  # an interrupt came between the hooks of an earlier call
            self._here.begun.clear()
        found = self._wanting() if self._running.hears() else ()
        tokens = [self._running.begins(spot.full, module, args, kwargs) for spot, _ in found]
        self._here.begun.append([(deliver, token) for (_, deliver), token in zip(found, tokens, strict=True)])

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        begun, new = self._here.begun, output
        for deliver, token in begun[-1] if begun else self._unbegun():
            new = deliver(new, (*args, *kwargs.values()), token)
        return new if new is output else _put(self._running, module, args, output, new)

    def _unbegun(self) -> list[tuple[Deliver, Any]]:
        """Who wants the output of a call that had begun when this was attached."""
        return [(deliver, None) for _, deliver in self._wanting()]

    def ended(self, *_: Any) -> None:
        """The call has ended, or raised."""
        if self._here.begun:
            self._here.begun.pop()


class _Here(threading.local):
    def __init__(self) -> None:
        self.begun: list[list[tuple[Deliver, Any]]] = []
