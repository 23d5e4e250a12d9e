"""Which part of a tensor's gradient is the gradient of a view of it?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Reshaped", "Window", "whole_window_of", "window_of"]


@dataclass(frozen=True, slots=True)
class Window:
    """Where a view lies in its base, without either of them.

    Attributes:
        size, strides, offset: the view's geometry, the offset counted from where the base begins.
        base_size, base_strides: the base's.
    """

    size: torch.Size
    strides: tuple[int, ...]
    offset: int
    base_size: torch.Size
    base_strides: tuple[int, ...]

    def cut(self, gradient: Tensor) -> Tensor:
        """The view's part of the gradient of the base."""
        if gradient.stride() != self.base_strides:
            gradient = self._laid_out(gradient)
        return gradient.as_strided(self.size, self.strides, gradient.storage_offset() + self.offset)

    def pasted(self, gradient: Tensor, new: Tensor) -> Tensor:
        """The gradient of the base with the view's part replaced; the one given is left as it is."""
        whole = self._laid_out(gradient)
        whole.as_strided(self.size, self.strides, self.offset).copy_(new)
        return whole

    def _laid_out(self, gradient: Tensor) -> Tensor:
        """A copy in the layout of the base, as autograd itself makes one for changes in place of a view."""
        return gradient.new_empty_strided(self.base_size, self.base_strides).copy_(gradient)


class Reshaped:
    """The same for a view that has all elements of its base in the same order, as ``nn.Linear`` makes one."""

    __slots__ = ("base_size", "size")

    def __init__(self, size: torch.Size, base_size: torch.Size) -> None:
        self.size = size
        self.base_size = base_size

    def cut(self, gradient: Tensor) -> Tensor:
        """The gradient of the base in the shape of the view."""
        return gradient.reshape(self.size)

    def pasted(self, gradient: Tensor, new: Tensor) -> Tensor:
        """The view's gradient in the shape of the base."""
        return new.reshape(self.base_size)


def window_of(view: Tensor, base: Tensor) -> Window | Reshaped | None:
    """Where a view lies in its base, or None where its elements are not plainly some of the base's, each once."""
    if view.dtype != base.dtype or view.layout != torch.strided or base.layout != torch.strided:
        return None
    if view.is_conj() or view.is_neg() or base.is_conj():
        return None
    if view.is_contiguous() and base.is_contiguous() and view.numel() == base.numel():
        return Reshaped(view.shape, base.shape)
    if not _dense(base) or not _apart(view):
        return None
    offset = int(view.storage_offset()) - int(base.storage_offset())
    return Window(view.shape, view.stride(), offset, base.shape, base.stride())


def whole_window_of(view: Tensor, base: Tensor) -> Window | Reshaped | None:
    """The same, None also where the view has not all elements of its base."""
    return window_of(view, base) if view.numel() == base.numel() else None


def _dense(tensor: Tensor) -> bool:
    return torch.ops.aten.is_non_overlapping_and_dense(tensor)  # type: ignore[no-any-return]


def _apart(tensor: Tensor) -> bool:
    """Whether no two elements share memory, as far as sizes and strides tell."""
    reached = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride < reached:
                return False
            reached = stride * (size - 1) + reached
    return True
