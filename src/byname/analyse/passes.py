"""Passes: the batches of a loader as arguments of a model, and everything restored that a pass changes.

`byname.tracing.preserve` restores the model and the random state. A pass over a loader also changes
gradients, which are removed and put back without a copy; the generators of the loader; and autocast's cache of
weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from byname.autograd.walk import leaf_tensors, nodes_behind
from byname.errors import BadArgumentError
from byname.reading.tensor import version_of
from byname.tracing.preserve import ModelSnapshot, autocast_cache_disabled, restored


@dataclass(frozen=True, slots=True)
class Inputs:
    """The arguments of a model, and the classes of the samples if they are known."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None
    targets: Any = None

    def run(self, model: nn.Module) -> Any:
        return model(*self.args, **(self.kwargs or {}))


def inputs_of(batch: Any) -> Inputs:
    """Return the inputs in a batch: a tensor, a pair of inputs and targets, or a dict of keyword arguments.

    >>> inputs_of((torch.zeros(2, 3), torch.tensor([0, 1]))).targets
    tensor([0, 1])
    """
    if isinstance(batch, Tensor):
        return Inputs((batch,))
    if isinstance(batch, Mapping):
        return Inputs(kwargs=_keywords(batch), targets=_classes_in(batch))
    if isinstance(batch, tuple | list) and len(batch) == 1:
        return inputs_of(batch[0])
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return _pair(*batch)
    length = f" of {len(batch)}" if isinstance(batch, tuple | list) else ""
    raise BadArgumentError(
        f"the loader gave a {type(batch).__name__}{length}; a tensor is taken as inputs, a pair as (inputs, targets), "
        "a dict as keyword arguments. For other batches give prepare=, a function that returns (inputs, targets): "
        "prepare=lambda batch: (batch[0], batch[1])"
    )


def prepared(given: Any) -> Inputs:
    """Return the inputs that ``prepare`` gave, alone or in a pair with the targets."""
    return _pair(*given) if isinstance(given, tuple) and len(given) == 2 else _inputs(given)


def moved(value: Any, device: torch.device | None, *, copy: bool) -> Any:
    """Return a batch on the device of the model, if it has one; a copy, as a model may change its input in place."""
    move = partial(moved, device=device, copy=copy)
    if isinstance(value, Tensor):
        return _moved(value, value.device if device is None else device, copy)
    if isinstance(value, Mapping):
        return _alike(value, {key: move(one) for key, one in value.items()})
    if type(value) in (tuple, list):
        return type(value)(map(move, value))
    if device is not None and callable(getattr(type(value), "to", None)):
        return value.to(device)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(move, value))
    return value


def _moved(tensor: Tensor, device: torch.device, copy: bool) -> Tensor:
    if not copy and tensor.device == device:
        return tensor
    there = tensor.detach().to(device, copy=copy, non_blocking=device.type == "cuda" and tensor.is_pinned())
    return there.requires_grad_() if tensor.requires_grad else there


