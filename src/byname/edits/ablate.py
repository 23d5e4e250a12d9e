"""Ablate: values at places of a model replaced by zero, by their mean, or by those of other samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from byname.edits.capture import Capture, capture
from byname.edits.patch import Edit, MakePart, checked_keys, edit
from byname.edits.selection import SelectedPart, Selection
from byname.errors import BadArgumentError, InterjectionError, NoMatchError
from byname.model.feature_dims import FeatureContext
from byname.model.module_tree import modules_by_path
from byname.model.where import unwrapped
from byname.reading.tensor import is_tensor
from byname.table import closest
from byname.tracing.preserve import arguments_of, copied_arguments, isolated_run
from byname.watch.attachment import Event
from byname.watch.handle import Handle

HOW = ("zero", "mean", "resample")


def ablate(
    model: nn.Module,
    where: Any,
    how: str = "zero",
    *,
    heads: Any = None,
    positions: Any = None,
    features: Any = None,
    channels: Any = None,
    reference: Any = None,
    seed: int = 0,
    call: int | None = None,
    steps: Any = None,
    example: Any = None,
    attention: str | None = None,
) -> Handle:
    """Replace the values at places of a model, or parts of them, by values without information about the input.

        >>> import torch, byname
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
        >>> with byname.ablate(model, "0", features=1):
        ...     model(torch.ones(4, 2))[:, 1].sum().item()
        0.0
        >>> with byname.ablate(model, "1", "mean", reference=[torch.randn(8, 2), torch.randn(8, 2)]):
        ...     ablated = model(torch.randn(4, 2))
        >>> bool((ablated == ablated[0]).all())
        True

    Args:
        model: any module.
        where: a path, a selector, a class of modules, a module of the model, or a sequence of these.
        how: ``"zero"``; ``"mean"``, the mean of the reference over all dimensions but those of heads and features; or
            ``"resample"``, which takes for each sample another one of the reference, the same at all
            places in one forward.
        heads: as in `byname.patch`.
        positions: as in `byname.patch`.
        features: as in `byname.patch`.
        channels: as in `byname.patch`; a mean is then over all dimensions but that of the channels.
        reference: a `Capture`, or an iterable of batches, each given as ``example=`` is: the model runs on each once,
            without gradients, in the mode that it is in, and is afterwards as before.
        seed: says which samples are taken; the forwards that follow take others.
        call: as in `byname.patch`.
        steps: as in `byname.patch`.
        example: as in `byname.patch`.
        attention: as in `byname.patch`.

    Raises:
        NoMatchError: nothing matches, or a place is not in the reference.
        BadArgumentError: an argument is invalid, or the reference is missing.
        InterjectionError: in the forward, where the value has no such part, or another shape than the reference.
    """
    if how not in HOW:
        raise BadArgumentError(f"how= is one of {', '.join(map(repr, HOW))}, not {how!r:.40}")
    if (reference is None) != (how == "zero"):
        lacks = "needs reference=, a Capture or batches" if reference is None else "takes no reference="
        raise BadArgumentError(f"how={how!r} {lacks}")
    selection = Selection(heads, positions, features, channels)
    made: MakePart = _zero
    if how != "zero":
        gathered: _Means | _Samples = _Means(model, selection) if how == "mean" else _Samples(model, seed)
        for values in _captures(model, reference, where, example=example, attention=attention):
            for path in values:
                found = values.calls(path) if isinstance(values, Capture) else values[path]
                for one in found if isinstance(found, tuple) else (found,):
                    gathered.add(path, one)
        made = gathered.made
    return edit(model, where, made, selection, call=call, steps=steps, example=example, attention=attention)


def _zero(edit: Edit, event: Event, part: SelectedPart) -> Tensor:
    value: Tensor = event.value  # a sparse or jagged one takes no number
    return value.new_zeros(()) if value.layout is torch.strided else torch.zeros_like(value)


def _captures(model: nn.Module, reference: Any, where: Any, **options: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the reference, or a capture of each of its batches; the options are those of `capture`."""
    if isinstance(reference, Mapping):
        checked_keys(model, where, reference)
        yield reference
        return
    if is_tensor(reference) or not isinstance(reference, Iterable):
        raise BadArgumentError(
            f"reference= takes a Capture or an iterable of batches, not {type(reference).__name__}; for one batch give "
            "reference=[batch]"
        )
    root, wanted, some = unwrapped(model), capture(model, where, **options), False
    for batch in reference:
        args, kwargs = copied_arguments(arguments_of(tuple(batch) if isinstance(batch, list) else batch), root, [])
        with isolated_run(root, wanted.reader), torch.no_grad():
            wanted(*args, **kwargs)
        some = True
        yield wanted
    if not some:
        raise BadArgumentError("reference= has no batches")


