"""Value gradients: the whole gradient of a value, by a hook of the tensor or of the base that it is a view of.

Full backward hooks of modules are not used: they make the output a view of a custom function, on which PyTorch refuses
in-place activations (pytorch#61519). A hook on the tensor leaves the forward as it is.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from byname.reading.quiet import DisableTorchFunction

__all__ = [
    "HOOKING",
    "OnGradient",
    "Removable",
    "Reshaped",
    "Window",
    "LatestReshaped",
    "accumulate",
    "accumulating",
    "hidden_base",
    "missed_at",
    "node_reshaped",
    "of_thread",
    "on_accumulated",
    "on_gradient",
    "watch_the_base",
    "whole_window_of",
    "window_of",
    "without_superseded",
]

OnGradient: TypeAlias = Callable[[Tensor], Tensor | None]
"""Is given a gradient; what it returns, unless None, takes the gradient's place."""


HOOKING = threading.RLock()
"""Two threads that hook one tensor at once would lose a hook: PyTorch 2.13 makes the registry with the first hook."""


class Removable:
    """A hook that can be removed.

    Attributes:
        handle: PyTorch's own; None as long as the hook is not there.
        lasting: whether it is on a leaf, which outlives the graph: it stays until it is removed. Any other hook goes
            with the graph.
    """

    __slots__ = ("_attribute", "_leaf", "handle", "lasting")

    def __init__(self, handle: Any, leaf: Tensor | None = None, attribute: str = "") -> None:
        self.handle = handle
        self._leaf = None if leaf is None else weakref.ref(leaf)
        self._attribute = attribute
        self.lasting = leaf is not None

    def leaves(self) -> list[Tensor]:
        """The leaf that it is on, if there is one, and it is still alive."""
        leaf = None if self._leaf is None else self._leaf()
        return [] if leaf is None else [leaf]

    def remove(self) -> None:
        """Remove the hook. A second call does nothing."""
        leaf = None if self._leaf is None else self._leaf()
        with HOOKING:
            if self.handle is not None:
                self.handle.remove()
            if leaf is None or torch._C._current_graph_task_id() != -1:  # PyTorch may be walking through the hooks now
                return
            with DisableTorchFunction():
                if getattr(leaf, self._attribute) == {}:
                    setattr(leaf, self._attribute, None)


def on_gradient(value: Tensor, receive: OnGradient, missed: Callable[[], object] | None = None) -> Removable | None:
    """Report the whole gradient of a value as soon as a backward has it; what is returned replaces it.

    What is done to the value in place later does not matter: it is the gradient of the value as it is now. One case is
    out of reach: a view of a tensor that something else may use too, if the memory of both is changed in place later.

    Args:
        value: any tensor.
        receive: is called with the gradient in every backward that reaches the value.
        missed: is called in a backward that had a gradient out of reach.

    Returns:
        What takes the hook off, or None if no gradient flows to the value because it does not require one.

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
        found = hidden_base(value) if value._is_view() else None
        if found is not None:
            base, window = found
            of_thread.latest.forget()
            handle = base.grad_fn.register_prehook(_Through(window, base.output_nr, receive))  # type: ignore[union-attr]
            return Removable(handle)
        if missed is not None and value._is_view():
            watch_the_base(value, missed)
        with HOOKING:
            handle = value.register_hook(receive)  # type: ignore[no-untyped-call]
        return Removable(handle, value, "_backward_hooks") if value.grad_fn is None else Removable(handle)


def on_accumulated(parameter: Tensor, receive: OnGradient) -> Removable:
    """Report ``.grad`` each time a backward has added to it; what is returned replaces it.

    Args:
        parameter: a leaf that requires grad.
        receive: is called with ``.grad``, which may hold the sum of several backwards.

    Returns:
        What takes the hook off.

    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> hook = on_accumulated(weight, lambda gradient: gradient.clamp(max=1))
    >>> (weight * 5).sum().backward()
    >>> weight.grad
    tensor([1., 1.])
    """
    hook = accumulating(parameter)
    accumulate(hook, parameter, receive)
    return hook


def accumulating(parameter: Tensor) -> Removable:
    """What takes the hook of `accumulate` off, also where that is interrupted."""
    return Removable(None, parameter, "_post_accumulate_grad_hooks")


def accumulate(hook: Removable, parameter: Tensor, receive: OnGradient) -> None:
    """Puts the hook on, see `on_accumulated`."""

    def accumulated(parameter: Tensor) -> None:
        gradient = parameter.grad
        new = None if gradient is None else receive(gradient)
        if new is not None and new is not gradient:
            parameter.grad = new

    with DisableTorchFunction(), HOOKING:
        hook.handle = parameter.register_post_accumulate_grad_hook(accumulated)  # type: ignore[no-untyped-call]


def without_superseded(hooks: Iterable[Any], by: Any) -> list[Any]:
    """The hooks whose leaves live on, but for those that are all under a new hook, too: these are taken off.

    A leaf that goes in again and again, such as a parameter, has one hook; a leaf of each iteration has its own, for a
    backward may come after several forwards.
    """
    now = {id(leaf) for leaf in by.leaves()}
    kept = []
    for hook in hooks:
        if all(id(leaf) in now for leaf in hook.leaves()):
            hook.remove()
        else:
            kept.append(hook)
    return kept


def missed_at(path: str) -> str:
    """Return the note about a gradient that was out of reach."""
    return (
        f"`{path}`: it is a view of a tensor that was changed in place afterwards; what has come to it through the "
        "change is not in its gradient"
    )


def watch_the_base(view: Tensor, missed: Callable[[], object]) -> None:
    """Notices when a gradient reaches the base of a view whose memory has been changed in place since."""
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


def hidden_base(value: Tensor) -> tuple[Tensor, Window | Reshaped] | None:
    """The tensor of which a value has just been made a view, if the program has no other way to get at that tensor.

    ``nn.Linear`` gives such a view for an input of three dimensions. When it is changed in place later, by an in-place
    ``relu`` say, PyTorch has the gradient go past the view's own node to the base (seen in PyTorch 2.13), and a hook
    on the view stays silent. Since nothing else can use the base, its gradient is the view's. It is not reached where
    ``autograd.grad`` is asked for the gradient of that very view and of nothing before it.
    """
    if type(value) is not Tensor or value._base is None or _holders_of_the_base(value) != _of_a_hidden_base():
        return None
    base = value._base
    behind = base.grad_fn
    if behind is None or not _just_made(value.grad_fn, behind):
        return None
    window = whole_window_of(value, base)
    return None if window is None else (base, window)


class LatestReshaped:
    """The latest hook of a hidden base in one thread: an outer module may return the very view of an inner one.

    Attributes:
        view: the view.
        version: how often it was changed in place when the base was hooked.
        hook: the hook, which goes with the graph.
    """

    __slots__ = ("hook", "version", "view")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Something else was hooked to the base."""
        self.view: Callable[[], Tensor | None] = _nothing
        self.version = 0
        self.hook: Callable[[], Any] = _nothing

    def note(self, view: Tensor, hook: Any) -> None:
        """The base of a view was hooked."""
        self.view, self.version, self.hook = weakref.ref(view), view._version, weakref.ref(hook)

    def of(self, view: Tensor) -> Any:
        """The hook, if it is that of a view as it is now."""
        return self.hook() if self.view() is view and self.version == view._version else None


