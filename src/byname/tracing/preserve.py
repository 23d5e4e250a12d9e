"""Preserve: a snapshot of a model and the random state, taken before a run beside the program, restored after it."""

from __future__ import annotations

import copy
import random
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import nn

from byname.errors import BadArgumentError, BadExampleError
from byname.model import items
from byname.place import Item, Segment
from byname.reading.modules import modules_in, own_parameters, parameters_in
from byname.reading.objects import attributes_of
from byname.reading.quiet import DisableTorchFunction, collection_paused
from byname.reading.tensor import fact, is_tensor, memory_of, storage_key, version_of
from byname.tracing.muted import mute_others


@contextmanager
def restored(model: nn.Module) -> Iterator[ModelSnapshot]:
    """Restore the model and the random state after the block, also after an exception.

    Restores the values, versions and identity of parameters, buffers and tensors in attributes; gradients;
    ``requires_grad``; the class and every attribute of every module; containers in attributes, registries and hooks;
    the states of random generators; the default dtype; the grad mode.
    """
    with collection_paused():  # else it takes four times as long: each container of each module allocates objects
        before = ModelSnapshot(model)
    try:
        yield before
    finally:
        before.restore()


@contextmanager
def isolated_run(model: nn.Module, *readers: object) -> Iterator[None]:
    """Run a model inside the block without a trace; of the read-only callbacks only these `readers` observe it.

    Raises:
        BadArgumentError: at the end, if the forward has changed a parameter in place: its old values are lost.
    """
    with mute_others(*readers), autocast_cache_disabled(), restored(model) as before:
        renormed = before.copy_before_run()
        others = [one for one in parameters_in(model) if id(one) not in renormed]
        versions = [version_of(one) for one in others]
        yield
        if versions != [version_of(one) for one in others]:
            raise BadArgumentError(
                f"the forward of this {type(model).__name__} changed parameters in place, and their old values are "
                "lost: byname cannot run such a model on an example"
            )


@contextmanager
def autocast_cache_disabled() -> Iterator[None]:
    """Turn off autocast's cache: training would reuse casts of ``no_grad``, without a gradient (pytorch#48049)."""
    enabled = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(enabled)


class ModelSnapshot:
    """A snapshot of a model and of the random generators."""

    def __init__(self, model: nn.Module) -> None:
        self._undo: list[Callable[[], object]] = [_modes(), *_generators()]
        self._empty: list[dict[Any, Any]] = []
        self._seen: set[int] = set()
        self._tensors: list[_Tensor] = []
        self._storages: dict[int, tuple[Any, Any]] = {}
        modules = modules_in(model)
        self._seen.update(map(id, modules))
        parameters: dict[int, torch.Tensor] = {}
        self._renormed: list[torch.Tensor] = []
        for module in modules:
            held = attributes_of(module)
            if held.get("max_norm") is not None:
                self._renormed += own_parameters(module)
            parameters.update((id(one), one) for one in (held.get("_parameters") or {}).values() if is_tensor(one))
        with DisableTorchFunction():
            self._seen.update(parameters)
            for parameter in parameters.values():
                self._tensors.append(_Tensor(parameter))
            self._copied_late = {storage_key(one): one for one in parameters.values()}
            for module in modules:
                self._undo.append(partial(object.__setattr__, module, "__class__", type(module)))
                self._keep_dict(attributes_of(module), 0)

    def before_writing(self, tensors: list[torch.Tensor]) -> None:
        """Copy the values of those tensors whose copy was postponed: parameters, and large or deeply nested tensors.

        The caller holds `DisableTorchFunction`.
        """
        for tensor in tensors:
            kept = self._copied_late.get(storage_key(tensor))
            if kept is not None:
                self._copy_storage(kept)

    def copy_before_run(self) -> set[int]:
        """Copy the values of all tensors that a forward may write to unobserved.

        These are all but parameters; and the weights of embeddings that are renormalised, whose ids are returned.
        """
        renormed = {id(one) for one in self._renormed}
        with DisableTorchFunction():
            for tensor in [*self._copied_late.values()]:
                if id(tensor) in renormed or not issubclass(type(tensor), nn.Parameter):
                    self._copy_storage(tensor)
        return renormed

    def clear_gradients(self) -> None:
        """Set all gradients to None without copying them; `restore` puts the same tensors back."""
        with DisableTorchFunction():
            for one in self._tensors:
                if one.leaf and fact(one.tensor, "grad") is not None:
                    one.tensor.grad = None

    def before_backward(self) -> None:
        """Copy the values of the gradients before a backward adds to them."""
        with DisableTorchFunction():
            for grad in [one.grad for one in self._tensors if one.grad is not None]:
                if id(grad) not in self._seen:
                    self._seen.add(id(grad))
                    self._tensors.append(_Tensor(grad))
                    self._copy_storage(grad)

    def restore(self) -> None:
        with DisableTorchFunction():
            for tensor in self._tensors:
                tensor.restore_memory()
            for storage, values in self._storages.values():
                storage.copy_(values)
            for tensor in self._tensors:
                tensor.restore()
        for undo in self._undo[::-1]:
            undo()
        for held in self._empty:
            if held:
                held.clear()

    def _keep(self, value: Any, depth: int) -> None:
        """Take a snapshot of one value of an attribute and of its contents."""
        if type(value) in _PLAIN or id(value) in self._seen or depth > _DEEP:
            return
        self._seen.add(id(value))
        if is_tensor(value):
            self._tensors.append(_Tensor(value))
            storage = memory_of(value)
            if depth > _NEAR or (storage is not value and storage.nbytes() > _LARGE):
                self._copied_late.setdefault(storage_key(value), value)
            else:
                self._copy_storage(value)
        elif type(value) in (dict, OrderedDict, defaultdict, Counter):
            self._keep_dict(value, depth)
        elif type(value) in (list, deque, set, tuple):
            self._keep_items(value, depth)
        elif (state := _own_state(value)) is not None:
            self._undo.append(state)
        elif str(type(value).__module__).partition(".")[0] not in _NOT_THE_MODELS:
            held = attributes_of(value)
            if held and not issubclass(type(value), nn.Module):
                self._keep_dict(held, depth)

    def _keep_dict(self, held: dict[Any, Any], depth: int) -> None:
        base: Any = OrderedDict if type(held) is OrderedDict else dict
        if not base.__len__(held):  # as nearly all registries of a module are
            self._empty.append(held)
            return
        before = list(base.items(held))

        def undo() -> None:
            if [*map(id, chain.from_iterable(before))] != [*map(id, chain.from_iterable(base.items(held)))]:
                base.clear(held)
                base.update(held, before)

        self._undo.append(undo)
        for _, value in before:
            self._keep(value, depth + 1)

    def _keep_items(self, held: Any, depth: int) -> None:
        before = list(held)

        def undo() -> None:
            if [*map(id, before)] != [*map(id, held)]:
                held.clear()
                (held.update if type(held) is set else held.extend)(before)

        if type(held) is not tuple:
            self._undo.append(undo)
        for value in before:
            self._keep(value, depth + 1)

    def _copy_storage(self, tensor: torch.Tensor) -> None:
        storage = memory_of(tensor)
        if storage is tensor or fact(tensor, "is_meta"):
            return
        key = int(storage._cdata)
        if key not in self._storages:
            self._storages[key] = (storage, storage.clone())


