"""What happens while a function that is listened to runs? Its code tells a `Run`, and that tells the receivers."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from byname.quiet import eager, untouched

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
    variables: frozenset[str]
    receive: Receive


class Run:
    """One run of a rewritten function that somebody listens to; a hidden local variable of its frame.

    It knows which of the wanted variables are bound, and the version of each that is a tensor; it holds none of them.
    Nothing here is traced by ``torch.compile``: a compiled function is interrupted for it.
    """

    __slots__ = ("_known", "_listeners")

    def __init__(self, listeners: Sequence[tuple[Listener, Activation]]) -> None:
        self._listeners = listeners
        self._known: dict[str, tuple[weakref.ref[Any], int] | None] = {}

    @eager
    def nested(self, scope: str) -> Run:
        """The run of a function defined in this one."""
        return Run([(listener, Activation(scope, activation)) for listener, activation in self._listeners])

    @eager
    def tell(self, variable: str, value: Any, moment: str) -> Any:
        """Tells every receiver, in the order in which they came; gives back what the last of them made of the value."""
        for listener, activation in self._listeners:
            if listener.active and variable in listener.variables:
                value = listener.receive(activation, variable, value, moment)
        self._known[variable] = _state(value)
        return value

    def show(self, variable: str, value: Any, moment: str) -> None:
        """Tells every receiver, where nothing can be replaced."""
        for listener, activation in self._listeners:
            if listener.active and variable in listener.variables:
                listener.receive(activation, variable, value, moment)

    @eager
    def last(self, variable: str, value: Any, returned: Any) -> tuple[Any, Any]:
        """A change noticed on leaving; where the variable's value is what is returned, its replacement is returned."""
        new = self.tell(variable, value, "changed")
        return new, new if returned is value else returned

    @eager
    def forget(self, variable: str) -> None:
        """The variable was deleted."""
        self._known.pop(variable, None)

    @eager
    def has(self, variable: str) -> bool:
        """Whether the variable is bound."""
        return variable in self._known

    @eager
    def has_moved(self, variable: str) -> bool:
        """Whether the variable's tensor was changed in place since it was last told."""
        known = self._known.get(variable)
        if known is None:
            return False
        tensor = known[0]()
        return tensor is not None and version_of(tensor) != known[1]

    @eager
    def moved(self) -> bool:
        """Whether that is so for any variable."""
        return any(map(self.has_moved, tuple(self._known)))


def _state(value: Any) -> tuple[weakref.ref[Any], int] | None:
    version = version_of(value)
    return None if version is None else (weakref.ref(value), version)


def version_of(value: Any) -> int | None:
    """How often a tensor was changed in place; None for what is no tensor, or keeps no count."""
    kind = type(value)
    if kind is not torch.Tensor and not issubclass(kind, torch.Tensor):
        return None
    try:
        with untouched():
            return int(value._version)
    except RuntimeError:  # an inference tensor keeps no count
        return None
