"""Select: `byname.select`, and the selectors that decide from one call alone."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from byname.errors import BadArgumentError
from byname.model.call_graph import ModelCall, is_place
from byname.model.families import FAMILIES, attention_in_steps, family_named, inside_of_others, is_pattern_in_python
from byname.model.online import Test
from byname.model.operations import ATTENTIONS, is_part_of_attention, operation_name
from byname.model.selectors import Counted, Look, Selector
from byname.place import NameSegment, Place, Segment, ends_of, parse
from byname.reading.modules import own_parameters
from byname.reading.objects import attributes_of, parents_of
from byname.table import closest


class Select:
    """Makes selectors: values that select places of a model.

    A family covers modules, functions and tensor methods alike, also in-place forms: ``select.relu`` selects every
    ``nn.ReLU``, and every ``F.relu``, ``torch.relu``, ``x.relu()`` and ``x.relu_()`` elsewhere. The families are
    `activation` and each activation by its name, ``arithmetic, attention, conv, distance, dropout, embedding, linear,
    loss, matmul, norm, pad, pool, recurrent, shuffle, upsample``.

    >>> from torch import nn
    >>> from byname import select
    >>> select.relu & ~select.path("encoder.**")
    select.relu & ~select.path('encoder.**')

    Combine selectors with ``& | ^ ~``, with positions in the order of the run, and along the flow of data:

    >>> (select.conv | select.linear)[1:3], select.activation.last
    ((select.conv | select.linear)[1:3], select.activation[-1])
    >>> select.softmax.after(select.matmul, within=2)
    select.softmax.after(select.matmul, within=2)

    A selector that counts from the end, or follows the flow of data, needs an ``example=`` where it is used.
    """

    __slots__ = ()

    @property
    def all(self) -> Selector:
        """Every module, and every operation outside leaf modules."""
        return Everything()

    @property
    def parametrized(self) -> Selector:
        """Every module that has parameters of its own."""
        return Parametrized()

    def path(self, pattern: str) -> Selector:
        """Return a selector of the modules and operations whose path matches.

        >>> from byname import select
        >>> select.path("layers.*.attn")
        select.path('layers.*.attn')

        Args:
            pattern: a path, such as ``"layers.*.attn"`` or ``"**.softmax"``.

        Raises:
            BadPathError: the path is malformed.
        """
        return AtPath(parse(pattern))

    def module(self, which: type | nn.Module) -> Selector:
        """Return a selector of the modules of a class and its subclasses, or of one module.

        >>> from byname import select
        >>> select.module(torch.nn.Linear)
        select.module(nn.Linear)

        Args:
            which: a class or a module.

        Raises:
            BadArgumentError: `which` is neither.
        """
        if isinstance(which, type):
            return OfClass(which)
        if isinstance(which, nn.Module):
            return TheModule(which)
        raise BadArgumentError(
            f"select.module takes a class such as nn.Linear, or a module; this is of type {type(which).__name__}. "
            "For a path there is select.path, for a function select.op"
        )

    def op(self, which: str | Callable[..., Any]) -> Selector:
        """Return a selector of the calls of one function, also as a method, except those inside leaf modules.

        >>> from byname import select
        >>> select.op("add_"), select.op(torch.bmm)
        (select.op('add_'), select.op('bmm'))

        Args:
            which: the name (``"softmax"``, ``"add"``, ``"getitem"``), or the function (``torch.bmm``, ``F.softmax``).
                The in-place form is another function: ``"add_"``.

        Raises:
            BadArgumentError: `which` is not an operation.
        """
        name: str | None
        if isinstance(which, str):
            name = which.strip("_") if which.startswith("__") else which
        else:
            name = operation_name(which) if callable(which) and not isinstance(which, type | nn.Module) else None
        if not name:
            raise BadArgumentError(
                f"select.op takes the name of an operation, or its function, not {which!r:.80}; "
                "functions that only tell something of a tensor, such as its size, are no operations"
            )
        return TheOperation(name)

    def where(self, function: Callable[[ModelCall], bool]) -> Selector:
        """Return a selector of the places for which a function returns True.

        >>> from byname import select
        >>> def wide(call):
        ...     return call.kind == "module" and getattr(call.module, "out_features", 0) > 100
        >>> select.where(wide)
        select.where(wide)

        Args:
            function: called with a `ModelCall`, which has ``path``, ``operation``, ``kind`` and ``module``; with an
                ``example=`` also ``shapes`` and the other fields.

        Raises:
            BadArgumentError: `function` is not callable.
        """
        if not callable(function):
            raise BadArgumentError(f"select.where takes a function of a call, not {type(function).__name__}")
        return Where(function)

    def __getattr__(self, name: str) -> Selector:
        if name not in FAMILIES:
            raise AttributeError(
                f"select has no {name!r}; there are {closest(name, FAMILIES)}, see dir(select). "
                f"For a class of modules there is select.module, for a function select.op({name!r})"
            )
        return Attention(name) if name == "attention" else InFamily(name)

    def __dir__(self) -> list[str]:
        return sorted({*FAMILIES, "all", "module", "op", "parametrized", "path", "where"})

    def __repr__(self) -> str:
        return "select"


select = Select()
"""Makes selectors, see `Select`."""


class Predicate(Selector):
    """A selector that decides from one call alone."""

    __slots__ = ()

    def _in(self, look: Look) -> frozenset[int]:
        return frozenset(index for index, call in enumerate(look.flow.calls) if self._takes(call))

    def _test(self) -> Test:
        return self._takes

    def _hint(self, calls: Sequence[ModelCall]) -> str:
        return "" if any(map(self._takes, calls)) else self._where_hidden(calls)

    def _where_hidden(self, calls: Sequence[ModelCall]) -> str:
        """Return which of these calls, none of them selected, contains the wanted operation; empty if none is known."""
        return ""

    @abstractmethod
    def _takes(self, call: ModelCall) -> bool: ...


@dataclass(frozen=True, slots=True, repr=False)
class Everything(Predicate):
    """Every place."""

    def _text(self) -> str:
        return "select.all"

    def _takes(self, call: ModelCall) -> bool:
        return is_place(call)


@dataclass(frozen=True, slots=True, repr=False)
class InFamily(Predicate):
    """Modules and functions of one family, except functions inside a module of the family."""

    name: str

    def _text(self) -> str:
        return f"select.{self.name}"

    def _wanted(self) -> str:
        return self.name

    def _takes(self, call: ModelCall) -> bool:
        family = family_named(self.name)
        if call.kind == "module":
            return family.has_module(call.module)
        return is_place(call) and family.has_operation(call.operation) and not family.includes_inside(call.module)

    def _where_hidden(self, calls: Sequence[ModelCall]) -> str:
        family = family_named(self.name)
        for call in calls:
            if call.kind == "operation" and is_place(call) and family.has_operation(call.operation):  # but not selected
                return (
                    f"the {call.operation} is a step of {type(call.module).__name__}, which is one place as a whole: "
                    f"select.op({call.operation!r})"
                )
        return inside_of_others(self.name, calls)


@dataclass(frozen=True, slots=True, repr=False)
class Attention(InFamily):
    """Calls of attention, one place each; and the steps inside of them, with ``attention="explicit"``.

    >>> select.attention.pattern
    select.attention.pattern
    """

    @property
    def scores(self) -> Selector:
        """What enters the softmax of each call of ``scaled_dot_product_attention``, and of `nn.MultiheadAttention`."""
        return PartOfAttention("scores")

    @property
    def pattern(self) -> Selector:
        """The probabilities of each call of ``scaled_dot_product_attention``, and of `nn.MultiheadAttention`.

        Of an attention that is written in Python, known by the name of its class, they are the result of its softmax.
        """
        return PartOfAttention("pattern")

    def _where_hidden(self, calls: Sequence[ModelCall]) -> str:
        return InFamily._where_hidden(self, calls) or attention_in_steps(calls)


@dataclass(frozen=True, slots=True, repr=False)
class PartOfAttention(Predicate):
    """A step of calls of attention that run step by step."""

    part: str

    def _text(self) -> str:
        return f"select.attention.{self.part}"

    def _wanted(self) -> str:
        return ATTENTIONS[0]

    def _where_hidden(self, calls: Sequence[ModelCall]) -> str:
        for call in calls:
            if call.operation == "flex_attention":
                return (
                    f'`{call.path}` computes its pattern from a function of the scores, and attention="explicit" does '
                    "not run it step by step: write it with scaled_dot_product_attention to see its steps, or give "
                    'attn_implementation="eager" for a model of transformers'
                )
        return attention_in_steps(calls)

    def _takes(self, call: ModelCall) -> bool:
        if self.part == "pattern" and is_pattern_in_python(call):
            return True
        function = call.path.split(".")[-2:-1]
        return call.operation == self.part and any(is_part_of_attention(one, self.part) for one in function)


def means_parts(selector: Selector) -> bool:
    """Return whether a selector asks for steps of attention."""
    return isinstance(selector, PartOfAttention) or any(map(means_parts, selector._parts()))


@dataclass(frozen=True, slots=True, repr=False)
class Parametrized(Predicate):
    """Modules that have parameters of their own."""

    def _text(self) -> str:
        return "select.parametrized"

    @property
    def only_modules(self) -> bool:
        """Whether the selector can select only modules."""
        return True

    def _takes(self, call: ModelCall) -> bool:
        if call.kind != "module":
            return False
        children = attributes_of(call.module).get("_modules") or {}
        return bool(own_parameters(call.module)) or "parametrizations" in children


@dataclass(frozen=True, slots=True, repr=False)
class OfClass(Predicate):
    """Modules of a class or of a subclass of it."""

    kind: type

    def _text(self) -> str:
        return f"select.module({_class_text(self.kind)})"

    @property
    def only_modules(self) -> bool:
        """Whether the selector can select only modules."""
        return True

    def _wanted(self) -> str:
        return self.kind.__name__

    def _takes(self, call: ModelCall) -> bool:
        return call.kind == "module" and self.kind in parents_of(type(call.module))


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class TheModule(Predicate):
    """One module."""

    module: nn.Module

    def __eq__(self, other: object) -> bool:
        return type(other) is TheModule and other.module is self.module

    def __hash__(self) -> int:
        return hash(id(self.module))

    def _text(self) -> str:
        return f"select.module(<{type(self.module).__name__} at {id(self.module):#x}>)"

    @property
    def only_modules(self) -> bool:
        """Whether the selector can select only modules."""
        return True

    def _takes(self, call: ModelCall) -> bool:
        return call.kind == "module" and call.module is self.module


@dataclass(frozen=True, slots=True, repr=False)
class TheOperation(Predicate):
    """Calls of one function, except those inside leaf modules."""

    name: str

    def _text(self) -> str:
        return f"select.op({self.name!r})"

    def _wanted(self) -> str:
        return self.name

    def _where_hidden(self, calls: Sequence[ModelCall]) -> str:
        return inside_of_others(self.name, calls)

    def _takes(self, call: ModelCall) -> bool:
        return call.kind == "operation" and call.operation == self.name and is_place(call)


@dataclass(frozen=True, slots=True, repr=False)
class AtPath(Predicate):
    """Calls whose path matches a pattern; an operation inside a leaf module only if the leaf module does not match."""

    pattern: Place

    def _text(self) -> str:
        return f"select.path({str(self.pattern)!r})"

    def reaches_into(self, path: str) -> bool:
        """Return whether an operation inside that module may match while the module itself does not."""
        last, segments = self.pattern.segments[-1], _segments(path)
        if not isinstance(last, NameSegment) or self._has(segments):
            return False
        return len(segments) in ends_of(self.pattern.segments[:-1], segments)

    def _has(self, path: Sequence[Segment]) -> bool:
        return len(path) in ends_of(self.pattern.segments, path)

    def _where_hidden(self, calls: Sequence[ModelCall]) -> str:
        last = self.pattern.segments[-1]
        return inside_of_others(last.plain, calls) if isinstance(last, NameSegment) else ""

    def _takes(self, call: ModelCall) -> bool:
        path = _segments(call.path)
        if call.kind == "module" and self._has((*path, _FORWARD)) and self.pattern.segments[-1] == _FORWARD:
            return True
        return self._has(path) and (is_place(call) or not self._has(path[:-1]))


_FORWARD = NameSegment("forward")
"""An optional suffix of a module's path, and the path of the model itself."""


def _segments(path: str) -> tuple[Segment, ...]:
    return parse(path).segments if path else ()


@dataclass(frozen=True, slots=True, repr=False)
class Where(Predicate):
    """Places for which a function of the user returns True."""

    function: Callable[[ModelCall], bool]

    def _text(self) -> str:
        return f"select.where({getattr(self.function, '__qualname__', type(self.function).__name__)})"

    def _hint(self, calls: Sequence[ModelCall]) -> str:
        return ""

    def _takes(self, call: ModelCall) -> bool:
        return is_place(call) and bool(self.function(call))


def goes_by_class(selector: Selector) -> bool:
    """Return whether it is known of each module of ``torch.nn``, before anything runs, if a selector means it."""
    return not isinstance(selector, Where | Counted) and all(map(goes_by_class, selector._parts()))


def _class_text(kind: type) -> str:
    in_torch = getattr(nn, kind.__name__, None) is kind
    return f"nn.{kind.__name__}" if in_torch else kind.__qualname__
