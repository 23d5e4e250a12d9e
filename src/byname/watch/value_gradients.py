"""Value gradients: the whole gradient of a value, by a hook on the tensor or on the base that it is a view of.

Full backward hooks of modules are not used. They turn the output into a view that a custom function made, on which
PyTorch refuses in-place activations (pytorch#61519). A hook on the tensor does not change the forward.
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

OnGradient: TypeAlias = Callable[[Tensor], Tensor | None]
"""A function that is called with a gradient. Unless it returns None, its result replaces the gradient."""


HOOKING = threading.RLock()
"""Two threads that hook one tensor at once would lose a hook: PyTorch 2.13 makes the registry with the first hook."""


class Removable:
    """A hook that can be removed.

    Attributes:
        handle: PyTorch's handle of the hook; None before the hook is registered.
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

    def remove(self) -> None:
        """Remove the hook. A second call does nothing."""
        leaf = None if self._leaf is None else self._leaf()
        with HOOKING:
            if self.handle is not None:
                self.handle.remove()
            if leaf is None or torch._C._current_graph_task_id() != -1:  # PyTorch may be iterating over the hooks now
                return
            with DisableTorchFunction():
                if getattr(leaf, self._attribute) == {}:
                    setattr(leaf, self._attribute, None)


def on_gradient(value: Tensor, receive: OnGradient, missed: Callable[[], object] | None = None) -> Removable | None:
    """Report the whole gradient of a value as soon as a backward has computed it.

    Later in-place changes of the value do not matter: the gradient is that of the value as it is now. One case cannot
    be observed: the value is a view, something else may use its base, and their memory is changed in place later.

    Args:
        value: any tensor.
        receive: a function that is called with the gradient in every backward that reaches the value. Unless it returns
            None, its result replaces the gradient.
        missed: a function that is called in a backward whose gradient could not be observed completely.

    Returns:
        The hook, or None if the value does not require grad.

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
    """Report ``.grad`` each time a backward has added to it.

    Args:
        parameter: a leaf that requires grad.
        receive: a function that is called with ``.grad``, which may be the sum of several backwards. Unless it returns
            None, its result replaces ``.grad``.

    Returns:
        The hook.

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
    """Return the hook that `accumulate` will register; it can be removed even if that call is interrupted."""
    return Removable(None, parameter, "_post_accumulate_grad_hooks")


def accumulate(hook: Removable, parameter: Tensor, receive: OnGradient) -> None:
    """Register a hook that `accumulating` has returned; see `on_accumulated`."""

    def accumulated(parameter: Tensor) -> None:
        gradient = parameter.grad
        new = None if gradient is None else receive(gradient)
        if new is not None and new is not gradient:
            parameter.grad = new

    with DisableTorchFunction(), HOOKING:
        hook.handle = parameter.register_post_accumulate_grad_hook(accumulated)  # type: ignore[no-untyped-call]


def without_superseded(hooks: Iterable[Any], by: Any) -> list[Any]:
    """Remove the hooks whose living leaves all have a new hook as well; return the other hooks.

    So a leaf that is used in each iteration, such as a parameter, has one hook. If each iteration has a leaf of its
    own, all of them keep their hooks, since a backward may follow several forwards.

    Args:
        hooks: the earlier hooks at a place.
        by: the new hook.
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
    """Return the note on a gradient that could not be observed completely."""
    return (
        f"`{path}`: it is a view of a tensor that was changed in place afterwards; what has come to it through the "
        "change is not in its gradient"
    )


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


def hidden_base(value: Tensor) -> tuple[Tensor, Window | Reshaped] | None:
    """Return the hidden base of a value and the view geometry: a base that only this view, made just now, references.

    ``nn.Linear`` returns such a view for an input of three dimensions. The view may be changed in place later, for
    example by an in-place ``relu``. PyTorch then sends the gradient to the node of the base and bypasses that of the
    view (seen in PyTorch 2.13), so a hook on the view is not called. Since nothing else can use the base, its gradient
    is that of the view. It is not computed if ``autograd.grad`` asks for the gradient of this very view and no earlier
    one.

    Returns:
        None if there is no such base.
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
    """The latest hook on a hidden base in one thread: an outer module may return the very view of an inner one.

    Attributes:
        view: a weak reference to the view.
        version: the version of the view when the base was hooked.
        hook: a weak reference to the hook, which is freed with the graph.
    """

    __slots__ = ("hook", "version", "view")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget the hook, since another hook was added."""
        self.view: Callable[[], Tensor | None] = _nothing
        self.version = 0
        self.hook: Callable[[], Any] = _nothing

    def note(self, view: Tensor, hook: Any) -> None:
        """Note the hook on the base of a view."""
        self.view, self.version, self.hook = weakref.ref(view), view._version, weakref.ref(hook)

    def of(self, view: Tensor) -> Any:
        """Return the hook if it belongs to this view, unchanged since; otherwise None."""
        return self.hook() if self.view() is view and self.version == view._version else None


def _nothing() -> None:
    """Return None, as a weak reference to a freed object does."""


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.latest = LatestReshaped()


of_thread = _OfThread()


def node_reshaped(view: Tensor) -> tuple[Any, int] | None:
    """Return the node of the hidden base of a view and the number of its output, if one ``view`` made it; else None.

    This is the most frequent case of `hidden_base`, found faster. No function mode may be active.
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
    """Return the number of references to the base of a view, from C++ and from Python, this function's included."""
    base = view._base
    return base._use_count(), sys.getrefcount(base)  # type: ignore[union-attr]


