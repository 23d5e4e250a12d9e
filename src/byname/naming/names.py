"""What is this tensor called? All its names, best first, and which of them is the best."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import CodeType
from typing import Any, NamedTuple

import torch

from byname.errors import NotATensorError
from byname.naming.children.step import Step, suffix
from byname.naming.name import Name, unnamed
from byname.naming.referrers import climb
from byname.naming.roots import FOREIGN, LOOP, Root, all_roots, given_root, given_roots
from byname.naming.search import Reached, Targets, Way, search, written
from byname.naming.sites import SiteLookup, history_of, site_of_tensor
from byname.reading.quiet import collection_paused, untouched
from byname.reading.tensor import STORAGE, Card, card_from, fact, facts_of, is_tensor
from byname.source.location import Site
from byname.table import printable

__all__ = ["Findings", "Named", "find", "find_near", "name", "names"]


def name(tensor: torch.Tensor, *, roots: Any = None) -> Name:
    """The best name that the program has for a tensor.

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
    """Every name that the program has for a tensor, the best first; one `unnamed` name when it has none.

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
        raise NotATensorError(f"byname.name() wants a tensor, and this is of type {_what_it_is(tensor)}")
    found = find(Targets([tensor]), roots=roots)
    return found.names(tensor)


def _what_it_is(thing: Any) -> str:
    """The class of what was given instead of a tensor, and what its giver may have meant."""
    if thing is None:
        return "NoneType; the tensor of a row is None once the program has let go of it"
    is_module = issubclass(type(thing), torch.nn.Module)
    hint = "; for the tensors a module owns: model.named_parameters()" if is_module else ""
    return f"{type(thing).__name__}{hint}"


class Named(NamedTuple):
    """A name, and the way that it writes."""

    name: Name
    way: Way


class Findings:
    """The names found for some tensors, and what else the search came upon on its way.

    It holds the objects it came upon, so it lives only as long as the call that asks.
    """

    def __init__(self, searches: Sequence[Reached], unheld: frozenset[int]) -> None:
        self._searches = searches
        self._unheld = unheld
        self._by_storage: dict[int, list[tuple[torch.Tensor, Card]]] | None = None
        self._own: dict[int, tuple[Named, ...]] = {}
        self._owners: dict[int, str] = {}
        self._relations: dict[tuple[int | None, int], Name | None] = {}

    def joined(self, reached: Reached) -> Findings:
        """These with those of one more search."""
        return Findings([*self._searches, reached], self._unheld)

    def names(self, tensor: torch.Tensor, lookup: SiteLookup | None = None) -> tuple[Name, ...]:
        """All names of a tensor, best first; at least one, which may say that there is none."""
        with untouched():
            site = site_of_tensor(tensor, lookup)
            own = self.own_names(tensor, site)
            if own:
                return own
            former = history_of(tensor, lookup)
            if former is not None:
                return (former,)
            return (self.related_name(tensor, site) or unnamed(site),)

    def own_names(self, tensor: torch.Tensor, site: Site | None = None) -> tuple[Name, ...]:
        """The names by which the program reaches this very tensor."""
        return tuple([named.name for named in self.own_ways(tensor, site)])

    def own_ways(self, tensor: torch.Tensor, site: Site | None = None) -> tuple[Named, ...]:
        """The same with the ways that the names write."""
        if not self.met(tensor):
            return ()
        known = self._own.get(id(tensor))
        if known is None:
            known = self._own[id(tensor)] = self._find_own(tensor, site)
        return known

    def _find_own(self, tensor: torch.Tensor, site: Site | None) -> tuple[Named, ...]:
        every = [way for reached in self._searches for way in reached.ways_to(tensor)]
        ways = [way for way in every if way.root.how != "given"] or every  # a given model is "model" for want of better
        found: dict[tuple[str, str], Named] = {}
        for way in sorted(ways, key=_rank) if len(ways) > 1 else ways:
            one = self._written(way, site)
            if one is not None:
                found.setdefault((one.path, one.scope), Named(one, way))
        return tuple(found.values())

    def met(self, thing: object) -> bool:
        """Whether a search came upon this very object."""
        return any(reached.has(thing) for reached in self._searches)

    def bound(self) -> tuple[str, ...]:
        """A sentence where the search from the program's variables did not see all that they lead to."""
        most = self._searches[0].budget
        if not most:
            return ()
        return (f"names were looked for among the {most:,} objects nearest to the variables, and there are more",)

    def holds_only_the_graph(self, tensor: torch.Tensor) -> bool:
        """Whether no Python object holds the tensor: PyTorch alone keeps it alive."""
        return id(tensor) in self._unheld

    def tensors(self) -> list[torch.Tensor]:
        """Every tensor that the searches came upon."""
        return [tensor for reached in self._searches for tensor in reached.tensors()]

    def sharing(self, storage: int | None) -> list[tuple[torch.Tensor, Card]]:
        """The tensors come upon whose memory is this storage, with their cards. To be called inside `untouched`."""
        if self._by_storage is None:
            self._by_storage = {}
            for tensor in self.tensors():
                card = card_from(facts_of(tensor))
                if card.storage is not None:
                    self._by_storage.setdefault(card.storage, []).append((tensor, card))
        return [] if storage is None else self._by_storage.get(storage, [])

    def related_name(self, tensor: torch.Tensor, site: Site | None = None) -> Name | None:
        """The name of a tensor in the same memory, said to be just that. To be called inside `untouched`."""
        storage = facts_of(tensor)[STORAGE]
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
        for other, _ in self.sharing(storage):
            named = self.own_names(other) if other is not tensor else ()
            if named:
                relation = "view of" if base is other else "in the memory of"
                return replace(named[0], exact=False, site=site, relation=relation)
        return None

    def code_of_scope(self, name: Name) -> CodeType | None:
        """The code of the function, or of the running module, in which a name holds."""
        for reached in self._searches:
            for root in reached.roots():
                if root.text == name.path and root.scope == name.scope and root.code is not None:
                    return root.code
        return None

    def path_of(self, thing: object) -> str:
        """The best path to any object, such as a module; empty when the searches did not come upon it."""
        ways = [way for reached in self._searches for way in reached.ways_to(thing)]
        return printable(min(ways, key=_rank).source) if ways else ""

    def owner_of(self, tensor: torch.Tensor) -> str:
        """The path of the module whose parameter or buffer a tensor is; empty when it is none."""
        if not self.met(tensor):
            return ""
        known = self._owners.get(id(tensor))
        if known is None:
            known = self._owners[id(tensor)] = self._find_owner(tensor)
        return known

    def _find_owner(self, tensor: torch.Tensor) -> str:
        ways = [way for reached in self._searches for way in reached.ways_to(tensor)]
        owned = [way for way in ways if way.steps and way.steps[-1].kind in ("parameter", "buffer")]
        if not owned:
            return ""
        best = min(owned, key=_rank)
        return printable(Way(best.root, best.steps[:-1]).source)

    def _written(self, way: Way, site: Site | None) -> Name | None:
        """A way as a name. None for a way through an optimizer's state whose parameter has no name."""
        if any(step.kind == "state" for step in way.steps):
            steps = [self._with_parameter(step, way.root) for step in way.steps]
            if None in steps:
                return None
            way = Way(way.root, tuple(step for step in steps if step is not None))
        source, words = written(way)
        said = "" if words == source else printable(words)
        return Name(printable(source), _how(way), way.root.scope, way.evaluates, site=site, text=said)

    def _with_parameter(self, step: Step, root: Root) -> Step | None:
        """A step, written with the name of the parameter where it goes into an optimizer's state of it."""
        if step.parameter is None:
            return step
        key = self._parameter_key(step.parameter, root)
        if key is None:
            return None
        write = suffix(f".state[{key[0]}][{step.key!r}]")
        return step._replace(write=write, evaluates=step.evaluates and key[1])

    def _parameter_key(self, parameter: torch.Tensor, root: Root) -> tuple[str, bool] | None:
        """The source of an optimizer's parameter in the scope of the optimizer, and whether it evaluates there."""
        found = self.own_names(parameter)
        near = [one for one in found if one.scope == root.scope and one.how != "optimizer"]
        if near:
            return near[0].path, near[0].exact
        return (found[0].path, False) if found else None


