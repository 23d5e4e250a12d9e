"""What did one thread do while it was watched? A bounded log in which nothing is text yet and no tensor is held."""

from __future__ import annotations

import bisect
import itertools
import operator
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import nn

from byname.card import fact
from byname.site import Site, Spot, locate

__all__ = ["Call", "CallFinder", "Called", "Change", "Log", "Made", "Mutation", "RawCall", "is_in_place", "is_method"]


class Called(NamedTuple):
    """A function that was called: its name, its kind, and whether it is a method of tensors."""

    name: str
    kind: int
    is_method: bool


def is_in_place(name: str) -> bool:
    """Whether a function of this name changes its first argument."""
    return name in _IN_PLACE_NAMES or (name.endswith("_") and not name.endswith("__"))


_OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")
_IN_PLACE_NAMES = frozenset({"__setitem__", *(f"__i{operator}__" for operator in _OPERATORS)})


def is_method(function: Any) -> bool:
    """Whether a function is a method of tensors."""
    name = getattr(function, "__name__", "")
    return any(vars(kind).get(name) is function for kind in (torch.Tensor, torch._C.TensorBase))


RawCall: TypeAlias = tuple[int, int, CodeType | None, int, Any, Any, Any, int]
"""The fields of a `Call`: made a thousand times where a `Call` is looked at once."""


class Call(NamedTuple):
    """One call that made graph nodes. Unresolved: `spot` turns it into a place in the source.

    Attributes:
        before, after: the thread's sequence number around the call; its nodes have before <= number < after.
        code, instruction: the user's frame that called.
        called: what was called: a builtin of PyTorch's, or the `Called` of anything else.
        result: the tensor that came out, weakly; None when it was none or several.
        module: the innermost running module, weakly.
        inside: how many of PyTorch's modules, called by the user's line, the result has still to be returned by; 0 when
            it is the value of the user's expression.
    """

    before: int
    after: int
    code: CodeType | None
    instruction: int
    called: Any
    result: weakref.ref[torch.Tensor] | None
    module: weakref.ref[nn.Module] | None
    inside: int

    @property
    def name(self) -> str:
        """The name of what was called."""
        return str(self.called.name if type(self.called) is Called else self.called.__name__)

    @property
    def is_method(self) -> bool:
        """Whether a method of tensors was called, so that its first operand stands before the dot."""
        return bool(self.called.is_method if type(self.called) is Called else is_method(self.called))

    def spot(self) -> Spot | None:
        """Where in the user's source the call stands; None when no line of the user's led to it."""
        return None if self.code is None else locate(self.code, self.instruction)


class Made(weakref.ref):  # type: ignore[type-arg]
    """The making (or the first sight) of a tensor that no graph node belongs to; gone with the tensor.

    Attributes:
        key: the tensor's id, under which the log has this note.
        code, instruction: where it was made, or first met.
        first_sight: whether it was made unseen, and met only when something was called on it.
        passed_on: where a call last gave the very same tensor back, as ``requires_grad_()`` does.
    """

    __slots__ = ("code", "first_sight", "instruction", "key", "passed_on")

    key: int
    code: CodeType
    instruction: int
    first_sight: bool
    passed_on: tuple[CodeType, int] | None


RawChange: TypeAlias = tuple[CodeType | None, int, str, tuple["weakref.ref[Any]", ...], tuple[tuple[int, int], ...]]
"""The fields of a `Change`."""


class Change(NamedTuple):
    """One call that changed tensors in place: their storages, weakly, and each one's version before and after."""

    code: CodeType | None
    instruction: int
    operation: str
    storages: tuple[weakref.ref[Any], ...]
    versions: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Mutation:
    """One in-place operation seen on a tensor's storage.

    Attributes:
        operation: the name of the function, such as ``add_`` or ``__setitem__``.
        before, after: the storage's version number around it.
        site: where it stands; None when no line of the user's led to it.
    """

    operation: str
    before: int
    after: int
    site: Site | None


class Log:
    """What one thread did while it was watched: calls that made nodes, tensors made without one, in-place changes."""

    def __init__(self, limit: int) -> None:
        self.thread = threading.get_ident()
        self.made: dict[int, Made] = {}
        self.modules: list[weakref.ref[nn.Module]] = []
        self.calls: deque[RawCall] = deque(maxlen=limit)
        self.changes: deque[RawChange] = deque(maxlen=limit)

    def enter(self, module: nn.Module) -> int:
        """Notes that a module begins to run; how many were running before."""
        self.modules.append(weakref.ref(module))
        return len(self.modules) - 1

    def note_return(self, output: object) -> None:
        """Notes that a module has returned; the last call's result, if it is what was returned, is one step further."""
        if self.calls:
            *fields, result, module, inside = self.calls[-1]
            if inside and result is not None and result() is output:
                self.calls[-1] = (*fields, result, module, inside - 1)

    def note_making(self, tensor: torch.Tensor, frame: FrameType | None, first_sight: bool) -> None:
        """Notes where a tensor without a node comes from, unless an earlier note of it stands."""
        if frame is None or fact(tensor, "grad_fn") is not None:
            return
        earlier = self.made.get(id(tensor))
        if earlier is not None and earlier() is tensor:
            earlier.passed_on = (frame.f_code, frame.f_lasti)
            return
        made = Made(tensor, self._forget)
        made.key, made.code, made.instruction, made.first_sight = id(tensor), frame.f_code, frame.f_lasti, first_sight
        made.passed_on = None
        self.made[id(tensor)] = made

    def mutations(self, owner: object) -> list[Mutation]:
        """The changes noted for a storage."""
        found = []
        for change in itertools.starmap(Change, list(self.changes)):
            for reference, (before, after) in zip(change.storages, change.versions, strict=True):
                if reference() is owner:
                    site = None if change.code is None else locate(change.code, change.instruction).site
                    found.append(Mutation(change.operation, before, after, site))
        return found

    def _forget(self, made: Made) -> None:
        if self.made.get(made.key) is made:
            del self.made[made.key]


class CallFinder:
    """The calls of a log at one moment, for finding them by sequence number."""

    def __init__(self, log: Log) -> None:
        self._calls = list(log.calls)

    def at(self, number: int) -> Call | None:
        """The innermost call that made the node of this number."""
        position = bisect.bisect_right(self._calls, number, key=_after)
        for later in range(position, min(position + _NESTING, len(self._calls))):
            if self._calls[later][0] <= number:
                return Call(*self._calls[later])
        return None

    def living_results(self) -> Iterator[torch.Tensor]:
        """The results of calls that are still alive, the latest first."""
        for call in reversed(self._calls):
            result = None if call[5] is None else call[5]()
            if result is not None:
                yield result


_after = operator.itemgetter(1)
_NESTING = 256
"""How many calls inside a custom function's forward are looked past to find the custom function itself."""
