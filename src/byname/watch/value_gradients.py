"""Value gradients: the whole gradient of a value, by a hook on the tensor or on the base that it is a view of.

Full backward hooks of modules are not used. They turn the output into a view that a custom function made, on which
PyTorch refuses in-place activations (pytorch#61519). A hook on the tensor does not change the forward.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from byname.reading.interrupts import defer_signals
from byname.reading.quiet import DisableTorchFunction

OnGradient: TypeAlias = Callable[[Tensor], Tensor | None]
"""A function that is called with a gradient. Unless it returns None, its result replaces the gradient."""
_Do: TypeAlias = Callable[..., object]


TENSOR_HOOK_LOCK = threading.RLock()
"""Two threads that hook one tensor at once would lose a hook: PyTorch 2.13 makes the registry with the first hook."""


class Removable:
    """A hook that can be removed.

    Attributes:
        lasting: whether the hook is on a leaf, which outlives the graph; it then stays until it is removed. Any other
            hook is freed with the graph.
    """

    __slots__ = ("_attribute", "_leaf", "handle", "lasting")

    def __init__(self, handle: Any, leaf: Tensor | None = None, attribute: str = "") -> None:
        self.handle = handle
        self._leaf = None if leaf is None else weakref.ref(leaf)
        self._attribute = attribute
        self.lasting = leaf is not None

    def leaves(self) -> list[Tensor]:
        """Return the leaf that has the hook, in a list; an empty list if it is no leaf, or was freed."""
        leaf = None if self._leaf is None else self._leaf()
        return [] if leaf is None else [leaf]

    def accumulate(self, parameter: Tensor, receive: OnGradient) -> None:
        """Register the hook, which is called with ``.grad`` after each backward; its result replaces it unless None."""

        def accumulated(parameter: Tensor) -> None:
            gradient = parameter.grad
            new = None if gradient is None else receive(gradient)
            if new is not None and new is not gradient:
                parameter.grad = new

        with DisableTorchFunction(), TENSOR_HOOK_LOCK:
            self.handle = parameter.register_post_accumulate_grad_hook(accumulated)  # type: ignore[no-untyped-call]

    def remove(self) -> None:
        """Remove the hook. A second call does nothing."""
        leaf = None if self._leaf is None else self._leaf()
        with TENSOR_HOOK_LOCK:
            if self.handle is not None:
                self.handle.remove()
            if leaf is None or torch._C._current_graph_task_id() != -1:  # PyTorch may be iterating over the hooks now
                return
            with DisableTorchFunction():
                if getattr(leaf, self._attribute) == {}:
                    setattr(leaf, self._attribute, None)


def on_gradient(
    value: Tensor, receive: OnGradient, missed: _Do | None = None, keep: _Do | None = None
) -> Removable | None:
    """Report the whole gradient of a value as soon as a backward has computed it.

    Later in-place changes of the value do not matter: the gradient is that of the value as it is now. One case cannot
    be observed: the value is a view, something else may use its base, and their memory is changed in place later. Then
    `missed` is called in the backward. Returns the hook, or None if the value does not require grad; that of a leaf is
    given to `keep` before Ctrl-C can come.

    >>> x = torch.ones(2, requires_grad=True)
    >>> y = x * 3
    >>> hook = on_gradient(y, lambda gradient: gradient * 10)
    >>> y.sum().backward()
    >>> x.grad
    tensor([30., 30.])
    """
    with DisableTorchFunction():
        if not value.requires_grad:
            return None
        if value._is_view():
            home = hidden_base_target(value)
            if home is not None:
                node, slot, geometry = home
                return Removable(node.register_prehook(_BaseGradHook(slot, geometry, receive)))
            if missed is not None:
                watch_the_base(value, missed)
        if value.grad_fn is not None:
            with TENSOR_HOOK_LOCK:
                return Removable(value.register_hook(receive))  # type: ignore[no-untyped-call]
        with defer_signals(), TENSOR_HOOK_LOCK:  # a hook of a leaf that is not kept would never go
            hook = Removable(value.register_hook(receive), value, "_backward_hooks")  # type: ignore[no-untyped-call]
            if keep is not None:
                keep(hook)
        return hook


def leaf_hook(parameter: Tensor) -> Removable:
    """Return the hook of a leaf that requires grad, not registered yet; it can be removed even if that is interrupted.

    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> leaf_hook(weight).accumulate(weight, lambda gradient: gradient.clamp(max=1))
    >>> (weight * 5).sum().backward()
    >>> weight.grad
    tensor([1., 1.])
    """
    return Removable(None, parameter, "_post_accumulate_grad_hooks")


class LeafHooks:
    """Hooks on leaves, which outlive the graph, until they are removed."""

    def __init__(self) -> None:
        self._hooks: dict[Hashable, list[Any]] = {}

    def keep(self, key: Hashable, hook: Any) -> None:
        """Keep a hook, unless it is freed with the graph, and remove those whose living leaves all have it as well.

        So a leaf that is used in each iteration, such as a parameter, has one hook. If each iteration has a leaf of its
        own, all of them keep their hooks, since a backward may follow several forwards.
        """
        if hook.lasting:
            now = {id(leaf) for leaf in hook.leaves()}
            kept = [hook]
            for earlier in self._hooks.get(key, ()):
                if all(id(leaf) in now for leaf in earlier.leaves()):
                    earlier.remove()
                else:
                    kept.insert(-1, earlier)
            self._hooks[key] = kept

    def remove(self) -> None:
        for hooks in self._hooks.values():
            for hook in hooks:
                hook.remove()
        self._hooks.clear()


def watch_the_base(view: Tensor, missed: Callable[[], object]) -> None:
    """Call a function when a gradient reaches the base of a view whose memory was changed in place since now."""
    base = view._base
    if base is None or base.grad_fn is None or type(view) is not Tensor:
        return
    counter = view.detach()
    counter.data = view.new_empty(0)  # shares the count of changes with the view from now on, and no memory
    version = counter._version

    def hook(gradient: Tensor) -> None:
        if counter._version != version:
            missed()

    base.register_hook(hook)  # type: ignore[no-untyped-call]


GradientTarget: TypeAlias = "tuple[Any, int, ViewGeometry | Reshaped]"
"""Where the gradient of a value arrives: a node, the index among its gradients, and the view geometry in that one."""


def hidden_base_target(view: Tensor) -> GradientTarget | None:
    """Return the home of the gradient of a view whose base is hidden: only this view, made just now, references it.

    ``nn.Linear`` returns such a view for an input of three dimensions. The view may be changed in place later, for
    example by an in-place ``relu``. PyTorch then sends the gradient to the node of the base and bypasses that of the
    view (seen in PyTorch 2.13), so a hook on the view is not called. Since nothing else can use the base, its gradient
    is that of the view. It is not computed if ``autograd.grad`` asks for the gradient of this very view and no earlier
    one.

    Returns:
        None if there is no such base. No function mode may be active.
    """
    base, node = view._base, view.grad_fn
    if base is None or node is None or type(view) is not Tensor:
        return None
    if (base._use_count(), sys.getrefcount(base)) != _of_a_hidden_base():  # type: ignore[attr-defined]
        return None
    behind = base.grad_fn
    if behind is None:
        return None
    newest = _sequence_number()
    geometry: ViewGeometry | Reshaped | None
    if (
        type(node).__name__ == "ViewBackward0"
        and node._sequence_nr() - newest == -1 == behind._sequence_nr() - newest + 1
    ):
        geometry = Reshaped(view.shape, base.shape)  # the most frequent case, found faster
    else:
        whole = _just_made(node, behind, newest) and view.numel() == base.numel()
        geometry = view_geometry_of(view, base) if whole else None
    return None if geometry is None else (behind, base.output_nr, geometry)


@functools.cache
def _of_a_hidden_base() -> tuple[int, int]:
    """Return the numbers of references, from C++ and from Python, to a base that only its view and a variable hold.

    They differ between versions of PyTorch. The modes of the first call may not change what is cached for the process:
    a dispatch mode may keep the results that it sees, and views in inference mode have no base.
    """
    with torch.inference_mode(False), torch._C._DisableTorchDispatch():
        view: Any = torch.zeros(2, device="cpu").clone().view(2)
    base = view._base
    return base._use_count(), sys.getrefcount(base)


def _just_made(node: Any, behind: Any, newest: int) -> bool:
    """Return whether the nodes that this thread made before a number form a chain from one node back to the other."""
    for back in range(1, _MOST_VIEWS):
        if node._sequence_nr() != newest - back:
            return False
        if node is behind:
            return True
        following = node.next_functions
        if len(following) != 1 or following[0][0] is None:
            return False
        node = following[0][0]
    return False


_MOST_VIEWS = 8
"""Chains of views, a view of a view and so on, are followed if they have fewer nodes than this."""

_sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr


@dataclass(slots=True, eq=False)
class _BaseGradHook:
    """A pre-hook of the node of a base: it reports the view's part of one of the gradients that the node gets."""

    slot: int
    geometry: ViewGeometry | Reshaped
    receive: OnGradient

    def __call__(self, gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...] | None:
        slot, geometry = self.slot, self.geometry
        whole = gradients[slot]
        if whole is None:
            return None
        seen = geometry.extract(whole)
        new = self.receive(seen)
        if new is None or new is seen:
            return None
        return (*gradients[:slot], geometry.with_part(whole, new), *gradients[slot + 1 :])