def _nothing() -> None:
    """It has gone."""


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.latest = LatestReshaped()


of_thread = _OfThread()


def node_reshaped(view: Tensor) -> tuple[Any, int] | None:
    """The node of the hidden base of a view, if one ``view`` leads from one to the other, and which output it is.

    That is what `hidden_base` finds most often, found sooner. No function mode may be on.
    """
    node, base = view.grad_fn, view._base
    if node is None or base is None or type(node) is not _class_of_views():
        return None
    if (base._use_count(), sys.getrefcount(base)) != _of_a_hidden_base():  # type: ignore[attr-defined]
        return None
    behind, newest = base.grad_fn, _sequence_number()
    if behind is None or node._sequence_nr() != newest - 1 or behind._sequence_nr() != newest - 2:
        return None
    return behind, base.output_nr


@functools.cache
def _class_of_views() -> type:
    """Return the class of the nodes that ``view`` makes."""
    with torch.enable_grad():
        return type(torch.zeros(2, requires_grad=True).view(2).grad_fn)


def _holders_of_the_base(view: Tensor) -> tuple[int, int]:
    """How many references there are to the base of a view, from C++ and from Python, this function's included."""
    base = view._base
    return base._use_count(), sys.getrefcount(base)  # type: ignore[union-attr]


@functools.cache
def _of_a_hidden_base() -> tuple[int, int]:
    """The same for a base that only its view holds: how PyTorch counts differs between versions."""
    return _holders_of_the_base(torch.zeros(2).clone().view(2))


def _just_made(node: Any, behind: Any) -> bool:
    """Whether the last nodes of this thread are those that lead from one node straight to the other, and no more."""
    newest = _sequence_number()
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
"""A view of a view of a view: longer chains are not looked into."""

_sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr


class _Through:
    """A hook for the gradients that come to the node of a base, one of which is the view's."""

    __slots__ = ("receive", "slot", "window")

    def __init__(self, window: Window | Reshaped, slot: int, receive: OnGradient) -> None:
        self.window = window
        self.slot = slot
        self.receive = receive

    def __call__(self, gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...] | None:
        slot, window = self.slot, self.window
        whole = gradients[slot]
        if whole is None:
            return None
        seen = window.cut(whole)
        new = self.receive(seen)
        if new is None or new is seen:
            return None
        return (*gradients[:slot], window.pasted(whole, new), *gradients[slot + 1 :])


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
    """Return whether no two elements share memory, as far as sizes and strides tell."""
    reached = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride < reached:
                return False
            reached = stride * (size - 1) + reached
    return True
