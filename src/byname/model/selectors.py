"""Selectors: values that say which calls of a model are meant, and print as the expression that made them."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar

from byname.errors import BadArgumentError, NoMatchError, NotASelectorError
from byname.model.call_graph import Call, Flow, is_place
from byname.model.dataflow import after, before
from byname.table import closest, counted
from byname.text import printable

__all__ = ["Either", "Look", "Online", "Selector", "Test", "bounds", "is_counted", "no_match", "steps", "whole"]


class Look:
    """The calls of one flow, as selectors see them. What a selector finds is computed once."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.places = frozenset(index for index, call in enumerate(flow.calls) if is_place(call))
        self._found: dict[Selector, frozenset[int]] = {}

    def found(self, selector: Selector) -> frozenset[int]:
        """The indices of the calls that a selector means."""
        if selector not in self._found:
            self._found[selector] = selector._in(self)
        return self._found[selector]


@dataclass(frozen=True, slots=True)
class Selector:
    """Says which places of a model are meant; an immutable value, made by `select` and combined by ``& | ^ ~``."""

    level = 4
    """How tightly the expression holds together; a looser one gets parentheses inside a tighter one."""

    def matches(self, flow: Flow) -> tuple[int, ...]:
        """Which of ``flow.calls`` are meant, in the order of the run.

        Args:
            flow: one run of the model, see `trace`.

        Raises:
            NoMatchError: when none is; parts of an expression may well match nothing.
        """
        look = Look(flow)
        found = look.found(self)
        if not found:
            raise no_match(self, flow.calls, {part: len(look.found(part)) for part in _all_parts(self)})
        return tuple(sorted(found))

    def online(self) -> Online:
        """A test of calls that are told one by one while the model runs for the first time.

        Raises:
            BadArgumentError: when the answer needs the whole run.
        """
        if self.needs_example:
            raise BadArgumentError(
                f"{self} can only be told when a run is over: pass example= with an input of the model"
            )
        return Online(self._test())

    def reaches_into(self, path: str) -> bool:
        """Whether it may mean what the module at that path, one of ``torch.nn``, calls inside."""
        return any(part.reaches_into(path) for part in self._parts())

    def after(self, other: Selector, *, within: int | None = None) -> Selector:
        """Those into which data from one of the others flows.

        Args:
            other: the places that come first.
            within: how many steps further at most. 1 is directly after: a tensor that comes out there goes in here.
                Modules of ``torch.nn`` and functions outside them are a step each. None is any number.
        """
        return After(self, _selector("after", other), steps(within))

    def before(self, other: Selector, *, within: int | None = None) -> Selector:
        """Those from which data flows into one of the others, in as many steps as `after` counts them."""
        return Before(self, _selector("before", other), steps(within))

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
        """Whether only a whole run can tell: what is last, or what follows what."""
        return self._looks_ahead() or any(part.needs_example for part in self._parts())

    @property
    def only_modules(self) -> bool:
        """Whether it can mean nothing but modules."""
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
            return Part(self, *bounds(position))
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
        """The selectors that this one is made of."""
        return ()

    def _looks_ahead(self) -> bool:
        return False

    @abstractmethod
    def _text(self) -> str: ...

    @abstractmethod
    def _in(self, look: Look) -> frozenset[int]: ...

    @abstractmethod
    def _test(self) -> Test:
        """A fresh test of places in the order of their first run."""

    def _wanted(self) -> str:
        """The name that is most likely mistaken."""
        return self._text()

    def _hint(self, calls: Sequence[Call]) -> str:
        """Where what it means is hidden, if none of these calls is meant; empty where nothing is known of that."""
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
    """Two selectors and a sign between them."""

    left: Selector
    right: Selector
    sign = ""

    def _text(self) -> str:
        return f"{self.left._within(self.level)} {self.sign} {self.right._within(self.level + 1)}"

    def _parts(self) -> tuple[Selector, ...]:
        return (self.left, self.right)

    @property
    def only_modules(self) -> bool:
        """Whether it can mean nothing but modules."""
        return self.left.only_modules and self.right.only_modules

    def _in(self, look: Look) -> frozenset[int]:
        found: frozenset[int] = self._sets(look.found(self.left), look.found(self.right))
        return found

    def _test(self) -> Test:
        left, right = self.left._test(), self.right._test()
        return lambda call: bool(self._truths(left(call), right(call)))  # both: each may count

    _sets: ClassVar[Any]
    _truths: ClassVar[Any]


