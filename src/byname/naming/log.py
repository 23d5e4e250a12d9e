"""What did one thread do while it was watched? A bounded log in which nothing is text yet and no tensor is held."""

from __future__ import annotations

import bisect
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch import nn

from byname.card import fact
from byname.site import Site, Spot, locate

__all__ = ["Call", "Called", "Change", "Log", "Made", "Mutation"]


class Called(NamedTuple):
    """A function that was called: its name, its kind, and whether it is a method of tensors."""

    name: str
    kind: int
    is_method: bool


class Call(NamedTuple):
    """One call that made graph nodes. Unresolved: `spot` turns it into a place in the source.

    Attributes:
        before, after: the thread's sequence number around the call; its nodes have before <= number < after.
        code, instruction: the user's frame that called.
        called: what was called.
        result: the tensor that came out, weakly; None when it was none or several.
        module: the innermost running module, weakly.
        inside: how many of PyTorch's modules, called by the user's line, the result has still to be returned by; 0 when
            it is the value of the user's expression.
    """

    before: int
    after: int
    code: CodeType | None
    instruction: int
    called: Called
    result: weakref.ref[torch.Tensor] | None
    module: weakref.ref[nn.Module] | None
    inside: int

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
        self.limit = limit
        self.made: dict[int, Made] = {}
        self.modules: list[weakref.ref[nn.Module]] = []
        self._calls: list[Call] = []
        self._changes: list[Change] = []

    @property
    def calls(self) -> list[Call]:
        """The calls remembered, oldest first."""
        return self._calls[-self.limit :]

    @property
    def changes(self) -> list[Change]:
        """The in-place changes remembered, oldest first."""
        return self._changes[-self.limit :]

    def note_call(self, call: Call) -> None:
        """Adds a call, and forgets the oldest where there are too many."""
        self._calls.append(call)
        if len(self._calls) >= 2 * self.limit:
            del self._calls[: -self.limit]

    def note_change(self, change: Change) -> None:
        """Adds an in-place change, and forgets the oldest where there are too many."""
        self._changes.append(change)
        if len(self._changes) >= 2 * self.limit:
            del self._changes[: -self.limit]

    def enter(self, module: nn.Module) -> int:
        """Notes that a module begins to run; how many were running before."""
        self.modules.append(weakref.ref(module))
        return len(self.modules) - 1

    def note_return(self, output: object) -> None:
        """Notes that a module has returned; the last call's result, if it is what was returned, is one step further."""
        if self._calls:
            last = self._calls[-1]
            if last.inside and last.result is not None and last.result() is output:
                self._calls[-1] = last._replace(inside=last.inside - 1)

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

    def call_at(self, number: int) -> Call | None:
        """The innermost call that made the node of this number."""
        first = max(0, len(self._calls) - self.limit)
        position = bisect.bisect_right(self._calls, number, lo=first, key=lambda call: call.after)
        for later in range(position, min(position + _NESTING, len(self._calls))):
            if self._calls[later].before <= number:
                return self._calls[later]
        return None

    def living_results(self) -> Iterator[torch.Tensor]:
        """The results of calls that are still alive, the latest first."""
        for call in reversed(self.calls):
            result = None if call.result is None else call.result()
            if result is not None:
                yield result

    def mutations(self, owner: object) -> list[Mutation]:
        """The changes noted for a storage."""
        found = []
        for change in self.changes:
            for reference, (before, after) in zip(change.storages, change.versions, strict=True):
                if reference() is owner:
                    site = None if change.code is None else locate(change.code, change.instruction).site
                    found.append(Mutation(change.operation, before, after, site))
        return found

    def _forget(self, made: Made) -> None:
        if self.made.get(made.key) is made:
            del self.made[made.key]


_NESTING = 256
"""How many calls inside a custom function's forward are looked past to find the custom function itself."""
