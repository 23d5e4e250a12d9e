"""Activation: one run of a rewritten function. Its code tells a `Run`, and that tells the receivers."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import Parameter

from byname.reading.quiet import DisableTorchFunction, dynamo_skip

__all__ = ["Activation", "Listener", "Receive", "Run", "version_of"]

Receive = Callable[["Activation", str, Any, str], Any]


@dataclass(slots=True, eq=False)
class Activation:
    """One run of a function (a frame), as one receiver sees it.

    Attributes:
        scope: ``""`` for the function listened to, ``"inner"`` for one nested in it.
        parent: the run of the function around it, for a nested one.
        memory: for the receiver; dropped with the frame.
    """

    scope: str = ""
    parent: Activation | None = None
    memory: dict[Any, Any] = field(default_factory=dict)


class Listener(Protocol):
    """Who listens: what a `Run` has to know of it."""

    active: bool
    exits: bool
    variables: frozenset[str]
    receive: Receive


class Run:
    """One run of a rewritten function that somebody listens to; a hidden local variable of its frame.

    It holds none of the variables' values. Nothing here is traced by ``torch.compile``: a compiled function is
    interrupted for it. A small model pays for every call in here, and there are several for each value.

    Attributes:
        exits: whether somebody wants to know the last values.
        known: the variables that are bound, and the version of each that is a tensor.
    """

    __slots__ = ("_listeners", "exits", "known")

    def __init__(self, listeners: Sequence[tuple[Listener, Activation]]) -> None:
        self._listeners = listeners
        self.exits = listeners[0][0].exits if len(listeners) == 1 else any(one.exits for one, _ in listeners)
        self.known: dict[str, tuple[weakref.ref[Any], int] | None] = {}

    @dynamo_skip
    def nested(self, scope: str) -> Run:
        """The run of a function defined in this one."""
        return Run([(listener, Activation(scope, activation)) for listener, activation in self._listeners])

    @dynamo_skip
    def tell(self, variable: str, value: Any, moment: str) -> Any:
        """Tells every receiver, in the order in which they came; gives back what the last of them made of the value."""
        for listener, activation in self._listeners:
            if listener.active and variable in listener.variables:
                value = listener.receive(activation, variable, value, moment)
        version = version_of(value)
        self.known[variable] = None if version is None else (weakref.ref(value), version)
        return value

    @dynamo_skip
    def show(self, variable: str, value: Any, moment: str) -> None:
        """Tells every receiver who wants to know, where nothing can be replaced."""
        for listener, activation in self._listeners:
            if listener.active and variable in listener.variables and (listener.exits or moment != "exit"):
                listener.receive(activation, variable, value, moment)

    @dynamo_skip
    def last(self, variable: str, value: Any, returned: Any) -> tuple[Any, Any]:
        """A change noticed on leaving; where the variable's value is what is returned, its replacement is returned."""
        new = self.tell(variable, value, "changed")
        return new, new if returned is value else returned

    @dynamo_skip
    def forget(self, variable: str) -> None:
        """The variable was deleted."""
        self.known.pop(variable, None)

    @dynamo_skip
    def has(self, variable: str) -> bool:
        """Whether the variable is bound."""
        return variable in self.known

    @dynamo_skip
    def has_moved(self, variable: str) -> bool:
        """Whether the variable's tensor was changed in place since it was last told."""
        known = self.known.get(variable)
        return known is not None and (tensor := known[0]()) is not None and version_of(tensor) != known[1]

    @dynamo_skip
    def moved(self) -> bool:
        """Whether that is so for any variable."""
        for known in tuple(self.known.values()):
            if known is not None and (tensor := known[0]()) is not None and version_of(tensor) != known[1]:
                return True
        return False


def version_of(value: Any) -> int | None:
    """How often a tensor was changed in place; None for what is no tensor, or keeps no count."""
    kind = type(value)
    plain = kind is Tensor or kind is Parameter
    if not plain and not issubclass(kind, Tensor):
        return None
    try:
        if plain and not _mode_is_on():  # then nobody's code runs for it, and the context takes longer than all else
            return value._version  # type: ignore[no-any-return]
        with DisableTorchFunction():
            return int(value._version)
    except RuntimeError:  # an inference tensor keeps no count
        return None


_mode_is_on: Callable[[], bool] = torch._C._is_torch_function_mode_enabled
