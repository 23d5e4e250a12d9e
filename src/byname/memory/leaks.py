"""Leaks: the known ways in which a program keeps tensors that it no longer needs, and their remedies."""

from __future__ import annotations

import itertools
import logging
import math
import queue
import re
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy
import torch
from torch import nn
from torch.utils.data.dataloader import _BaseDataLoaderIter

from byname.autograd.walk import Node
from byname.memory.living import optimizer_state
from byname.memory.patterns import LOST, Group, Size
from byname.memory.snapshot import HeapSnapshot, path_start, reached_from_context
from byname.naming.children.python import futures
from byname.naming.names import Named
from byname.naming.search import ScratchList
from byname.reading.modules import state_of
from byname.reading.objects import found_in
from byname.reading.tensor import card_of, fact, read_card


class Leak(NamedTuple):
    """A group that grew: its name, its holder, the cause and the remedy."""

    name: str
    holder: str
    cause: str
    remedy: str


class Evidence:
    """A group, its last members, and every reference path to them. It must not outlive the snapshot."""

    def __init__(self, snapshot: HeapSnapshot, group: Group, history: Sequence[Size]) -> None:
        self.snapshot, self.group, self.history = snapshot, group, history
        self.before, self.now = history[0], history[-1]
        self.members: Sequence[torch.Tensor] = ScratchList(group.tensors[-_LOOKED_AT:])
        self.paths: Sequence[Named] = ScratchList(path for one in self.members for path in snapshot.paths(one))

    def passes(self, *kinds: type) -> bool:
        """Return whether some reference path goes through an object of these classes."""
        return any(issubclass(type(one), kinds) for named in self.paths for one in named.path.passed)

    def steps(self, kind: str) -> bool:
        """Return whether some reference path has a reference of this kind."""
        return any(step.kind == kind for named in self.paths for step in named.path.steps)

    def has_graph(self) -> bool:
        return any(fact(one, "grad_fn") is not None for one in self.members)

    def has_gradient(self) -> bool:
        """Return whether any member is still the gradient of a tensor."""
        return any(link.role == "grad" for one in self.members for link in self.snapshot.links(one))

    @cached_property
    def originals(self) -> frozenset[tuple[str, tuple[int, ...]]]:
        """The ``state_dict()`` keys of the tensors of live models and optimizers, with their shapes."""
        alive = self.snapshot.living
        pairs = [*optimizer_state(alive), *(pair for module in alive.modules for pair in state_of(module))]
        shapes = ((key, read_card(value).shape) for key, value in pairs)
        return frozenset((key, shape) for key, shape in shapes if shape is not None)  # lazy, nested have none

    @cached_property
    def context_cycle(self) -> str:
        """A sentence about a custom function that is garbage and has its own result on its ``ctx``; else empty."""
        custom = torch.autograd.function.BackwardCFunction
        nodes = self.snapshot.living.nodes if self.group.key == LOST else ()
        for node in nodes:
            if issubclass(type(node), custom) and id(node) in self.snapshot.garbage and (place := _own_result_of(node)):
                return f"{type(node).__name__.removesuffix('Backward')} keeps its own result in {place}"
        return ""

    def is_many(self) -> bool:
        """Return whether the members are entries of a container, or numbered attributes, and not one new variable."""
        return "[*]" in self.group.key.pattern or self.group.key.pattern.endswith("*")

    def was_there(self) -> bool:
        """Return whether the group existed and then grew, rather than only appeared."""
        sizes = [size.pieces for size in self.history if size.members]
        return self.before.members > 0 or (len(sizes) > 2 and sizes == sorted(sizes) and sizes[-1] > sizes[0])

    def is_bounded(self) -> bool:
        """Return whether the members are in a deque with a bound, which fills up and then stops growing."""
        return any(type(one) is deque and one.maxlen is not None for named in self.paths for one in named.path.passed)

    def is_cut_by_arrays(self) -> bool:
        """Return whether the program reaches all members only by NumPy slices of less than half of their memory."""
        pairs = [(self.snapshot.blocks[self.snapshot.block_of(one)], self.snapshot.paths(one)) for one in self.members]
        return all(paths and all(2 * _array_bytes(named) < block.bytes for named in paths) for block, paths in pairs)


_LOOKED_AT = 20


def _array_bytes(named: Named) -> float:
    """Return the bytes of the array by which the program reaches a tensor; infinity if there is no array."""
    size = math.inf
    for one in reversed(named.path.passed):
        if not issubclass(type(one), numpy.ndarray) or _type_of(one).kind == "O":
            break
        size = _bytes_of(one)
    return size


