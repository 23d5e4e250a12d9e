"""Selectors: immutable values that select calls of a model, and print as the expression that made them."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar

from byname.errors import BadArgumentError, NoMatchError, NotASelectorError
from byname.model.call_graph import Flow, ModelCall, is_place
from byname.model.counts import bounds, steps, whole
from byname.model.dataflow import after, before, first_before, next_after
from byname.model.online import Online, Test
from byname.table import closest, counted
from byname.text import printable


class Look:
    """The calls of one run for selectors. Caches the result of each selector."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.places = frozenset(index for index, call in enumerate(flow.calls) if is_place(call))
        self._found: dict[Selector, frozenset[int]] = {}

    def found(self, selector: Selector) -> frozenset[int]:
        """Return the indices of the calls that a selector selects."""
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
        look = Look(flow)
        found = look.found(self)
        if not found:
            raise no_match(self, flow.calls, {part: len(look.found(part)) for part in _all_parts(self)})
        return tuple(sorted(found))

    def online(self) -> Online:
        """Return a test for calls that arrive one by one in the model's first run.

        Raises:
            BadArgumentError: the selector needs the whole run.
        """
        if self.needs_example:
            raise BadArgumentError(
                f"{self} can only be told when a run is over: pass example= with an input of the model"
            )
        return Online(self._test())

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
        return After(self, _selector("after", other), steps(within))

    def before(self, other: Selector, *, within: int | None = None) -> Selector:
        """Return a selector of the places whose data flows into one of the other places; see `after`."""
        return Before(self, _selector("before", other), steps(within))

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
        return NextAfter(self, _selector("next_after", other), None)

    def first_before(self, other: Selector) -> Selector:
        """Return a selector of the nearest place whose data reaches the other place; see `next_after`."""
        return FirstBefore(self, _selector("first_before", other), None)

    @property
    def first(self) -> Selector:
        """The first place in the order of the run."""
        return At(self, 0)

    @property
    def last(self) -> Selector:
        """The last place in the order of the run."""
        return At(self, -1)

    @property
    def needs_example(self) -> bool:
        """Whether the selector needs a whole run: it counts from the end, or follows the flow of data."""
        return self._looks_ahead() or any(part.needs_example for part in self._parts())

    @property
    def only_modules(self) -> bool:
        """Whether the selector can select only modules."""
        return False

    def __and__(self, other: Selector) -> Selector:
        return Both(self, _selector("&", other))

    def __or__(self, other: Selector) -> Selector:
        return Either(self, _selector("|", other))

    def __xor__(self, other: Selector) -> Selector:
        return OneOf(self, _selector("^", other))

    def __invert__(self) -> Selector:
        return Not(self)

    def __getitem__(self, position: int | slice) -> Selector:
        if type(position) is slice:
            return SlicedPart(self, *bounds(position))
        return At(self, whole(position))

    __iter__ = None
    __contains__ = None

    def __bool__(self) -> bool:
        raise NotASelectorError(
            f"{self} has no truth value without a model: use & instead of and, | instead of or, ~ instead of not"
        )

    def __repr__(self) -> str:
        return printable(self._text())

    def _parts(self) -> tuple[Selector, ...]:
        """Return the selectors that this one combines."""
        return ()

    def _looks_ahead(self) -> bool:
        return False

    @abstractmethod
    def _text(self) -> str: ...

    @abstractmethod
    def _in(self, look: Look) -> frozenset[int]: ...

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

    def _in(self, look: Look) -> frozenset[int]:
        return look.places - look.found(self.inner)

    def _test(self) -> Test:
        inner = self.inner._test()
        return lambda call: not inner(call) and is_place(call)


@dataclass(frozen=True, slots=True, repr=False)
class Pair(Selector):
    """Two selectors joined by an operator."""

    left: Selector
    right: Selector
    sign = ""

    def _text(self) -> str:
        return f"{self.left._within(self.level)} {self.sign} {self.right._within(self.level + 1)}"

    def _parts(self) -> tuple[Selector, ...]:
        return (self.left, self.right)

    @property
    def only_modules(self) -> bool:
        """Whether the selector can select only modules."""
        return self.left.only_modules and self.right.only_modules

    def _in(self, look: Look) -> frozenset[int]:
        found: frozenset[int] = self._sets(look.found(self.left), look.found(self.right))
        return found

    def _test(self) -> Test:
        left, right = self.left._test(), self.right._test()
        return lambda call: bool(self._truths(left(call), right(call)))  # evaluate both: each may count calls

    _sets: ClassVar[Any]
    _truths: ClassVar[Any]


class Both(Pair):
    """The places that both select."""

    __slots__ = ()
    level, sign = 2, "&"
    _sets = _truths = staticmethod(operator.and_)

    @property
    def only_modules(self) -> bool:
        """Whether the selector can select only modules."""
        return self.left.only_modules or self.right.only_modules


class OneOf(Pair):
    """The places that exactly one of the two selects."""

    __slots__ = ()
    level, sign = 1, "^"
    _sets = _truths = staticmethod(operator.xor)


class Either(Pair):
    """The places that at least one of the two selects."""

    __slots__ = ()
    level, sign = 0, "|"
    _sets = _truths = staticmethod(operator.or_)


