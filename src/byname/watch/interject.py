"""Interject: run code at any place of a model; the code reads or replaces the value there."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from byname.errors import NotAnInterjectionError
from byname.model.items import tensors_in
from byname.reading.interrupts import defer_signals
from byname.reading.quiet import dynamo_skip
from byname.text import note_on
from byname.watch.attach import attach
from byname.watch.attachment import Event
from byname.watch.boundary_edges import CallInputs
from byname.watch.call_gradients import Followed, Gradients, follow, note_arguments
from byname.watch.handle import Handle
from byname.watch.replacement import check_gradients, check_replacement
from byname.watch.requested import MISSED, NO_GRADIENT, PlaceNote
from byname.watch.value_gradients import LeafHooks, Removable, on_gradient


def interject(
    model: nn.Module, where: Any, interjection: Interjection, *, example: Any = None, attention: str | None = None
) -> Handle:
    """Run an interjection at places of a model. The model stays the same object.

    Several interjections at one place run in the order in which they were attached. Each gets the value that the one
    before it returned.

        >>> import torch, byname
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
        >>> seen = []
        >>> def watch(name, module, value):
        ...     seen.append((name, type(module).__name__, tuple(value.shape)))
        >>> handle = byname.interject(model, "*", watch)
        >>> _ = model(torch.ones(4, 2))
        >>> seen
        [('0', 'Linear', (4, 3)), ('1', 'ReLU', (4, 3))]
        >>> handle.remove()

        The returned value replaces the value at the place, here a gradient:

        >>> with byname.interject(model, "0.grad", lambda name, module, gradient: gradient * 0):
        ...     model(torch.ones(4, 2)).sum().backward()
        >>> float(model[0].weight.grad.abs().sum())
        0.0

    Args:
        model: any module.
        where: a path, a selector, a class of modules, a module of the model, or a sequence of these.
        interjection: a `ForwardInterjection`, `WrappedForwardInterjection` or `WrappedForwardBackwardInterjection`, or
            a function ``f(name, module, value)``. Modules and operations that it calls itself are not observed.
        example: arguments to run the model with once; see `byname.points`.
        attention: ``"explicit"`` runs attention step by step, so that its scores and pattern have places; see `attach`.

    Returns:
        A handle that removes or disables the interjection, and has the places.

    Raises:
        NotAnInterjectionError: `interjection` is something else; nothing was attached.
        NoMatchError: no place matches.
        InterjectionError: raised in the forward or backward if the returned value does not fit. An error that the
            interjection itself raises is not wrapped; the place is added as a note. The model stays usable.
    """
    checked = checked_interjection(interjection)
    both = _PutInBothWays(checked) if isinstance(checked, WrappedForwardBackwardInterjection) else None
    put_in, before = (_PutIn(checked), None) if both is None else (both, both.begins)
    put_in.handle = handle = attach(
        model, where, put_in, example=example, attention=attention, before=before, enabled=False
    )
    if both is not None:
        handle.add(both)
    return handle.switched(True)


_CALLED = ("module", "input")
"""The kinds of places that are calls of modules."""


class _PutIn:
    """The callback for an interjection: it calls that with a value, or a call, and checks the returned value."""

    handle: Handle

    def __init__(self, interjection: Interjection) -> None:
        self.label = label_of(interjection)
        self._process = process_of(interjection)
        self._wrapped = isinstance(interjection, WrappedForwardInterjection)

    def __call__(self, event: Event) -> Any:
        process, value, module = self._process, event.value, event.module if event.kind in _CALLED else None
        wrapped = self._wrapped
        new = process(event.path, module, event.inputs, value) if wrapped else process(event.path, module, value)
        if new is not None and new is not value:
            check_replacement(event.path, value, new)
        return new


class _PutInBothWays(_PutIn):
    """The callback for an interjection that also gets the gradients, while `wanted` is True."""

    def __init__(self, interjection: WrappedForwardBackwardInterjection) -> None:
        super().__init__(interjection)
        self._backward = interjection.process_backward
        self._lasting = LeafHooks()
        self.wanted = False

    def install(self) -> None:
        self.wanted = True

    def remove(self) -> None:
        """Stop reporting gradients, also those of graphs that exist already."""
        self.wanted = False
        self._lasting.remove()

    def begins(self, path: str, module: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return note_inputs((*inputs, *kwargs.values()) if kwargs else inputs)

    def __call__(self, event: Event) -> Any:
        self._await_gradients(event, event.module if event.kind == "module" else None)
        return super().__call__(event)

    def _await_gradients(self, event: Event, module: nn.Module | None) -> None:
        """Hook the graph for the gradients of a call, or for that of another value."""
        path, note = event.path, self.handle.note
        if torch._C._current_graph_task_id() != -1 and not event.recomputed:
            return note(f"`{path}` is itself a gradient: `process` gets it, and `process_backward` is not called")
        if not torch.is_grad_enabled():
            return None
        which = f" (call {event.call} of iteration {event.iteration})"

        def receive(inputs: Gradients, outputs: Gradients) -> Gradients | None:
            if not self.wanted:
                return None
            return gradients_from(self._backward, path, module, inputs, outputs, which)

        missed = partial(note, PlaceNote(path, MISSED))
        outputs = tensors_of(event.value)
        hooks: list[Followed | Removable | None]
        with defer_signals():  # a hook of a leaf that is not kept would never go
            if event.before is not None:
                hooks = [follow(event.before, outputs, receive, missed)]
            else:
                of_each = (partial(_alone, receive, number, len(outputs)) for number in range(len(outputs)))
                hooks = [on_gradient(tensor, hook, missed) for tensor, hook in zip(outputs, of_each, strict=True)]
            for hook in hooks:
                if hook is not None:
                    self._lasting.keep((path, event.call), hook)
        if not any(hooks):
            note(PlaceNote(path, NO_GRADIENT))
        return None


def _alone(receive: Callable[[Gradients, Gradients], object], number: int, of: int, gradient: Tensor) -> None:
    """Pass on the gradient of one of the tensors in a value that is not the output of a call."""
    receive((), tuple(gradient if one == number else None for one in range(of)))


@dynamo_skip
def note_inputs(inputs: Any) -> CallInputs | None:
    """Return the noted inputs of a call that begins, for `follow`; None without grad mode."""
    return note_arguments(tensors_of(inputs)) if torch.is_grad_enabled() else None


def gradients_from(
    process: Callable[..., Any],
    path: str,
    module: nn.Module | None,
    inputs: Gradients,
    outputs: Gradients,
    which: str = "",
) -> Gradients | None:
    """Return the replacements that a ``process_backward`` returns; an error gets a note with the place."""
    try:
        new = process(path, module, inputs, outputs)
        if new is not None:
            check_gradients(path, inputs, new)
    except Exception as error:
        note_on(error, f"byname: in the backward of `{path}`{which}")
        raise
    return None if new is None else tuple(new)


def tensors_of(value: Any) -> list[Tensor]:
    return [tensor for _, tensor in tensors_in(value)]


def label_of(interjection: Interjection) -> str:
    return getattr(interjection, "__name__", None) or type(interjection).__name__


def process_of(interjection: Interjection) -> Callable[..., Any]:
    """Return the function that an interjection runs for a value."""
    return interjection.process if isinstance(interjection, _KINDS) else interjection


class ForwardInterjection(ABC):
    """An interjection that gets the value at a place, and may replace it.

    >>> import torch, byname
    >>> class Clip(byname.ForwardInterjection):
    ...     def process(self, name, module, inputs):
    ...         return inputs.clamp(max=1)
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
    >>> with byname.interject(model, "1", Clip()):
    ...     bool((model(torch.full((1, 2), 100.)) <= 1).all())
    True
    """

    @abstractmethod
    def process(self, name: str, module: nn.Module | None, inputs: Any) -> Any:
        """Handle a value.

        Args:
            name: the place, without wildcards; one interjection may be at several places.
            module: the module that was called; None if the place is no call of a module.
            inputs: the value, such as the result of a call or the value of a variable.

        Returns:
            The replacement, of the same shape and structure; None keeps the value.
        """


class WrappedForwardInterjection(ABC):
    """An interjection that gets the inputs and the output of a call, and may replace the output.

    >>> import torch, byname
    >>> class Skip(byname.WrappedForwardInterjection):
    ...     def process(self, name, module, inputs, outputs):
    ...         return outputs + inputs[0]
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh())
    >>> x = torch.ones(1, 2)
    >>> plain = model[0](x)
    >>> with byname.interject(model, "0", Skip()):
    ...     torch.equal(model(x), torch.tanh(plain + x))
    True
    """

    @abstractmethod
    def process(self, name: str, module: nn.Module | None, inputs: tuple[Any, ...], outputs: Any) -> Any:
        """Handle a call.

        Args:
            name: the place.
            module: the module that was called; None if the place is no call of a module.
            inputs: the arguments of the call: the positional ones, then those given by keyword. A call that works in
                place has already changed them. Empty if the place is no call.
            outputs: the result of the call; for other places the value.

        Returns:
            The replacement of `outputs`, of the same shape and structure; None keeps it.
        """


class WrappedForwardBackwardInterjection(WrappedForwardInterjection):
    """An interjection that also gets the gradients of a call, and may replace those of its inputs.

    These are the contributions of this call alone, even if other calls use the same input. For the whole gradient of a
    value, interject at the place with ``.grad``.

    >>> import torch, byname
    >>> class Reverse(byname.WrappedForwardBackwardInterjection):
    ...     def process_backward(self, name, module, grad_input, grad_output):
    ...         return tuple(None if one is None else -one for one in grad_input)
    >>> model = torch.nn.Sequential(torch.nn.ReLU(inplace=True), torch.nn.Flatten())
    >>> x = torch.ones(1, 2, requires_grad=True)
    >>> with byname.interject(model, "0", Reverse()):
    ...     model(x * 1).sum().backward()
    >>> x.grad
    tensor([[-1., -1.]])
    """

    def process(self, name: str, module: nn.Module | None, inputs: tuple[Any, ...], outputs: Any) -> Any:
        """Handle a call, as in `WrappedForwardInterjection`; by default the output stays."""
        return None

    @abstractmethod
    def process_backward(
        self, name: str, module: nn.Module | None, grad_input: Gradients, grad_output: Gradients
    ) -> Gradients | None:
        """Handle the gradients of a call, once in each backward that reaches it.

        Args:
            name: the place.
            module: the module that was called; None if the place is no call of a module.
            grad_input: the contribution of the call to the gradient of each input tensor, in order, those in containers
                included; None if no gradient flows there. If a tensor was given twice, all of its gradient is at its
                first position. Empty if the place is no call.
            grad_output: the gradient of each tensor that the call returned. An input that is returned unchanged has
                only one gradient, that of the value as a whole.

        Returns:
            The replacement of `grad_input`: a tuple of the same length and shapes. None keeps all gradients, an item
            None keeps one.
        """


Interjection: TypeAlias = ForwardInterjection | WrappedForwardInterjection | Callable[[str, nn.Module | None, Any], Any]

_KINDS = (ForwardInterjection, WrappedForwardInterjection)


def checked_interjection(interjection: Any) -> Interjection:
    if isinstance(interjection, type):
        what = "an interjection" if issubclass(interjection, _KINDS) else "a class"
        raise NotAnInterjectionError(
            f"{interjection.__name__} is {what}, not an instance; did you mean {interjection.__name__}()?"
        )
    if isinstance(interjection, WrappedForwardInterjection):
        accepts(interjection.process, "process(self, name, module, inputs, outputs)", 4)
        if isinstance(interjection, WrappedForwardBackwardInterjection):
            signature = "process_backward(self, name, module, grad_input, grad_output)"
            accepts(interjection.process_backward, signature, 4)
    elif isinstance(interjection, ForwardInterjection):
        accepts(interjection.process, "process(self, name, module, inputs)", 3)
    elif callable(interjection):
        accepts(interjection, "f(name, module, value)", 3)
    else:
        raise NotAnInterjectionError(
            "an interjection is a function f(name, module, value) or an instance of ForwardInterjection, "
            f"WrappedForwardInterjection or WrappedForwardBackwardInterjection, not {type(interjection).__name__}"
        )
    checked: Interjection = interjection
    return checked


def accepts(function: Any, wanted: str, arguments: int, refusal: type[Exception] = NotAnInterjectionError) -> None:
    """Refuse a function that cannot be called with a number of positional arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a function in C may have no signature
        return
    try:
        signature.bind(*[None] * arguments)
    except TypeError as error:
        name = getattr(function, "__qualname__", type(function).__name__)
        raise refusal(f"{name}{signature} cannot be called as {wanted}: {error}") from None