_bytes_of: Callable[[Any], int] = vars(numpy.ndarray)["nbytes"].__get__
_type_of: Callable[[Any], numpy.dtype[Any]] = vars(numpy.ndarray)["dtype"].__get__


def _is_graph_in_grad(found: Evidence) -> bool:
    graded = (one for one in found.group.tensors if fact(one, "grad_fn") is not None)
    return any(link.role == "grad" for one in graded for link in found.snapshot.links(one))


def _own_result_of(node: Node) -> str | None:
    """Return the place, such as ``ctx.y``, from which a custom function's ``ctx`` leads to one of its own results."""
    reached = reached_from_context(node)
    own = (tensor for tensor in reached.tensors() if fact(tensor, "grad_fn") is node)
    return next((path.text.words for tensor in own for path in reached.paths_to(tensor)), None)


def _pins_base(found: Evidence) -> bool:
    """Return whether the unused part of the members' storages is most of the memory that they keep alive."""
    is_view = any(fact(one, "_base") is not None for one in found.members)
    if not found.group.paths or (found.has_graph() and not is_view):
        return False  # the storage of a sum's result had room for all of its summands
    if found.is_cut_by_arrays():
        return True
    numbers = set(map(found.snapshot.block_of, found.group.tensors))
    unused_bytes = sum(map(found.snapshot.unused_bytes, numbers))
    return 2 * unused_bytes > sum(found.snapshot.blocks[number].bytes for number in found.group.blocks)


def _is_copy(found: Evidence) -> bool:
    """Return whether the members are parameters, or have the key and shape of a tensor of a live model or optimizer."""
    if "[*]" not in found.group.key.pattern or found.has_gradient():
        return False
    if any(step.kind in ("parameter", "buffer") for named in found.group.paths for step in named.path.steps):
        return True
    key = re.search(r"\['([^']*)'\]$", found.group.key.pattern)
    shapes = {read_card(one).shape for one in found.members}
    if key is None or (() in shapes and found.group.key.pattern.count("['") < 2):  # a number called 'step' is no copy
        return False
    return all((key[1], shape) in found.originals for shape in shapes)


def _is_kept_by_optimizers(found: Evidence) -> bool:
    holder = re.split(r"\.(?:param_groups|state)\b", found.group.key.pattern)
    return len(holder) > 1 and "[*]" in holder[0] and found.passes(torch.optim.Optimizer)


def _comes_with_the_first_step(found: Evidence) -> bool:
    """Return whether the group is gradients or optimizer state, which the first step creates once."""
    if any(step.kind == "state" for named in found.group.paths for step in named.path.steps):
        return True
    grads = [any(link.role == "grad" for link in found.snapshot.links(one)) for one in found.members]
    return bool(found.group.paths) and all(grads)  # in a list of old ones the last is somebody's gradient, too


def _clearing_advice(found: Evidence) -> str:
    """Return how to empty the object that has the container, if its class has a method for it; else an empty text."""
    if found.has_gradient():
        return "store numbers, such as grad.norm().item(), instead of the gradients; or "
    for one in (one for named in found.paths for one in reversed(named.path.passed)):
        if all(callable(found_in(type(one), method)) for method in ("update", "compute", "reset")):
            return f"call .reset() of the {type(one).__name__} after its result is computed; or "
        if callable(found_in(type(one), "on_validation_epoch_end")):
            return "clear it at the end of each epoch, .clear() in on_train_epoch_end or on_validation_epoch_end; or "
    return ""


_STORED = (
    "store loss.item() or loss.detach(): a result keeps its whole graph alive, with every tensor saved in it; for "
    "evaluation, compute under torch.no_grad()"
)
_BOUND = "bound it: collections.deque(maxlen=...), or remove entries once they are used: .pop(), .clear()"

