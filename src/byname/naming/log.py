"""What did one thread do while it was watched? A bounded log in which nothing is text yet and no tensor is held."""

from __future__ import annotations

import bisect
import threading
import weakref
from collections import deque
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch import nn

from byname.site import Site, Spot, locate

__all__ = ["Call", "Change", "Log", "Made", "Mutation"]


class Call(NamedTuple):
    """One call that made graph nodes. Unresolved: `spot` turns it into a place in the source.

    Attributes:
        before, after: the thread's sequence number around the call; its nodes have before <= number < after.
        code, instruction: the user's frame that called.
        function: what was called.
        result: the tensor that came out, weakly; None when it was none or several.
        module: the innermost running module, weakly.
        inside: how many of PyTorch's modules, called by the user's line, the result has still to be returned by; 0 when
            it is the value of the user's expression.
    """

    before: int
    after: int
    code: CodeType | None
    instruction: int
    function: Any
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
    function: Any
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
    """What one thread did while it was watched."""

    def __init__(self, limit: int) -> None:
        self.thread = threading.get_ident()
        self.calls: deque[Call] = deque(maxlen=limit)
        self.changes: deque[Change] = deque(maxlen=limit)
        self.made: dict[int, Made] = {}
        self.modules: list[weakref.ref[nn.Module]] = []

    def call_at(self, number: int) -> Call | None:
        """The innermost call that made the node of this number."""
        position = bisect.bisect_right(self.calls, number, key=lambda call: call.after)
        for later in range(position, min(position + _NESTING, len(self.calls))):
            if self.calls[later].before <= number:
                return self.calls[later]
        return None

    def mutations(self, owner: object) -> list[Mutation]:
        """The changes noted for a storage."""
        found = []
        for change in list(self.changes):
            for reference, (before, after) in zip(change.storages, change.versions, strict=True):
                if reference() is owner:
                    site = None if change.code is None else locate(change.code, change.instruction).site
                    found.append(Mutation(getattr(change.function, "__name__", "?"), before, after, site))
        return found

    def note_making(self, tensor: torch.Tensor, frame: FrameType | None, first_sight: bool) -> None:
        """Notes where a tensor without a node comes from, unless an earlier note of it stands."""
        if frame is None or tensor.grad_fn is not None:
            return
        earlier = self.made.get(id(tensor))
        if earlier is not None and earlier() is tensor:
            earlier.passed_on = (frame.f_code, frame.f_lasti)
            return
        made = Made(tensor, self._forget)
        made.key, made.code, made.instruction, made.first_sight = id(tensor), frame.f_code, frame.f_lasti, first_sight
        made.passed_on = None
        self.made[id(tensor)] = made

    def _forget(self, made: Made) -> None:
        if self.made.get(made.key) is made:
            del self.made[made.key]


_NESTING = 256
"""How many calls inside a custom function's forward are looked past to find the custom function itself."""