def _alike(value: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """Return a mapping of the same class, as far as it can be made of a dict."""
    make: Callable[[dict[Any, Any]], Any] = type(value)
    if make is dict:
        return items
    try:
        return make(items)
    except Exception:  # noqa: BLE001 - the constructor is someone else's, and a dict will do
        return items


def _pair(inputs: Any, targets: Any) -> Inputs:
    return replace(_inputs(inputs), targets=_numbers(targets))


def _inputs(given: Any) -> Inputs:
    if isinstance(given, tuple):
        return Inputs(given)
    if isinstance(given, Mapping):
        return Inputs(kwargs=_keywords(given))
    return Inputs((given,))


def _keywords(batch: Mapping[Any, Any]) -> dict[str, Any]:
    wrong = [key for key in batch if not isinstance(key, str)]
    if wrong:
        raise BadArgumentError(f"a dict is taken as keyword arguments of the model; this has the key {wrong[0]!r:.60}")
    return dict(batch)


def _numbers(targets: Any) -> Tensor | None:
    """Return the targets as a tensor, if they are numbers at all."""
    if isinstance(targets, Tensor) or targets is None:
        return targets
    try:
        return torch.as_tensor(targets)
    except (TypeError, ValueError, RuntimeError):
        return None


def _classes_in(batch: Mapping[Any, Any]) -> Tensor | None:
    for key in ("labels", "targets", "label"):
        found = batch.get(key)
        if isinstance(found, Tensor) and found.ndim == 1 and not (found.is_floating_point() or found.is_complex()):
            return found
    return None


class BatchSource:
    """A ``DataLoader``, a list, or anything else that can be iterated more than once: once a pass."""

    def __init__(self, loader: Any) -> None:
        if isinstance(loader, Iterator):
            raise BadArgumentError(
                f"a {type(loader).__name__} can be iterated only once, but each snapshot needs all batches: give a "
                "DataLoader or a list of batches"
            )
        iterable = hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")
        if isinstance(loader, Tensor | Mapping | str) or not iterable:
            raise BadArgumentError(f"a loader must give batches when iterated; a {type(loader).__name__} does not")
        self.loader = loader
        self._left = False  # in the middle, by a pass that was interrupted

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        # A DataLoader with persistent workers has one iterator for all, which begins anew for the latest.
        if not self._left and getattr(getattr(self.loader, "_iterator", None), "_tasks_outstanding", False):
            raise BadArgumentError(
                "another loop is iterating this DataLoader and would lose its place: with "
                "persistent_workers=True all loops share one iterator. Make another DataLoader for the snapshots"
            )
        self._left = True
        yield from self.loader
        self._left = False

    def generators(self) -> list[torch.Generator]:
        sampler, batches = getattr(self.loader, "sampler", None), getattr(self.loader, "batch_sampler", None)
        holders = (self.loader, sampler, batches, getattr(batches, "sampler", None))
        found = (getattr(holder, "generator", None) for holder in holders)
        return [*{id(one): one for one in found if isinstance(one, torch.Generator)}.values()]


class Preserved:
    """The parameters of a model during a pass, which must not change."""

    def __init__(self, model: nn.Module, before: ModelSnapshot) -> None:
        self.clear_gradients = before.clear_gradients
        """Remove all gradients, so that the next backward begins without any."""
        renormed = before.copy_before_run()
        self._versions = [
            (name, one, version_of(one)) for name, one in model.named_parameters() if id(one) not in renormed
        ]

    def check(self) -> None:
        """Raise an error if the pass changed parameters in place, whose old values are lost."""
        changed = [name for name, one, version in self._versions if version_of(one) != version]
        if changed:
            raise BadArgumentError(
                f"the pass changed {len(changed)} parameters in place, such as {changed[0]}, and their old values are "
                "lost. Does `backward`, or a hook of a parameter, step an optimizer? A snapshot must not change "
                "parameters"
            )


@contextmanager
def preserved(model: nn.Module, generators: list[torch.Generator], *, backward: bool) -> Iterator[Preserved]:
    """Restore everything that a pass changes, also after an exception, including these random generators."""
    with ExitStack() as stack:
        for generator in generators:
            stack.callback(generator.set_state, generator.get_state())
        before = stack.enter_context(restored(model))
        stack.enter_context(autocast_cache_disabled())
        if backward:
            for parameter in model.parameters():
                _silence(parameter, stack)
        yield Preserved(model, before)


@contextmanager
def preserving_gradients(loss: Tensor) -> Iterator[None]:
    """Protect the present gradients of leaves from a backward, such as those of a loss's own parameters."""
    before = [(leaf, leaf.grad) for leaf in leaf_tensors(nodes_behind([loss]))]
    for leaf, _ in before:
        leaf.grad = None
    try:
        yield
    finally:
        for leaf, grad in before:
            leaf.grad = grad


def _silence(parameter: Any, stack: ExitStack) -> None:
    """Remove the hooks that run when a gradient is ready, since they may step an optimizer."""
    hooks = parameter._post_accumulate_grad_hooks
    if hooks and not any(str(getattr(one, "__module__", "")).startswith("torch.") for one in hooks.values()):
        stack.callback(setattr, parameter, "_post_accumulate_grad_hooks", hooks)
        parameter._post_accumulate_grad_hooks = None
