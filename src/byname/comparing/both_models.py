"""Both models: the parameters of two models, and what passes in them on one batch."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from byname.codec import bytes_of
from byname.comparing.difference import Tolerance, measured
from byname.comparing.records import RecordedRun
from byname.errors import NotStorableError
from byname.model.module_tree import join_path, modules_by_path, own_state
from byname.model.select import select
from byname.model.where import unwrapped
from byname.reading.modules import own_parameters, parameters_in
from byname.reading.objects import attributes_of
from byname.reading.tensor import storage_key
from byname.recording.series import Series
from byname.recording.values.copy import plain_copy
from byname.text import note_on
from byname.tracing.preserve import arguments_of, copied_arguments, isolated_run, labelled
from byname.tracing.tracer import refuse_lazy_modules
from byname.watch.attach import attach
from byname.watch.attachment import Event

_Key = tuple[str, tuple[int, ...]]


class ModelRun:
    """What one model has and computes.

    Attributes:
        state, kinds: its parameters and buffers by path, and which of the two each is.
        values: what passed at each place, on the CPU, in the order in which the places ran first.
        turns: for each value, by place and call, its number in the run, in this order.
        operations: the operations of each module in the order in which they ran, each with its place.
        layers: the class and output shape of modules with parameters of their own, in the order in which they ran.
        notes: what was different from an ordinary run, or is not compared.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model, self._root = model, unwrapped(model)
        refuse_lazy_modules(self._root)
        self.name = type(self._root).__name__
        self.modules = modules_by_path(self._root)
        self.kinds: dict[str, str] = {}
        self.state: dict[str, Tensor] = {}
        self.notes: dict[str, None] = {}
        for kind in ("parameter", "buffer"):
            for path, module in self.modules.items():
                for name, tensor in own_state(module, kind).items():
                    place, value = join_path(path, name), tensor.detach()
                    if self._is_dense(place, value):
                        self.kinds[place], self.state[place] = kind, value
        self.values: dict[str, list[Tensor]] = {}
        self.turns: dict[tuple[str, int], int] = {}
        self.operations: dict[str, dict[str, str]] = {}
        self.layers: dict[str, _Key] = {}
        self._unfilled: dict[int, Tensor] = {}
        self._paths = {id(module): path for path, module in self.modules.items()}

    def _is_dense(self, path: str, tensor: Tensor) -> bool:
        """Return whether a tensor can be compared, and note where it cannot."""
        dense = type(tensor) is Tensor and tensor.layout is torch.strided and not tensor.is_meta
        if not dense:
            self.notes[f"{self.name}: `{path}` is not a dense tensor with values and is not compared"] = None
        return dense

    @property
    def home(self) -> tuple[set[torch.dtype], set[torch.device]]:
        """The floating dtypes and the devices of its parameters."""
        parameters = parameters_in(self._root)
        return {one.dtype for one in parameters if one.is_floating_point()}, {one.device for one in parameters}

    def run(self, example: Any, *, bring: bool) -> None:
        """Run the model beside the program, and keep what passes; `bring` the batch to its device and dtype."""
        with isolated_run(self._root, self):
            given = copied_arguments(arguments_of(example), self._root, [*self.modules.values()])
            args, kwargs = tree_map_only(Tensor, self._brought, given) if bring else given
            handle = attach(self.model, select.all, self, reads=True)
            handle.requested.says = False
            with handle:
                try:
                    self.model(*args, **kwargs)
                except Exception as error:
                    note_on(error, f"byname: raised while {self.name} ran the given example=")
                    raise
        self._unfilled.clear()
        self.notes |= dict.fromkeys(f"{self.name}: {note}" for note in handle.notes)

    def __call__(self, event: Event) -> None:
        if event.recomputed:
            return
        for path, tensor in labelled(event.path, event.value):
            if event.kind == "operation" and self._is_unfilled(event.path.rpartition(".")[2], tensor):
                continue
            try:
                value = plain_copy(tensor, path=path)
            except NotStorableError as error:
                self.notes[f"{self.name}: {error}"] = None
                continue
            if not self._is_dense(path, value):
                continue
            self._keep(event, path, value)

    def _is_unfilled(self, operation: str, tensor: Tensor) -> bool:
        """Return whether a tensor is, or shares, memory that `torch.empty` or its kind gave: anything may lie there."""
        at = storage_key(tensor)
        if operation.startswith(("empty", "new_empty")):
            self._unfilled[at] = tensor  # kept, so that no other storage gets this key
        return at in self._unfilled

    def _keep(self, event: Event, path: str, value: Tensor) -> None:
        several = self.values.setdefault(path, [])
        self.turns[path, len(several)] = len(self.turns)
        several.append(value)
        if event.kind == "operation":
            owner = self._paths[id(event.module)]
            self.operations.setdefault(owner, {})[path[len(owner) :].removeprefix(".")] = path
        if event.path in self.modules and own_parameters(event.module):
            self.layers.setdefault(event.path, (type(event.module).__name__, tuple(value.shape)))

    def _brought(self, tensor: Tensor) -> Tensor:
        """Return a tensor on the device of the model and in its floating dtype, where it has one."""
        dtypes, devices = self.home
        tensor = tensor.to(next(iter(devices))) if len(devices) == 1 else tensor
        return tensor.to(next(iter(dtypes))) if len(dtypes) == 1 and tensor.is_floating_point() else tensor

    def recorded(self) -> RecordedRun:
        """Return the state and the values as a recording of one iteration."""
        series = {}
        for path, values in ({path: [tensor] for path, tensor in self.state.items()} | self.values).items():
            zeros, calls, modes = [0] * len(values), [*range(len(values))], ["train"] * len(values)
            series[path] = Series(path, values, zeros, zeros, calls, modes, [tuple(one.shape) for one in values])
        return RecordedRun(self.name, series, turns=self.turns, kinds=self.kinds)

    def content(self, path: str) -> str:
        """Return a text that is the same for layers with the same parameters, also in another precision.

        It is empty where they tell nothing, as those of a norm that was not trained: all ones and zeros.
        """
        own = [one.detach() for one in own_parameters(self.modules[path])]
        if all(bool((one == one.flatten()[:1]).all()) for one in own):
            return ""
        found = hashlib.sha256()
        for one in own:
            found.update(f"{tuple(one.shape)}".encode())
            found.update(bytes_of((one.bfloat16() if one.is_floating_point() else one).cpu()).data)
        return found.hexdigest()