class _Means:
    """The mean at each place, over all dimensions but those of heads and features, or of the selected channels."""

    def __init__(self, model: nn.Module, selection: Selection) -> None:
        self._selection = selection
        self._modules = modules_by_path(unwrapped(model))
        self._first: dict[str, Tensor] = {}
        self._sums: dict[str, tuple[Tensor, float]] = {}

    def add(self, path: str, value: Any) -> None:
        value = _tensor(path, value).detach()
        around, heads = FeatureContext.at(self._modules, path), self._selection.dim
        kept = {1} if around.channels_first(value) else {value.ndim - 1, *([1] if value.ndim == 4 else [])}
        if self._selection.channels is not None and (dim := around.channel_dim(value)) is not None:
            kept = {dim}
        if heads is not None:
            kept.add(heads % value.ndim)
        dims = [dim for dim in range(value.ndim) if dim not in kept]
        total = value.double().sum(dims, keepdim=True) if dims else value.double()
        count = value.numel() / max(total.numel(), 1)
        if path not in self._sums:
            floating = value if value.is_floating_point() else value.double()
            self._first[path] = floating.mean(dims, keepdim=True) if dims else floating.clone()
            self._sums[path] = total, count
            return
        sums, before = self._sums[path]
        if sums.shape != total.shape:
            raise InterjectionError(
                f"`{path}`: the values of the reference have no common mean: averaged over all dimensions but heads "
                f"and features, their shapes are {tuple(sums.shape)} and {tuple(total.shape)}"
            )
        self._first.pop(path, None)  # which is exact to the last digit where it is the only one
        self._sums[path] = sums + total, before + count

    def made(self, edit: Edit, event: Event, part: SelectedPart) -> Tensor:
        path = event.path
        sums, count = _of(path, self._sums)
        mean = self._first[path] if path in self._first else (sums / count)
        return edit.fitting(event, part, mean.to(event.value.dtype), whole=True)


class _Samples:
    """All samples at each place; the seed decides which of them are taken."""

    def __init__(self, model: nn.Module, seed: int) -> None:
        self._seed = seed
        self._modules = modules_by_path(unwrapped(model))
        self._values: dict[str, list[Tensor]] = {}

    def add(self, path: str, value: Any) -> None:
        value = _tensor(path, value).detach()
        value = value.movedim(self._batch(path, value), 0) if value.ndim else value
        before = self._values.setdefault(path, [])
        if not value.ndim or (before and before[0].shape[1:] != value.shape[1:]):
            shapes = ", ".join(str(tuple(one.shape)) for one in [*before[:1], value])
            raise InterjectionError(f"`{path}`: the values of the reference differ in shape or lack samples: {shapes}")
        before.append(value)

    def made(self, edit: Edit, event: Event, part: SelectedPart) -> Tensor:
        values = _of(event.path, self._values)
        if len(values) > 1:
            values[:] = [torch.cat(values)]
        batch = self._batch(event.path, event.value)
        given, wanted = values[0], event.value.movedim(batch, 0).shape if event.value.ndim else event.value.shape
        if not len(wanted) or given.shape[1:] != wanted[1:]:
            raise InterjectionError(
                f"at `{event.path}`: expected samples of shape {tuple(wanted[1:])}; those of the reference have "
                f"{tuple(given.shape[1:])}"
            )
        taken = _others(wanted[0], len(given), self._seed, event.iteration).to(given.device)
        return edit.fitting(event, part, given[taken].movedim(0, batch), whole=True)

    def _batch(self, path: str, value: Tensor) -> int:
        return FeatureContext.at(self._modules, path).batch_dim(value)


def _others(samples: int, of: int, seed: int, forward: int) -> Tensor:
    """Return for each sample the number of another one: each once if there are enough, and none by its own number."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + max(forward, 0))
    order = torch.randperm(of, generator=generator, device="cpu")
    if samples > of:
        return torch.randint(of, (samples,), generator=generator, device="cpu")
    if samples == of > 1:  # each takes the next one in a circle through all in random order
        taken = torch.empty_like(order)
        taken[order] = order.roll(1)
        return taken
    return order[:samples]


def _tensor(path: str, value: Any) -> Tensor:
    if not is_tensor(value):
        raise InterjectionError(f"`{path}`: a {type(value).__name__} has neither mean nor samples; name an item of it")
    tensor: Tensor = value
    return tensor


def _of(path: str, gathered: Mapping[str, Any]) -> Any:
    if path not in gathered:
        raise NoMatchError(f"`{path}` is not in the reference; there are {closest(path, gathered) or 'none'}")
    return gathered[path]
