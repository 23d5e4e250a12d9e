"""Replacement: checks that a value from an interjection fits in the place of another, and overwriting in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from byname.errors import InterjectionError
from byname.model.items import tensors_in
from byname.place import join
from byname.reading.functions import is_in_place, target_of
from byname.reading.quiet import DisableTorchFunction, dynamo_skip
from byname.reading.tensor import fact, is_tensor

IN_CHECKPOINT = (
    "runs inside torch.utils.checkpoint, which would run it again for the backward without the interjection. "
    "Checkpoint a module that contains the operation instead of a function"
)
"""Why an operation in a checkpoint of a function cannot be replaced: its second run is not in the module's forward."""


def is_checkpoint_frame(frame: FrameType) -> bool:
    """Return whether a frame is that of a checkpoint, which will run its function again for the backward."""
    if frame.f_globals.get("__name__") != "torch.utils.checkpoint":
        return False
    context = frame.f_locals.get("ctx")  # of a reentrant one, whose first run is without gradients
    return torch.is_grad_enabled() or any(node is not None for node, _ in getattr(context, "next_functions", ()))


def check_gradients(path: str, old: Sequence[Tensor | None], new: Any) -> None:
    """Refuse replacements of gradients that differ in number, shape, dtype or device; None keeps a gradient."""
    if not isinstance(new, tuple) or len(new) != len(old):
        hint = "" if old else ", since the place is not a call. Change the value's gradient at its `.grad`"
        raise InterjectionError(
            f"process_backward at `{path}`: expected None or a tuple of {len(old)} gradients{hint}; got {describe(new)}"
        )
    for number, (was, wanted) in enumerate(zip(old, new, strict=True)):
        if wanted is None or wanted is was:
            continue
        if was is None:
            raise InterjectionError(
                f"process_backward at `{path}`: expected None for input {number}, to which no gradient flows; "
                f"got {describe(wanted)}"
            )
        if not is_tensor(wanted) or _facts(wanted) != _facts(was):
            raise InterjectionError(
                f"process_backward at `{path}`: expected {_in_full(was)} for input {number}; got "
                f"{_in_full(wanted) if is_tensor(wanted) else describe(wanted)}"
            )


def conversion_note(old: Any, new: Any) -> str:
    """Return a sentence about the first tensor that differs in dtype or device; an empty string if none does.

    The user may have intended the difference. But if the next operation fails because of it, its error does not name
    the replacement.
    """
    with DisableTorchFunction():
        for (at, was), (_, now) in zip(tensors_in(old), tensors_in(new), strict=False):
            before, after = _kind(was), _kind(now)
            if before != after:
                part = f"in {join(at)} " if at else ""
                return f"{part}a tensor of {after} replaces one of {before}"
    return ""


def _kind(tensor: Tensor) -> str:
    return f"{fact(tensor, 'dtype')} on {fact(tensor, 'device')}"


def check_replacement(path: str, old: Any, new: Any, at: str = "") -> None:
    """Refuse a replacement of another shape or structure; the path, and the item `at` in it, are for the message."""
    if new is old:
        return
    if is_tensor(old):
        if not is_tensor(new) or _shape(old) != _shape(new):
            _refuse(path, at, old, new)
    elif isinstance(old, tuple | list | dict):
        keys = [*_keys(old)]
        if type(new) is not type(old) or [*_keys(new)] != keys:
            _refuse(path, at, old, new)
        for key in keys:
            check_replacement(path, old[key], new[key], f"{at}[{key!r}]")


def _keys(container: Any) -> Iterable[Any]:
    return container if isinstance(container, dict) else range(len(container))


def _refuse(path: str, at: str, old: Any, new: Any) -> None:
    where = f"`{path}`" + (f", in {at}" if at else "")
    raise InterjectionError(f"interjection at {where}: expected {describe(old)}; got {describe(new)}")


def _shape(tensor: Tensor) -> tuple[int, ...] | None:
    return None if tensor.is_nested else tuple(tensor.shape)


def _facts(tensor: Tensor) -> tuple[Any, ...]:
    return _shape(tensor), tensor.dtype, tensor.device


def _in_full(tensor: Tensor) -> str:
    return f"{describe(tensor)} of {tensor.dtype} on {tensor.device}"


def describe(value: Any) -> str:
    """Return a value in words, without its contents."""
    if is_tensor(value):
        shape = _shape(value)
        return "a nested tensor" if shape is None else f"a tensor of shape {shape}"
    if isinstance(value, dict):
        return f"a {type(value).__name__} of {', '.join(map(repr, value)) or 'nothing'}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"{type(value).__name__}"