@dataclass(frozen=True, slots=True, repr=False)
class Counted(Selector):
    """The places of another selector at some positions in the order of the run."""

    inner: Selector

    def _parts(self) -> tuple[Selector, ...]:
        return (self.inner,)

    @property
    def only_modules(self) -> bool:
        """Whether the selector can select only modules."""
        return self.inner.only_modules

    def _in(self, look: Look) -> frozenset[int]:
        calls, found = look.flow.calls, sorted(look.found(self.inner))
        paths = list(dict.fromkeys(calls[index].path for index in found))
        wanted = set(self._of(paths))
        return frozenset(index for index in found if calls[index].path in wanted)

    def _test(self) -> Test:
        inner, numbers = self.inner._test(), count()
        return lambda call: inner(call) and self._takes_number(next(numbers))

    @abstractmethod
    def _of(self, paths: list[str]) -> list[str]: ...

    @abstractmethod
    def _takes_number(self, number: int) -> bool: ...


@dataclass(frozen=True, slots=True, repr=False)
class At(Counted):
    """The place at one position."""

    position: int

    def _text(self) -> str:
        return f"{self.inner._within(4)}[{self.position}]"

    def _looks_ahead(self) -> bool:
        return self.position < 0

    def _of(self, paths: list[str]) -> list[str]:
        return [paths[self.position]] if -len(paths) <= self.position < len(paths) else []

    def _takes_number(self, number: int) -> bool:
        return number == self.position


@dataclass(frozen=True, slots=True, repr=False)
class SlicedPart(Counted):
    """The places of a slice."""

    start: int | None
    stop: int | None
    step: int | None

    def _text(self) -> str:
        start, stop, step = ("" if one is None else str(one) for one in (self.start, self.stop, self.step))
        return f"{self.inner._within(4)}[{start}:{stop}{':' + step if step else ''}]"

    def _looks_ahead(self) -> bool:
        return any(one is not None and one < 0 for one in (self.start, self.stop, self.step))

    def _of(self, paths: list[str]) -> list[str]:
        return paths[self.start : self.stop : self.step]

    def _takes_number(self, number: int) -> bool:
        stop = number + 1 if self.stop is None else self.stop
        return number in range(self.start or 0, stop, self.step or 1)


@dataclass(frozen=True, slots=True, repr=False)
class Follows(Selector):
    """The places of one selector that the flow of data connects with the places of another."""

    inner: Selector
    other: Selector
    within: int | None
    verb = ""

    def _text(self) -> str:
        within = "" if self.within is None else f", within={self.within}"
        return f"{self.inner._within(4)}.{self.verb}({self.other._text()}{within})"

    def _parts(self) -> tuple[Selector, ...]:
        return (self.inner, self.other)

    def _looks_ahead(self) -> bool:
        return True

    @property
    def only_modules(self) -> bool:
        """Whether the selector can select only modules."""
        return self.inner.only_modules

    def _in(self, look: Look) -> frozenset[int]:
        found: frozenset[int] = self._found(look.flow, look.found(self.inner), look.found(self.other), self.within)
        return found

    def _test(self) -> Test:
        raise AssertionError("the flow of data is not known before the run is over")

    _found: ClassVar[Any]


class After(Follows):
    """The places that data from the other places reaches."""

    __slots__ = ()
    verb, _found = "after", staticmethod(after)


class Before(Follows):
    """The places whose data reaches the other places."""

    __slots__ = ()
    verb, _found = "before", staticmethod(before)


class NextAfter(Follows):
    """The first place that data from each of the other places reaches."""

    __slots__ = ()
    verb, _found = "next_after", staticmethod(lambda flow, these, others, _: next_after(flow, these, others))


class FirstBefore(Follows):
    """The nearest place whose data reaches each of the other places."""

    __slots__ = ()
    verb, _found = "first_before", staticmethod(lambda flow, these, others, _: first_before(flow, these, others))


def no_match(selector: Selector, calls: Sequence[ModelCall], counts: dict[Selector, int] | None = None) -> NoMatchError:
    """Return the error for a selector that matches nothing; its message names what the model calls.

    Args:
        selector: the selector.
        calls: the calls of the model.
        counts: the number of calls that each part of the expression selects.
    """
    parts = [f"{part} matches {counted(found, 'call')}" for part, found in (counts or {}).items()]
    modules = dict.fromkeys(call.operation for call in calls if call.kind == "module")
    names = dict.fromkeys(call.operation for call in calls if call.kind == "operation" and is_place(call))
    there = [
        f"of its parts, {', '.join(parts)}" if parts else "",
        f"its modules are {closest(selector._wanted(), modules)}" if modules else "",
        f"its functions {closest(selector._wanted(), names)}" if names else "",
        *dict.fromkeys(part._hint(calls) for part in (selector, *_all_parts(selector))),
    ]
    return NoMatchError(f"{selector} matches nothing that this model calls: {'; '.join(one for one in there if one)}")


def is_counted(selector: Selector) -> bool:
    """Return whether the selector, or a part of it, goes by positions in the order of the run."""
    return isinstance(selector, Counted) or any(isinstance(part, Counted) for part in _all_parts(selector))


def _all_parts(selector: Selector) -> Iterator[Selector]:
    for part in selector._parts():
        yield part
        yield from _all_parts(part)


def _selector(sign: str, other: object) -> Selector:
    if not isinstance(other, Selector):
        raise NotASelectorError(
            f"`{sign}` takes another selector, such as select.path('layers.*') or select.module(nn.Linear), "
            f"not {type(other).__name__}"
        )
    return other