def find(
    tensors: Targets,
    *,
    roots: Any = None,
    given: Iterable[object] = (),
    deep: bool = True,
) -> Findings:
    """Looks for the names of some tensors.

    Args:
        tensors: what to look for.
        roots: where to look instead of everywhere, as `name` takes it.
        given: models and optimizers that the user gave: searched even when no variable holds them.
        deep: whether what is not found from the variables may cost a pass over the heap.
    """
    with collection_paused():
        return _find(tensors, roots, given, deep)


def find_near() -> Findings:
    """What the program's own variables lead to; for who has other ways to look for the rest."""
    return Findings([search([root for root in all_roots() if root.quality < FOREIGN])], frozenset())


def _find(tensors: Targets, roots: Any, given: Iterable[object], deep: bool) -> Findings:
    if roots is not None:
        return Findings([search(given_roots(roots))], frozenset())
    everything = all_roots()
    held = {id(root.value) for root in everything}
    everything += [given_root(value) for value in given if id(value) not in held]
    near = [root for root in everything if root.quality < FOREIGN]
    searches = [search(near)]
    missing = Targets(tensor for tensor in tensors if not searches[0].has(tensor))
    if missing:
        far = [root for root in everything if root.quality >= FOREIGN]
        searches.append(search(far, depth=4, budget=100_000))
        missing = Targets(tensor for tensor in missing if not searches[1].has(tensor))
    if not missing or not deep:
        return Findings(searches, frozenset())
    climbed = climb(missing)
    return Findings([*searches, climbed.reached], climbed.unheld)


class _Rank(NamedTuple):
    tagged: bool
    dubious: bool
    kind: int
    quality: int
    steps: int
    order: int
    distance: int
    length: int


_KINDS = {"tag": 0, "parameter": 1, "buffer": 2, "optimizer": 3}
_ORDER = {"attribute": 0, "local": 1, "global": 2, "item": 3, "closure": 4}


_HOW = {"given": "attribute", "module": "attribute", "traceback": "local", "task": "attribute"} | dict.fromkeys(
    ("cache", "hook", "held"), "item"
)
_HIDDEN = frozenset({"local", "traceback", "cache", "hook", "held", "task"})
"""Kinds of step into what the program does not show: a suspended function, an error's frames, a cache, a queue."""


def _rank(way: Way) -> _Rank:
    """Which of two names is the better one: lower sorts first."""
    how = _how(way)
    return _Rank(
        how != "tag",
        way.root.quality >= LOOP or any(step.kind in _HIDDEN for step in way.steps),
        _KINDS.get(how, 4),
        way.root.quality,
        len(way.steps),
        _ORDER.get(how, 5),
        way.root.distance,
        sum(len(step.label) for step in way.steps),
    )


def _how(way: Way) -> str:
    if way.root.how == "tag":
        return "tag"
    if any(step.kind == "state" for step in way.steps):
        return "optimizer"
    kind = way.steps[-1].kind if way.steps else way.root.how
    return _HOW.get(kind, kind)
