"""What can be put in at a place of a model? Three kinds of interjection, and plain functions."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias

from torch import Tensor, nn

from byname.errors import NotAnInterjectionError

__all__ = [
    "ForwardInterjection",
    "Interjection",
    "WrappedForwardBackwardInterjection",
    "WrappedForwardInterjection",
    "checked_interjection",
]

Gradients: TypeAlias = tuple[Tensor | None, ...]


class ForwardInterjection(ABC):
    """Is given the value at a place, and may put another there.

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
        """Looks at a value.

        Args:
            name: the place, without wildcards: one interjection may be at several.
            module: the module that was called; None where the place is no call of a module.
            inputs: the value: what the call returned, what a variable holds.

        Returns:
            What takes the value's place, of the same shape and structure; None keeps it.
        """


class WrappedForwardInterjection(ABC):
    """Is given what goes into a call and what comes out, and may change the latter.

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
        """Looks at a call.

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
    """Is given the gradients of a call as well, and may change those that it passes back.

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
        """Looks at a call, as in `WrappedForwardInterjection`; keeps what it returned unless overridden."""
        return None

    @abstractmethod
    def process_backward(
        self, name: str, module: nn.Module | None, grad_input: Gradients, grad_output: Gradients
    ) -> Gradients | None:
        """Looks at a call's gradients, once in each backward that passes through it.

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
    """The interjection, if it is one.

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
