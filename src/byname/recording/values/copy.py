"""Copy: a value out of a running program, whole and sharing nothing with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from byname.errors import NotStorableError
from byname.recording.values.plain import (
    ATOMS,
    Refused,
    part_copied,
    plain_atom,
    plain_items,
    plain_key,
    quick_copy,
    recorded_class,
    without_dispatch_modes,
)


def plain_copy(value: Any, *, path: str, fetch: Callable[[torch.Tensor], torch.Tensor] | None = None) -> Any:
    """Return a copy as recordings keep it: tensors on the CPU, plain Python values, and dicts, lists and tuples.

    Subclasses are read as their base class, by its own methods; no code of theirs runs. A tensor becomes one of class
    `torch.Tensor` that is contiguous, needs no gradient and owns its memory, of the same dtype. Dicts, lists and tuples
    become exactly these; a dataclass becomes a dict of its fields, a numpy array a tensor, a sparse tensor a dict of
    its parts, a nested one the list of its tensors. A container that stands in the value twice stands in the copy twice
    as the same object.

    `path` is for errors; `fetch` brings dense tensors from other devices, by default they are copied to the CPU.

    >>> plain_copy({"scores": torch.ones(2), "step": 3}, path="forward.state")
    {'scores': tensor([1., 1.]), 'step': 3}
    """
    if (quick := quick_copy(value)) is not None:
        return quick
    if torch.is_inference_mode_enabled():  # a tensor made under it could never take part in a training
        with torch.inference_mode(False):
            return plain_copy(value, path=path, fetch=fetch)
    try:
        return Copying(partial(_tensor_copied, fetch=fetch or _fetched)).copy(value)
    except NotImplementedError as reason:  # PyTorch's answer where it has no numbers of a dtype (int4), only its name
        words = str(reason).partition("\n")[0]
        raise NotStorableError(f"`{path}` cannot be recorded: PyTorch cannot copy it ({words})") from reason
    except Refused as refused:
        where = "".join(reversed(refused.steps))
        subject = f"in it, `{where}`" if where else "it"
        raise NotStorableError(f"`{path}` cannot be recorded: {subject} {refused}") from None


def _tensor_copied(tensor: Any, fetch: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    quick = quick_copy(tensor)
    return part_copied(tensor, fetch) if quick is None else quick


_DEEPEST = 100
"""The deepest nesting of containers; more is taken for a mistake, long before Python's own limit."""

_UNFINISHED = object()

_ITERATED: dict[type, Callable[[Any], Any]] = {list: list.__iter__, tuple: tuple.__iter__}


class Copying:
    """Copies a value, with `take` for each tensor in it; a container is copied once, however often it stands there."""

    __slots__ = ("_done", "_take")

    def __init__(self, take: Callable[[torch.Tensor], Any]) -> None:
        self._take = take
        self._done: dict[int, Any] = {}

    def copy(self, value: Any, deeper: int = _DEEPEST) -> Any:
        """Return the copy; `Refused` says what in it cannot be recorded."""
        if type(value) in ATOMS:
            return value
        kind = recorded_class(value)
        if kind is torch.Tensor:
            return self._take(value)
        if kind not in (dict, list, tuple):
            return plain_atom(value, kind)
        done = self._done.get(id(value))  # the value holds its parts, so that no id is given twice meanwhile
        if done is _UNFINISHED:
            raise Refused("contains itself. Record a part of it that does not")
        if done is not None:
            return done
        if deeper == 0:
            raise Refused(f"lies {_DEEPEST} containers deep. Record a part of it by its own path")
        self._done[id(value)] = _UNFINISHED
        self._done[id(value)] = done = self._dict(value, deeper) if kind is dict else self._items(value, kind, deeper)
        return done

    def _items(self, value: Any, kind: type, deeper: int) -> Any:
        copied: list[Any] = []
        try:
            for item in _ITERATED[kind](value):
                copied.append(self.copy(item, deeper - 1))  # its length tells where an error arose
        except Refused as refused:
            refused.steps.append(f"[{len(copied)}]")
            raise
        return copied if kind is list else tuple(copied)

    def _dict(self, value: Any, deeper: int) -> dict[Any, Any]:
        copied: dict[Any, Any] = {}
        for key, item in plain_items(value):
            plain = plain_key(key)
            try:
                copied[plain] = self.copy(item, deeper - 1)
            except Refused as refused:
                refused.steps.append(f"[{plain!r}]")
                raise
        return copied


def _fetched(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor of another device, at once: the program waits for it."""
    return tensor.to("cpu", memory_format=torch.contiguous_format)


class Copies:
    """Copies values as `plain_copy` does, but lets no step of the program wait for a GPU.

    What `take` returns for a tensor on a GPU is memory whose content comes later: it is whole after `settle`. In
    between the program may do with its own tensor what it wants.

    The tensor is first copied on the GPU, in the program's own stream: there is no other moment at which it surely has
    its value, and a GPU copies within itself some fifty times as fast as to the CPU. From there it goes to pinned
    memory in a stream of its own. PyTorch's allocators keep both pieces of memory until the copies are through, and use
    them again. `settle` moves the values on into ordinary memory, where there is enough room for them.

    >>> copies = Copies()
    >>> copy = copies.take(torch.ones(2), "fc1.output")
    >>> copies.settle()
    >>> copy
    tensor([1., 1.])
    """

    __slots__ = ("_streams", "_under_way")

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._under_way: list[tuple[torch.Tensor, torch.Tensor]] = []

    def take(self, value: Any, path: str) -> Any:
        """Return the copy, whole after `settle`; raises as `plain_copy` does."""
        return plain_copy(value, path=path, fetch=self._begin)

    def settle(self) -> None:
        """Wait for the copies that were begun, and for nothing else that the GPUs have to do."""
        if not self._under_way:
            return
        for stream in self._streams.values():
            stream.record_event().synchronize()
        under_way, self._under_way = self._under_way, []
        with without_dispatch_modes():
            for copy, pinned in under_way:
                copy.copy_(pinned)

    def _begin(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_cuda:
            return _fetched(tensor)
        if torch.cuda.is_current_stream_capturing():
            raise Refused("is being captured into a CUDA graph and has no values yet. Record the graph's result")
        stream = self._stream(tensor.device)
        steady = tensor.clone(memory_format=torch.contiguous_format)
        pinned = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
        stream.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(stream):  # type: ignore[no-untyped-call, unused-ignore]
            pinned.copy_(steady, non_blocking=True)
        steady.record_stream(stream)
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        self._under_way.append((copy, pinned))
        return copy

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call, unused-ignore]
        return self._streams[device]