def drop_unequal_operations(a: ModelRun, b: ModelRun, same: Mapping[str, str]) -> list[str]:
    """Forget the operations of modules that do not run the same ones in both; return the paths of these modules in a.

    Operations are counted: with one more before it, ``transpose_3`` would be another than ``transpose_3``.
    """
    found = []
    for path in a.modules:
        other = path_in_b(path, same)
        own = a.operations.get(path, {}), b.operations.get(other, {})
        if [*own[0]] != [*own[1]] and other in b.modules and (path in same or other not in same.values()):
            found.append(path)
            for run, places in zip((a, b), own, strict=True):
                for place in places.values():
                    del run.values[place]
    return found


def renamed(a: ModelRun, b: ModelRun) -> dict[str, str]:
    """Return the modules of b by those of a that have other paths and are certainly the same.

    Certain are layers of one class and output shape whose parameters have the same content, as no others have; then
    those that run between two of these and are the only ones of their class and shape there; and modules around
    layers that are certain and have the same paths inside them.
    """
    both = [{path: key for path, key in one.layers.items() if path not in two.modules} for one, two in ((a, b), (b, a))]
    content = [{path: (*both[0][path], a.content(path)) for path in both[0]}]
    content += [{path: (*both[1][path], b.content(path)) for path in both[1]}]
    sure = _unique_to_both(*({path: mark for path, mark in own.items() if mark[-1]} for own in content))
    if sure:
        names = [{path: path for path in sure}, {other: path for path, other in sure.items()}]
        sure |= _unique_to_both(*(_after(own, known) for own, known in zip(both, names, strict=True)))
    around: dict[str, str | None] = {}
    for path, other in sure.items():
        while path and other and path.rpartition(".")[2] == other.rpartition(".")[2]:
            path, other = path.rpartition(".")[0], other.rpartition(".")[0]
            around[path] = other if around.get(path, other) == other else None
    counts = Counter(around.values())
    return {path: other for path, other in around.items() if other is not None and counts[other] == 1} | sure


def _unique_to_both(a: Mapping[str, object], b: Mapping[str, object]) -> dict[str, str]:
    """Return the paths of b by those of a with the same mark, which no other has."""
    counts = Counter(a.values()), Counter(b.values())
    there = {mark: path for path, mark in b.items() if counts[0][mark] == counts[1][mark] == 1}
    return {path: there[mark] for path, mark in a.items() if mark in there}


def _after(layers: Mapping[str, _Key], known: Mapping[str, str]) -> dict[str, object]:
    """Return of each layer that is not known its class and shape, and the known one that ran before it."""
    found: dict[str, object] = {}
    last = ""
    for path, key in layers.items():
        last = known.get(path, last)
        if path not in known:
            found[path] = key, last
    return found


def path_in_b(path: str, same: Mapping[str, str]) -> str:
    """Return the path in b of a place of a, by the modules around it; as it is where none of these is known."""
    ends = [len(path), *(at for at in range(len(path) - 1, 0, -1) if path[at] in ".["), 0]
    end = next((end for end in ends if path[:end] in same), None)
    if end is None:
        return path
    return (same[path[:end]] + (path[end:] if end or not path else f".{path}")).removeprefix(".")


def reason(a: ModelRun, b: ModelRun, tolerance: Tolerance, path: str, other: str) -> str:
    """Return in words why a place may differ: its parameter is transposed, or settings of its module are others."""
    if path in a.state:
        one, two = a.state[path], b.state[other]
        turned = one.dim() == 2 and one.T.shape == two.shape and not measured(one.T.contiguous(), two, tolerance).beyond
        return "b is the transpose of a" if turned else ""
    modules = [run.modules.get(at.partition("[")[0].removesuffix("forward")) for run, at in ((a, path), (b, other))]
    own, held = map(attributes_of, modules)
    kinds = [None if one is None else type(one).__name__ for one in modules]
    pairs = [("class", *kinds), *((name, value, held.get(name)) for name, value in own.items())]
    return ", ".join(
        f"{name} is {one!r} in a, {two!r} in b"
        for name, one, two in pairs
        if type(one) in _PLAIN and type(two) in _PLAIN and one != two
    )


_PLAIN = (bool, int, float, str)