@functools.cache
def _of_a_hidden_base() -> tuple[int, int]:
    """Return these numbers for a base that only its view references; they differ between versions of PyTorch."""
    return _holders_of_the_base(torch.zeros(2).clone().view(2))


def _just_made(node: Any, behind: Any) -> bool:
    """Return whether the latest nodes that this thread made form a chain from one node back to the other."""
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
"""Chains of views, a view of a view and so on, are followed if they have fewer nodes than this."""

_sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr


class _Through:
    """A pre-hook of the node of a base: it reports the view's part of one of the gradients that the node gets."""

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
    """The view geometry: the elements of a base that a view has. It holds neither tensor.

    Attributes:
        size, strides, offset: those of the view; the offset is counted from that of the base.
        base_size, base_strides: those of the base.
    """

    size: torch.Size
    strides: tuple[int, ...]
    offset: int
    base_size: torch.Size
    base_strides: tuple[int, ...]

    def cut(self, gradient: Tensor) -> Tensor:
        """Return the part of a gradient of the base that belongs to the view."""
        if gradient.stride() != self.base_strides:
            gradient = self._laid_out(gradient)
        return gradient.as_strided(self.size, self.strides, gradient.storage_offset() + self.offset)

    def pasted(self, gradient: Tensor, new: Tensor) -> Tensor:
        """Return a copy of a gradient of the base, with the part of the view replaced."""
        whole = self._laid_out(gradient)
        whole.as_strided(self.size, self.strides, self.offset).copy_(new)
        return whole

    def _laid_out(self, gradient: Tensor) -> Tensor:
        """Return a copy in the layout of the base, as autograd itself makes one when a view was changed in place."""
        return gradient.new_empty_strided(self.base_size, self.base_strides).copy_(gradient)


class Reshaped:
    """The view geometry of a view that has all elements of its base in the same order, as ``nn.Linear`` returns it."""

    __slots__ = ("base_size", "size")

    def __init__(self, size: torch.Size, base_size: torch.Size) -> None:
        self.size = size
        self.base_size = base_size

    def cut(self, gradient: Tensor) -> Tensor:
        """Return a gradient of the base in the shape of the view."""
        return gradient.reshape(self.size)

    def pasted(self, gradient: Tensor, new: Tensor) -> Tensor:
        """Return the new gradient of the view in the shape of the base."""
        return new.reshape(self.base_size)


def window_of(view: Tensor, base: Tensor) -> Window | Reshaped | None:
    """Return the view geometry; None unless the elements of the view are plain elements of the base, each once."""
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
    """Return the view geometry of a view that has all elements of its base; otherwise None."""
    return window_of(view, base) if view.numel() == base.numel() else None


def _dense(tensor: Tensor) -> bool:
    return torch.ops.aten.is_non_overlapping_and_dense(tensor)  # type: ignore[no-any-return]


def _apart(tensor: Tensor) -> bool:
    """Return whether sizes and strides show that no two elements share memory."""
    reached = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride < reached:
                return False
            reached = stride * (size - 1) + reached
    return True
