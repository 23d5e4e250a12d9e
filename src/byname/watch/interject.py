"""Interject: code that runs at any place of a model, and reads or replaces the value there."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from byname.errors import NotAnInterjectionError
from byname.model.items import tensors_in
from byname.text import note_on
from byname.watch.attach import attach
from byname.watch.attachment import Event
from byname.watch.call_gradients import Followed, Gradients, before, follow
from byname.watch.handle import Handle
from byname.watch.replacement import same_gradients, same_kind
from byname.watch.value_gradients import Removable, missed_at, on_gradient, without_superseded

__all__ = [
    "ForwardInterjection",
    "Interjection",
    "WrappedForwardBackwardInterjection",
    "WrappedForwardInterjection",
    "checked_interjection",
    "interject",
]


def interject(
    model: nn.Module, where: Any, interjection: Interjection, *, example: Any = None, attention: str | None = None
) -> Handle:
    """Run an interjection at places of a model. The model stays the same object.

    Several interjections at one place run in the order in which they were put in; each sees what those before it have
    made of the value.

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

        What is returned takes the value's place, here of a gradient:

        >>> with byname.interject(model, "0.grad", lambda name, module, gradient: gradient * 0):
        ...     model(torch.ones(4, 2)).sum().backward()
        >>> float(model[0].weight.grad.abs().sum())
        0.0

    Args:
        model: any module.
        where: a path, a selector, a class of modules, a module of the model, or a sequence of these.
        interjection: a `ForwardInterjection`, `WrappedForwardInterjection` or `WrappedForwardBackwardInterjection`, or
            a function ``f(name, module, value)``. What it calls itself, be it of PyTorch or of the model, is not heard.
        example: arguments to run the model with once; see `byname.points`.
        attention: ``"explicit"`` runs attention step by step, so that its scores and pattern have places; see `attach`.

    Returns:
        A handle that removes it, disables it, and tells the places.

    Raises:
        NotAnInterjectionError: if it is something else, before anything is put in.
        NoMatchError: if no place matches.
        InterjectionError: in the forward or backward, if what it returns cannot take the value's place. An error of the
            interjection itself comes out as it is, with the place added as a note; the model stays usable.
    """
    put_in = _put_in(checked_interjection(interjection))
    begins = put_in.begins if isinstance(put_in, _PutInBothWays) else None
    put_in.handle = handle = attach(
        model, where, put_in, example=example, attention=attention, before=begins, enabled=False
    )
    if isinstance(put_in, _PutInBothWays):
        handle.add(put_in)
    return handle.switched(True)


_CALLED = ("module", "input")
"""Kinds of places at calls of modules."""


class _PutIn:
    """The callback for a function: it calls the function with a value, and checks what the function returns.

    Args:
        interjection: what was put in.
        process: the function.

    Attributes:
        handle: the handle of the attachment.
        label: what the interjection calls itself.
    """

    handle: Handle

    def __init__(self, interjection: Interjection, process: Callable[..., Any]) -> None:
        self.label = getattr(interjection, "__name__", None) or type(interjection).__name__
        self._process = process

    def __call__(self, event: Event) -> Any:
        """Handle a value."""
        process, value = self._process, event.value
        new = process(event.path, event.module if event.kind in _CALLED else None, value)
        if new is not None and new is not value:
            same_kind(event.path, value, new)
        return new


class _PutInWrapped(_PutIn):
    """The callback for an interjection that also gets the inputs of a call."""

    def __call__(self, event: Event) -> Any:
        process, value = self._process, event.value
        new = process(event.path, event.module if event.kind in _CALLED else None, event.inputs, value)
        if new is not None and new is not value:
            same_kind(event.path, value, new)
        return new


class _PutInBothWays(_PutInWrapped):
    """The callback for an interjection that also gets the gradients.

    Args:
        backward: the function that is given them.

    Attributes:
        wanted: whether gradients are to be told.
    """

    def __init__(self, interjection: Interjection, process: Callable[..., Any], backward: Callable[..., Any]) -> None:
        super().__init__(interjection, process)
        self._backward = backward
        self._lasting: dict[tuple[str, int], list[Followed | Removable]] = {}
        self.wanted = False

    def install(self) -> None:
        """Begin to report gradients."""
        self.wanted = True

    def remove(self) -> None:
        """Stop reporting gradients, also those of graphs that exist already."""
        self.wanted = False
        for hooks in self._lasting.values():
            for hook in hooks:
                hook.remove()
        self._lasting.clear()

    def begins(self, path: str, module: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Note the inputs of a call."""
        if torch.is_grad_enabled():
            return before(_tensors((*inputs, *kwargs.values()) if kwargs else inputs))
        return None

    def __call__(self, event: Event) -> Any:
        self._await_gradients(event, event.module if event.kind == "module" else None)
        return super().__call__(event)

    def _await_gradients(self, event: Event, module: nn.Module | None) -> None:
        """Wait for the gradients of a call, or for that of another value."""
        if torch._C._current_graph_task_id() != -1 and not event.recomputed:
            self.handle.note(
                f"`{event.path}` is itself a gradient: `process` is given it, `process_backward` is not called"
            )
            return
        if not torch.is_grad_enabled():
            return
        outputs = _tensors(event.value)
        receive = _Gradients(self, event, module, self._backward)
        key = (event.path, event.call)
        hooks: list[Followed | Removable | None]
        if event.before is not None:
            hooks = [follow(event.before, outputs, receive, receive.missed)]
        else:
            hooks = [
                on_gradient(tensor, receive.of_value(number, len(outputs)), receive.missed)
                for number, tensor in enumerate(outputs)
            ]
        if not any(hooks):
            self.handle.note(f"`{event.path}`: no gradient flows there, the value does not require one")
        for hook in hooks:
            if hook is not None and hook.lasting:
                self._lasting[key] = [*without_superseded(self._lasting.get(key, ()), hook), hook]


