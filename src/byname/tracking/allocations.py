"""Where was every storage allocated? A dispatch mode notes the results of all operators, also those in backward.

A ``TorchDispatchMode`` sees every operator that PyTorch runs in its thread, after autograd and before the kernel. Of
each storage in a result that was not in an argument it notes the user's line. A storage is held weakly, by its Python
object, which is one and the same for as long as the storage lives. (A `StorageWeakRef` would leave a crumb of C++
memory behind for each storage that is gone: on a training step that cost more in page faults than everything else.)
"""

from __future__ import annotations

import copy
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from byname.reading.frames import Caller, called_from, line_of, users_frame
from byname.reading.quiet import DisableTorchFunction, dynamo_skip
from byname.source.location import Site, is_torch, locate
from byname.tracking.functions import PLAIN_TENSORS, versions_of

__all__ = ["AllocationMode", "Allocation", "AllocationLog", "is_given", "living_allocations", "storages_in"]


class Allocation(NamedTuple):
    """One living storage that a tracker has seen.

    Attributes:
        storage: the storage itself; whoever holds this keeps it alive.
        code, instruction: the user's frame that led to the allocation; None and -1 where it was there before, or where
            no line of the user's led to it.
        caller: what called the function of that frame, where it is a helper.
    """

    storage: torch.UntypedStorage
    code: CodeType | None
    instruction: int
    caller: Caller | None

    @property
    def site(self) -> Site | None:
        """The place in the source."""
        return None if self.code is None else locate(self.code, self.instruction, self.caller).site


_Line: TypeAlias = tuple[CodeType | None, int, Caller | None]
_Note: TypeAlias = tuple["weakref.ref[torch.UntypedStorage]", CodeType | None, int, Caller | None]


class AllocationLog:
    """What one tracker knows of storages, over all threads that it watches.

    Attributes:
        notes: by the storage's id; a note counts only for the very storage that it refers to.
    """

    def __init__(self, limit: int) -> None:
        self.notes: dict[int, _Note] = {}
        self._limit = limit
        self._sweep_at = _spare(0, limit)
        _LEDGERS.add(self)

    def knows(self, storage: torch.UntypedStorage) -> bool:
        """Whether there is a note of a storage."""
        note = self.notes.get(id(storage))
        return note is not None and note[0]() is storage

    def add(self, storage: torch.UntypedStorage, line: _Line) -> None:
        """Notes a storage that is not known yet."""
        self.notes[id(storage)] = (weakref.ref(storage), *line)
        if len(self.notes) > self._sweep_at:
            self._forget_the_dead()

    def __len__(self) -> int:
        return sum(note[0]() is not None for note in self.notes.copy().values())

    def _forget_the_dead(self) -> None:
        """Drops the notes of storages that are gone; so rarely that each note is looked at about twice.

        Without a lock, which a process that is forked meanwhile would never see released.
        """
        dead = [key for key, note in self.notes.copy().items() if note[0]() is None]
        for key in dead:
            note = self.notes.pop(key, None)
            if note is not None and note[0]() is not None:  # another thread has a new storage at the same address
                self.notes.setdefault(key, note)
        self._sweep_at = len(self.notes) + _spare(len(self.notes), self._limit)


def _spare(living: int, limit: int) -> int:
    """How many dead notes may gather."""
    return min(limit, max(1000, living))


def living_allocations() -> list[Allocation]:
    """The storages alive that the trackers held have seen, each once, with where it was allocated.

    Of several trackers the one that saw the allocation is believed, not one that met the storage later.
    """
    found: dict[int, Allocation] = {}
    for ledger in list(_LEDGERS):
        for key, (reference, code, instruction, caller) in ledger.notes.copy().items():
            storage = reference()
            if storage is None or storage.device.type == "meta":
                continue
            if key not in found or found[key].code is None:
                found[key] = Allocation(storage, code, instruction, caller)
    return list(found.values())


class AllocationMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The mode that fills a ledger with what one thread allocates."""

    supports_higher_order_operators = True

    def __init__(self, ledger: AllocationLog) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ledger = ledger
        self._notes = ledger.notes
        self._stopped = False
        self._thread = threading.get_ident()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not by PyTorch, whose wrapper would import the compiler at the first operator; `dynamo_skip` is enough."""
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """A compiled function is not to be run eagerly, and never compiled again, because of this mode."""
        return True

    def disable(self) -> None:
        """Notes nothing from now on, on whatever thread's stack the mode still stands."""
        self._stopped = True
        self._ledger = AllocationLog(1)  # the other one goes with its tracker

    @dynamo_skip
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types or func.__module__ != _ATEN or (args and type(args[0]) is list) or self._stopped or _modes_below():
            return self._others(func, types, args, kwargs or {})
        with DisableTorchFunction():  # PyTorch has asked the classes of the arguments already
            result = func(*args, **kwargs) if kwargs else func(*args)
            if type(result) in PLAIN_TENSORS:  # the most frequent case, written out because every operator pays for it
                try:
                    storage = result.untyped_storage()
                except (NotImplementedError, RuntimeError):  # a layout that has no storage of its own
                    self._note_all(func, result, args, kwargs, sys._getframe(1))
                    return result
                note = self._notes.get(id(storage))
                if note is None or note[0]() is not storage:
                    self._note(func, [storage], args, kwargs, sys._getframe(1))
            elif result is not None:
                self._note_all(func, result, args, kwargs, sys._getframe(1))
            return result

    @dynamo_skip
    def _others(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """What a user's class, a user's mode or Python code takes care of goes on as if this mode were not there."""
        below = _modes_below()
        if not below and any(map(_has_a_handler, types)):
            return NotImplemented  # its class is asked next; this mode sees what that computes
        if below or func.__module__ != _ATEN:
            result = func(*args, **kwargs)
        else:
            with DisableTorchFunction():
                result = _with_versions(func, args, kwargs)
        if not self._stopped:
            with DisableTorchFunction():
                self._note_all(func, result, args, kwargs, sys._getframe(2))
        return result

    def _note_all(self, func: Any, result: Any, args: Any, kwargs: Any, frame: FrameType) -> None:
        new = [storage for storage in storages_in([result]) if not self._ledger.knows(storage)]
        if new:
            self._note(func, new, args, kwargs, frame)

    def _note(self, func: Any, new: list[Any], args: Any, kwargs: Any, frame: FrameType) -> None:
        """Notes storages that are not known: made by this operator, or there before and met in an argument."""
        line = self._line(frame)
        for storage in new:
            if not is_given(storage, args) and not (kwargs and is_given(storage, kwargs.values())):
                self._ledger.add(storage, line)
            elif frame.f_code is not _CODE_OF_A_COPY:
                self._ledger.add(storage, line if _makes_of_its_argument(func, frame) else _BEFORE)

    def _line(self, frame: FrameType | None) -> _Line:
        """The user's line; for what a thread of PyTorch's own computes, that on which the user's thread waits."""
        user, _ = users_frame(frame)
        while user is not None and user.f_code.co_filename == _COPY:
            user, _ = users_frame(user.f_back)
        if user is not None:
            return user.f_code, user.f_lasti, called_from(user)
        if threading.get_ident() != self._thread:
            return line_of(sys._current_frames().get(self._thread))
        return _BEFORE


_BEFORE: _Line = (None, -1, None)
"""The place of what was there before the block, or what no line of the user's led to."""

_COPY = copy.__file__
"""A deep copy belongs to the line that asked for it."""

_CODE_OF_A_COPY = torch.UntypedStorage.clone.__code__
"""Copies a storage through two tensors; which of the two is the new one is seen when a tensor is set to it."""

_ATEN = torch.ops.aten.add.Tensor.__module__
_modes_below: Callable[[], int] = torch._C._len_torch_dispatch_stack
"""How many modes come after ours: PyTorch has taken ours off while it handles an operator."""


def _with_versions(func: Any, args: Any, kwargs: Any) -> Any:
    """Calls an operator; under a dispatch mode PyTorch does not count the versions that ``_foreach_add_`` raises."""
    name = func.__name__.partition(".")[0]
    if not (name.startswith("_foreach_") and name.endswith("_")):
        return func(*args, **kwargs)
    before = versions_of(args[0])
    result = func(*args, **kwargs)
    now = versions_of(args[0])
    missed = [one for one, old, new in zip(args[0], before, now, strict=True) if old is not None and old == new]
    torch.autograd.graph.increment_version(missed)
    return result


def _has_a_handler(kind: Any) -> bool:
    return kind not in PLAIN_TENSORS and kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl


def _makes_of_its_argument(func: Any, frame: FrameType) -> bool:
    """Whether what comes in was made on the way, where no mode looks.

    ``torch.tensor`` lifts what it made. ``torch.load`` and a deep copy set a tensor to a storage that they made.
    """
    name = func.__name__
    if name.startswith("set_.source_Storage"):
        return frame.f_code.co_name in ("__deepcopy__", "_rebuild_tensor") and is_torch(frame.f_code.co_filename)
    return bool(name.startswith("lift"))


_LEDGERS: weakref.WeakSet[AllocationLog] = weakref.WeakSet()
"""Those of every tracker somebody holds."""


def is_given(storage: torch.UntypedStorage, values: Iterable[Any]) -> bool:
    """Whether a storage comes in with an operator's arguments."""
    for value in values:
        if type(value) in PLAIN_TENSORS and value.layout is torch.strided:
            if value.untyped_storage() is storage:
                return True
        elif type(value) not in _NUMBERS and any(one is storage for one in storages_in([value])):
            return True
    return False


_NUMBERS = (int, float, bool, type(None))


def storages_in(values: Iterable[Any]) -> Iterator[Any]:
    """The storages among some values, in the tensors among them, and in the lists."""
    for value in values:
        if issubclass(type(value), torch.Tensor):
            yield from _storages_of(value)
        elif type(value) is torch.UntypedStorage:
            yield value
        elif issubclass(type(value), (list, tuple)):
            yield from storages_in(value)


def _storages_of(tensor: torch.Tensor) -> Iterator[Any]:
    """A tensor's storage, or those of the parts that it consists of."""
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse: no storage of its own, as an opaque layout
        watched = torch._C._len_torch_dispatch_stack()  # a mode of the program's would see that we ask for the parts
        for part in () if watched else _PARTS.get(tensor.layout, ()):
            yield getattr(torch.Tensor, part)(tensor).untyped_storage()
        return
    if type(tensor) in PLAIN_TENSORS or (storage.device.type != "meta" and _has_memory(storage)):
        yield storage


def _has_memory(storage: torch.UntypedStorage) -> bool:
    """Whether there is memory behind a storage; that of a wrapper only says how large it would be."""
    try:
        return storage.data_ptr() != 0
    except RuntimeError:  # PyTorch's answer for a wrapper
        return False


_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
