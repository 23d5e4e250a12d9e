"""Leaves: the tensors to which the backward of a loss gives gradients, with their names in the program."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from torch import nn

from byname.autograd.describe import Describer
from byname.autograd.order import PathCounts
from byname.autograd.walk import Walk, accumulator
from byname.naming.children.torch import gathered_parameters, is_sharded
from byname.naming.name import Name
from byname.naming.names import NameIndex, Searches
from byname.naming.reference_path import Names
from byname.naming.search import Targets
from byname.reading.modules import models_of, optimizers_of
from byname.reading.quiet import DisableTorchFunction, collection_paused
from byname.reading.tensor import Card, Carded, fact, read_card
from byname.source.location import Located, Site
from byname.table import Alias, Column, Lazy, Tabled, Totals, counted


@dataclass(frozen=True, slots=True)
class Consumer:
    """One use of a leaf: the node that takes it, the index of the input (from 0), and the location of the operation."""

    node: str
    index: int
    site: Site | None = None


@dataclass(frozen=True, slots=True)
class Leaf(Carded, Located, Tabled):
    """One leaf of a graph. Each column of the table is an attribute, ``used by`` as ``used_by``.

    Attributes:
        card: its shape, dtype, device and storage; `tensor` is None once the program has dropped it.
        name, names: the best name, and all names, best first.
        kind: ``parameter`` (an ``nn.Parameter``, or registered as one), ``buffer``, or ``free`` (neither).
        in_optimizer: whether the optimizer has it; None when no optimizer was given.
        group: the number of the optimizer's parameter group that has it; None without one.
        grad: ``set`` when its ``.grad`` is set already, else ``none``.
        distance: the fewest steps from a root to the leaf.
        consumers: its direct uses. A weight can have many thousands, so each is made on access.
        site: the location that made it; None when unknown.
        held: ``program``, or ``graph`` when only the graph keeps it alive.
        number: the number of its node in the graph.
        counts: the source of `paths`.
    """

    card: Card
    names: tuple[Name, ...]
    kind: str
    in_optimizer: bool | None
    group: int | None
    grad: str
    distance: int
    consumers: Sequence[Consumer]
    site: Site | None
    held: str
    number: int = field(repr=False)
    counts: PathCounts = field(repr=False, compare=False)

    @property
    def name(self) -> Name:
        """The best name."""
        return self.names[0]

    @property
    def optimizer(self) -> str | bool | None:
        """The optimizer's parameter group as ``group 0``; False if no group has it, None without an optimizer."""
        return f"group {self.group}" if self.in_optimizer else self.in_optimizer

    @property
    def scope(self) -> str:
        """The scope of the best name."""
        return self.name.scope

    used_by = Alias[Sequence[Consumer]]("consumers")
    held_by = Alias[str]("held")

    @property
    def paths(self) -> int:
        """The exact number of paths by which a gradient reaches it, counted on first access."""
        return self.counts.by_node[self.number]

    columns = (
        Column("name"),
        Column("kind"),
        Column("optimizer"),
        Column("grad", drop_order=11),
        Column("shape", drop_order=10),
        Column("dtype", drop_order=3),
        Column("bytes", drop_order=9),
        Column("distance", drop_order=2),
        Column("paths", drop_order=5),
        Column(
            "used_by", 7, read=lambda leaf: tuple(map(_use, leaf.consumers)), show=lambda leaf: _uses(leaf.consumers)
        ),
        Column("made_at", drop_order=8),
        Column("caller", drop_order=6),
        Column("held_by", drop_order=4),
        Column("scope", drop_order=1),
    )


@dataclass(frozen=True, slots=True, repr=False)
class Leaves(Totals[Leaf]):
    """The leaves of a graph, nearest first, each once. Prints as a table; ``rows()`` has the values."""

    items: Sequence[Leaf]
    opaque: tuple[str, ...] = ()
    _row = Leaf
    _by = ("kind", "name", "dtype", "device", "group")

    @property
    def bytes(self) -> int:
        """The memory of the leaves' storages in bytes, each counted once."""
        return sum(size for _, _, size in self.by("kind"))

    def _key(self, one: Leaf, column: str) -> Hashable:
        return one.group if column == "group" else Totals._key(self, one, column)

    def _title(self) -> str:
        kinds = Counter(leaf.kind for leaf in self.items)
        words = [f"{count} {kind}{'s' * (count > 1 and kind != 'free')}" for kind, count in kinds.items()]
        outside = sum(leaf.in_optimizer is False for leaf in self.items)
        words += [f"{outside} in no optimizer"] if outside else []
        return f"{counted(len(self), 'leaf', 'leaves')}: {', '.join(words)}"

    def _notes(self) -> Sequence[str]:
        return self.opaque