class _Gradients:
    """The receiver of the gradients at one place in one call."""

    def __init__(
        self, owner: _PutInBothWays, event: Event, module: nn.Module | None, process: Callable[..., Any]
    ) -> None:
        self._owner = owner
        self._path = event.path
        self._module = module
        self._which = f"call {event.call} of iteration {event.iteration}"
        self._process = process

    def __call__(self, inputs: Gradients, outputs: Gradients) -> Gradients | None:
        if not self._owner.wanted:
            return None
        try:
            new = self._process(self._path, self._module, inputs, outputs)
            if new is not None:
                same_gradients(self._path, inputs, new)
        except Exception as error:
            note_on(error, f"byname: in the backward of `{self._path}` ({self._which})")
            raise
        return None if new is None else tuple(new)

    def missed(self) -> None:
        """Note that a gradient was out of reach."""
        self._owner.handle.note(missed_at(self._path))

    def of_value(self, number: int, of: int) -> Callable[[Tensor], None]:
        """Return the receiver of the gradient of one tensor in a value that is not the output of a call."""

        def receive(gradient: Tensor) -> None:
            self((), tuple(gradient if one == number else None for one in range(of)))

        return receive


def _tensors(value: Any) -> list[Tensor]:
    """Return the tensors in a value; a tensor and a tuple of tensors, the usual cases, are fast."""
    if type(value) is Tensor:
        return [value]
    if type(value) is tuple and all(type(one) is Tensor for one in value):
        return [*value]
    return [tensor for _, tensor in tensors_in(value)]


def _put_in(interjection: Interjection) -> _PutIn:
    """Return the callback for `attach`, by the kind of interjection."""
    if isinstance(interjection, WrappedForwardBackwardInterjection):
        return _PutInBothWays(interjection, interjection.process, interjection.process_backward)
    if isinstance(interjection, WrappedForwardInterjection):
        return _PutInWrapped(interjection, interjection.process)
    return _PutIn(interjection, interjection.process if isinstance(interjection, ForwardInterjection) else interjection)


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
            name: the place, without wildcards: one interjection may be at several.
            module: the module that was called; None where the place is no call of a module.
            inputs: the value: what the call returned, what a variable holds.

        Returns:
            What takes the value's place, of the same shape and structure; None keeps it.
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
            module: the module that was called; None where the place is no call of a module.
            inputs: what the call was given: positional arguments, then those given by keyword. A call that works in
                place has changed them by now. Empty where the place is no call.
            outputs: what it returned; for other places the value.

        Returns:
            What takes the place of `outputs`, of the same shape and structure; None keeps it.
        """


class WrappedForwardBackwardInterjection(WrappedForwardInterjection):
    """An interjection that also gets the gradients of a call, and may replace those of its inputs.

    They are this call's own: what it adds to the gradient of an input that other calls use, too. For the whole gradient
    of a value interject at the place's ``.grad``.

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
        """Handle a call's gradients, once in each backward that reaches it.

        Args:
            name: the place.
            module: the module that was called; None where the place is no call of a module.
            grad_input: the call's own gradient of each tensor that went in, those in containers too, in order; None
                where nothing flows. A tensor that went in twice has it all in the first position. Empty where the place
                is no call.
            grad_output: what came to each tensor that the call returned. Of an input that is returned as it is there is
                only one gradient, the whole one of that value.

        Returns:
            What takes the place of `grad_input`: a tuple as long, of the same shapes; None keeps all of it, None in one
            position keeps that one.
        """


Interjection: TypeAlias = ForwardInterjection | WrappedForwardInterjection | Callable[[str, nn.Module | None, Any], Any]

_KINDS = (ForwardInterjection, WrappedForwardInterjection)


def checked_interjection(interjection: Any) -> Interjection:
    """Return the interjection, if it is one.

    Raises:
        NotAnInterjectionError: if it is something else, or cannot be called with what it would be given.
    """
    if isinstance(interjection, type):
        what = "an interjection" if issubclass(interjection, _KINDS) else "a class"
        raise NotAnInterjectionError(
            f"{interjection.__name__} is {what}, not an instance; did you mean {interjection.__name__}()?"
        )
    if isinstance(interjection, WrappedForwardInterjection):
        _accepts(interjection.process, "process(self, name, module, inputs, outputs)", 4)
        if isinstance(interjection, WrappedForwardBackwardInterjection):
            signature = "process_backward(self, name, module, grad_input, grad_output)"
            _accepts(interjection.process_backward, signature, 4)
    elif isinstance(interjection, ForwardInterjection):
        _accepts(interjection.process, "process(self, name, module, inputs)", 3)
    elif callable(interjection):
        _accepts(interjection, "f(name, module, value)", 3)
    else:
        raise NotAnInterjectionError(
            "an interjection is a function f(name, module, value) or an instance of ForwardInterjection, "
            f"WrappedForwardInterjection or WrappedForwardBackwardInterjection, not {type(interjection).__name__}"
        )
    checked: Interjection = interjection
    return checked


def _accepts(function: Callable[..., Any], wanted: str, arguments: int) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # what is written in C may not tell
        return
    try:
        signature.bind(*[None] * arguments)
    except TypeError as error:
        name = getattr(function, "__qualname__", type(function).__name__)
        raise NotAnInterjectionError(f"{name}{signature} cannot be called as {wanted}: {error}") from None
