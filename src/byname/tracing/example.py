"""Which arguments does an example stand for? And how is a model run on it without the example being changed?"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import nn

from byname.errors import BadExampleError
from byname.reading.objects import attributes_of, snapshot
from byname.reading.quiet import DisableTorchFunction

__all__ = ["arguments_of", "copied", "labelled", "tensors_in"]

_ASKED = (
    "example= takes a tensor; a tuple of positional arguments; a dict of keyword arguments; "
    "or a tuple of both, (args, kwargs)"
)


def arguments_of(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and the keyword arguments.

    >>> x = torch.zeros(2)
    >>> arguments_of((x, 3)), arguments_of({"size": 3}), arguments_of(((3,), {"mask": None}))
    (((tensor([0., 0.]), 3), {}), ((), {'size': 3}), ((3,), {'mask': None}))

    Args:
        example: a tensor; a tuple of positional arguments; a dict of keyword arguments; or ``(args, kwargs)``, a tuple
            of a tuple and a dict.

    Raises:
        BadExampleError: for anything else.
    """
    if issubclass(type(example), torch.Tensor):
        return (example,), {}
    if type(example) is tuple:
        if len(example) == 2 and type(example[0]) is tuple and issubclass(type(example[1]), dict):
            return example[0], _keywords(example[1])
        return example, {}
    if isinstance(example, Mapping):
        return (), _keywords(example)
    raise BadExampleError(
        f"{_ASKED}. This is of type {type(example).__name__}: if it is the one argument of the model, write (it,)."
    )


def _keywords(given: Mapping[Any, Any]) -> dict[str, Any]:
    wrong = [key for key in given if type(key) is not str]
    if wrong:
        raise BadExampleError(
            f"{_ASKED}. This dict has the key {wrong[0]!r}, which is no name of an argument: "
            "if the dict is the one argument of the model, write (it,)."
        )
    return dict(given)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in a value and in the tuples, lists, dicts and dataclasses of which it is made, each once."""
    found: dict[int, torch.Tensor] = {}
    for _, tensor in labelled("", value):
        found.setdefault(id(tensor), tensor)
    return list(found.values())


def labelled(label: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in a value, each with the way to it: ``batch['x']``, ``states[0]``."""
    waiting = [(label, value)]
    while waiting:
        way, one = waiting.pop()
        if issubclass(type(one), torch.Tensor):
            yield way, one
        elif type(one) not in _LEAVES and len(way) < _FAR:
            waiting += reversed([(way + step, part) for step, part in _parts(one)])


_LEAVES = (int, float, str, bool, bytes, type(None), torch.dtype, torch.device, torch.Size, type)
_FAR = 1000
"""A way this long goes round in a circle: a list that holds itself."""


def _parts(value: Any) -> list[tuple[str, Any]]:
    if issubclass(type(value), (tuple, list)):
        base: Any = tuple if issubclass(type(value), tuple) else list
        return [(f"[{position}]", one) for position, one in enumerate(base.__iter__(value))]
    if issubclass(type(value), dict):
        return [(f"[{key!r}]" if type(key) in (str, int) else "[…]", one) for key, one in snapshot(value)]
    if is_dataclass(type(value)):
        held = attributes_of(value)
        return [(f".{one.name}", held[one.name]) for one in fields(type(value)) if one.name in held]
    return []


def copied(value: Any, model: nn.Module, modules: list[nn.Module]) -> Any:
    """A copy of the arguments, so that a model which changes its input in place does not change the example."""
    memory: dict[int, Any] = {id(module): module for module in [model, *modules]}
    return _copy(value, memory)


def _copy(value: Any, memory: dict[int, Any]) -> Any:
    if id(value) in memory:
        return memory[id(value)]
    made: Any = value
    if issubclass(type(value), torch.Tensor):
        made = _attempt(_fresh, value)
    elif type(value) in (tuple, list):
        made = type(value)(_copy(one, memory) for one in value)
    elif type(value) is dict:
        made = {key: _copy(one, memory) for key, one in value.items()}
    elif type(value) not in _LEAVES:
        made = _attempt(lambda one: copy.deepcopy(one, memory), value)
    memory[id(value)] = made
    return made


def _fresh(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same values and the same standing in autograd."""
    with DisableTorchFunction():
        if not tensor.is_leaf:
            return tensor.clone()
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _attempt(make: Callable[[Any], Any], value: Any) -> Any:
    try:
        return make(value)
    except Exception:  # noqa: BLE001 - an object that refuses to be copied is given as it is
        return value