def leaves(root: Any, *, model: Any = None, optimizer: Any = None) -> Leaves:
    """Return the leaves of a loss, the tensors to which backward gives gradients, under the program's own names.

    It works before and after backward, on graphs that are freed, modified in place, checkpointed, compiled or hooked.
    It unpacks and recomputes nothing, and takes time linear in nodes and edges.

    Args:
        root: a tensor, a ``grad_fn``, or a sequence of these.
        model: the module (or modules) in which to search for names; names leave out wrappers (DDP, compile, FSDP2,
            parametrizations). Without it names still come from the program's variables.
        optimizer: the optimizer (or optimizers) for `Leaf.in_optimizer`, which is None without it.

    Returns:
        `Leaves`, a sequence of `Leaf`, nearest first.

    Raises:
        NotATensorError: `root` is neither tensor nor node.
        NoGraphError: `root` belongs to no graph; the message gives the likely reason.
        NotAModuleError, NotAnOptimizerError: `model` or `optimizer` is something else.

    >>> import byname, torch
    >>> model = torch.nn.Linear(4, 1)
    >>> shift = torch.zeros(1, requires_grad=True)
    >>> loss = (model(torch.ones(2, 4)) + shift).sum()
    >>> for leaf in byname.leaves(loss, model=model):
    ...     print(leaf.name, leaf.kind, leaf.distance)
    shift free 2
    model.bias parameter 3
    model.weight parameter 4
    """
    models, optimizers = models_of(model), optimizers_of(optimizer)
    with collection_paused():  # until all that the search held is freed, so that the collector has none of it to visit
        return leaves_of(Walk(root), models, optimizers)


def leaves_of(walk: Walk, models: Sequence[nn.Module], optimizers: Sequence[Any]) -> Leaves:
    with collection_paused():
        index = find_leaves(walk, Searches([*models, *optimizers]))
        return leaves_among(walk, index, leaf_names(walk, index), models, optimizers)


def find_leaves(walk: Walk, searches: Searches) -> NameIndex:
    tensors = Targets(walk.nodes[number].variable for number in walk.leaf_numbers)
    counts, least = list(map(sys.getrefcount, tensors)), _references_to_a_lonely_leaf()
    unheld = frozenset([id(leaf) for leaf, count in zip(tensors, counts, strict=True) if count <= least])
    return searches.find(tensors, unheld=unheld)


@lru_cache(maxsize=1)
def _references_to_a_lonely_leaf() -> int:
    """Return the reference count of a leaf that only its node and one list hold; in some versions it is one more."""
    with DisableTorchFunction():
        node = accumulator(torch.empty(0, requires_grad=True, device="cpu"))
        return next(map(sys.getrefcount, Targets([node.variable])))


def leaf_names(walk: Walk, index: NameIndex) -> dict[int, Names]:
    """Return the names of a walk's leaves that a search found, by the numbers of their nodes."""
    describer, uses = Describer(walk, index), walk.leaf_uses
    with DisableTorchFunction():
        return {number: describer.leaf(number, walk.nodes[number].variable, uses[number]) for number in uses}


def leaves_among(
    walk: Walk,
    index: NameIndex,
    named: Mapping[int, Names],
    models: Sequence[nn.Module] = (),
    optimizers: Sequence[Any] = (),
) -> Leaves:
    groups = _groups(optimizers, models) if optimizers else None
    counts = PathCounts(walk.edges, walk.roots, named)
    site: Callable[[int], Site | None] = walk.site if walk.lookup else lambda number: None
    name, all_uses, distances = walk.name, walk.leaf_uses, walk.distances()
    fields: list[_Fields] = []
    with DisableTorchFunction():
        for number, names in named.items():
            tensor = walk.nodes[number].variable
            group = None if groups is None else groups.get(id(tensor))
            fields.append(
                (
                    read_card(tensor),
                    names,
                    _kind(tensor, names),
                    None if groups is None else group is not None,
                    group,
                    "none" if fact(tensor, "grad") is None else "set",
                    distances[number],
                    [(name(user), at, site(user)) for user, at in all_uses[number]],
                    "graph" if id(tensor) in index.unheld else "program",
                    number,
                    counts,
                )
            )
    return Leaves(Lazy(fields, _leaf), (*opaque_notes(walk), *index.bound()))


_Fields: TypeAlias = tuple[Any, ...]
"""The fields of a `Leaf` in order, with its consumers as tuples; without its site."""


def _leaf(fields: _Fields) -> Leaf:
    card, names, kind, in_optimizer, group, grad, distance, uses, held, number, counts = fields
    consumers, site = Lazy(uses, lambda use: Consumer(*use)), names.best.site
    return Leaf(card, names.all(), kind, in_optimizer, group, grad, distance, consumers, site, held, number, counts)


def opaque_notes(walk: Walk) -> tuple[str, ...]:
    """Return a sentence for each kind of node that hides others."""
    kinds = Counter(f"{walk.name(number)} is opaque: {reason}" for number, reason in walk.opaque())
    return tuple(words if count == 1 else f"{count} × {words}" for words, count in kinds.items())


def _kind(tensor: torch.Tensor, names: Names) -> str:
    if issubclass(type(tensor), nn.Parameter) or "parameter" in names.reference_kinds:
        return "parameter"
    return "buffer" if "buffer" in names.reference_kinds else "free"


def _groups(optimizers: Iterable[Any], models: Iterable[nn.Module]) -> dict[int, int]:
    """Return the parameter group of each tensor of the optimizers, by id; that of its shard for a gathered one."""
    found: dict[int, int] = {}
    for optimizer in optimizers:
        for number, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                found.setdefault(id(parameter), number)
    for model in models:
        for module in nn.Module.modules(model):
            if is_sharded(type(module)):
                for one in gathered_parameters(module):
                    if id(one.sharded) in found:
                        found[id(one.gathered)] = found[id(one.sharded)]
    return found


def _use(consumer: Consumer) -> str:
    return f"{consumer.node}[{consumer.index}]" + ("" if consumer.site is None else f" {consumer.site.with_caller}")


def _uses(consumers: Sequence[Consumer]) -> str:
    first = ", ".join(map(_use, consumers[:2]))
    return first if len(consumers) <= 2 else f"{first} and {len(consumers) - 2} more"