class _Tensor:
    """A snapshot of one tensor's memory, version and standing in autograd; `ModelSnapshot` copies the values."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.leaf = bool(fact(tensor, "is_leaf"))
        self.trainable = bool(fact(tensor, "requires_grad"))
        self.grad: torch.Tensor | None = fact(tensor, "grad") if self.leaf else None
        self.version = None if torch._C.TensorBase.is_inference(tensor) else int(fact(tensor, "_version"))
        storage = memory_of(tensor)
        self.place = None if storage is tensor else _place(tensor)
        self.alias = None if storage is tensor else torch._C.TensorBase.detach(tensor)

    def restore_memory(self) -> None:
        """Point the tensor to its original memory again, after ``tensor.data = ...`` or a resize."""
        if self.alias is not None and _place(self.tensor) != self.place:
            self.tensor.data = self.alias

    def restore(self) -> None:
        """Restore the tensor's ``is_leaf``, ``requires_grad``, gradient and version."""
        tensor = self.tensor
        if self.leaf and not fact(tensor, "is_leaf"):
            torch._C.TensorBase.detach_(tensor)
        if self.leaf and fact(tensor, "requires_grad") != self.trainable:
            torch._C.TensorBase.requires_grad_(tensor, self.trainable)
        if self.leaf and fact(tensor, "grad") is not self.grad:
            tensor.grad = self.grad
        if self.version is not None and fact(tensor, "_version") != self.version:
            torch._C._autograd._unsafe_set_version_counter((tensor,), (self.version,))


_PLAIN = (int, float, str, bool, bytes, type(None), torch.dtype, torch.device, torch.Size, complex, type)
_DEEP = 5
"""The number of nested containers that the snapshot descends into."""
_NEAR = 2
"""Tensors up to this depth (registries and attributes) are copied before the run, deeper ones before a write."""
_LARGE = 1 << 26
"""Tensors of more bytes than this are copied only before a write, NumPy arrays not at all."""
_TRAINERS = {"accelerate", "byname", "lightning", "lightning_fabric", "pytorch_lightning"}
_NOT_THE_MODELS = {*sys.stdlib_module_names, "torch", "numpy", *_TRAINERS} - {"types"}
"""Top-level packages whose objects are not snapshotted: a forward does not change them, other threads may."""


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    strides = tensor.stride() if tensor.layout is torch.strided else ()
    return storage_key(tensor), tensor.storage_offset(), tuple(tensor.shape), strides, tensor.dtype


def _modes() -> Callable[[], None]:
    dtype, grad = torch.get_default_dtype(), torch.is_grad_enabled()

    def undo() -> None:
        if torch.get_default_dtype() is not dtype:
            torch.set_default_dtype(dtype)
        if torch.is_grad_enabled() != grad:
            torch.set_grad_enabled(grad)

    return undo


