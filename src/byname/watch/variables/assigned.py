"""Assigned: the local variables that an attachment observes, through subscriptions to their functions."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn

from byname.errors import BadArgumentError, InterjectionError, NoMatchError
from byname.model.called_functions import function_at
from byname.model.items import replace_item
from byname.model.methods import method_of
from byname.place import Segments
from byname.reading.tensor import version_of
from byname.table import counted
from byname.watch.attachment import Attachment
from byname.watch.delivery import ReportedPlace
from byname.watch.handle import remove_all
from byname.watch.variables.subscribe import Run, Subscription

_NEW = ("entry", "assigned", "returned")


class VariableHooks:
    """The local variables, arguments and return values that one attachment observes."""

    def __init__(self, attachment: Attachment, places: Sequence[ReportedPlace]) -> None:
        self._attachment = attachment
        self._listenings: list[Subscription] = []
        self._functions: dict[tuple[int, str], _VariableReporter] = {}
        for place in places:
            key = id(place.module), place.spot.method
            if key not in self._functions:
                self._functions[key] = _VariableReporter(attachment, place.module, place.spot.method)
            self._functions[key].add(place)

    def install(self) -> None:
        for one in self._functions.values():
            module, method = one.module, one.method
            function = function_at(module, method)
            if function is None:
                raise NoMatchError(f"`{method}` of {type(module).__name__} is no longer a Python function")
            subscription = Subscription(
                function,
                module,
                [*one.places],
                weakref.ref(one),  # so that the code in the class does not keep the model alive
                order=self._attachment.order,
                exits=one.at_exit,
                items=one.of_items,
                by_caller=method_of(module, method) is None,
            )
            self._listenings.append(subscription)
            subscription.begin()
            one.begin(replaces=subscription.replaces)
            if not (subscription.replaces or self._attachment.reads):
                self._attachment.notes.setdefault(
                    f"the source of `{type(module).__qualname__}.{method}` cannot be read: its variables are observed, "
                    "but cannot be changed"
                )

    def remove(self) -> None:
        """Remove the subscriptions, and note functions that other code has replaced meanwhile."""
        remove_all(self._listenings)
        self.look()
        for one, subscription in zip(self._functions.values(), self._listenings, strict=False):
            if subscription.ran:
                self._look_at(one.module, one.method, subscription)
        self._listenings.clear()

    def look(self) -> None:
        """Note the functions whose code was replaced by other code: they report nothing since."""
        for one in {one.function: one for one in self._listenings}.values():
            self._attachment.notes.update(dict.fromkeys(one.notes))

    def _look_at(self, module: nn.Module, method: str, subscription: Subscription) -> None:
        """Note a method that other code has replaced by another function."""
        try:
            now = function_at(module, method)
        except BadArgumentError:  # it has no Python code
            now = None
        if now is not subscription.function:
            self._attachment.notes.setdefault(
                f"other code replaced `{method}` of {type(module).__qualname__}; its variables are no longer reported"
            )


def _changed_again(path: str, count: int, entered: bool) -> str:
    changed = f"`{path}` was changed {count} times in one call, "
    each_time = "each time it was assigned or changed in place"
    if not entered:
        return changed + each_time
    return (
        f"{changed}on entry, and {each_time}; to change only the argument, change what the module is called with "
        "(`register_forward_pre_hook`), or use `byname.attach`, whose `event.call` counts the values"
    )


class _VariableReporter:
    """The receiver of the variables of one function; it reports them at their places.

    Attributes:
        at_exit, of_items: whether the last values have to be reported, and whether items are asked for.
        reports: see `FunctionReceiver`.
    """

    def __init__(self, attachment: Attachment, module: nn.Module, method: str) -> None:
        self.module = module
        self.method = method
        self.places: dict[str, list[ReportedPlace]] = {}
        self.at_exit = self.of_items = False
        self.reports: Mapping[str, Callable[[Any], Any]] = {}
        self._attachment = attachment
        self._changes: dict[str, tuple[int, str]] = {}
        self._replaces = True
        self._reached: set[ReportedPlace] = set()

    def add(self, place: ReportedPlace) -> None:
        self.places.setdefault(place.spot.name, []).append(place)
        self.of_items = self.of_items or bool(place.spot.items)
        self.at_exit = self.at_exit or self.of_items or place.spot.nth is not None

    def begin(self, *, replaces: bool) -> None:
        """Begin to receive; `replaces` is whether a returned value replaces the value of the variable."""
        self._replaces = replaces
        self.reports = {
            variable: partial(place.report, None, (), None)
            for variable, [place, *others] in self.places.items()
            if replaces and not (others or place.spot.items) and place.spot.nth is None
        }

    def changed(self, run: Run, variable: str, moment: str) -> None:
        """Note that the callback has replaced a value, or changed it in place."""
        self._note_change(run, self.places[variable][0].path, moment)

    def _note_change(self, run: Run, path: str, moment: str) -> None:
        """Note a variable that was changed several times in one call: the user may have meant an argument only."""
        count, entered = run.memory.get((self, path), (0, False))
        count, entered = run.memory[self, path] = count + 1, entered or moment == "entry"
        most, before = self._changes.get(path, (1, ""))
        if count > most:
            self._attachment.notes.pop(before, None)
            self._changes[path] = count, _changed_again(path, count, entered)
            self._attachment.notes.setdefault(self._changes[path][1])

    def receive(self, run: Run, variable: str, value: Any, moment: str) -> Any:
        """Report a value at each of its places; return what replaces it."""
        new, places = value, self.places[variable]
        for place in places:
            new = self._reported(place, run, new, moment)
        if new is not value and not self._replaces:
            raise InterjectionError(
                f"`{places[0].path}` cannot be changed, since the source of its method cannot be "
                "read; change an operation or a module instead"
            )
        return new

    def _reported(self, place: ReportedPlace, run: Run, value: Any, moment: str) -> Any:
        nth, version = place.spot.nth, version_of(value)
        if nth is None and not place.spot.items and (moment == "exit" or (moment == "changed" and version is None)):
            return value
        if nth is not None and not self._is_nth(place, run, moment, nth):
            return value
        new = self._items(place, run, value, moment) if place.spot.items else self._report(place, run, value, moment)
        if nth == -1 and (new is not value or version_of(value) != version):
            raise InterjectionError(_LAST.format(place.path))
        return new

    def _is_nth(self, place: ReportedPlace, run: Run, moment: str, nth: int) -> bool:
        """Return whether this is the assignment that is meant; that of an argument, or the first one, is 0."""
        count = run.memory.get(place, 0)
        if moment in _NEW:
            run.memory[place] = count + 1
            if count == nth:
                self._reached.add(place)
            return bool(count == nth)
        if moment == "exit" and nth != -1 and place.spot.exact and place not in self._reached:
            raise NoMatchError(
                f"`{place.path}`: `{place.spot.name}` was assigned {counted(count, 'time')} in this call; the first "
                "is `@0`, and the last is always `@-1`"
            )
        return moment == "exit" and nth == -1

    def _items(self, place: Any, run: Run, value: Any, moment: str) -> Any:
        """Report items of a value; if every assignment is meant, those that differ from what was reported before."""
        items = place.found(value)
        last: dict[Any, Any] | None = None if place.spot.nth is not None else run.memory.setdefault(place, {})
        if last is not None and moment not in _NEW:
            items = [one for one in items if _differs(last.get(one[0]), one[1])]
        for segments, one in items:
            new = self._report(place, run, one, moment, segments)
            value = value if new is one else replace_item(value, segments, new)
        if last is not None:
            last.update((segments, _seen(one)) for segments, one in place.found(value))
        return value

    def _report(self, place: Any, run: Run, value: Any, moment: str, item: Segments = ()) -> Any:
        """Report a value or an item of one; count changes."""
        version = version_of(value)
        new = place.report_item(item, value) if item else place.report(None, (), None, value)
        if new is not value or version != version_of(value):
            self._note_change(run, place.spot.of_item(item) if item else place.path, moment)
        return new


_LAST = (
    "`{}` cannot be changed: which assignment is the last is known only when the function ends. Change one by its "
    "number, from `@0`, or every one, without `@`"
)


def _seen(value: Any) -> Any:
    """Return a key to compare an item with later; it does not keep the item alive."""
    try:
        return weakref.ref(value), version_of(value)
    except TypeError:  # no weak references; a number or a string is compared by value
        return (value, 0) if isinstance(value, int | float | complex | str | bytes | None) else (type(value), id(value))


def _differs(seen: Any, value: Any) -> bool:
    if seen is None:
        return True
    held, version = seen
    if isinstance(held, weakref.ref):
        return held() is not value or version_of(value) != version
    now = _seen(value)
    return bool(type(now[0]) is not type(held) or now != seen)
