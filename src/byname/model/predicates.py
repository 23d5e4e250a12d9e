"""Which calls does a selector mean that looks at one call alone? Families, classes, functions, paths."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from byname.model.call_graph import Call, is_place
from byname.model.families import family_named
from byname.model.hints import inside_of_others
from byname.model.online import Test
from byname.model.selectors import Look, Selector
from byname.place import Name, Place, Segment, ends_of, parse
from byname.reading.modules import own_parameters
from byname.reading.objects import attributes_of, parents_of

__all__ = [
    "AtPath",
    "Everything",
    "InFamily",
    "OfClass",
    "Parametrized",
    "TheModule",
    "TheOperation",
    "Where",
]


class Predicate(Selector):
    """Looks at one call alone."""

    __slots__ = ()

    def _in(self, look: Look) -> frozenset[int]:
        return frozenset(index for index, call in enumerate(look.flow.calls) if self._takes(call))

    def _test(self) -> Test:
        return self._takes

    def _hint(self, calls: Sequence[Call]) -> str:
        return "" if any(map(self._takes, calls)) else self._where_hidden(calls)

    def _where_hidden(self, calls: Sequence[Call]) -> str:
        """Which of these calls, none of which is meant, does the same in passing; empty where none is known."""
        return ""

    @abstractmethod
    def _takes(self, call: Call) -> bool: ...


@dataclass(frozen=True, slots=True, repr=False)
class Everything(Predicate):
    """Every place."""

    def _text(self) -> str:
        return "select.all"

    def _takes(self, call: Call) -> bool:
        return is_place(call)


@dataclass(frozen=True, slots=True, repr=False)
class InFamily(Predicate):
    """Modules and functions of one kind. What a module of the family calls inside is not meant too."""

    name: str

    def _text(self) -> str:
        return f"select.{self.name}"

    def _wanted(self) -> str:
        return self.name

    def _takes(self, call: Call) -> bool:
        family = family_named(self.name)
        if call.kind == "module":
            return family.has_module(call.module)
        return is_place(call) and family.has_operation(call.operation) and not family.includes_inside(call.module)

    def _where_hidden(self, calls: Sequence[Call]) -> str:
        family = family_named(self.name)
        for call in calls:
            if call.kind == "operation" and is_place(call) and family.has_operation(call.operation):  # and not taken
                return (
                    f"the {call.operation} is a step of {type(call.module).__name__}, which is one place as a whole: "
                    f"select.op({call.operation!r})"
                )
        return inside_of_others(self.name, calls)


@dataclass(frozen=True, slots=True, repr=False)
class Parametrized(Predicate):
    """Modules that have parameters of their own."""

    def _text(self) -> str:
        return "select.parametrized"

    @property
    def only_modules(self) -> bool:
        """Whether it can mean nothing but modules."""
        return True

    def _takes(self, call: Call) -> bool:
        if call.kind != "module":
            return False
        children = attributes_of(call.module).get("_modules") or {}
        return bool(own_parameters(call.module)) or "parametrizations" in children


@dataclass(frozen=True, slots=True, repr=False)
class OfClass(Predicate):
    """Modules of a class or of one derived from it."""

    kind: type

    def _text(self) -> str:
        return f"select.module({_class_text(self.kind)})"

    @property
    def only_modules(self) -> bool:
        """Whether it can mean nothing but modules."""
        return True

    def _wanted(self) -> str:
        return self.kind.__name__

    def _takes(self, call: Call) -> bool:
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
        """Whether it can mean nothing but modules."""
        return True

    def _takes(self, call: Call) -> bool:
        return call.kind == "module" and call.module is self.module


@dataclass(frozen=True, slots=True, repr=False)
class TheOperation(Predicate):
    """Calls of one function, other than those inside modules of ``torch.nn``."""

    name: str

    def _text(self) -> str:
        return f"select.op({self.name!r})"

    def _wanted(self) -> str:
        return self.name

    def _where_hidden(self, calls: Sequence[Call]) -> str:
        return inside_of_others(self.name, calls)

    def _takes(self, call: Call) -> bool:
        return call.kind == "operation" and call.operation == self.name and is_place(call)


@dataclass(frozen=True, slots=True, repr=False)
class AtPath(Predicate):
    """Calls whose path matches a pattern. An operation inside a module of ``torch.nn`` only where that one does not."""

    pattern: Place

    def _text(self) -> str:
        return f"select.path({str(self.pattern)!r})"

    def reaches_into(self, path: str) -> bool:
        """Whether an operation inside that module may match, and the module does not."""
        last, segments = self.pattern.segments[-1], _segments(path)
        if not isinstance(last, Name) or self._has(segments):
            return False
        return len(segments) in ends_of(self.pattern.segments[:-1], segments)

    def _has(self, path: Sequence[Segment]) -> bool:
        return len(path) in ends_of(self.pattern.segments, path)

    def _where_hidden(self, calls: Sequence[Call]) -> str:
        last = self.pattern.segments[-1]
        return inside_of_others(last.plain, calls) if isinstance(last, Name) else ""

    def _takes(self, call: Call) -> bool:
        path = _segments(call.path)
        if call.kind == "module" and self._has((*path, _FORWARD)) and self.pattern.segments[-1] == _FORWARD:
            return True
        return self._has(path) and (is_place(call) or not self._has(path[:-1]))


_FORWARD = Name("forward")
"""What may stand after the path of a module, and stands for that of the model itself."""


def _segments(path: str) -> tuple[Segment, ...]:
    return parse(path).segments if path else ()


@dataclass(frozen=True, slots=True, repr=False)
class Where(Predicate):
    """Places of which a function of the user says yes."""

    function: Callable[[Call], bool]

    def _text(self) -> str:
        return f"select.where({getattr(self.function, '__qualname__', type(self.function).__name__)})"

    def _hint(self, calls: Sequence[Call]) -> str:
        return ""

    def _takes(self, call: Call) -> bool:
        return is_place(call) and bool(self.function(call))


def _class_text(kind: type) -> str:
    in_torch = getattr(nn, kind.__name__, None) is kind
    return f"nn.{kind.__name__}" if in_torch else kind.__qualname__
