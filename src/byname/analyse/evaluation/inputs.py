"""Inputs: the batches of a pass, from a loader that gives them again and again, as arguments of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from byname.errors import BadArgumentError

_LABELS = ("labels", "targets", "label")


@dataclass(frozen=True, slots=True)
class Inputs:
    """The arguments of a model, and the classes of the samples if they are known."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None
    targets: Any = None

    def run(self, model: nn.Module) -> Any:
        """The output of the model."""
        return model(*self.args, **(self.kwargs or {}))


def inputs_of(batch: Any) -> Inputs:
    """What a batch is taken for: a tensor, a pair of inputs and targets, or a dict of keyword arguments.

    >>> inputs_of((torch.zeros(2, 3), torch.tensor([0, 1]))).targets
    tensor([0, 1])

    Raises:
        BadArgumentError: if it is something else.
    """
    if isinstance(batch, Tensor):
        return Inputs((batch,))
    if isinstance(batch, Mapping):
        return Inputs(kwargs=_keywords(batch), targets=_classes_in(batch))
    if isinstance(batch, tuple | list) and len(batch) == 1:
        return inputs_of(batch[0])
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return _pair(batch[0], batch[1])
    length = f" of {len(batch)}" if isinstance(batch, tuple | list) else ""
    raise BadArgumentError(
        f"the loader gave a {type(batch).__name__}{length}; a batch is taken for the inputs if it is a tensor, for "
        "(inputs, targets) if it is a pair, for keyword arguments if it is a dict. Say by prepare=lambda batch: "
        "(inputs, targets) what this is"
    )


def prepared(given: Any) -> Inputs:
    """What ``prepare`` has returned: the inputs, or a pair of the inputs and the targets."""
    if isinstance(given, tuple) and len(given) == 2:
        return _pair(given[0], given[1])
    return _inputs(given)


def moved(value: Any, device: torch.device | None, *, copy: bool) -> Any:
    """A batch on the device of the model.

    Args:
        value: tensors, also in tuples, lists and dicts, and in objects that have a method ``to``.
        device: None to leave everything where it is.
        copy: whether tensors that are there already are copied: a model may change its input in place.
    """
    if isinstance(value, Tensor):
        return _moved(value, value.device if device is None else device, copy)
    if isinstance(value, Mapping):
        return _alike(value, {key: moved(one, device, copy=copy) for key, one in value.items()})
    if type(value) in (tuple, list):
        return type(value)(moved(one, device, copy=copy) for one in value)
    if device is not None and callable(getattr(type(value), "to", None)):
        return value.to(device)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(moved(one, device, copy=copy) for one in value))
    return value


def _moved(tensor: Tensor, device: torch.device, copy: bool) -> Tensor:
    if not copy and tensor.device == device:
        return tensor
    there = tensor.detach().to(device, copy=copy, non_blocking=device.type == "cuda" and tensor.is_pinned())
    return there.requires_grad_() if tensor.requires_grad else there


def device_of(model: nn.Module) -> torch.device | None:
    """Where the first parameter of a model is, or its first buffer; None for a model without."""
    for tensor in (*model.parameters(), *model.buffers()):
        return tensor.device
    return None


def _alike(value: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """A mapping of the same class, as far as it can be made of a dict."""
    make: Callable[[dict[Any, Any]], Any] = type(value)
    if make is dict:
        return items
    try:
        return make(items)
    except Exception:  # noqa: BLE001 - the constructor is someone else's, and a dict will do
        return items


def _pair(inputs: Any, targets: Any) -> Inputs:
    found = _inputs(inputs)
    return Inputs(found.args, found.kwargs, _numbers(targets))


def _inputs(given: Any) -> Inputs:
    if isinstance(given, tuple):
        return Inputs(given)
    if isinstance(given, Mapping):
        return Inputs(kwargs=_keywords(given))
    return Inputs((given,))


def _keywords(batch: Mapping[Any, Any]) -> dict[str, Any]:
    wrong = [key for key in batch if not isinstance(key, str)]
    if wrong:
        raise BadArgumentError(f"a dict is taken for keyword arguments of the model, and has the key {wrong[0]!r:.60}")
    return dict(batch)


def _numbers(targets: Any) -> Tensor | None:
    """The targets as a tensor, if they are numbers at all."""
    if isinstance(targets, Tensor) or targets is None:
        return targets
    try:
        return torch.as_tensor(targets)
    except (TypeError, ValueError, RuntimeError):
        return None


def _classes_in(batch: Mapping[Any, Any]) -> Tensor | None:
    """The class numbers in a dict, one a sample."""
    for key in _LABELS:
        found = batch.get(key)
        if isinstance(found, Tensor) and found.ndim == 1 and not (found.is_floating_point() or found.is_complex()):
            return found
    return None


class BatchSource:
    """A loader, which is iterated once a pass.

    Args:
        loader: a ``DataLoader``, a list, or anything else that can be iterated more than once.

    Raises:
        BadArgumentError: if it cannot.
    """

    def __init__(self, loader: Any) -> None:
        if isinstance(loader, Iterator):
            raise BadArgumentError(
                f"a {type(loader).__name__} can be iterated once, and each snapshot needs all batches: give a "
                "DataLoader or a list of batches"
            )
        iterable = hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")
        if isinstance(loader, Tensor | Mapping | str) or not iterable:
            raise BadArgumentError(f"a loader gives batches when it is iterated; a {type(loader).__name__} does not")
        self.loader = loader
        self._left = False  # in the middle, by a pass that was interrupted

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        if not self._left:
            self._refuse_if_busy()
        self._left = True
        yield from self.loader
        self._left = False

    def generators(self) -> list[torch.Generator]:
        """The random generators of the loader and of its samplers."""
        sampler, batches = getattr(self.loader, "sampler", None), getattr(self.loader, "batch_sampler", None)
        holders = (self.loader, sampler, batches, getattr(batches, "sampler", None))
        found = (getattr(holder, "generator", None) for holder in holders)
        return [*{id(one): one for one in found if isinstance(one, torch.Generator)}.values()]

    def _refuse_if_busy(self) -> None:
        """A ``DataLoader`` with persistent workers has one iterator for all, which begins anew for the latest."""
        if getattr(getattr(self.loader, "_iterator", None), "_tasks_outstanding", 0):
            raise BadArgumentError(
                "another loop is in the middle of this DataLoader, and would lose its place: with "
                "persistent_workers=True it has one iterator for all. Make another DataLoader for the snapshots"
            )
