"""Holders: the objects that keep a tensor alive, as reference paths from variables, and the owners in PyTorch's C++."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import torch

from byname.autograd.walk import is_node
from byname.errors import BadArgumentError, NotATensorError
from byname.memory.snapshot import HeapSnapshot, heap_at_rest, path_start
from byname.naming.reference_path import ReferencePath
from byname.naming.search import Targets
from byname.reading.quiet import dynamo_skip
from byname.reading.tensor import is_tensor
from byname.table import counted
from byname.text import printable


@dataclass(frozen=True, slots=True)
class Holder:
    """One thing that keeps a tensor alive.

    Attributes:
        path: the expression of the program that leads to the tensor; empty where C++ holds it.
        kind: the start of the reference path, or its most unusual reference: ``local``, ``global``, ``thread``,
            ``module``, ``optimizer``, ``closure``, ``cache``, ``hook``, ``traceback``, ``generator``, ``task``;
            in C++ ``graph`` (a node of autograd), ``grad``, ``view`` and ``part`` (of another tensor), and
            ``unexplained``.
        text: the holder as a phrase.

    >>> str(Holder("trainer.last", "global", "`trainer.last`, from a global of __main__"))
    '`trainer.last`, from a global of __main__'
    """

    path: str
    kind: str
    text: str

    def __str__(self) -> str:
        return printable(self.text)


@overload
def holders(tensor: torch.Tensor, *, limit: int = 10) -> list[Holder]: ...
@overload
def holders(tensor: Sequence[torch.Tensor], *, limit: int = 10) -> list[list[Holder]]: ...
@dynamo_skip
def holders(tensor: Any, *, limit: int = 10) -> list[Holder] | list[list[Holder]]:
    """Return the holders of a tensor: reference paths through the program, shortest first, then its owners in C++.

    The search follows referrers from the tensor up to variables of running functions, globals, threads, tasks,
    exceptions and the like. Of C++ owners it knows those of autograd: nodes that saved the tensor or accumulate into
    it, the owner of a gradient, views. It counts all other references as unexplained. It runs none of the program's
    code, and takes a few passes over the heap, for many tensors as for one.

    Args:
        tensor: the tensor; or a list or tuple of tensors.
        limit: the maximum number of holders for each tensor.

    Returns:
        A list of `Holder`; for a sequence of tensors a list of such lists, in its order. The caller's own
        variable is among them. Empty if there are none.

    Raises:
        NotATensorError: something other than a tensor, or a sequence of tensors, was given.
        BadArgumentError: `limit` is no positive whole number.

    >>> import byname, torch
    >>> def train():
    ...     losses = {"train": [torch.ones(1)]}
    ...     return [holder.path for holder in byname.holders(losses["train"][0])]
    >>> train()
    ["losses['train'][0]"]
    """
    if type(limit) is not int or limit < 1:
        raise BadArgumentError(
            f"limit is how many holders to list for each tensor, an int of at least 1, but got {limit!r}"
        )
    single = is_tensor(tensor)
    requested = Targets([tensor] if single else _checked(tensor))
    with heap_at_rest():
        snapshot = HeapSnapshot(requested)
        found = [list(_holders(snapshot, one))[:limit] for one in requested]
    return found[0] if single else found


def _checked(given: Any) -> Sequence[torch.Tensor]:
    if type(given) not in (list, tuple):
        raise NotATensorError(f"holders() expects a tensor or a list of tensors, but got {type(given).__name__}")
    for one in given:
        if not is_tensor(one):
            raise NotATensorError(f"holders() expects tensors, but one of these is of type {type(one).__name__}")
    return given  # type: ignore[no-any-return]


def _holders(snapshot: HeapSnapshot, tensor: torch.Tensor) -> Iterator[Holder]:
    for name, path in snapshot.paths(tensor):
        if path.root.how != "tag":  # a tag holds weakly
            yield Holder(name.path, _kind_of_path(path), f"`{name.text or name.path}`, {path_start(path)}")
    for link in snapshot.links(tensor):
        kind = "graph" if is_node(link.owner) else {"grad": "grad", "base": "view"}.get(link.role, "part")
        yield Holder("", kind, snapshot.owner_text(link))
    count = snapshot.unexplained([tensor])
    if count:
        yield Holder("", "unexplained", counted(count, "unexplained C++ reference"))


def _kind_of_path(path: ReferencePath) -> str:
    """Return the kind of a reference path: its most unusual reference, or else its start."""
    kinds = {step.kind for step in path.steps}
    unusual = (word for kind, word in _UNUSUAL.items() if kind in kinds)
    return next(unusual, "thread" if path.root.foreign else path.root.how)


_UNUSUAL = {kind: kind for kind in ("traceback", "cache", "hook", "task", "closure")}
_UNUSUAL |= {"local": "generator", "state": "optimizer", "parameter": "module", "buffer": "module"}
"""The kinds of holders by kinds of references, the most unusual first."""
