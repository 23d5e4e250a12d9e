"""Log: the calls and changes of one thread while it was watched, bounded in length.

Recording is on the hot path, so nothing is turned into text yet. No tensor is kept alive.
"""

from __future__ import annotations

import bisect
import itertools
import operator
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType, MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import nn

from byname.reading.frames import NO_LINE, Line
from byname.reading.functions import BUILTINS, is_method, name_of
from byname.reading.tensor import fact
from byname.source.location import Site, changed_by, scope_of


class Called(NamedTuple):
    """A function that was called: its name, and whether it is a method of tensors."""

    name: str
    is_method: bool


RawCall: TypeAlias = tuple[int, int, Any, Any, Any, int, Any, int, Any]
"""The fields of a `Call`, with those of its `Line` in place of the last. Thousands are recorded for each one read."""


class FirstOfSeveral(weakref.ref[torch.Tensor]):
    """A weak reference to the first of several results of a call."""

    __slots__ = ()


class Call(NamedTuple):
    """One call that made graph nodes.

    Attributes:
        before, after: the thread's sequence number around the call; its nodes have before <= number < after.
        called: the called function: a builtin of PyTorch's itself, or the `Called` of any other.
        result: a weak reference to the resulting tensor; None if there was none or several.
        module: a weak reference to the innermost running module.
        inside: the number of enclosing torch.nn module calls that have not yet returned the result; 0 if it is the
            value of the user's own expression.
        line: the user's line that called.
        first: a weak reference to the first result; None if there was none.
    """

    before: int
    after: int
    called: Any
    result: weakref.ref[torch.Tensor] | None
    module: weakref.ref[nn.Module] | None
    inside: int
    line: Line
    first: weakref.ref[torch.Tensor] | None

    @classmethod
    def of(cls, raw: RawCall) -> Call:
        result = None if type(raw[3]) is FirstOfSeveral else raw[3]
        return cls(*raw[:3], result, *raw[4:6], Line(*raw[6:]), raw[3])

    @property
    def name(self) -> str:
        return str(self.called.name if type(self.called) is Called else self.called.__name__)

    @property
    def is_method(self) -> bool:
        """Whether a method of tensors was called, so that its first operand stands before the dot."""
        return bool(self.called.is_method if type(self.called) is Called else is_method(self.called))


def logged_function(function: Any) -> Any:
    """Return a function in the form in which the log keeps it: a builtin as it is, any other as a `Called`."""
    return function if type(function) in BUILTINS else Called(name_of(function), is_method(function))


class DetachPoint(NamedTuple):
    """A call with inputs that require grad and a result that does not. Other fields are as those of a `Call`.

    Attributes:
        number: the thread's sequence number at the call.
        name: the called function: ``detach``, ``argmax``, ``item``; ``data`` for reading ``x.data``.
        reason: ``no_grad`` or ``inference`` if the call ran in such a block, ``checkpoint`` if it is a reentrant
            checkpoint without an input that requires grad; empty if the function itself detaches.
        inputs: weak references to the inputs that required grad, each with its node's sequence number, -1 for a leaf;
            for the conversion of a detached tensor to a Python value, the inputs of the call that detached it.
    """

    number: int
    line: Line
    name: str
    reason: str
    inputs: tuple[tuple[weakref.ref[torch.Tensor], int], ...]
    result: weakref.ref[torch.Tensor] | None
    module: weakref.ref[nn.Module] | None


class OptimizerStep(NamedTuple):
    """A step, such as ``SGD.step``: the thread's sequence number when it began, and the program's line for it."""

    number: int
    line: Line
    optimizer: weakref.ref[torch.optim.Optimizer]
    name: str


class Switch(NamedTuple):
    """A line that switched gradients off, and the thread's sequence number then."""

    number: int
    line: Line


RawSight: TypeAlias = tuple[CodeType | None, int, "weakref.ref[torch.Tensor]"]
"""The code and instruction of an operation on a tensor, and a weak reference to the tensor."""


class TensorRecord(weakref.ref):  # type: ignore[type-arg]
    """Weak reference to a tensor without a graph node that was computed after detach points: four `detaches` at most.

    The key is the tensor's id, which is also the key of this record in the log.
    """

    __slots__ = ("detaches", "key")

    key: int
    detaches: tuple[DetachPoint, ...]


class CreationRecord(TensorRecord):
    """Creation record of a tensor that has no graph node; the log drops it once the tensor is gone.

    Attributes:
        line: where the tensor was made, or first seen.
        made_unseen: whether the making was not seen, and the tensor was met only when a function was called on it.
        passed_on: where a call last returned this very tensor, as ``requires_grad_()`` does.
    """

    __slots__ = ("line", "made_unseen", "passed_on")

    line: Line
    made_unseen: bool
    passed_on: Line | None


