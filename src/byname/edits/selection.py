"""Selection: the part of a value that an edit is about: some heads, positions, features or channels of a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from byname.errors import BadArgumentError, InterjectionError
from byname.model.feature_dims import FeatureContext
from byname.reading.tensor import is_tensor

Index: TypeAlias = int | slice | Tensor
"""An index, a slice, a one-dimensional tensor of indices, or a boolean mask."""


class Selection:
    """The heads, positions, features and channels that an edit is about, as in `byname.patch`; None stands for all.

    Attributes:
        dim: the dimension of the heads, where it was given.

    Raises:
        BadArgumentError: one of them is invalid.
    """

    def __init__(self, heads: Any = None, positions: Any = None, features: Any = None, channels: Any = None) -> None:
        self.dim: int | None = None
        if type(heads) is tuple and len(heads) == 2 and type(heads[0]) is int and type(heads[1]) is not int:
            self.dim, heads = heads
        self.heads = _index(heads, "heads")
        self.positions = _index(positions, "positions")
        self.features = _index(features, "features")
        self.channels = _index(channels, "channels")
        self._texts = {"heads": heads, "positions": positions, "features": features, "channels": channels}
        for name, one in (("heads", self.heads), ("features", self.features), ("channels", self.channels)):
            if isinstance(one, Tensor) and one.ndim > 1:
                raise BadArgumentError(f"{name}= takes a mask of one dimension, not of {one.ndim}")
            if self._masks and one is not None:
                raise BadArgumentError(f"give {name}= or a mask of several dimensions as positions=, not both")

    @property
    def _masks(self) -> bool:
        return isinstance(self.positions, Tensor) and self.positions.ndim > 1

    def part_of(self, path: str, value: Tensor, around: FeatureContext, heads: int | None = None) -> SelectedPart:
        """Return the part of a value at a place that is selected.

        Args:
            path, value: the place and the value.
            around: tells the dimensions of its features and positions.
            heads: how many heads the last dimension has; None where another dimension is that of the heads.
        """
        if self._masks:
            if around.channels_first(value):
                raise self._unknown(path, value, "positions", around)
            return SelectedPart(path, self._words(), None, (), self._mask(path, value, around))
        last, wanted = value.ndim - 1, []
        if around.one_for_each_position(value) and (self.features, self.channels) != (None, None):
            raise InterjectionError(f"`{path}` has one number for each position, and no features: use positions=")
        if self.features is not None:
            if around.channels_unknown(value):
                raise self._unknown(path, value, "features", around)
            first = around.channels_first(value)
            wanted.append(("features", 1 if first else last + (heads is not None), self.features))
        if self.channels is not None:
            if (at := around.channel_dim(value)) is None:
                raise self._unknown(path, value, "channels", around)
            wanted.append(("channels", at + (heads is not None and at == last), self.channels))
        if self.positions is not None:
            if (positions := around.position_dim(value)) is None:
                raise self._unknown(path, value, "positions", around)
            wanted.append(("positions", positions, self.positions))
        if self.heads is not None:
            at = last if heads is not None else 1 if self.dim is None else self.dim
            wanted.append(("heads", at + value.ndim if at < 0 else at, self.heads))
        shape = [*value.shape[:-1], heads, value.shape[-1] // heads] if heads else [*value.shape]
        dims: dict[int, Index] = {}
        for name, dim, index in wanted:
            if index is not None:
                self._refuse_missing(path, name, dim, shape, dims)
                dims[dim] = self._counted(path, name, index, shape[dim], value.device)
        return SelectedPart(path, self._words(), heads, tuple(sorted(dims.items(), reverse=True)))

    def _mask(self, path: str, value: Tensor, around: FeatureContext) -> Tensor:
        mask = self.positions
        assert isinstance(mask, Tensor)
        shape = value.shape if around.one_for_each_position(value) else value.shape[:-1]
        if mask.dtype is not torch.bool or mask.shape != shape:
            raise InterjectionError(
                f"`{path}`: positions= as a mask of several dimensions needs the shape of the value without its "
                f"features, {tuple(shape)}; this one has {tuple(mask.shape)}"
            )
        return mask.to(value.device)

    def _unknown(self, path: str, value: Tensor, name: str, around: FeatureContext) -> InterjectionError:
        shape = tuple(value.shape)
        channels, advice = around.channel_dim(value), of_whole(path)
        if name == "positions" and value.ndim in (3, 4) and channels != 0 and not around.channels_first(value):
            advice = f"use a mask of shape {shape[:-1]} as positions="
        if name == "features" and channels is not None:
            advice = "use channels="
        return InterjectionError(f"`{path}`: {name}= has no known dimension in a value of shape {shape}; {advice}")

    def _refuse_missing(self, path: str, name: str, dim: int, shape: list[int], dims: dict[int, Index]) -> None:
        if not 0 <= dim < len(shape):
            raise InterjectionError(f"`{path}`: {name}= needs a dimension that a value of shape {tuple(shape)} lacks")
        if dim in dims:
            raise InterjectionError(f"`{path}`: {name}= selects in dimension {dim}, as another argument does")

    def _counted(self, path: str, name: str, index: Index, size: int, device: torch.device) -> Index:
        """Return an index counted from the beginning, and a mask as a tensor of indices."""
        if isinstance(index, slice):
            return index
        if isinstance(index, Tensor) and index.dtype is torch.bool:
            if len(index) != size:
                raise InterjectionError(f"`{path}`: {name}= is a mask of {len(index)}, but there are {size} {name}")
            return index.nonzero().squeeze(1).to(device)
        numbers = index.tolist() if isinstance(index, Tensor) else [index]
        if wrong := [number for number in numbers if not -size <= number < size]:
            raise InterjectionError(f"`{path}`: there is no {wrong[0]} in {name}=: there are {size} {name}")
        counted = [number % size for number in numbers]
        return torch.tensor(counted, dtype=torch.long, device=device) if isinstance(index, Tensor) else counted[0]

    def _words(self) -> str:
        given = [(name, one) for name, one in self._texts.items() if one is not None]
        return ", ".join(f"{name}={'a tensor' if is_tensor(one) else repr(one)[:40]}" for name, one in given)


def of_whole(path: str) -> str:
    """Return the advice that works for every value."""
    return f"use patch(model, {path!r}, f) with a function of the whole value"


def _index(which: Any, name: str) -> Index | None:
    if which is None or type(which) is int or isinstance(which, slice):
        return which
    known = is_tensor(which) or isinstance(which, Sequence) or type(which).__module__.partition(".")[0] == "numpy"
    if known and not isinstance(which, str | bytes):
        kinds = {type(one) for one in which} if isinstance(which, Sequence) else set()
        which = which if is_tensor(which) or kinds else torch.tensor(which, device="cpu")
        index = torch.as_tensor(which) if len(kinds) < 2 else None
        if index is not None and index.dtype is torch.bool and index.ndim:
            return index.detach()
        if index is not None and not index.is_floating_point() and not index.is_complex() and index.ndim < 2:
            return index.detach().long() if index.ndim else int(index)
    raise BadArgumentError(f"{name}= takes an int, a slice, a sequence of ints or a boolean mask, not {which!r:.80}")


@dataclass(frozen=True, slots=True)
class SelectedPart:
    """The part of a tensor that is selected, which `words` says as it was asked for.

    Attributes:
        heads: how many heads the last dimension is split into; None if it stays as it is.
        dims: the dimensions that are selected from, last first, each with its index.
        mask: a mask of the dimensions before the features.
    """

    path: str
    words: str
    heads: int | None
    dims: tuple[tuple[int, Index], ...]
    mask: Tensor | None = None

    @property
    def whole(self) -> bool:
        """Whether everything is selected."""
        return not self.dims and self.mask is None

    def of(self, value: Tensor) -> Tensor:
        """Return the part of a value; it may share the value's memory."""
        if self.mask is not None:
            return value[self.mask]
        part = self._split(value)
        for dim, index in self.dims:
            part = part.index_select(dim, index) if isinstance(index, Tensor) else _narrowed(part, dim, index)
        return part

    def replace_item(self, value: Tensor, new: Tensor) -> Tensor:
        """Return a copy of a value with another part, which broadcasts to the one that is there."""
        if self.whole:
            return torch.empty_like(value, requires_grad=False).copy_(new)
        made = value.clone()
        if self.mask is not None:
            made[self.mask] = new
            return made
        at = self._split(made)
        listed: list[tuple[int, Tensor]] = []
        for dim, index in self.dims:
            if isinstance(index, Tensor):
                listed.append((dim, index))
                continue
            at = _narrowed(at, dim, index)
            if isinstance(index, int):
                listed = [(other - 1, one) for other, one in listed]
        _write(at, listed, new)
        return made

    def _split(self, value: Tensor) -> Tensor:
        if self.heads is None:
            return value
        *rest, width = value.shape
        return value.view(*rest, self.heads, width // self.heads)

    def fitting(self, value: Tensor, new: Tensor, *, whole: bool = False) -> Tensor:
        """Return a tensor as one that broadcasts to the part of a value: as the part, or as the whole value.

        Of the whole value the part is taken; `whole` tells whether a tensor that could be both is the whole.
        """
        shape = self.of(value).shape
        as_whole = new.ndim == value.ndim and _broadcasts(new.shape, value.shape)
        if as_whole and (whole or not _broadcasts(new.shape, shape)):
            return self.of(new.expand(value.shape))
        if not _broadcasts(new.shape, shape):
            selected = f" ({self.words} of a value of shape {tuple(value.shape)})" if not self.whole else ""
            raise InterjectionError(
                f"at `{self.path}`: expected a tensor of shape {tuple(shape)}, or one that broadcasts to it{selected}; "
                f"got one of shape {tuple(new.shape)}"
            )
        return new


def _narrowed(value: Tensor, dim: int, index: int | slice) -> Tensor:
    view: Tensor = value[(slice(None),) * dim + (index,)]
    return view


def _write(at: Tensor, listed: list[tuple[int, Tensor]], new: Tensor) -> None:
    """Write into a view, or into what indices select along some of its dimensions."""
    if not listed:
        at.copy_(new)
        return
    dims = [dim for dim, _ in listed]
    shape = [*at.shape]
    for dim, index in listed:
        shape[dim] = len(index)
    front = [*range(len(dims))]
    grid = torch.meshgrid(*(index for _, index in listed), indexing="ij")
    at.movedim(dims, front)[grid] = new.expand(shape).movedim(dims, front)


def _broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    try:
        return shape == to or bool(torch.broadcast_shapes(shape, to) == to)  # type: ignore[no-untyped-call]
    except RuntimeError:
        return False
