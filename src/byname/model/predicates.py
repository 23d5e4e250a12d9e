"""Predicates: the selectors that decide from one call alone."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import nn

from byname.model.call_graph import ModelCall, is_place
from byname.model.families import (
    AttentionOutputDetector,
    SoftmaxDetector,
    containing_call_hint,
    family_named,
    python_attention_hint,
)
from byname.model.operations import ATTENTIONS, is_part_of_attention
from byname.model.selectors import Indexed, SelectionCache, Selector, Test, subselectors
from byname.place import NameSegment, Place, Segment, ends_of, parse
from byname.reading.modules import own_parameters
from byname.reading.objects import attributes_of, parents_of


class Predicate(Selector):
    """A selector that decides from one call alone."""

    __slots__ = ()

    def _in(self, cache: SelectionCache) -> frozenset[int]:
        test = self._test()
        return frozenset(index for index, call in enumerate(cache.flow.calls) if test(call))

    def _test(self) -> Test:
        return self._takes

    def _only(self, kind: str) -> bool:
        return isinstance(self, Parametrized | OfModule if kind == "module" else State)

    def _hint(self, calls: Sequence[ModelCall]) -> str:
        return "" if any(map(self._test(), calls)) else self._explain_no_match(calls)

    def _explain_no_match(self, calls: Sequence[ModelCall]) -> str:
        """Return which of these calls, none of them selected, contains the wanted operation; empty if none is known."""
        return containing_call_hint(self._wanted(), calls)

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

    def _explain_no_match(self, calls: Sequence[ModelCall]) -> str:
        family = family_named(self.name)
        for call in calls:
            if call.kind == "operation" and is_place(call) and family.has_operation(call.operation):  # but not selected
                return (
                    f"the {call.operation} is a step inside {type(call.module).__name__}, which is one place: "
                    f"select.op({call.operation!r})"
                )
        return containing_call_hint(self.name, calls)


@dataclass(frozen=True, slots=True, repr=False)
class Attention(InFamily):
    """Calls of attention, one place each, its output; and the steps inside of them, with ``attention="explicit"``.

    Of an attention that is written in Python, known by the name of its class, the output is the product that follows
    its softmax: of the same shape as that of ``scaled_dot_product_attention``.

    >>> byname.select.attention.pattern
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

    def _test(self) -> Test:
        product = AttentionOutputDetector()
        return lambda call: product(call) or self._takes(call)

    def _explain_no_match(self, calls: Sequence[ModelCall]) -> str:
        return InFamily._explain_no_match(self, calls) or python_attention_hint(calls)


@dataclass(frozen=True, slots=True, repr=False)
class PartOfAttention(Predicate):
    """A step of calls of attention that run step by step."""

    part: str

    def _text(self) -> str:
        return f"select.attention.{self.part}"

    def _wanted(self) -> str:
        return ATTENTIONS[0]

    def _explain_no_match(self, calls: Sequence[ModelCall]) -> str:
        for call in calls:
            if call.operation == "flex_attention":
                return (
                    f'`{call.path}` computes its pattern from a function of the scores, and attention="explicit" does '
                    "not run it step by step: write it with scaled_dot_product_attention to see its steps, or give "
                    'attn_implementation="eager" for a model of transformers'
                )
        return python_attention_hint(calls)

    def _test(self) -> Test:
        pattern = SoftmaxDetector()
        return lambda call: (self.part == "pattern" and pattern(call)) or self._takes(call)

    def _takes(self, call: ModelCall) -> bool:
        function = call.path.split(".")[-2:-1]
        return call.operation == self.part and any(is_part_of_attention(one, self.part) for one in function)


def means_parts(selector: Selector) -> bool:
    """Return whether a selector asks for steps of attention."""
    return any(isinstance(one, PartOfAttention) for one in subselectors(selector))