class Both(Pair):
    """What both mean."""

    __slots__ = ()
    level, sign = 2, "&"
    _sets = _truths = staticmethod(operator.and_)

    @property
    def only_modules(self) -> bool:
        """Whether it can mean nothing but modules."""
        return self.left.only_modules or self.right.only_modules


class OneOf(Pair):
    """What one of two means and the other does not."""

    __slots__ = ()
    level, sign = 1, "^"
    _sets = _truths = staticmethod(operator.xor)


class Either(Pair):
    """What one of two means, or both."""

    __slots__ = ()
    level, sign = 0, "|"
    _sets = _truths = staticmethod(operator.or_)


@dataclass(frozen=True, slots=True, repr=False)
class Counted(Selector):
    """Some of the places that another selector means, by their number in the order of the run."""

    inner: Selector

    def _parts(self) -> tuple[Selector, ...]:
        return (self.inner,)

    @property
    def only_modules(self) -> bool:
        """Whether it can mean nothing but modules."""
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
    """One of them."""

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
class Part(Counted):
    """A slice of them."""

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
    """Those of some calls that stand in the flow of data before or after others."""

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
        """Whether it can mean nothing but modules."""
        return self.inner.only_modules

    def _in(self, look: Look) -> frozenset[int]:
        found: frozenset[int] = self._found(look.flow, look.found(self.inner), look.found(self.other), self.within)
        return found

    def _test(self) -> Test:
        raise AssertionError("the flow of data is not known before the run is over")

    _found: ClassVar[Any]


class After(Follows):
    """Those that data from others reaches."""

    __slots__ = ()
    verb, _found = "after", staticmethod(after)


class Before(Follows):
    """Those whose data reaches others."""

    __slots__ = ()
    verb, _found = "before", staticmethod(before)


def no_match(selector: Selector, calls: Sequence[Call], counts: dict[Selector, int] | None = None) -> NoMatchError:
    """The error that says that nothing matched, and what there was.

    Args:
        selector: what was asked for.
        calls: what the model called.
        counts: how many calls each part of the expression means.
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
    """Whether it goes by positions in the order of the run."""
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


Test = Callable[[Call], bool]
"""Says of each place, once and in the order of the run, whether it is meant. It may count."""


class Online:
    """Answers for each call of a first run whether a selector means it. A place that was told of keeps its answer."""

    def __init__(self, test: Test) -> None:
        self._test = test
        self._answers: dict[str, bool] = {}

    def see(self, call: Call) -> bool:
        """Whether the selector means this call.

        Args:
            call: a call; what goes in and comes out need not be known.
        """
        answer = self._answers.get(call.path)
        if answer is None:
            answer = self._answers[call.path] = self._test(call)
        return answer


def steps(within: int | None) -> int | None:
    """A number of steps from one call to another, or None for any."""
    if within is not None and whole(within) < 1:
        raise BadArgumentError(f"within= counts the steps from one call to another, 1 for the next one; not {within}")
    return within


def bounds(part: slice) -> tuple[int | None, int | None, int | None]:
    """Start, stop and step of a slice."""
    start, stop, step = (None if one is None else whole(one) for one in (part.start, part.stop, part.step))
    if step == 0:
        raise BadArgumentError("a slice goes on by a step of 1 or more, or backwards by -1 or less, not by 0")
    return start, stop, step


def whole(position: object) -> int:
    """A whole number, whatever class it has."""
    if isinstance(position, bool) or not hasattr(type(position), "__index__"):
        raise BadArgumentError(f"a whole number is needed here, not {position!r}")
    return operator.index(position)  # type: ignore[arg-type]