# In place


def changed_tensor(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    """Return the tensor that a call changes in place, which its caller may use afterwards; None if there is none."""
    target = target_of(args, kwargs, in_place=is_in_place(getattr(function, "__name__", "")))
    return target if is_tensor(target) else None


@contextmanager
def copying_saved_tensors(changed: Tensor) -> Iterator[None]:
    """Have autograd save copies of what lies on the memory of a tensor that may be overwritten after the block.

    Elsewhere `overwrite` makes the copies. But the node of a view that was changed in place lies inside a CopySlices,
    where nothing can reach what it saved, nor what a checkpoint or other hooks have packed (PyTorch 2.13).
    """
    hooks = _hooks_on_saved()
    if _in_transform(changed) or not (torch.is_grad_enabled() and (hooks or changed._is_view())):
        yield
        return
    memory = changed.untyped_storage().data_ptr()
    pack, unpack = hooks or (lambda kept: (kept, kept._version), _unpacked)

    def copied(saved: Tensor) -> Any:
        return pack(_copy(saved) if saved.untyped_storage().data_ptr() == memory else saved)

    with torch.autograd.graph.saved_tensors_hooks(copied, unpack):
        yield


def _unpacked(packed: tuple[Tensor, int]) -> Tensor:
    saved, version = packed
    if saved._version != version:  # PyTorch raises the same error for a saved tensor without hooks
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"{list(saved.shape)} is at version {saved._version}; expected version {version} instead"
        )
    return saved


def _hooks_on_saved() -> Any:
    """Return the innermost pair of hooks for saved tensors, such as those of a checkpoint; None if there is none."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def returns_its_argument(module: nn.Module, args: tuple[Any, ...], output: Any) -> bool:
    """Return whether a module that works in place has returned the tensor that it got and has changed."""
    return module.__dict__.get("inplace") is True and bool(args) and args[0] is output and is_tensor(output)


def cannot_overwrite(output: Tensor) -> bool:
    """Return whether the output of a module that worked in place cannot be overwritten: see `copying_saved_tensors`."""
    tracked = torch.is_grad_enabled() and output.requires_grad
    return tracked and (output._is_view() or _hooks_on_saved() is not None or _in_transform(output))


@dynamo_skip
def overwrite(changed: Tensor, value: Tensor, first: Any = None) -> None:
    """Copy a value into a tensor that a function has just changed in place, as ``relu_`` does.

    The caller of such a function may use the tensor afterwards and ignore the result. Tensors on this memory that
    autograd has saved since the function began are replaced by copies; otherwise backward would find them modified.
    `first` is the ``grad_fn`` of the tensor when the function had just ended; by default its present one.
    """
    first = changed.grad_fn if first is None else first
    if torch.is_grad_enabled() and first is not None:
        if _in_transform(changed):
            raise InterjectionError(_TRANSFORMED)
        last = [node for node in (first, value.grad_fn) if node is not None]  # a gradient, even if zero, reaches both
        _keep_saved(last, first, changed.untyped_storage().data_ptr())
    changed.copy_(value)


_functorch: Any = torch._C._functorch  # type: ignore[attr-defined, unused-ignore]
_in_transform: Callable[[Tensor], bool] = _functorch.is_functorch_wrapped_tensor
_TRANSFORMED = (
    "a value that was changed in place cannot be replaced inside torch.func.grad and similar transforms, which saved "
    "it for the backward; replace the value of a variable"
)


def _keep_saved(last: list[Any], first: Any, memory: int) -> None:
    """Replace saved tensors on some memory by copies, in all nodes behind `last` that are not older than `first`."""
    oldest, waiting, seen = first._sequence_nr(), [*set(last)], set(last)
    while waiting:
        node = waiting.pop()
        if type(node).__name__ == "AccumulateGrad" or node._sequence_nr() < oldest:
            continue
        for raw in _saved_in(node):
            if type(raw.data) is Tensor and raw.data.untyped_storage().data_ptr() == memory:
                raw.register_hooks(_copy, lambda saved: saved)
        following = {one for one, _ in node.next_functions if one is not None} - seen
        seen |= following
        waiting += following


def _saved_in(node: Any) -> Iterator[Any]:
    kind: Any = type(node)
    for name in _slots(kind):
        found = getattr(node, name)
        yield from (one for one in (found if isinstance(found, tuple | list) else (found,)) if one is not None)


@cache
def _slots(kind: type) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))


def _copy(saved: Tensor) -> Tensor:
    return saved.detach().clone()
