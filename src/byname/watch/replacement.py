"""Replacement: checks that a value from an interjection has the structure and shapes of the value that it replaces."""

from __future__ import annotations

from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from byname.errors import InterjectionError
from byname.model.items import Segments, tensors_in
from byname.place import join
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import fact, is_tensor

IN_CHECKPOINT = (
    "runs inside of torch.utils.checkpoint, which would run it again for the backward without the interjection. "
    "Checkpoint a module instead of a function, with the operation in it"
)
"""Why an operation in a checkpoint of a function cannot be replaced: its second run is not in the module's forward."""


def runs_again(frame: FrameType) -> bool:
    """Return whether a frame is that of a checkpoint, which will run its function again for the backward."""
    if frame.f_globals.get("__name__") != "torch.utils.checkpoint":
        return False
    context = frame.f_locals.get("ctx")  # of a reentrant one, whose first run is without gradients
    return torch.is_grad_enabled() or any(node is not None for node, _ in getattr(context, "next_functions", ()))


def same_kind(path: str, old: Any, new: Any) -> None:
    """Refuse a replacement of another shape or structure.

    Args:
        path: the place, for the message.
        old: the value.
        new: the replacement.

    Raises:
        InterjectionError: the replacement differs from the value in structure, or in the shape of a tensor.
    """
    _compare(path, "", old, new)


def same_gradients(path: str, old: Sequence[Tensor | None], new: Any) -> None:
    """Refuse replacements of gradients that differ in number, shape, dtype or device; None keeps a gradient.

    Args:
        path: the place, for the message.
        old: the gradients, None for an input without one.
        new: the replacements.

    Raises:
        InterjectionError: a replacement does not fit.
    """
    if not isinstance(new, tuple) or len(new) != len(old):
        hint = "" if old else ", since the place is no call. Change the value's gradient at its `.grad`"
        got = f"a tuple of {len(new)}" if isinstance(new, tuple) else _described(new)
        raise InterjectionError(
            f"process_backward at `{path}`: expected None or a tuple of {len(old)} gradients{hint}; got {got}"
        )
    for number, (was, wanted) in enumerate(zip(old, new, strict=True)):
        if wanted is None or wanted is was:
            continue
        if was is None:
            raise InterjectionError(
                f"process_backward at `{path}`: expected None for input {number}, to which no gradient flows; "
                f"got {_described(wanted)}"
            )
        if not is_tensor(wanted) or _facts(wanted) != _facts(was):
            raise InterjectionError(
                f"process_backward at `{path}`: expected {_in_full(was)} for input {number}; got "
                f"{_in_full(wanted) if is_tensor(wanted) else _described(wanted)}"
            )


def conversion(old: Any, new: Any) -> str:
    """Return a sentence about the first tensor that differs in dtype or device; an empty string if none does.

    The user may have intended the difference. But if the next operation fails because of it, its error does not name
    the replacement.
    """
    with DisableTorchFunction():
        for (at, was), (_, now) in zip(_tensors(old), _tensors(new), strict=False):
            before, after = _kind(was), _kind(now)
            if before != after:
                part = f"in {join(at)} " if at else ""
                return f"{part}a tensor of {after} was put in the place of one of {before}"
    return ""


def _tensors(value: Any) -> list[tuple[Segments, Tensor]]:
    return [((), value)] if is_tensor(value) else tensors_in(value)


def _kind(tensor: Tensor) -> str:
    return f"{fact(tensor, 'dtype')} on {fact(tensor, 'device')}"


def _compare(path: str, at: str, old: Any, new: Any) -> None:
    if new is old:
        return
    if is_tensor(old):
        if not is_tensor(new) or _shape(old) != _shape(new):
            _refuse(path, at, old, new)
    elif isinstance(old, tuple | list):
        if type(new) is not type(old) or len(new) != len(old):
            _refuse(path, at, old, new)
        for number, (one, other) in enumerate(zip(old, new, strict=True)):
            _compare(path, f"{at}[{number}]", one, other)
    elif isinstance(old, dict):
        if type(new) is not type(old) or list(new) != list(old):
            _refuse(path, at, old, new)
        for key, one in old.items():
            _compare(path, f"{at}[{key!r}]", one, new[key])


def _refuse(path: str, at: str, old: Any, new: Any) -> None:
    where = f"`{path}`" + (f", in {at}" if at else "")
    raise InterjectionError(f"interjection at {where}: expected {_described(old)}; got {_described(new)}")


def _shape(tensor: Tensor) -> tuple[int, ...] | None:
    return None if tensor.is_nested else tuple(tensor.shape)


def _facts(tensor: Tensor) -> tuple[Any, ...]:
    return _shape(tensor), tensor.dtype, tensor.device


def _in_full(tensor: Tensor) -> str:
    return f"{_described(tensor)} of {tensor.dtype} on {tensor.device}"


def _described(value: Any) -> str:
    """Return a value in words, without its contents."""
    if is_tensor(value):
        shape = _shape(value)
        return "a nested tensor" if shape is None else f"a tensor of shape {shape}"
    if isinstance(value, dict):
        return f"a {type(value).__name__} of {', '.join(map(repr, value)) or 'nothing'}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"{type(value).__name__}"