class Change(NamedTuple):
    """One call that changed tensors in place: weak references to their storages, with each version before and after."""

    line: Line
    operation: str
    storages: tuple[weakref.ref[Any], ...]
    versions: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Mutation:
    """One in-place operation seen on a tensor's storage.

    Attributes:
        operation: the name of the function, such as ``add_`` or ``__setitem__``.
        before, after: the storage's version number around it.
        site: the location of the operation; None if no line of the user's led to it.
        changed: the source text of the changed value, such as ``h`` in ``h += 1``; None if it is not known.
        scope: the function that contains that source text.
    """

    operation: str
    before: int
    after: int
    site: Site | None
    changed: str | None = None
    scope: str = ""


class DataEdit(NamedTuple):
    """A change of a result's values through ``.data``, which autograd does not see.

    Attributes:
        number: the sequence number of the result's node.
        line: the user's line that made the change.
        operation: the name of the function, such as ``clamp_``; ``data`` for an assignment to ``x.data``.
    """

    number: int
    line: Line
    operation: str


class CallListener(Protocol):
    """Interface of a listener that gets calls while they run, before their results go back to the program."""

    def applied(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any], frame: FrameType) -> None:
        """Note a call of one of PyTorch's functions that are written in Python, or of copy_()."""

    def ran(self, module: nn.Module, args: Sequence[Any], kwargs: dict[str, Any], depth: int, frame: FrameType) -> None:
        """Note the call of a module, inside `depth` others."""


class _ThisThread(threading.local):
    def __init__(self) -> None:
        self.token = object()


_HERE = _ThisThread()


class Log:
    """Record of one watched thread: calls that made nodes, tensors made without a node, in-place changes.

    Attributes:
        tensor_records: records of living tensors without a node, by id. Those that an expression of the user's made
            have a `CreationRecord`; those made inside one of PyTorch's modules have a bare `TensorRecord`.
        modules: weak references to the running modules, the innermost last.
        grad_reads: the places that read ``.grad`` of a tensor that does not keep its gradient.
        frozen: the places that set ``requires_grad`` to False.
        unfrozen: how often it was set to True for a parameter.
        switched_off: the line that switched gradients off without a block that switches them on again, if one did.
    """

    def __init__(self, limit: int) -> None:
        self.thread = threading.get_ident()
        self.listener: CallListener | None = None
        self._token = _HERE.token
        self.tensor_records: dict[int, TensorRecord] = {}
        self.modules: list[weakref.ref[nn.Module]] = []
        self.calls: deque[RawCall] = deque(maxlen=limit)
        self.changes: deque[Change] = deque(maxlen=limit)
        self.detaches: deque[DetachPoint] = deque(maxlen=limit)
        self._dead: deque[TensorRecord] = deque()
        # A method written in C: an interrupt that arrives in a Python callback of a weak reference is lost.
        self._died = self._dead.append
        self.steps: deque[OptimizerStep] = deque(maxlen=min(limit, _MOST_STEPS))
        self.data_edits: deque[DataEdit] = deque(maxlen=256)
        self.grad_reads: deque[RawSight] = deque(maxlen=256)
        self.frozen: deque[RawSight] = deque(maxlen=4096)
        self.unfrozen = 0
        self.switched_off: Switch | None = None
        self._switched_before: Switch | None = None

    def note_switch(self, on: bool, line: Line) -> None:
        """Record a line that switches gradients on or off, until `forget_switch` if it turns out to begin a block."""
        self._switched_before = self.switched_off
        self.switched_off = None if on else Switch(torch._C._autograd._get_sequence_nr(), line)

    def forget_switch(self) -> None:
        """Forget the last switch, because it belongs to a block or a decorator, which undoes it."""
        self.switched_off = self._switched_before

    def enter(self, module: nn.Module) -> int:
        """Record that a module begins to run, and return the number of modules running before."""
        self.modules.append(weakref.ref(module))
        return len(self.modules) - 1

    def note_return(self, output: object) -> None:
        """Record that a module has returned; if it returned the last call's result, decrement that call's `inside`."""
        if self.calls:
            before, after, called, result, module, inside, *line = self.calls[-1]
            if inside and result is not None and type(result) is not FirstOfSeveral and result() is output:
                self.calls[-1] = (before, after, called, result, module, inside - 1, *line)

    def note_creation(
        self, tensor: torch.Tensor, line: Line, made_unseen: bool, cuts: tuple[DetachPoint, ...] = ()
    ) -> None:
        """Record where a tensor was made, unless it has a node. Callers hold `DisableTorchFunction`."""
        if fact(tensor, "grad_fn") is None:
            self.note_detached(tensor, line, made_unseen, cuts)

    def note_detached(self, tensor: torch.Tensor, line: Line, made_unseen: bool, cuts: tuple[DetachPoint, ...]) -> None:
        """Record where a tensor without a node was made, unless an earlier record says so."""
        if line is NO_LINE:
            return
        if self._dead:
            self._forget_the_dead()
        key = id(tensor)
        earlier = self.tensor_records.get(key)
        if earlier is not None and earlier() is tensor:
            cuts = cuts or earlier.detaches
            if type(earlier) is CreationRecord:
                earlier.passed_on, earlier.detaches = line, cuts
                return
        made = CreationRecord(tensor, self._died)
        made.key, made.line, made.made_unseen, made.passed_on, made.detaches = key, line, made_unseen, None, cuts
        self.tensor_records[key] = made  # only now: an interrupt may come at any line

    def note_inner(self, tensor: torch.Tensor, cuts: tuple[DetachPoint, ...]) -> None:
        """Record the detach points of a tensor made inside one of PyTorch's modules, by no expression of the user's."""
        if self._dead:
            self._forget_the_dead()
        earlier = self.tensor_record_of(tensor)
        if earlier is not None:
            earlier.detaches = cuts
            return
        record = TensorRecord(tensor, self._died)
        record.key, record.detaches = id(tensor), cuts
        self.tensor_records[record.key] = record

    def detaches_of(self, tensor: torch.Tensor) -> tuple[DetachPoint, ...]:
        """Return the detach points before a tensor without a node: at most four different places."""
        record = self.tensor_record_of(tensor)
        return () if record is None else record.detaches

    def tensor_record_of(self, tensor: torch.Tensor) -> TensorRecord | None:
        record = self.tensor_records.get(id(tensor))
        return record if record is not None and record() is tensor else None

    def made(self, tensor: torch.Tensor) -> CreationRecord | None:
        """Return the record of where a tensor without a node was made, or None."""
        record = self.tensor_record_of(tensor)
        return record if type(record) is CreationRecord else None

    def creations(self) -> list[CreationRecord]:
        return [record for record in [*self.tensor_records.values()] if type(record) is CreationRecord]

    def mutations(self, owner: object) -> list[Mutation]:
        """Return the changes recorded for a storage."""
        found = []
        for change in list(self.changes):
            for reference, (before, after) in zip(change.storages, change.versions, strict=True):
                if reference() is owner:
                    code, instruction, _ = change.line
                    of = None if code is None else changed_by(code, instruction, change.operation)
                    scope = "" if code is None else scope_of(code)
                    found.append(Mutation(change.operation, before, after, change.line.site, of, scope))
        return found

    def modules_since_step(self, *, ever: bool = False) -> list[nn.Module]:
        """Return the living modules that made nodes since the last optimizer step, or `ever`, but no running one."""
        now = torch._C._autograd._get_sequence_nr()
        since = 0 if ever else next((step.number for step in reversed(self.steps) if step.number < now), 0)
        calls = itertools.takewhile(lambda call: call[0] >= since, reversed(self.calls))
        modules = (None if call[4] is None else call[4]() for call in calls)
        return list({id(one): one for one in modules if one is not None}.values())

    def of_this_thread(self) -> bool:
        """Return whether this is the current thread's log; another thread may have had the same number before."""
        return self._token is _HERE.token

    def is_empty(self) -> bool:
        return not (self.calls or self.changes or self.detaches or self.steps or self.tensor_records or self.frozen)

    def _forget_the_dead(self) -> None:
        while self._dead:
            gone = self._dead.popleft()
            if self.tensor_records.get(gone.key) is gone:
                del self.tensor_records[gone.key]


