"""Assigned: the local variables that an attachment observes, through subscriptions to their functions."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from torch import nn

from byname.errors import BadArgumentError, InterjectionError, NoMatchError
from byname.model.called_functions import code_of_place
from byname.model.items import Segments, put
from byname.model.methods import method_of
from byname.model.spot import Spot
from byname.reading.tensor import is_tensor
from byname.table import counted
from byname.undo import Undo
from byname.watch.attachment import Running
from byname.watch.delivery import Deliver
from byname.watch.variables.activation import Activation, Receive, version_of
from byname.watch.variables.subscribe import Listening

_NEW = ("entry", "assigned", "returned")


class Assigned:
    """The local variables, arguments and return values that one attachment observes.

    Args:
        running: the attachment.
        spots: the places, each with the function that reports its values.
    """

    def __init__(self, running: Running, spots: Sequence[tuple[Spot, Deliver]]) -> None:
        self._running = running
        self._changes = _Changes(running)
        self._listenings: list[Listening] = []
        self._receiving: list[_Received] = []
        self._wanted: dict[tuple[int, str], tuple[nn.Module, str, dict[str, list[_Receiver]]]] = {}
        for spot, deliver in spots:
            key = (id(spot.module), spot.method)
            _, _, receivers = self._wanted.setdefault(key, (spot.module, spot.method, {}))
            make = _Receiver if spot.nth is None else _OneAssignment
            receivers.setdefault(spot.name, []).append(make(spot, deliver, self._changes))

    def install(self) -> None:
        """Subscribe to the functions.

        Raises:
            NoMatchError: a module no longer has the function.
            BadArgumentError: the variables of a function cannot be read.
        """
        for module, method, receivers in self._wanted.values():
            function = code_of_place(module, method)
            if function is None:
                raise NoMatchError(f"`{method}` of {type(module).__name__} is no Python function any more")
            received = _Received(receivers)
            self._receiving.append(received)
            exits = any(one.at_exit for found in receivers.values() for one in found)
            listening = Listening(
                function,
                module,
                [*receivers],
                _while_held(received),
                order=self._running.order,
                exits=exits,
                by_caller=method_of(module, method) is None,
            )
            self._listenings.append(listening)
            listening.begin()
            received.replaces = listening.replaces
            if not listening.replaces:
                self._running.notes.setdefault(
                    f"the source of `{type(module).__qualname__}.{method}` cannot be read: its variables are seen, "
                    "and cannot be changed"
                )

    def remove(self) -> None:
        """Remove the subscriptions, and note functions that somebody else has replaced meanwhile."""
        undo = Undo()
        for one in self._listenings:
            undo.add(one.remove)
        undo()
        self.look()
        for (module, method, _), one, received in zip(
            self._wanted.values(), self._listenings, self._receiving, strict=False
        ):
            if received.ran:
                self._look_at(module, method, one)
        self._listenings.clear()
        self._receiving.clear()

    def look(self) -> None:
        """Note the functions whose code somebody else has replaced: they report nothing since."""
        for one in {one.function: one for one in self._listenings}.values():
            self._running.notes.update(dict.fromkeys(one.notes))

    def _look_at(self, module: nn.Module, method: str, listening: Listening) -> None:
        """Note a method that somebody else has replaced by another function."""
        try:
            now = code_of_place(module, method)
        except BadArgumentError:  # it has no Python code
            now = None
        if now is not listening.function:
            self._running.notes.setdefault(
                f"`{method}` of {type(module).__qualname__} was replaced by somebody else meanwhile, and the other "
                "function tells of no variables"
            )


class _Changes:
    """Notes variables that were changed several times in one call: the user may have meant an argument only."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._notes: dict[str, tuple[int, str]] = {}

    def of(self, activation: Activation, path: str, moment: str, old: Any, version: int | None, new: Any) -> None:
        """Count a change, if the callback has replaced a value or changed it in place.

        Args:
            activation: the call in which the value was reported.
            path: the place.
            moment: the moment of the report; ``entry`` for the value of an argument.
            old: the value.
            version: the version of its tensor before the callback.
            new: the value that the callback returned.
        """
        if new is old and version == version_of(old):
            return
        count, entered = activation.memory.get(path, (0, False))
        count, entered = activation.memory[path] = count + 1, entered or moment == "entry"
        most, before = self._notes.get(path, (1, ""))
        if count > most:
            self._running.notes.pop(before, None)
            self._notes[path] = count, _changed_again(path, count, entered)
            self._running.notes.setdefault(self._notes[path][1])


def _changed_again(path: str, count: int, entered: bool) -> str:
    told = f"`{path}` was changed {count} times in one call, "
    each_time = "each time it was assigned or changed in place"
    if not entered:
        return told + each_time
    return (
        f"{told}as it came in, and {each_time}; to change what comes in and nothing else, change what the module is "
        "called with (`register_forward_pre_hook`), or use `byname.watch.attach`, whose `event.call` counts them"
    )


