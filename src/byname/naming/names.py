"""Names: all names that the program has for a tensor, ranked, and `name` for the best of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from types import CodeType
from typing import Any, NamedTuple

import torch

from byname.errors import NotATensorError
from byname.naming.children.reference import Reference, suffix
from byname.naming.history import history_at
from byname.naming.name import Name, unnamed, with_relation, with_site
from byname.naming.reference_path import Names, PathMap, ReferencePath, rank
from byname.naming.roots import FOREIGN, Root, all_roots, given_root, given_roots
from byname.naming.search import SearchResult, Targets, search
from byname.reading.quiet import DisableTorchFunction, collection_paused
from byname.reading.tensor import fact, is_tensor, storage_of
from byname.source.location import Site
from byname.tracking.lookup import SiteLookup, making_of


def name(tensor: torch.Tensor, *, roots: Any = None) -> Name:
    """Return the best name that the program has for a tensor.

    It searches tags, the variables of every running function of every thread, the globals of the program's modules, and
    the objects that these hold: attributes, items, parameters, optimizer state, closures, suspended generators. A
    tensor that is not found that way costs a pass over the heap. Nothing of the program is run, changed or kept alive.

    Args:
        tensor: the tensor, of any class.
        roots: where to search instead: an object, a module, the name of a variable (then the modules that define such a
            variable are searched), or a sequence of these.

    Returns:
        A `Name`; ``Name.how`` is ``"unnamed"`` when the program has no name for the tensor.

    Raises:
        NotATensorError: something other than a tensor was given.
        BadArgumentError: `roots` names a variable that no module defines.

    >>> import byname, torch
    >>> def train():
    ...     losses = {"train": [torch.ones(1)]}
    ...     return byname.name(losses["train"][0])
    >>> print(train())
    losses['train'][0]
    """
    return names(tensor, roots=roots)[0]


def names(tensor: torch.Tensor, *, roots: Any = None) -> tuple[Name, ...]:
    """Return every name that the program has for a tensor, the best first; one `unnamed` name if it has none.

    Arguments and errors are those of `name`.

    >>> import byname, torch
    >>> def tied():
    ...     embedding = torch.nn.Embedding(3, 2)
    ...     head = torch.nn.Linear(2, 3, bias=False)
    ...     head.weight = embedding.weight
    ...     return byname.names(head.weight)
    >>> [str(name) for name in tied()]
    ['embedding.weight', 'head.weight']
    """
    if not is_tensor(tensor):
        raise NotATensorError(f"byname.name() expects a tensor, but got {_what_it_is(tensor)}")
    if roots is None:
        return find(Targets([tensor])).names(tensor)
    with collection_paused():
        return NameIndex([search(given_roots(roots))]).names(tensor)


def _what_it_is(thing: Any) -> str:
    if thing is None:
        return "NoneType; the tensor of a row is None once the program has let go of it"
    is_module = issubclass(type(thing), torch.nn.Module)
    hint = "; for the tensors a module owns: model.named_parameters()" if is_module else ""
    return f"{type(thing).__name__}{hint}"


class Named(NamedTuple):
    """A name, and the reference path that it writes."""

    name: Name
    path: ReferencePath


class NameIndex:
    """Index of the names that some searches found. It holds the objects that they met, so drop it before returning.

    Args:
        searches: the searches, the first of them from the variables.
        unheld: the ids of tensors that no Python object holds, so that PyTorch alone keeps them alive.
    """

    def __init__(self, searches: Sequence[SearchResult], unheld: frozenset[int] = frozenset()) -> None:
        self.searches = searches
        self.unheld = unheld
        self._names: dict[int, Names | None] = {}
        self._own: dict[int, tuple[Named, ...]] = {}
        self._relations: dict[tuple[int | None, int], Name | None] = {}

    def names(self, tensor: torch.Tensor, lookup: SiteLookup | None = None) -> tuple[Name, ...]:
        """Return all names of a tensor, best first; if there is none, one `unnamed` name."""
        with DisableTorchFunction():
            site, former = history_at(*making_of(tensor, lookup))
            own = tuple([with_site(one.name, site) for one in self.own_paths(tensor)])
            return own or (former or self.related_name(tensor, site) or self.unnamed(site),)

    def own_name(self, tensor: torch.Tensor) -> Name | None:
        """Return the best name by which the program reaches this very tensor, or None. It makes no other name."""
        return None if (names := self.every_name(tensor)) is None else names.best

    def every_name(self, thing: object) -> Names | None:
        """Return the names by which the program reaches this very object, or None. It makes none of them yet."""
        if id(thing) not in self._names:
            ends, plain = [], True
            for one in self.searches:
                if (number := one.note_paths(thing)) is not None:
                    ends.append((one.path_map, number))
                    plain = plain and one.is_plain(number)
            if not plain:
                found = [path for one in self._paths_to(thing) if (path := self._with_parameters(one)) is not None]
                ends = [(PathMap.along(found), 0)] if found else []
            self._names[id(thing)] = Names(ends) if ends else None
        return self._names[id(thing)]

    def own_paths(self, tensor: torch.Tensor) -> tuple[Named, ...]:
        """Return the names by which the program reaches this very tensor, each with its reference path, best first."""
        if not self.contains(tensor):
            return ()
        known = self._own.get(id(tensor))
        if known is None:
            found: dict[tuple[str, str], Named] = {}
            every = self._paths_to(tensor)
            paths = [path for path in every if path.root.how != "given"] or every
            named = [(one, path) for path in paths if (one := self._with_parameters(path)) is not None]
            for one, path in sorted(named, key=lambda pair: rank(pair[0])):
                name = one.name()
                found.setdefault((name.path, name.scope), Named(name, path))
            known = self._own[id(tensor)] = tuple(found.values())
        return known

    def _paths_to(self, thing: object) -> list[ReferencePath]:
        return [path for reached in self.searches for path in reached.paths_to(thing)]

    def contains(self, thing: object) -> bool:
        """Return whether a search met this very object."""
        ident = id(thing)
        for reached in self.searches:  # noqa: SIM110 - `saved` asks this for every tensor
            if ident in reached.numbers:
                return True
        return False

    def bound(self) -> tuple[str, ...]:
        """Return a sentence if the search from the program's variables stopped at its budget."""
        among = self._among()
        return (f"byname looked for names only {among}",) if among else ()

    def unnamed(self, site: Site | None) -> Name:
        """Return the name of a tensor without one, with a note if the search stopped at its budget."""
        return unnamed(site, self._among())

    def _among(self) -> str:
        most = self.searches[0].budget
        return f"among the {most:,} objects nearest to the variables" if most else ""

    def tensors(self) -> list[torch.Tensor]:
        return [tensor for reached in self.searches for tensor in reached.tensors()]

    @cached_property
    def by_storage(self) -> Mapping[int | None, Sequence[torch.Tensor]]:
        """The tensors met by their storages. Callers hold `DisableTorchFunction`."""
        found: dict[int | None, list[torch.Tensor]] = {}
        for tensor in self.tensors():
            storage = storage_of(tensor)
            if storage is not None:
                found.setdefault(storage, []).append(tensor)
        return found

    def related_name(self, tensor: torch.Tensor, site: Site | None = None) -> Name | None:
        """Return the name of another tensor in the memory of one without a name, with the relation.

        Callers hold `DisableTorchFunction`.
        """
        storage, base = storage_of(tensor), fact(tensor, "_base")
        key = storage, id(base)
        if key not in self._relations:
            named = ((other, self.own_name(other)) for other in self.by_storage.get(storage, ()))
            other, name = next(((other, name) for other, name in named if name is not None), (None, None))
            relation = "view of" if base is other else "in the memory of"
            self._relations[key] = None if name is None else with_relation(name, relation)
        related = self._relations[key]
        return None if related is None else with_site(related, site)

    def code_of_scope(self, name: Name) -> CodeType | None:
        """Return the code of the function, or of the running module, in which a name is valid."""
        roots = (root for reached in self.searches for root in reached.roots() if root.code is not None)
        return next((root.code for root in roots if (root.text, root.scope) == (name.path, name.scope)), None)

    def path_of(self, thing: object) -> str:
        """Return the best path to any object, such as a module; empty if the searches did not meet it."""
        return "" if (names := self.every_name(thing)) is None else names.path()

    def owner_of(self, tensor: torch.Tensor) -> str:
        """Return the path of the module that owns a tensor as parameter or buffer; empty if there is none."""
        return "" if (names := self.every_name(tensor)) is None else names.owner()

    def _with_parameters(self, path: ReferencePath) -> ReferencePath | None:
        """Return a path with the names of parameters in steps into an optimizer's state; None if one has no name."""
        if not path.stateful:
            return path
        links, path = path.links, ReferencePath(path.root, path.things)
        for link in links:
            step = self._with_parameter(link[1], path.root)
            if step is None:
                return None
            path = path.extended_by((link[0], step, *link[2:]))
        return path

    def _with_parameter(self, step: Reference, root: Root) -> Reference | None:
        """Return a step, with the parameter's name in a step into an optimizer's state; None if it has no name.

        Such a step evaluates only if the name belongs to the optimizer's scope.
        """
        if step.parameter is None:
            return step
        known = (one.thing(step.parameter) for one in self.searches)
        found = [one.name for parameter in known if parameter is not None for one in self.own_paths(parameter)]
        near = [one for one in found if one.scope == root.scope and one.how != "optimizer"]
        name = next(iter(near or found), None)
        if name is None:
            return None
        write = suffix(f".state[{name.path}][{step.key!r}]")
        return step._replace(write=write, parameter=None, evaluates=step.evaluates and bool(near) and name.exact)