_KNOWN: Sequence[tuple[str, Callable[[Evidence], bool], str | Callable[[Evidence], str]]] = (
    (
        "context-cycle",
        lambda found: bool(found.context_cycle),
        lambda found: (
            f"{found.context_cycle}, which is a reference cycle: in its forward write ctx.save_for_backward(...) for "
            "inputs and results, and take them from ctx.saved_tensors in its backward"
        ),
    ),
    (
        "graph-in-grad",
        _is_graph_in_grad,
        "use torch.autograd.grad(..., create_graph=True) for such gradients, or set .grad to None after use",
    ),
    (
        "stored-optimizer",
        lambda found: (
            bool(re.search(r"\._(models|optimizers|schedulers)\[\*\]", found.group.key.pattern))
            and any(callable(found_in(type(one), "free_memory")) for named in found.paths for one in named.path.passed)
        ),
        "call .free_memory() of the Accelerator when a run ends: it keeps all models and optimizers that prepare() was "
        "given, with their gradients and states",
    ),
    (
        "growing-cache",
        lambda found: found.passes(itertools.cycle),
        "make an iterator of the loader anew when it ends, as `while True: yield from loader` in a function does: "
        "itertools.cycle keeps every batch of its first pass, and repeats these",
    ),
    (
        "stored-optimizer",
        _is_kept_by_optimizers,
        "keep the numbers, or scheduler.state_dict(), which has no tensors: an optimizer, and a scheduler of it, keeps "
        "its parameters, their gradients and its state alive",
    ),
    (
        "unknown",
        _comes_with_the_first_step,
        "the first steps create gradients and optimizer state: compare from a later step on",
    ),
    (
        "stored-exception",
        lambda found: found.steps("traceback"),
        "keep str(error), or error.with_traceback(None): a traceback holds every variable of the functions in it",
    ),
    (
        "lru-cache",
        lambda found: found.steps("cache"),
        "do not cache functions of tensors or modules, or clear the cache: .cache_clear(); maxsize= bounds it",
    ),
    (
        "hook-closure",
        lambda found: found.steps("hook"),
        "remove the hook when its work is done (handle.remove()), and after each step clear what it filled",
    ),
    (
        "logger",
        lambda found: found.passes(logging.Handler, logging.LogRecord),
        "log numbers such as loss.item(), not tensors: a handler that buffers records keeps their arguments",
    ),
    (
        "prefetch",
        lambda found: found.passes(queue.Queue, queue.SimpleQueue, _BaseDataLoaderIter) or _was_submitted(found),
        "bound the queue (maxsize=, prefetch_factor=), take out what was put in, and drop the iterator when done",
    ),
    (
        "view-pins-base",
        _pins_base,
        lambda found: (
            "store the number, x.item(): a tensor of one number can keep the memory of what it was computed from"
            if all(read_card(one).shape == () for one in found.members)
            else "store a copy of the part, part.clone() (of an array part.copy()): a slice keeps its whole base alive"
        ),
    ),
    (
        "stored-graph",
        lambda found: found.has_graph() and found.now.members > found.before.members and found.is_many(),
        lambda found: (
            _STORED + "; if a loss is made of them, empty the list after its backward" * found.passes(nn.Module)
        ),
    ),
    (
        "retained-graph",
        lambda found: found.has_graph() and found.was_there(),
        "detach what is carried from one step to the next: state = state.detach(), total += loss.item()",
    ),
    (
        "stored-copies",
        _is_copy,
        "keep only the copies still used, as the best or those of one round: .clear() the others, or save them to a "
        "file; .cpu() copies take no memory of the accelerator",
    ),
    (
        "growing-cache",
        lambda found: bool(found.group.paths) and not found.is_many() and found.now.members == 1 and found.was_there(),
        "the tensor of this name is larger than before: if each holds the one before it, as with torch.cat, keep "
        "only the part that is still needed, x = x[-limit:].clone(), or allocate it once at full size and overwrite "
        "the oldest part; if each is made anew, the input became larger",
    ),
    (
        "growing-cache",
        lambda found: bool(found.group.paths) and (found.is_many() or found.was_there()) and not found.is_bounded(),
        lambda found: _clearing_advice(found) + _BOUND,
    ),
)
"""The causes, each with its test and its remedy, or a function that makes it. The first that passes is reported."""


def _was_submitted(found: Evidence) -> bool:
    steps = (step for named in found.paths for step in pairwise(named.path.passed))
    kinds = (Future, *futures())
    return any(type(queue) is deque and queue.maxlen is None and issubclass(type(one), kinds) for queue, one in steps)


def leak_of(snapshot: HeapSnapshot, group: Group, history: Sequence[Size]) -> Leak:
    """Return the leak that a group shows; `history` is its size in each snapshot, from the first to the last."""
    found = Evidence(snapshot, group, history)
    cause, words = next(((name, words) for name, fits, words in _KNOWN if fits(found)), ("unknown", ""))
    remedy = words if isinstance(words, str) else words(found)
    if group.paths:
        return Leak(group.key.pattern, _holder(group), cause, remedy)
    name = f"unnamed ({card_of(group.tensors[0])})" if group.tensors else "unnamed"
    roots = ScratchList(one for one in group.tensors if not snapshot.links(one))  # nodes are not followed
    holder = snapshot.describe_holder(roots) if roots and not group.key.scope else "no variable leads to it"
    return Leak(name, group.key.scope or holder, cause, remedy)


def _holder(group: Group) -> str:
    path = group.paths[-1].path
    container, found, _ = group.key.pattern.partition("[*]")
    begins = "" if not found or "(" in container or container == path.root.text else f"`{container}`, "
    return f"{begins}{path_start(path)}"
