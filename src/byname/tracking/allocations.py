"""Allocations: a dispatch mode that records where each storage was allocated, in backward and in optimizers too.

A ``TorchDispatchMode`` sees every operator that PyTorch runs in its thread, after autograd and before the kernel. The
mode records the user's line for each storage in a result that was not in an argument. It holds a storage weakly, by its
Python object, which stays the same while the storage lives. (A `StorageWeakRef` leaves some C++ memory behind for each
freed storage: in a training step its page faults cost more than everything else.)
"""

from __future__ import annotations

import copy
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from byname.reading.frames import NO_LINE, Line, find_user_frame, user_line
from byname.reading.functions import is_in_place, versions_of
from byname.reading.quiet import DisableTorchFunction, dynamo_skip
from byname.reading.tensor import PLAIN, storages_of
from byname.source.location import is_torch


class Allocation(NamedTuple):
    """A living storage that a tracker has seen, held by this record, and the user's line that led to the allocation.

    The line is `NO_LINE` if there is none, or if the storage existed before the block.
    """

    storage: torch.UntypedStorage
    line: Line


_Note: TypeAlias = tuple["weakref.ref[torch.UntypedStorage]", Line]


class AllocationLog:
    """The storages that one tracker has seen, in all threads that it watches.

    The records in `notes` are by the storage's id; a record is valid only for the storage that it refers to.
    """

    def __init__(self, limit: int) -> None:
        self.notes: dict[int, _Note] = {}
        self._limit = limit
        self._sweep_at = _spare(0, limit)
        _LOGS.add(self)

    def knows(self, storage: torch.UntypedStorage) -> bool:
        note = self.notes.get(id(storage))
        return note is not None and note[0]() is storage

    def add(self, storage: torch.UntypedStorage, line: Line) -> None:
        """Record a storage that has no record yet."""
        self.notes[id(storage)] = (weakref.ref(storage), line)
        if len(self.notes) > self._sweep_at:
            self._forget_the_dead()

    def __len__(self) -> int:
        return sum(note[0]() is not None for note in self.notes.copy().values())

    def _forget_the_dead(self) -> None:
        """Drop the records of freed storages, so rarely that each record is read about twice.

        It takes no lock, because a process that is forked while another thread holds a lock never sees it released.
        """
        dead = [key for key, note in self.notes.copy().items() if note[0]() is None]
        for key in dead:
            note = self.notes.pop(key, None)
            if note is not None and note[0]() is not None:  # another thread has a new storage at the same address
                self.notes.setdefault(key, note)
        self._sweep_at = len(self.notes) + _spare(len(self.notes), self._limit)


def _spare(living: int, limit: int) -> int:
    """Return the number of records of freed storages that may gather before the next purge."""
    return min(limit, max(1000, living))


def living_allocations() -> list[Allocation]:
    """Return the living storages that the existing trackers have seen, each once, with the line that allocated it.

    If several trackers know a storage, the record of one that saw the allocation wins.
    """
    found: dict[int, Allocation] = {}
    for allocations in list(_LOGS):
        for key, (reference, line) in allocations.notes.copy().items():
            storage = reference()
            if storage is None or storage.device.type == "meta":
                continue
            if key not in found or found[key].line is NO_LINE:
                found[key] = Allocation(storage, line)
    return list(found.values())


class AllocationMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that records the storages that one thread allocates."""

    supports_higher_order_operators = True

    def __init__(self, allocations: AllocationLog) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._allocations = allocations
        self._notes = allocations.notes
        self._stopped = False
        self._thread = threading.get_ident()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False, as `dynamo_skip` does this already, and PyTorch's own wrapper would import the compiler."""
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True, so that this mode neither makes compiled functions run eagerly nor stops compilation."""
        return True

    def disable(self) -> None:
        """Stop recording, also if the mode is still on the stack of another thread."""
        self._stopped = True
        self._allocations = AllocationLog(1)  # so that the log is freed with its tracker

    @dynamo_skip
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types or func.__module__ != _ATEN or (args and type(args[0]) is list) or self._stopped or _modes_below():
            return self._others(func, types, args, kwargs or {})
        with DisableTorchFunction():  # PyTorch has asked the classes of the arguments already
            result = func(*args, **kwargs) if kwargs else func(*args)
            if type(result) in PLAIN:  # the most frequent case, written out because every operator pays for it
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
        """Run an operator for a subclass, another mode or Python code as if this mode were absent; record it."""
        below = _modes_below()
        if not below and any(kind not in PLAIN and kind.__torch_dispatch__ is not _NO_HANDLER for kind in types):
            return NotImplemented  # PyTorch asks the class next; this mode sees the operators that the class calls
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
        new = [storage for storage in storages_in([result]) if not self._allocations.knows(storage)]
        if new:
            self._note(func, new, args, kwargs, frame)

    def _note(self, func: Any, new: list[Any], args: Any, kwargs: Any, frame: FrameType) -> None:
        """Record new storages: those that this operator made, and older ones among its arguments."""
        line = self._line(frame)
        for storage in new:
            if not is_argument_storage(storage, args) and not (
                kwargs and is_argument_storage(storage, kwargs.values())
            ):
                self._allocations.add(storage, line)
            elif frame.f_code is not _CODE_OF_A_COPY:
                self._allocations.add(storage, line if _makes_of_its_argument(func, frame) else NO_LINE)

    def _line(self, frame: FrameType | None) -> Line:
        """Return the user's line; in a thread of PyTorch's own, the line on which the user's thread waits."""
        user, _ = find_user_frame(frame)
        while user is not None and user.f_code.co_filename == _COPY:
            user, _ = find_user_frame(user.f_back)
        if user is not None:
            return user_line(user)
        if threading.get_ident() != self._thread:
            return user_line(sys._current_frames().get(self._thread))
        return NO_LINE


_COPY = copy.__file__
"""File whose frames are skipped: a deep copy belongs to the line that asked for it."""

_CODE_OF_A_COPY = torch.UntypedStorage.clone.__code__
"""Code of a function that copies a storage through two tensors; a later ``set_`` shows which of them is the new one."""

_NO_HANDLER = torch._C._disabled_torch_dispatch_impl
_ATEN = torch.ops.aten.add.Tensor.__module__
_modes_below: Callable[[], int] = torch._C._len_torch_dispatch_stack
"""Returns the number of modes that run after ours: PyTorch takes ours off while it handles an operator."""


def _with_versions(func: Any, args: Any, kwargs: Any) -> Any:
    """Call an operator; for ``_foreach_add_`` and the like, count up the versions that PyTorch omits under a mode."""
    name = func.__name__.partition(".")[0]
    if not (name.startswith("_foreach_") and is_in_place(name)):
        return func(*args, **kwargs)
    before = versions_of(args[0])
    result = func(*args, **kwargs)
    now = versions_of(args[0])
    missed = [one for one, old, new in zip(args[0], before, now, strict=True) if old is not None and old == new]
    torch.autograd.graph.increment_version(missed)
    return result


def _makes_of_its_argument(func: Any, frame: FrameType) -> bool:
    """Return whether the caller has just made the argument of an operator, where no mode sees it.

    ``torch.tensor`` lifts a tensor that it has made; ``torch.load`` and a deep copy set a tensor to a storage that they
    have made.
    """
    name = func.__name__
    if name.startswith("set_.source_Storage"):
        return frame.f_code.co_name in ("__deepcopy__", "_rebuild_tensor") and is_torch(frame.f_code.co_filename)
    return bool(name.startswith("lift"))


_LOGS: weakref.WeakSet[AllocationLog] = weakref.WeakSet()
"""The logs of all existing trackers."""


def is_argument_storage(storage: torch.UntypedStorage, values: Iterable[Any]) -> bool:
    for value in values:
        if type(value) in PLAIN and value.layout is torch.strided:
            if value.untyped_storage() is storage:
                return True
        elif type(value) not in _NUMBERS and any(one is storage for one in storages_in([value])):
            return True
    return False


_NUMBERS = (int, float, bool, type(None))


def storages_in(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the storages among some values, in the tensors among them, and in nested lists and tuples."""
    for value in values:
        if issubclass(type(value), torch.Tensor):
            yield from storages_of(value)
        elif type(value) is torch.UntypedStorage:
            yield value
        elif issubclass(type(value), (list, tuple)):
            yield from storages_in(value)