class Searches:
    """The searches for one call of byname, for any number of tensors. Each search is made once, when it is needed.

    The given models and optimizers, arguments of the call, are searched even if no variable holds them.
    """

    def __init__(self, given: Iterable[object] = ()) -> None:
        roots = all_roots()
        held = {id(root.value) for root in roots}
        roots += [given_root(value) for value in given if id(value) not in held]
        self._roots = roots
        self._known: dict[bool, NameIndex] = {}

    @cached_property
    def near(self) -> SearchResult:
        """The search from the program's own variables, without the globals of libraries and without the heap."""
        return search([root for root in self._roots if root.quality < FOREIGN])

    @cached_property
    def _far(self) -> SearchResult:
        return search([root for root in self._roots if root.quality >= FOREIGN], depth=4, budget=100_000)

    def find(self, tensors: Targets, *, deep: bool = True, unheld: frozenset[int] = frozenset()) -> NameIndex:
        """Search for the names of some tensors.

        Args:
            deep: whether tensors that are not found from the variables may cost a pass over the heap.
            unheld: ids of those tensors that are known to be held by no Python object.
        """
        with collection_paused():
            searches = [self.near]
            missing = Targets(tensor for tensor in tensors if id(tensor) not in self.near.numbers)
            if missing:
                searches.append(self._far)
                missing = Targets(tensor for tensor in missing if id(tensor) not in self._far.numbers)
            unheld = unheld.intersection(map(id, missing))
            missing = Targets(tensor for tensor in missing if id(tensor) not in unheld)
            if missing and deep:
                from byname.naming.referrers import find_referrers  # here, because most names need no look at the heap

                referrers = find_referrers(missing)
                return NameIndex([*searches, referrers.reached], unheld | referrers.unheld)
        far = len(searches) > 1 and len(self._far) > 0
        index = self._known.setdefault(far, NameIndex(searches))
        index.unheld |= unheld
        return index


def find(tensors: Targets, *, given: Iterable[object] = (), deep: bool = True) -> NameIndex:
    """Search for the names of some tensors, as `Searches` does."""
    return Searches(given).find(tensors, deep=deep)
