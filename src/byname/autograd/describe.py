"""Describer: names for the tensors of one autograd graph, also for those that no variable holds.

Leaves, saved tensors, nodes, diagnoses and non-finite gradients all get their names here, so that a tensor has the same
name everywhere. The possible names, the best first:

1. a name by which the program reaches this very tensor (`byname.naming.names`);
2. the exact name that it had until a statement read it and bound the name to the result, with that line;
3. the name that it got from the statement that made it, according to the log: not exact, because the variable now
   holds another value;
4. for a node's result that PyTorch saved as a new object, the name of that result;
5. the variable that it is a view of, found by going back through nodes that only view;
6. the nearest result downstream that has a name, with the distance: ``perhaps loss (2 steps away)``;
7. a tensor in the same memory that has a name;
8. no name, but the line that made it, if a tracker saw that.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from byname.autograd.walk import Walk
from byname.naming.history import history_at, name_around, name_of_output, rebound_by
from byname.naming.name import NAMELESS, Name, with_relation, with_site
from byname.naming.names import NameIndex
from byname.naming.reference_path import Names
from byname.reading.frames import NO_LINE
from byname.reading.tensor import Card, fact, read_card
from byname.source.location import Expression, Site, statements_binding
from byname.tracking.log import Call
from byname.tracking.lookup import making_of, site_of_tensor


class Describer:
    """Names the tensors of one graph. Callers of its methods hold `DisableTorchFunction`."""

    def __init__(self, graph: Walk, index: NameIndex) -> None:
        self._graph = graph
        self._index = index
        self._lookup = graph.lookup
        self._views: dict[tuple[Any, int], Name | Names | None] = {}
        self._given: dict[tuple[Hashable, ...], Name | None] = {}
        self._modules: dict[int, str] = {}
        self._histories: dict[int, tuple[tuple[Site | None, Name | None], Expression | None]] = {}

    def leaf(self, number: int, leaf: torch.Tensor, uses: Iterable[tuple[int, int]]) -> Names:
        """Return the names of a leaf; `uses` are the nodes that use it, each with its position among their inputs."""
        made, former = self._history(leaf)
        own = self._index.every_name(leaf)
        if own is not None:
            return own.of(made)
        name = self._overwritten(leaf, uses, made) or former or self._nearest(number)
        return Names((), None, name or self._index.related_name(leaf, made) or self._index.unnamed(made))

    def saved(self, number: int, slot: str, tensor: torch.Tensor, card: Card) -> Name | Names:
        """Return the name of a tensor that a node saved in a slot."""
        site, former = self._history(tensor)
        met = self._index.contains(tensor)
        own = self._index.every_name(tensor)
        if own is not None and not self._lookup:
            return own.of(site)
        named = former if own is None else own.of(site).best
        if named is not None:
            return named if named.exact else self._taken_by(number, tensor) or named
        other = None if met else self._same_result(number, slot, card) or self._viewed(tensor)
        name = self._taken_by(number, tensor) if met else other
        if name is None and card.storage in self._index.by_storage:
            name = self._index.related_name(tensor, site)
        return name or with_site(NAMELESS, site)

    def result(self, number: int) -> Name | None:
        """Return the name of a node's result: that of the living tensor, or the one that its statement gave it."""
        return self.living_result(number) or self._name_at(self._graph.nodes[number], 0)

    def living_result(self, number: int) -> Name | None:
        """Return the best name of a node's result that the program holds, or None if it holds none."""
        tensor = self.living.get(number)
        return None if tensor is None else self._index.own_name(tensor)

    def variable(self, number: int, among: Collection[int] = ()) -> Name:
        """Return the name of a node's result, or of a later result of the nodes in `among` that it is a part of."""
        return self._own(number) or self._around(number, among) or self._index.unnamed(self.site(number))

    def site(self, number: int) -> Site | None:
        """Return the location of the call that made a node, or else of its living result."""
        site = self._graph.site(number)
        result = None if site else self.living.get(number)
        return site if result is None else site_of_tensor(result, self._lookup)

    def module(self, number: int, tensor: torch.Tensor | None) -> str:
        """Return the module that ran when a node was made, or that owns a tensor which the node holds."""
        call = self._call(number)
        running = None if call is None or call.module is None else call.module()
        if running is None:
            return "" if tensor is None else self._index.owner_of(tensor)
        if id(running) not in self._modules:
            self._modules[id(running)] = self._index.path_of(running) or type(running).__name__
        return self._modules[id(running)]

    def _history(self, tensor: torch.Tensor) -> tuple[Site | None, Name | None]:
        """Return what `history_at` does of a tensor; the tensors that one expression made share it."""
        expr, code = making_of(tensor, self._lookup)
        known = self._histories.get(id(expr))
        if known is None:
            known = self._histories[id(expr)] = history_at(expr, code), expr  # the id stays its own as long as it lives
        return known[0]

    def _overwritten(self, leaf: torch.Tensor, uses: Iterable[tuple[int, int]], made: Site | None) -> Name | None:
        """Return the exact name of a leaf, if a statement that took it from a variable also rebound the variable."""
        if not self._lookup:
            return None
        nodes = self._graph.nodes
        for user, position in sorted(uses, key=lambda use: nodes[use[0]]._sequence_nr()):
            call = self._call(user)
            name = None if call is None else rebound_by(leaf, call, self._graph.inputs[user], position)
            if name is not None:
                return replace(name, site=made)
        return None

    def _taken_by(self, number: int, tensor: torch.Tensor) -> Name | None:
        """Return the exact former name of a leaf, if the statement that saved it also rebound its name."""
        call = self._call(number)
        if call is None:
            return None
        row, nodes, leaves = self._graph.rows[number], self._graph.nodes, self._graph.leaf_uses
        uses = [at for at, below in enumerate(row) if below in leaves and nodes[below].variable is tensor]
        name = rebound_by(tensor, call, len(row), uses[0] if len(uses) == 1 else None) if uses else None
        return None if name is None else replace(name, site=site_of_tensor(tensor, self._lookup))

    def _same_result(self, number: int, slot: str, card: Card) -> Name | None:
        """Return the name of the node's own result, which PyTorch saves as a new object in the same memory."""
        node = self._graph.nodes[number]
        for tensor in self._index.by_storage.get(card.storage, ()):
            if fact(tensor, "grad_fn") is node and card.same_value(read_card(tensor)):
                return self._index.own_name(tensor)
        return self._name_at(node, 0) if slot == "result" else None

    def _viewed(self, tensor: torch.Tensor) -> Name | Names | None:
        """Return the name of the variable that a tensor is a view of, going back through nodes that only view."""
        node = fact(tensor, "grad_fn")
        for _ in range(_VIEWS_IN_A_ROW):
            if node is None or not self._graph.name_of(node).startswith(_VIEWS):
                return None
            before = node.next_functions[0]
            if before not in self._views:
                self._views[before] = self._view_of_output(*before)
            name = self._views[before]
            if name is not None:
                return name
            node = before[0]
        return None

    def _view_of_output(self, node: Any, output: int) -> Name | Names | None:
        variable = getattr(node, "variable", None)
        if variable is not None:
            names = self._index.every_name(variable)
            return None if names is None else names.of(relation="view of")
        name = None if node is None else self._name_at(node, output)
        return None if name is None else with_relation(name, "view of")

    def _nearest(self, number: int) -> Name | None:
        for distance, level in enumerate(self._downstream(number), 1):
            for user in filter(self.living.__contains__, level):
                name = self.living_result(user)
                if name is not None:
                    rebound = self._rebinding(name)
                    return replace(name, how="graph", exact=False, distance=distance, rebound_at=rebound, site=None)
        return None

    def _downstream(self, number: int, among: Collection[int] | None = None) -> Iterable[list[int]]:
        """Yield the nodes that use a node, those that use these, and so on, each node once."""
        level, seen, users = [number], {number}, self._graph.users
        while level:
            before, level = level, []
            for below in before:
                for user in users[below]:
                    if user not in seen and (among is None or user in among):
                        seen.add(user)
                        level.append(user)
            yield level

    def _rebinding(self, name: Name) -> Site | None:
        """Return the statement of the source that computes a variable from itself, if there is just one."""
        code = self._index.code_of_scope(name)
        if code is None or not name.path.isidentifier():
            return None
        own = [expr for expr in statements_binding(code, name.path) if name.path in expr.reads]
        return own[0].site if len(own) == 1 else None

    def _own(self, number: int) -> Name | None:
        living = self.living_result(number)
        if living is not None:
            return replace(living, site=self.site(number))
        call = self._call(number)
        line = NO_LINE if call is None else call.line
        expr = line.expr
        if line.code is None or expr is None:
            return None
        return self._name_at(self._graph.nodes[number], 0) or name_around(expr._replace(whole=False), line.code)

    def _around(self, number: int, among: Collection[int]) -> Name | None:
        """Return the name of the nearest result downstream, through nodes of `among` only."""
        for level in self._downstream(number, among):
            for user in level:
                named = self._own(user)
                if named is not None:
                    return replace(named, exact=False, relation="part of", site=self.site(number))
        return None

    def _name_at(self, node: Any, output: int) -> Name | None:
        """Return the name that the statement of a node's call gave to one of the node's outputs."""
        call = self._lookup.call(node) if self._lookup else None
        if call is None:
            return None
        number = node._sequence_nr()
        key = *call.line, call.inside, call.result is None, call.after - number, output
        if key not in self._given:
            self._given[key] = name_of_output(call, number, output)
        return self._given[key]

    def _call(self, number: int) -> Call | None:
        return self._lookup.call(self._graph.nodes[number]) if self._lookup else None

    @cached_property
    def living(self) -> dict[int, torch.Tensor]:
        """The tensors that the program holds as results of nodes, by the numbers of these."""
        found: dict[int, torch.Tensor] = {}
        for tensor in self._index.tensors():
            node = fact(tensor, "grad_fn")
            number = None if node is None else self._graph.numbers.get(node)
            if number is not None:
                found.setdefault(number, tensor)
        return found


_SHAPING = ("View", "UnsafeView", "ReshapeAlias", "Expand", "Transpose", "T", "Permute", "Unsqueeze", "Squeeze")
_VIEWS = tuple(f"{name}Backward" for name in (*_SHAPING, "Slice", "Select", "Alias"))
"""Nodes whose result shares the memory of their input."""

_VIEWS_IN_A_ROW = 8