@dataclass(frozen=True, slots=True)
class ViewGeometry:
    """The view geometry: the elements of a base that a view has; its offset counts from that of the base."""

    size: torch.Size
    strides: tuple[int, ...]
    offset: int
    base_size: torch.Size
    base_strides: tuple[int, ...]

    def extract(self, gradient: Tensor) -> Tensor:
        """Return the part of a gradient of the base that belongs to the view."""
        if gradient.stride() != self.base_strides:
            gradient = self._laid_out(gradient)
        return gradient.as_strided(self.size, self.strides, gradient.storage_offset() + self.offset)

    def with_part(self, gradient: Tensor, new: Tensor) -> Tensor:
        """Return a copy of a gradient of the base, with the part of the view replaced."""
        whole = self._laid_out(gradient)
        whole.as_strided(self.size, self.strides, self.offset).copy_(new)
        return whole

    def _laid_out(self, gradient: Tensor) -> Tensor:
        """Return a copy in the layout of the base, as autograd itself makes one when a view was changed in place."""
        return gradient.new_empty_strided(self.base_size, self.base_strides).copy_(gradient)


@dataclass(slots=True, eq=False)
class Reshaped:
    """The view geometry of a view that has all elements of its base in the same order, as ``nn.Linear`` returns it."""

    size: torch.Size
    base_size: torch.Size

    def extract(self, gradient: Tensor) -> Tensor:
        return gradient.reshape(self.size)

    def with_part(self, gradient: Tensor, new: Tensor) -> Tensor:
        return new.reshape(self.base_size)


def view_geometry_of(view: Tensor, base: Tensor) -> ViewGeometry | Reshaped | None:
    """Return the view geometry; None unless the elements of the view are plain elements of the base, each once."""
    if view.dtype != base.dtype or view.layout != torch.strided or base.layout != torch.strided:
        return None
    if view.is_conj() or view.is_neg() or base.is_conj():
        return None
    if view.is_contiguous() and base.is_contiguous() and view.numel() == base.numel():
        return Reshaped(view.shape, base.shape)
    if not torch.ops.aten.is_non_overlapping_and_dense(base) or not _without_overlap(view):
        return None
    offset = int(view.storage_offset()) - int(base.storage_offset())
    return ViewGeometry(view.shape, view.stride(), offset, base.shape, base.stride())


def _without_overlap(tensor: Tensor) -> bool:
    """Return whether sizes and strides show that no two elements share memory."""
    reached = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride < reached:
                return False
            reached = stride * (size - 1) + reached
    return True
