"""Names: all names that the program has for a tensor, ranked, and `name` for the best of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import CodeType
from typing import Any, NamedTuple

import torch

from byname.errors import NotATensorError
from byname.naming.children.reference import Reference, suffix
from byname.naming.history import history_of
from byname.naming.name import Name, unnamed
from byname.naming.reference_path import Names, ReferencePath, Unwritten
from byname.naming.referrers import climb
from byname.naming.roots import FOREIGN, LOOP, Root, all_roots, given_root, given_roots
from byname.naming.search import SearchResult, Targets, search
from byname.reading.quiet import DisableTorchFunction, collection_paused
from byname.reading.tensor import fact, is_tensor, storage_of
from byname.source.location import Site
from byname.text import printable
from byname.tracking.lookup import SiteLookup


def name(tensor: torch.Tensor, *, roots: Any = None) -> Name:
    """Return the best name that the program has for a tensor.

    Looks at tags, the variables of every running function of every thread, the globals of the program's modules, and
    what these hold: attributes, items, parameters, optimizer state, closures, suspended generators. What is not found
    that way costs a pass over the heap. Nothing of the program is run, changed or kept alive.

    Args:
        tensor: the tensor, of any class.
        roots: where to look instead: an object, a module, the name of a variable (then the modules that define such a
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
    found = find(Targets([tensor]), roots=roots)
    return found.names(tensor)


def _what_it_is(thing: Any) -> str:
    """Return the class of an argument that is not a tensor, with a hint at the likely intention."""
    if thing is None:
        return "NoneType; the tensor of a row is None once the program has let go of it"
    is_module = issubclass(type(thing), torch.nn.Module)
    hint = "; for the tensors a module owns: model.named_parameters()" if is_module else ""
    return f"{type(thing).__name__}{hint}"


class Named(NamedTuple):
    """A name, and the reference path that it writes."""

    name: Name
    way: ReferencePath


class Findings:
    """The names found for some tensors, and the other objects that the searches met.

    It holds these objects, so it lives only as long as the call that asks.
    """

    def __init__(
        self, searches: Sequence[SearchResult], unheld: frozenset[int] = frozenset(), known: _NameCache | None = None
    ) -> None:
        self._searches = searches
        self._unheld = unheld
        self._known = known or _NameCache()
        self._sites: dict[int, Site | None] = {}
        self._best: dict[int, Name | None] = {}
        self._owners: dict[int, str] = {}
        self._relations: dict[tuple[int | None, int], Name | None] = {}

    def joined(self, reached: SearchResult) -> Findings:
        """Return these findings together with those of one more search."""
        return Findings([*self._searches, reached], self._unheld)

    def names(self, tensor: torch.Tensor, lookup: SiteLookup | None = None) -> tuple[Name, ...]:
        """Return all names of a tensor, best first; if there is none, one `unnamed` name."""
        with DisableTorchFunction():
            site, former = history_of(tensor, lookup)
            own = self.own_names(tensor, site)
            if own:
                return own
            if former is not None:
                return (former,)
            return (self.related_name(tensor, site) or self.unnamed(site),)

    def own_name(self, tensor: torch.Tensor, site: Site | None = None) -> Name | None:
        """Return the best name by which the program reaches this very tensor, or None. No other is written."""
        if id(tensor) not in self._best:
            if not self.met(tensor):
                return None
            unwritten, site = self._unwritten_names(tensor), self._sites.setdefault(id(tensor), site)
            name = unwritten[0].name() if unwritten else None
            self._best[id(tensor)] = name if name is None or site is None else replace(name, site=site)
        return self._best[id(tensor)]

    def own_names(self, tensor: torch.Tensor, site: Site | None = None) -> tuple[Name, ...]:
        """Return the names by which the program reaches this very tensor, the best first."""
        return tuple([named.name for named in self.own_ways(tensor, site)])

    def own_ways(self, tensor: torch.Tensor, site: Site | None = None) -> tuple[Named, ...]:
        """Return the names by which the program reaches this very tensor, each with its reference path."""
        if not self.met(tensor):
            return ()
        known = self._known.own.get(id(tensor))
        if known is None:
            known = self._known.own[id(tensor)] = self._find_own(tensor)
        site = self._sites.setdefault(id(tensor), site)
        return known if site is None else tuple([Named(replace(name, site=site), way) for name, way in known])

    def every_name(self, tensor: torch.Tensor, site: Site | None = None) -> Names | None:
        """Return the names by which the program reaches this very tensor, or None; only the best is written yet."""
        best = self.own_name(tensor, site)
        return None if best is None else Names(best, self._unwritten_names(tensor)[1:])

    def _unwritten_names(self, tensor: torch.Tensor) -> list[Unwritten]:
        known = self._known.unwritten.get(id(tensor))
        if known is None:
            ways = map(self._unwritten, self._ranked(tensor))
            known = self._known.unwritten[id(tensor)] = [one for one in ways if one is not None]
        return known

    def _find_own(self, tensor: torch.Tensor) -> tuple[Named, ...]:
        found: dict[tuple[str, str], Named] = {}
        for way in self._ranked(tensor):
            one = self._unwritten(way)
            if one is not None:
                name = one.name()
                found.setdefault((name.path, name.scope), Named(name, way))
        return tuple(found.values())

    def _ranked(self, tensor: torch.Tensor) -> list[ReferencePath]:
        """Return the paths to a tensor, the best first."""
        every = [way for reached in self._searches for way in reached.ways_to(tensor)]
        ways = [way for way in every if way.root.how != "given"] or every  # "model" for a given model is a last resort
        return sorted(ways, key=_rank) if len(ways) > 1 else ways

    def met(self, thing: object) -> bool:
        """Return whether a search met this very object."""
        for reached in self._searches:  # noqa: SIM110 - `saved` asks this for every tensor
            if reached.has(thing):
                return True
        return False

    def bound(self) -> tuple[str, ...]:
        """Return a sentence if the search from the program's variables stopped at its budget."""
        among = self._among()
        return (f"names were looked for {among}, and there are more",) if among else ()

    def unnamed(self, site: Site | None) -> Name:
        """Return the name of a tensor without one; it says so if the search stopped at its budget."""
        return unnamed(site, self._among())

    def _among(self) -> str:
        most = self._searches[0].budget
        return f"among the {most:,} objects nearest to the variables" if most else ""

    def holds_only_the_graph(self, tensor: torch.Tensor) -> bool:
        """Return whether no Python object holds the tensor, so that PyTorch alone keeps it alive."""
        return id(tensor) in self._unheld

    def tensors(self) -> list[torch.Tensor]:
        """Return every tensor that the searches met."""
        return [tensor for reached in self._searches for tensor in reached.tensors()]

    def sharing(self, storage: int | None) -> Sequence[torch.Tensor]:
        """Return the tensors met in this storage. Callers hold `DisableTorchFunction`."""
        return self.by_storage().get(storage, ())

    def by_storage(self) -> Mapping[int | None, Sequence[torch.Tensor]]:
        """Return the tensors met by their storages. Callers hold `DisableTorchFunction`."""
        found = self._known.by_storage
        if found is None:
            found = self._known.by_storage = {}
            for tensor in self.tensors():
                storage = storage_of(tensor)
                if storage is not None:
                    found.setdefault(storage, []).append(tensor)
        return found

    def related_name(self, tensor: torch.Tensor, site: Site | None = None) -> Name | None:
        """Return the name of another tensor in this memory, with the relation. Callers hold `DisableTorchFunction`."""
        storage = storage_of(tensor)
        base = fact(tensor, "_base")
        if base is not None and site is None:
            key = (storage, id(base))
            if key not in self._relations:
                self._relations[key] = self._find_relation(tensor, storage, base, None)
            return self._relations[key]
        return self._find_relation(tensor, storage, base, site)

    def _find_relation(
        self, tensor: torch.Tensor, storage: int | None, base: torch.Tensor | None, site: Site | None
    ) -> Name | None:
        for other in self.sharing(storage):
            named = self.own_name(other) if other is not tensor else None
            if named is not None:
                relation = "view of" if base is other else "in the memory of"
                return replace(named, exact=False, site=site, relation=relation)
        return None

    def code_of_scope(self, name: Name) -> CodeType | None:
        """Return the code of the function, or of the running module, in which a name is valid."""
        for reached in self._searches:
            for root in reached.roots():
                if root.text == name.path and root.scope == name.scope and root.code is not None:
                    return root.code
        return None

    def path_of(self, thing: object) -> str:
        """Return the best path to any object, such as a module; empty if the searches did not meet it."""
        ways = [way for reached in self._searches for way in reached.ways_to(thing)]
        return printable(min(ways, key=_rank).source) if ways else ""

    def owner_of(self, tensor: torch.Tensor) -> str:
        """Return the path of the module that owns a tensor as parameter or buffer; empty if there is none."""
        if not self.met(tensor):
            return ""
        known = self._owners.get(id(tensor))
        if known is None:
            known = self._owners[id(tensor)] = self._find_owner(tensor)
        return known

    def _find_owner(self, tensor: torch.Tensor) -> str:
        ways = [way for reached in self._searches for way in reached.ways_to(tensor)]
        owned = [way for way in ways if way.last is not None and way.last.kind in ("parameter", "buffer")]
        if not owned:
            return ""
        best = min(owned, key=_rank) if len(owned) > 1 else owned[0]
        return "" if best.before is None else printable(best.before.source)

    def _unwritten(self, way: ReferencePath) -> Unwritten | None:
        """Return what the name of a path says; None for a path into the optimizer state of an unnamed parameter."""
        how = _how(way)
        if way.stateful:
            steps, passed = [self._with_parameter(step, way.root) for step in way.steps], way.passed
            way = ReferencePath(way.root)
            for step, holder in zip(steps, passed, strict=True):
                if step is None:
                    return None
                way = way.then(step, holder)
            return Unwritten(way.text, None, how, way.root.scope)  # such a step holds the parameter
        return Unwritten((way if way.before is None else way.before).text, way.last, how, way.root.scope)

    def _with_parameter(self, step: Reference, root: Root) -> Reference | None:
        """Return a step; a step into an optimizer's state is written with the name of the parameter."""
        if step.parameter is None:
            return step
        key = self._parameter_key(step.parameter, root)
        if key is None:
            return None
        write = suffix(f".state[{key[0]}][{step.key!r}]")
        return step._replace(write=write, evaluates=step.evaluates and key[1])

    def _parameter_key(self, parameter: torch.Tensor, root: Root) -> tuple[str, bool] | None:
        """Return the source of an optimizer's parameter in the optimizer's scope, and whether it evaluates there."""
        found = self.own_names(parameter)
        near = [one for one in found if one.scope == root.scope and one.how != "optimizer"]
        if near:
            return near[0].path, near[0].exact
        return (found[0].path, False) if found else None


class _NameCache:
    """A cache that several findings of the same searches share: names without a location, and facts."""

    __slots__ = ("by_storage", "own", "unwritten")

    def __init__(self) -> None:
        self.unwritten: dict[int, list[Unwritten]] = {}
        self.own: dict[int, tuple[Named, ...]] = {}
        self.by_storage: dict[int | None, list[torch.Tensor]] | None = None


class Question:
    """The searches for one question about any number of tensors. Each search is made once, when it is needed.

    Args:
        given: models and optimizers that the user gave: searched even if no variable holds them.
    """

    def __init__(self, given: Iterable[object] = ()) -> None:
        roots = all_roots()
        held = {id(root.value) for root in roots}
        roots += [given_root(value) for value in given if id(value) not in held]
        self._roots = roots
        self._known: dict[int, _NameCache] = {}

    @cached_property
    def _near(self) -> SearchResult:
        return search([root for root in self._roots if root.quality < FOREIGN])

    @cached_property
    def _far(self) -> SearchResult:
        return search([root for root in self._roots if root.quality >= FOREIGN], depth=4, budget=100_000)

    def find(self, tensors: Targets, *, deep: bool = True, alone: frozenset[int] = frozenset()) -> Findings:
        """Look for the names of some tensors.

        Args:
            tensors: the tensors to look for.
            deep: whether tensors that are not found from the variables may cost a pass over the heap.
            alone: ids of those tensors that are already known to be held by no Python object.
        """
        with collection_paused():
            searches = [self._near]
            missing = Targets(tensor for tensor in tensors if not self._near.has(tensor))
            if missing:
                searches.append(self._far)
                missing = Targets(tensor for tensor in missing if not self._far.has(tensor))
            unheld = alone.intersection(map(id, missing))
            missing = Targets(tensor for tensor in missing if id(tensor) not in alone)
            if missing and deep:
                climbed = climb(missing)
                return Findings([*searches, climbed.reached], unheld | climbed.unheld)
        far = len(searches) > 1 and len(self._far) > 0
        return Findings(searches, unheld, self._known.setdefault(far, _NameCache()))


def find(
    tensors: Targets,
    *,
    roots: Any = None,
    given: Iterable[object] = (),
    deep: bool = True,
) -> Findings:
    """Look for the names of some tensors.

    Args:
        tensors: the tensors to look for.
        roots: where to look instead of everywhere, as for `name`.
        given: models and optimizers that the user gave: searched even if no variable holds them.
        deep: whether tensors that are not found from the variables may cost a pass over the heap.
    """
    if roots is None:
        return Question(given).find(tensors, deep=deep)
    with collection_paused():
        return Findings([search(given_roots(roots))])


def find_near() -> Findings:
    """Search from the program's own variables only, with no library globals and no heap pass.

    For callers that search the rest themselves.
    """
    return Findings([search([root for root in all_roots() if root.quality < FOREIGN])])


_KINDS = {"tag": 0, "parameter": 1, "buffer": 2, "optimizer": 3}
_ORDER = {"attribute": 0, "local": 1, "global": 2, "item": 3, "closure": 4}


_HOW = {"given": "attribute", "module": "attribute", "traceback": "local", "task": "attribute"} | dict.fromkeys(
    ("cache", "hook", "held"), "item"
)


def _rank(way: ReferencePath) -> tuple[bool, bool, int, bool, int, int, int, int, int]:
    """Return the sort key of a path: of two names, the better one has the lower rank."""
    how = _how(way)
    return (
        how != "tag",
        way.root.quality >= LOOP or way.hidden,
        _KINDS.get(how, 4),
        way.internal,
        way.root.quality,
        way.length,
        _ORDER.get(how, 5),
        way.root.distance,
        way.labels,
    )


def _how(way: ReferencePath) -> str:
    if way.root.how == "tag":
        return "tag"
    if way.stateful:
        return "optimizer"
    kind = way.root.how if way.last is None else way.last.kind
    return _HOW.get(kind, kind)