def _generators() -> list[Callable[[], None]]:
    """Return functions that restore the random state of Python, NumPy, and PyTorch on every device in use."""
    python, cpu = random.getstate(), torch.get_rng_state()
    undo: list[Callable[[], None]] = [lambda: random.setstate(python), lambda: torch.set_rng_state(cpu)]
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        legacy = numpy.get_state()
        undo.append(lambda: numpy.set_state(legacy))
    for name in ("cuda", "xpu"):
        device = getattr(torch, name)
        if device.is_initialized():
            states = device.get_rng_state_all()
            undo.append(lambda device=device, states=states: device.set_rng_state_all(states))  # type: ignore[misc]
    if torch.backends.mps.is_available():
        metal = torch.mps.get_rng_state()
        undo.append(lambda: torch.mps.set_rng_state(metal))
    return undo


def _own_state(value: Any) -> Callable[[], object] | None:
    """Return a function that restores a random generator or NumPy array that a module holds; None for another value."""
    kind, numpy = type(value), sys.modules.get("numpy.random")
    if kind is random.Random:
        python = value.getstate()
        return lambda: value.setstate(python)
    if kind is torch.Generator or (numpy is not None and kind is numpy.RandomState):
        state = value.get_state()
        return lambda: value.set_state(state)
    if numpy is not None and kind is numpy.Generator:
        bits = value.bit_generator.state
        return lambda: setattr(value.bit_generator, "state", bits)
    if numpy is not None and kind is sys.modules["numpy"].ndarray and value.flags.writeable and value.nbytes <= _LARGE:
        values = value.copy()
        return lambda: value.__setitem__(..., values)
    return None


_ASKED = (
    "example= takes a tensor; a tuple of positional arguments; a dict of keyword arguments; "
    "or a tuple of both, (args, kwargs)"
)


def arguments_of(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and the keyword arguments that an example stands for.

    >>> x = torch.zeros(2)
    >>> arguments_of((x, 3)), arguments_of({"size": 3}), arguments_of(((3,), {"mask": None}))
    (((tensor([0., 0.]), 3), {}), ((), {'size': 3}), ((3,), {'mask': None}))
    """
    if issubclass(type(example), torch.Tensor):
        return (example,), {}
    if type(example) is tuple:
        if len(example) == 2 and type(example[0]) is tuple and issubclass(type(example[1]), dict):
            return example[0], _keywords(example[1])
        return example, {}
    if isinstance(example, Mapping):
        return (), _keywords(example)
    raise BadExampleError(
        f"{_ASKED}. This is of type {type(example).__name__}: if it is the model's only argument, write (it,)."
    )


def _keywords(given: Mapping[Any, Any]) -> dict[str, Any]:
    wrong = [key for key in given if type(key) is not str]
    if wrong:
        raise BadExampleError(
            f"{_ASKED}. This dict has the key {wrong[0]!r}, which is not the name of an argument: "
            "if the dict is the model's only argument, write (it,)."
        )
    return dict(given)


def distinct_tensors(value: Any) -> list[torch.Tensor]:
    """Return the tensors in a value and in its nested tuples, lists, dicts and dataclasses, each once."""
    return [*{id(tensor): tensor for _, tensor in items.tensors_in(value)}.values()]


def labelled(label: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in a value, each with its reference path: ``batch['x']``, ``states[0]``."""
    for segments, tensor in items.tensors_in(value):
        yield label + "".join(map(_step, segments)), tensor


def _step(segment: Segment) -> str:
    """Return an item in brackets, but for a key whose ``repr`` may be the user's code."""
    return str(segment) if isinstance(segment, Item) and type(segment.key) in (str, int) else "[…]"


def copied_arguments(value: Any, model: nn.Module, modules: list[nn.Module]) -> Any:
    """Return a copy of the arguments, so that a model that changes its input in place does not change the example."""
    memory: dict[int, Any] = {id(module): module for module in [model, *modules]}
    return _copy(value, memory)


def _copy(value: Any, memory: dict[int, Any]) -> Any:
    if id(value) in memory:
        return memory[id(value)]
    made: Any = value
    if issubclass(type(value), torch.Tensor):
        made = _attempt(_fresh, value)
    elif type(value) in (tuple, list):
        made = type(value)(_copy(one, memory) for one in value)
    elif type(value) is dict:
        made = {key: _copy(one, memory) for key, one in value.items()}
    elif type(value) not in _PLAIN:
        made = _attempt(lambda one: copy.deepcopy(one, memory), value)
    memory[id(value)] = made
    return made


def _fresh(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with equal values, equal ``requires_grad``, and no link to the original if it is a leaf."""
    with DisableTorchFunction():
        if not tensor.is_leaf:
            return tensor.clone()
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _attempt(make: Callable[[Any], Any], value: Any) -> Any:
    try:
        return make(value)
    except Exception:  # noqa: BLE001 - an object that refuses to be copied is given as it is
        return value
