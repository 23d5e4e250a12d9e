"""In place: the tensor that a function changes in place, and overwriting it so that the backward stays right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch

from byname.reading.functions import is_in_place, target_of
from byname.reading.quiet import dynamo_skip
from byname.reading.tensor import is_tensor


def changed_by(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """Return the tensor that a call changes in place, which its caller may use afterwards; None if there is none."""
    target = target_of(args, kwargs, in_place=is_in_place(getattr(function, "__name__", "")))
    return target if is_tensor(target) else None


def called(function: Any, changed: torch.Tensor, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Call a function that changes a tensor in place, so that the tensor can be overwritten afterwards.

    Returns:
        The result of the function, and the ``grad_fn`` of the tensor after the call; None without grad mode.
    """
    if not torch.is_grad_enabled():
        return function(*args, **kwargs), None
    if not changed._is_view() or _packed_already():
        return function(*args, **kwargs), changed.grad_fn
    # The node of a view lies inside a CopySlices, where nothing can reach what it saved (PyTorch 2.13): so pack it now.
    memory = changed.untyped_storage().data_ptr()

    def pack(saved: torch.Tensor) -> tuple[torch.Tensor, int]:
        kept = _copy(saved) if saved.untyped_storage().data_ptr() == memory else saved
        return kept, kept._version

    with torch.autograd.graph.saved_tensors_hooks(pack, _unpacked):
        result = function(*args, **kwargs)
    return result, changed.grad_fn


def _unpacked(packed: tuple[torch.Tensor, int]) -> torch.Tensor:
    saved, version = packed
    if saved._version != version:  # PyTorch raises the same error for a saved tensor without hooks
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"{list(saved.shape)} is at version {saved._version}; expected version {version} instead"
        )
    return saved


def _packed_already() -> bool:
    """Return whether saved-tensor hooks are active already, such as those of a checkpoint: only the innermost run."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is not None and top(True) is not None


@dynamo_skip
def overwrite(changed: torch.Tensor, value: torch.Tensor, first: Any = None) -> None:
    """Copy a value into a tensor that a function has just changed in place, as ``relu_`` does.

    The caller of such a function may use the tensor afterwards and ignore the result. Tensors on this memory that
    autograd has saved since the function began are replaced by copies; otherwise backward would find them modified.

    Args:
        changed: the tensor, as the function has left it.
        value: a tensor of the same shape, usually computed from `changed`.
        first: the ``grad_fn`` of the tensor when the function had just ended; by default its present one.
    """
    first = changed.grad_fn if first is None else first
    if torch.is_grad_enabled() and first is not None:
        last = [node for node in (first, value.grad_fn) if node is not None]  # a gradient, even if zero, reaches both
        _keep_saved(last, first, changed.untyped_storage().data_ptr())
    changed.copy_(value)


def _keep_saved(last: list[Any], first: Any, memory: int) -> None:
    """Replace saved tensors on some memory by copies, in all nodes behind `last` that are not older than `first`."""
    oldest, waiting, seen = first._sequence_nr(), [*set(last)], set(last)
    while waiting:
        node = waiting.pop()
        if type(node).__name__ == "AccumulateGrad" or node._sequence_nr() < oldest:
            continue
        for raw in _saved_in(node):
            if type(raw.data) is torch.Tensor and raw.data.untyped_storage().data_ptr() == memory:
                raw.register_hooks(_copy, _itself)
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


def _copy(saved: torch.Tensor) -> torch.Tensor:
    return saved.detach().clone()


def _itself(saved: torch.Tensor) -> torch.Tensor:
    return saved
