"""Selectors: immutable values that select calls of a model, and print as the expression that made them."""

from __future__ import annotations

import operator
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import count
from typing import Any, TypeAlias

from byname.errors import BadArgumentError, NoMatchError, NotASelectorError
from byname.model.call_graph import Flow, ModelCall, connected, is_place
from byname.table import closest, counted
from byname.text import printable

Test: TypeAlias = Callable[[ModelCall], bool]
"""Returns whether a place is selected; called once per place, in the order of the run. It may count its calls."""


class SelectionCache:
    """The calls of one run for selectors. Caches the result of each selector."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.places = frozenset(index for index, call in enumerate(flow.calls) if is_place(call))
        self._found: dict[Selector, frozenset[int]] = {}

    def found(self, selector: Selector) -> frozenset[int]:
        if selector not in self._found:
            self._found[selector] = selector._in(self)
        return self._found[selector]


@dataclass(frozen=True, slots=True)
class Selector:
    """An immutable selection of places of a model; made by `select`, combined with ``& | ^ ~``."""

    level = 4
    """The precedence of the expression; inside an expression of higher precedence it gets parentheses."""

    def matches(self, flow: Flow) -> tuple[int, ...]:
        """Return the indices in ``flow.calls`` of the selected calls, in the order of the run.

        Args:
            flow: the call graph of one run, from `trace`.

        Raises:
            NoMatchError: no call is selected. A part of an expression may select none.
        """
        cache = SelectionCache(flow)
        if not (found := cache.found(self)):
            raise no_match(
                self, flow.calls, {part: len(cache.found(part)) for part in subselectors(self) if part is not self}
            )
        return tuple(sorted(found))

    def online(self) -> Test:
        """Return a test for calls that arrive one by one in the model's first run; it decides once per place.

        Raises:
            BadArgumentError: the selector needs the whole run.
        """
        if self.needs_example:
            raise BadArgumentError(f"{self} needs a complete run: pass example= with an input of the model")
        test, answers = self._test(), dict[str, bool]()

        def selects(call: ModelCall) -> bool:
            if call.path not in answers:
                answers[call.path] = test(call)
            return answers[call.path]

        return selects

    @property
    def looks_inside(self) -> bool:
        """Whether it may select operations inside some leaf module."""
        return any(part.looks_inside for part in self._parts())

    def reaches_into(self, path: str) -> bool:
        """Return whether it may select operations inside the leaf module at that path."""
        return any(part.reaches_into(path) for part in self._parts())

    def after(self, other: Selector, *, within: int | None = None) -> Selector:
        """Return a selector of the places that data from one of the other places flows into.

        Args:
            other: the places that come first.
            within: the largest number of steps. 1 is directly after: an output of the one is an input of the other.
                Each leaf module, and each function outside leaf modules, is a step. None is any number.

        Raises:
            NotASelectorError, BadArgumentError: `other` or `within` is invalid.
        """
        return Follows(self, "after", _selector("after", other), _steps(within))

    def before(self, other: Selector, *, within: int | None = None) -> Selector:
        """Return a selector of the places whose data flows into one of the other places; see `after`."""
        return Follows(self, "before", _selector("before", other), _steps(within))

    def next_after(self, other: Selector) -> Selector:
        """Return a selector of the place that data from the other place reaches first, whatever lies between.

        Of several other places each has one. Functions that only move data (``view``, ``transpose``, ``contiguous``,
        ``to``) are no steps on the way.

        >>> from byname import select
        >>> select.norm.next_after(select.attention)
        select.norm.next_after(select.attention)

        Args:
            other: the places that come first.

        Raises:
            NotASelectorError: `other` is not a selector.
        """
        return Follows(self, "next_after", _selector("next_after", other))

    def first_before(self, other: Selector) -> Selector:
        """Return a selector of the nearest place whose data reaches the other place; see `next_after`."""
        return Follows(self, "first_before", _selector("first_before", other))

    @property
    def first(self) -> Selector:
        """The first place in the order of the run."""
        return Indexed.at(self, 0)

    @property
    def last(self) -> Selector:
        """The last place in the order of the run."""
        return Indexed.at(self, -1)

    @property
    def needs_example(self) -> bool:
        """Whether the selector needs a whole run: it counts from the end, or follows the flow of data."""
        return self._looks_ahead() or any(part.needs_example for part in self._parts())

    @property
    def only_modules(self) -> bool:
        """Whether the selector can select only modules."""
        return self._only("module")

    @property
    def only_states(self) -> bool:
        """Whether the selector can select only parameters, buffers and their gradients."""
        return self._only("state")

    @property
    def about_states(self) -> bool:
        """Whether the selector, or a part of it, selects parameters or buffers."""
        return any(part.about_states for part in self._parts())

    @property
    def grad(self) -> Selector:
        """The accumulated gradients of the selected parameters; see `Select.parameter`.

        Raises:
            BadArgumentError: the selector does not select parameters.
        """
        if self.only_states:
            return self._of_gradients()
        raise BadArgumentError(
            f"{self}: .grad is for select.parameter; for the gradient of a result of a module or function give its "
            "path, such as 'layers.*.grad'"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in self.__slots__:  # a copy or a notebook asks, of one that may lack its fields
            raise AttributeError(name)
        words = ["after", "before", "first", "first_before", "last", "next_after", "pattern", "scores"]
        words = ["first", "grad", "last", "path"] if self.only_states else words  # states are not in the flow of data
        has = [one for one in words if hasattr(type(self), one)]
        hint = f"; for those of one name use & select.path('**.{name}')" * self.only_states
        raise AttributeError(f"{self} has no {name!r}; it has {closest(name, has)}{hint}")

    def __and__(self, other: Selector) -> Selector:
        return Pair("&", self, _selector("&", other))

    def __or__(self, other: Selector) -> Selector:
        return Pair("|", self, _selector("|", other))

    def __xor__(self, other: Selector) -> Selector:
        return Pair("^", self, _selector("^", other))

    def __invert__(self) -> Selector:
        return Not(self)

    def __getitem__(self, position: int | slice) -> Selector:
        if type(position) is not slice:
            return Indexed.at(self, _whole(position))
        if position.step is not None:
            raise BadArgumentError("a slice of a selector takes no step; combine several, as in s[0] | s[2]")
        start, stop = (None if one is None else _whole(one) for one in (position.start, position.stop))
        return Indexed(self, start, stop)

    __iter__ = None
    __contains__ = None

    def __bool__(self) -> bool:
        raise NotASelectorError(
            f"{self} has no truth value without a model: use & instead of and, | instead of or, ~ instead of not"
        )

    def __repr__(self) -> str:
        return printable(self._text())

    def _parts(self) -> tuple[Selector, ...]:
        return ()

    def _of_gradients(self) -> Selector:
        """Return this expression with the gradients of the parameters instead of the parameters."""
        parts = {one.name: getattr(self, one.name) for one in fields(self)}
        inner = {name: part._of_gradients() for name, part in parts.items() if isinstance(part, Selector)}
        return replace(self, **inner)

    def _looks_ahead(self) -> bool:
        return False

    def _only(self, kind: str) -> bool:
        """Return whether it can select only modules, or only states: parameters, buffers and their gradients."""
        return False

    @abstractmethod
    def _text(self) -> str: ...

    @abstractmethod
    def _in(self, cache: SelectionCache) -> frozenset[int]: ...

    @abstractmethod
    def _test(self) -> Test:
        """Return a new test for the places in the order of their first run."""

    def _wanted(self) -> str:
        """Return the name that the user most likely misspelled."""
        return self._text()

    def _hint(self, calls: Sequence[ModelCall]) -> str:
        """Return where the wanted operation is hidden, if no call is selected; empty if unknown."""
        return ""

    def _within(self, level: int) -> str:
        return self._text() if self.level >= level else f"({self._text()})"


@dataclass(frozen=True, slots=True, repr=False)
class Not(Selector):
    """Every other place."""

    inner: Selector
    level = 3

    def _text(self) -> str:
        return f"~{self.inner._within(self.level)}"

    def _parts(self) -> tuple[Selector, ...]:
        return (self.inner,)

    def _in(self, cache: SelectionCache) -> frozenset[int]:
        return cache.places - cache.found(self.inner)

    def _test(self) -> Test:
        inner = self.inner._test()
        return lambda call: not inner(call) and is_place(call)


@dataclass(frozen=True, slots=True, repr=False)
class Pair(Selector):
    """The places that two selectors joined by an operator select."""

    sign: str
    left: Selector
    right: Selector

    @property
    def level(self) -> int:  # type: ignore[override]
        """The precedence of the operator."""
        return "|^&".index(self.sign)

    def _text(self) -> str:
        return f"{self.left._within(self.level)} {self.sign} {self.right._within(self.level + 1)}"

    def _parts(self) -> tuple[Selector, ...]:
        return (self.left, self.right)

    def _only(self, kind: str) -> bool:
        return (any if self.sign == "&" else all)([self.left._only(kind), self.right._only(kind)])

    def _in(self, cache: SelectionCache) -> frozenset[int]:
        found: frozenset[int] = OPERATORS[self.sign](cache.found(self.left), cache.found(self.right))
        return found

    def _test(self) -> Test:
        join, left, right = OPERATORS[self.sign], self.left._test(), self.right._test()
        return lambda call: bool(join(left(call), right(call)))  # evaluate both: each may count calls


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {"&": operator.and_, "^": operator.xor, "|": operator.or_}


@dataclass(frozen=True, slots=True, repr=False)
class Indexed(Selector):
    """The places of another selector at one position, or at those of a slice, in the order of the run."""

    inner: Selector
    start: int | None
    stop: int | None
    alone: bool = False

    @classmethod
    def at(cls, inner: Selector, position: int) -> Indexed:
        return cls(inner, position, position + 1 or None, alone=True)

    def _text(self) -> str:
        start, stop = ("" if one is None else str(one) for one in (self.start, self.stop))
        return f"{self.inner._within(4)}[{start if self.alone else f'{start}:{stop}'}]"

    def _parts(self) -> tuple[Selector, ...]:
        return (self.inner,)

    def _looks_ahead(self) -> bool:
        return any(one is not None and one < 0 for one in (self.start, self.stop))

    def _only(self, kind: str) -> bool:
        return self.inner._only(kind)

    def _in(self, cache: SelectionCache) -> frozenset[int]:
        calls, found = cache.flow.calls, sorted(cache.found(self.inner))
        paths = list(dict.fromkeys(calls[index].path for index in found))
        wanted = set(self.of(paths))
        return frozenset(index for index in found if calls[index].path in wanted)

    def _test(self) -> Test:
        inner, numbers, taken = self.inner._test(), count(), range(sys.maxsize)[self.start : self.stop]
        return lambda call: inner(call) and next(numbers) in taken

    def of(self, ordered: list[Any]) -> list[Any]:
        return ordered[self.start : self.stop]


@dataclass(frozen=True, slots=True, repr=False)
class Follows(Selector):
    """The places of one selector that the flow of data connects with the places of another."""

    inner: Selector
    verb: str
    other: Selector
    within: int | None = None

    def _text(self) -> str:
        within = "" if self.within is None else f", within={self.within}"
        return f"{self.inner._within(4)}.{self.verb}({self.other._text()}{within})"

    def _parts(self) -> tuple[Selector, ...]:
        return (self.inner, self.other)

    def _looks_ahead(self) -> bool:
        return True

    def _only(self, kind: str) -> bool:
        return self.inner._only(kind)

    def _in(self, cache: SelectionCache) -> frozenset[int]:
        return connected(self.verb, cache.flow, cache.found(self.inner), cache.found(self.other), self.within)

    def _test(self) -> Test:
        raise AssertionError("the flow of data is not known before the run is over")


def no_match(selector: Selector, calls: Sequence[ModelCall], counts: dict[Selector, int] | None = None) -> NoMatchError:
    """Return the error for a selector that matches nothing; its message names the calls of the model.

    `counts` are the numbers of calls that each part of the expression selects.
    """
    parts = [f"{part} matches {counted(found, 'call')}" for part, found in (counts or {}).items()]
    modules = dict.fromkeys(call.operation for call in calls if call.kind == "module")
    names = dict.fromkeys(call.operation for call in calls if call.kind == "operation" and is_place(call))
    there = [
        f"of its parts, {', '.join(parts)}" if parts else "",
        f"its modules are {closest(selector._wanted(), modules)}" if modules else "",
        f"its functions {closest(selector._wanted(), names)}" if names else "",
        *dict.fromkeys(part._hint(calls) for part in subselectors(selector)),
    ]
    return NoMatchError(f"{selector} matches nothing that this model calls: {'; '.join(one for one in there if one)}")


def is_indexed(selector: Selector) -> bool:
    """Return whether the selector, or a part of it, goes by positions in the order of the run."""
    return any(isinstance(part, Indexed) for part in subselectors(selector))


def subselectors(selector: Selector) -> Iterator[Selector]:
    """Yield the selector, and every part of it at any depth."""
    yield selector
    for part in selector._parts():
        yield from subselectors(part)


def _selector(sign: str, other: object) -> Selector:
    if not isinstance(other, Selector):
        raise NotASelectorError(
            f"`{sign}` takes another selector, such as select.path('layers.*') or select.module(nn.Linear), "
            f"not {type(other).__name__}"
        )
    return other


def _steps(within: int | None) -> int | None:
    if within is not None and _whole(within) < 1:
        raise BadArgumentError(f"within= takes a number of calls of at least 1 (1: the next call), not {within}")
    return within


def _whole(position: object) -> int:
    if isinstance(position, bool) or not hasattr(type(position), "__index__"):
        raise BadArgumentError(f"expected an integer, got {position!r}")
    return operator.index(position)  # type: ignore[arg-type]