class _Receiver:
    """Reports the values of a variable at one place.

    Args:
        spot: the place.
        deliver: the function that reports its values.
        changes: counts the changes.

    Attributes:
        at_exit: whether the last value has to be reported to it.
    """

    def __init__(self, spot: Spot, deliver: Deliver, changes: _Changes) -> None:
        self.spot = spot
        self.at_exit = bool(spot.items)
        self.deliver = deliver
        self._changes = changes

    def __call__(self, activation: Activation, value: Any, moment: str) -> Any:
        if not self.spot.items:
            return value if moment == "exit" else self.whole(activation, value, moment)
        last: dict[Any, Any] = activation.memory.setdefault(self, {})
        found = [
            (segments, one)
            for segments, one in self.deliver.found(value)  # type: ignore[attr-defined]
            if moment in _NEW or _differs(last.get(segments), one)
        ]
        for segments, one in found:
            value = self._item(activation, value, segments, one, moment)
        for segments, one in self.deliver.found(value):  # type: ignore[attr-defined]
            last[segments] = _seen(one)
        return value

    def whole(self, activation: Activation, value: Any, moment: str) -> Any:
        version = version_of(value)
        new = self.deliver(value)
        self._changes.of(activation, self.spot.full, moment, value, version, new)
        return new

    def _item(self, activation: Activation, value: Any, segments: Segments, one: Any, moment: str) -> Any:
        version = version_of(one)
        new = self.deliver.item(segments, one)  # type: ignore[attr-defined]
        self._changes.of(activation, self.spot.of_item(segments), moment, one, version, new)
        return value if new is one else put(value, segments, new)


class _OneAssignment(_Receiver):
    """Reports one assignment of a variable in each call; the value of an argument, or the first assignment, is 0."""

    def __init__(self, spot: Spot, deliver: Deliver, changes: _Changes) -> None:
        super().__init__(spot, deliver, changes)
        self.at_exit = True
        self._come = False

    def __call__(self, activation: Activation, value: Any, moment: str) -> Any:
        count = activation.memory.get(self, 0)
        if moment in _NEW:
            activation.memory[self] = count + 1
            if count == self.spot.nth:
                self._come = True
                return self._pass_on(activation, value, moment)
        elif moment == "exit":
            if self.spot.nth == -1:
                self._show_last(activation, value)
            elif self.spot.alone and not self._come:
                raise NoMatchError(_assigned_so_often(self.spot, count))
        return value

    def _pass_on(self, activation: Activation, value: Any, moment: str) -> Any:
        if not self.spot.items:
            return self.whole(activation, value, moment)
        for segments, one in self.deliver.found(value):  # type: ignore[attr-defined]
            value = self._item(activation, value, segments, one, moment)
        return value

    def _show_last(self, activation: Activation, value: Any) -> None:
        version = version_of(value)
        if self._pass_on(activation, value, "exit") is not value or version_of(value) != version:
            raise InterjectionError(
                f"`{self.spot.full}` cannot be changed: which assignment is the last is known when the function has "
                "ended. Change one by its number, from `@0`, or every one, without `@`"
            )


def _assigned_so_often(spot: Spot, count: int) -> str:
    return (
        f"`{spot.full}`: `{spot.name}` was assigned {counted(count, 'time')} in this call; the first of them is `@0`, "
        "and `@-1` is the last, however many there are"
    )


def _while_held(receive: Receive) -> Receive:
    """Return a receiver that holds this one weakly, so that the code in the class does not keep the model alive."""
    held = weakref.ref(receive)

    def receive_held(activation: Activation, variable: str, value: Any, moment: str) -> Any:
        receive = held()
        return value if receive is None else receive(activation, variable, value, moment)

    return receive_held


class _Received:
    """The receiver of the variables of one method; it calls those of the places.

    Args:
        receivers: the receivers of the places, by the name of the variable.

    Attributes:
        replaces: whether a returned value replaces the value of the variable.
        ran: whether anything was reported.
    """

    def __init__(self, receivers: dict[str, list[_Receiver]]) -> None:
        self._receivers = receivers
        self._whole = {
            variable: found[0].whole
            for variable, found in receivers.items()
            if len(found) == 1 and not found[0].at_exit
        }
        self.replaces = True
        self.ran = False

    def __call__(self, activation: Activation, variable: str, value: Any, moment: str) -> Any:
        self.ran = True
        deliver = self._whole.get(variable)
        if deliver is not None and self.replaces and moment != "exit":  # the most frequent case
            return deliver(activation, value, moment)
        new = value
        for receiver in self._receivers[variable]:
            new = receiver(activation, new, moment)
        if new is not value and not self.replaces:
            raise InterjectionError(
                f"`{self._receivers[variable][0].spot.full}`: another value was returned for it, and cannot be put "
                "there, since the source of the method cannot be read; operations and modules can be changed instead"
            )
        return new


def _seen(value: Any) -> Any:
    """Return a key to compare an item with later; it does not keep the item alive."""
    if is_tensor(value):
        return weakref.ref(value), _version(value)
    try:
        return weakref.ref(value), 0
    except TypeError:  # no weak references; a number or a string is compared by value
        return (value, 0) if isinstance(value, int | float | complex | str | bytes | None) else (type(value), id(value))


def _version(value: Any) -> int:
    """Return the version of a tensor; 0 for another value and for a tensor made under ``inference_mode``."""
    return value._version if is_tensor(value) and not value.is_inference() else 0


def _differs(seen: Any, value: Any) -> bool:
    if seen is None:
        return True
    held, version = seen
    if isinstance(held, weakref.ref):
        return held() is not value or _version(value) != version
    now = _seen(value)
    return bool(type(now[0]) is not type(held) or now != seen)
