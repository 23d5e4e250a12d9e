"""Activation: one run of a rewritten function. Its code reports to a `Run`, which calls the receivers."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import Parameter

from byname.reading.quiet import DisableTorchFunction, dynamo_skip

Receive = Callable[["Activation", str, Any, str], Any]


@dataclass(slots=True, eq=False)
class Activation:
    """One run of a function (a frame), for one receiver.

    Attributes:
        scope: ``""`` for the observed function, ``"inner"`` for a function ``inner`` nested in it.
        parent: for a nested function, the activation of the function around it.
        memory: a dict for the receiver; freed with the frame.
    """

    scope: str = ""
    parent: Activation | None = None
    memory: dict[Any, Any] = field(default_factory=dict)


class RunListener(Protocol):
    """The attributes of `subscribe.Listening` that a `Run` uses."""

    active: bool
    exits: bool
    variables: frozenset[str]
    receive: Receive


class Run:
    """One observed run of a rewritten function; a hidden local variable of its frame.

    It holds no value of a variable. ``torch.compile`` traces nothing here: it breaks the graph at these calls. The
    methods are short because each value costs several of their calls, which small models notice.

    Args:
        listeners: the receivers, each with its activation.

    Attributes:
        exits: whether a receiver wants the last values.
        known: the bound variables, with a weak reference and the version of each tensor; None for another value.
    """

    __slots__ = ("_listeners", "exits", "known")

    def __init__(self, listeners: Sequence[tuple[RunListener, Activation]]) -> None:
        self._listeners = listeners
        self.exits = listeners[0][0].exits if len(listeners) == 1 else any(one.exits for one, _ in listeners)
        self.known: dict[str, tuple[weakref.ref[Any], int] | None] = {}

    @dynamo_skip
    def nested(self, scope: str) -> Run:
        """Return the run of a function that is defined in this one."""
        return Run([(listener, Activation(scope, activation)) for listener, activation in self._listeners])

    @dynamo_skip
    def tell(self, variable: str, value: Any, moment: str) -> Any:
        """Call the receivers of a variable, in order; return the value that the last one returned."""
        for listener, activation in self._listeners:
            if listener.active and variable in listener.variables:
                value = listener.receive(activation, variable, value, moment)
        version = version_of(value)
        self.known[variable] = None if version is None else (weakref.ref(value), version)
        return value

    @dynamo_skip
    def show(self, variable: str, value: Any, moment: str) -> None:
        """Call the receivers of a variable that cannot be replaced any more."""
        for listener, activation in self._listeners:
            if listener.active and variable in listener.variables and (listener.exits or moment != "exit"):
                listener.receive(activation, variable, value, moment)

    @dynamo_skip
    def last(self, variable: str, value: Any, returned: Any) -> tuple[Any, Any]:
        """Report a variable whose tensor changed in place before a return; return its value and the return value.

        If the function returns this very tensor, a replacement is returned instead.
        """
        new = self.tell(variable, value, "changed")
        return new, new if returned is value else returned

    @dynamo_skip
    def forget(self, variable: str) -> None:
        """Note that a variable was deleted."""
        self.known.pop(variable, None)

    @dynamo_skip
    def has(self, variable: str) -> bool:
        """Return whether a variable is bound."""
        return variable in self.known

    @dynamo_skip
    def has_moved(self, variable: str) -> bool:
        """Return whether the tensor of a variable was changed in place since it was last reported."""
        known = self.known.get(variable)
        return known is not None and (tensor := known[0]()) is not None and version_of(tensor) != known[1]

    @dynamo_skip
    def moved(self) -> bool:
        """Return whether the tensor of any variable was changed in place since it was last reported."""
        for known in tuple(self.known.values()):
            if known is not None and (tensor := known[0]()) is not None and version_of(tensor) != known[1]:
                return True
        return False


def version_of(value: Any) -> int | None:
    """Return the version of a tensor, the number of its in-place changes; None for a value without a version."""
    kind = type(value)
    plain = kind is Tensor or kind is Parameter
    if not plain and not issubclass(kind, Tensor):
        return None
    try:
        if plain and not _mode_is_on():  # no user code runs for it, and the context manager would take most of the time
            return value._version  # type: ignore[no-any-return]
        with DisableTorchFunction():
            return int(value._version)
    except RuntimeError:  # an inference tensor has no version
        return None


_mode_is_on: Callable[[], bool] = torch._C._is_torch_function_mode_enabled