@dataclass(frozen=True, slots=True, repr=False)
class Parametrized(Predicate):
    """Modules that have parameters of their own."""

    def _text(self) -> str:
        return "select.parametrized"

    def _takes(self, call: ModelCall) -> bool:
        if call.kind != "module":
            return False
        children = attributes_of(call.module).get("_modules") or {}
        return bool(own_parameters(call.module)) or "parametrizations" in children


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class OfModule(Predicate):
    """Modules of a class or of a subclass of it, or one module."""

    which: type | nn.Module

    def __eq__(self, other: object) -> bool:
        return type(other) is OfModule and other.which is self.which

    def __hash__(self) -> int:
        return hash(id(self.which))

    def _text(self) -> str:
        one = self.which
        if not isinstance(one, type):
            return f"select.module(<{type(one).__name__} at {id(one):#x}>)"
        in_torch = getattr(nn, one.__name__, None) is one
        return f"select.module({f'nn.{one.__name__}' if in_torch else one.__qualname__})"

    def _wanted(self) -> str:
        return self.which.__name__ if isinstance(self.which, type) else self._text()

    def _takes(self, call: ModelCall) -> bool:
        if isinstance(self.which, type):
            return call.kind == "module" and self.which in parents_of(type(call.module))
        return call.kind == "module" and call.module is self.which


@dataclass(frozen=True, slots=True, repr=False)
class ByFunction(Predicate):
    """Calls of one function, except those inside leaf modules."""

    name: str

    def _text(self) -> str:
        return f"select.op({self.name!r})"

    def _wanted(self) -> str:
        return self.name

    def _takes(self, call: ModelCall) -> bool:
        return call.kind == "operation" and call.operation == self.name and is_place(call)


@dataclass(frozen=True, slots=True, repr=False)
class AtPath(Predicate):
    """Calls whose path matches a pattern; an operation inside a leaf module only if the leaf module does not match."""

    pattern: Place

    def _text(self) -> str:
        return f"select.path({str(self.pattern)!r})"

    @property
    def looks_inside(self) -> bool:
        """Whether it may select operations inside some leaf module."""
        return True

    def reaches_into(self, path: str) -> bool:
        """Return whether an operation inside that module may match while the module itself does not."""
        last, segments = self.pattern.segments[-1], _segments(path)
        if not isinstance(last, NameSegment) or self._has(segments):
            return False
        return len(segments) in ends_of(self.pattern.segments[:-1], segments)

    def _has(self, path: Sequence[Segment]) -> bool:
        return len(path) in ends_of(self.pattern.segments, path)

    def _explain_no_match(self, calls: Sequence[ModelCall]) -> str:
        last = self.pattern.segments[-1]
        return containing_call_hint(last.plain, calls) if isinstance(last, NameSegment) else ""

    def _takes(self, call: ModelCall) -> bool:
        path = _segments(call.path)
        if call.kind == "module" and self._has((*path, _FORWARD)) and self.pattern.segments[-1] == _FORWARD:
            return True
        return self._has(path) and (is_place(call) or not self._has(path[:-1]))


@dataclass(frozen=True, slots=True, repr=False)
class State(Predicate):
    """The parameters or the buffers of a model, or gradients; `byname.model.states` finds them: nothing calls them."""

    kind: str
    gradient: bool = False
    about_states = True

    def path(self, pattern: str) -> Selector:
        """Return a selector of those whose path matches, or that are in a module whose path does."""
        return self & AtPath(parse(pattern))

    def _text(self) -> str:
        return f"select.{self.kind}{'.grad' * self.gradient}"

    def _of_gradients(self) -> Selector:
        return replace(self, gradient=True)

    def _takes(self, call: ModelCall) -> bool:
        return False


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


def depends_on_class_only(selector: Selector) -> bool:
    """Return whether it is known of each module of ``torch.nn``, before anything runs, if a selector means it."""
    return not any(isinstance(one, Where | Indexed | Attention | PartOfAttention) for one in subselectors(selector))