TRACKERS: weakref.WeakSet[Any] = weakref.WeakSet()
"""All existing trackers (`Tracker`), so that `leaves` and other functions need no tracker as an argument."""


def logs() -> list[Log]:
    return [log for tracker in list(TRACKERS) for log in tracker.logs]


def changes_of(storage: Any, since: Mapping[int, int] = MappingProxyType({})) -> list[Change]:
    """Return the recorded changes of a storage by anything but optimizers, since `changes_so_far` if that is given."""
    here = [log for log in logs() if log.of_this_thread()]
    every = [change for log in here for change in [*log.changes][since.get(id(log), 0) :]]
    mine = [change for change in every if any(reference() is storage for reference in change.storages)]
    return [change for change in mine if not change.operation.endswith(".step")]


def changes_so_far() -> dict[int, int]:
    """Return the number of changes recorded so far in each log of this thread, by the id of the log."""
    return {id(log): len(log.changes) for log in logs() if log.of_this_thread()}


class CallFinder:
    """The calls of a log at one moment, for finding them by sequence number."""

    def __init__(self, log: Log) -> None:
        self._calls = list(log.calls)
        self._ends: list[int] | None = None

    def index(self) -> None:
        """Prepare for many lookups; a single lookup is faster without."""
        self._ends = list(map(_after, self._calls))

    def at(self, number: int) -> Call | None:
        """Return the innermost call that made the node with this sequence number."""
        if self._ends is not None:
            position = bisect.bisect_right(self._ends, number)
        else:
            position = bisect.bisect_right(self._calls, number, key=_after)
        for later in range(position, min(position + _NESTING, len(self._calls))):
            if self._calls[later][0] <= number:
                return Call.of(self._calls[later])
        return None

    def living_results(self) -> Iterator[torch.Tensor]:
        """Yield the living results of the calls, the latest first."""
        for call in reversed(self._calls):
            result = None if call[3] is None else call[3]()
            if result is not None:
                yield result


_after = operator.itemgetter(1)
_MOST_STEPS = 100_000
_NESTING = 256
"""The most calls inside a custom function's forward that a lookup passes to find the custom function itself."""
