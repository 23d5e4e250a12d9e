"""Reference path: the references from a variable to an object, and their source text."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from byname.naming.children.reference import Reference, writable
from byname.naming.name import Name, with_relation, with_site
from byname.naming.roots import LOOP, Root, is_of_a_library
from byname.source.location import Site
from byname.text import printable

MOST_PATHS = 64
"""The most paths to one object that are returned."""
MOST_WAYS = 1024
"""The most holders of one object that are remembered, and the most paths that are followed at a time."""
_DETOURS = 8
"""In random graphs full of cycles, 8 detours gave all names that following every path gave, at the same cost as 3."""

Link: TypeAlias = tuple[int, Reference, bool, bool]
"""A reference to an object: the number of the holder, the step from it, whether that reads something internal, and
whether the search met the holder nearer to the variables than the object.
"""


class ReferencePath:
    """One path to an object: a root, or a path to the object that holds it and one more reference.

    The parameters of a module share the path to the module, and so its text, which is written once.

    Attributes:
        root, things: where it begins, and the objects by their numbers, as long as the search keeps them.
        before, link: the path to the holder, and the last reference; None for the path to the root's own value.
        kind: the kind of its last step, or of its root; ``tag`` or ``state`` if it begins or passes there.
        length, labels: the number of references, and the length of their labels.
        hidden, internal: whether a step leads through something hard to read, or reads something internal.
        rises: whether each object on it was met later than the one before it.
    """

    __slots__ = ("_text", "before", "hidden", "internal", "kind", "labels", "length", "link", "rises", "root", "things")

    def __init__(
        self, root: Root, things: Sequence[object] = (), before: ReferencePath | None = None, link: Link | None = None
    ) -> None:
        self.root, self.things, self.before, self.link = root, things, before, link
        self._text: Text | None = None
        if before is None or link is None:
            self.kind, self.hidden, self.internal, self.length, self.labels = root.how, False, False, 0, 0
            self.rises = True
        else:
            _, step, reads_internal, rises = link
            self.kind = before.kind if before.kind in ("tag", "state") else step.kind
            self.hidden, self.internal = before.hidden or step.kind in _HIDDEN, before.internal or reads_internal
            self.length, self.labels = before.length + 1, before.labels + len(step.label)
            self.rises = before.rises and rises

    def extended_by(self, link: Link) -> ReferencePath:
        """Return the path that goes on from its end by one reference."""
        return ReferencePath(self.root, self.things, self, link)

    def passes(self, number: int) -> bool:
        """Return whether the path leads through the object of this number."""
        return any(holder == number for holder, *_ in self.links)

    @property
    def links(self) -> tuple[Link, ...]:
        return tuple([path.link for path in self.parts() if path.link is not None])

    @property
    def steps(self) -> tuple[Reference, ...]:
        return tuple([step for _, step, *_ in self.links])

    @property
    def passed(self) -> tuple[object, ...]:
        """The objects on the way, from the root's value on, without the one at the end."""
        return tuple([self.things[holder] for holder, *_ in self.links])

    @property
    def stateful(self) -> bool:
        """Whether the path leads through an optimizer's state."""
        return any(step.kind == "state" for step in self.steps)

    @property
    def text(self) -> Text:
        if self._text is None:
            before, link = self.before, self.link
            self._text = _start(self.root) if before is None or link is None else before.text.extended_by(link[1])
        return self._text

    @property
    def how(self) -> str:
        """The kind of the name that the path writes (`Name.how`)."""
        return _HOW.get(self.kind, self.kind)

    def name(self) -> Name:
        """Return the name that the path writes."""
        text = self.text.whole()
        said = "" if text.words == text.source else printable(text.words)
        return Name(printable(text.source), self.how, self.root.scope, text.evaluates, text=said)

    def parts(self) -> Iterator[ReferencePath]:
        """Yield the path to the root's value, that to the next object, and so on, this one last."""
        parts: list[ReferencePath] = []
        path: ReferencePath | None = self
        while path is not None:
            parts.append(path)
            path = path.before
        return reversed(parts)


def is_internal(step: Reference, holder: object) -> bool:
    """Return whether a step reads a private attribute of a library's object, or the list of an optimizer's group."""
    if step.kind == "attribute":
        return step.write("").startswith("._") and is_of_a_library(type(holder))
    return step.kind == "item" and step.write("") == "['params']"


_HIDDEN = frozenset({"local", "traceback", "cache", "hook", "held", "task"})


class Text(NamedTuple):
    """The text of a path so far.

    After a variable whose source would be hard to read, such as one in a closure, the words begin anew with its name,
    and a note behind them says where it is: ``acts[3] (closure of hook)``.
    """

    source: str
    words: str
    note: str
    evaluates: bool
    enters_wrapper: bool

    def extended_by(self, step: Reference) -> Text:
        of_wrapper = step.reads_registry or step.write("").startswith("[")  # wrappers forward attributes only
        evaluates = self.evaluates and step.evaluates and not (self.enters_wrapper and of_wrapper)
        source = step.write(self.source)
        if step.label:
            return Text(source, step.label, step.note(self.words), evaluates, step.enters_wrapper)
        words = step.write(self.words) if self.note else source
        return Text(source, words, self.note, evaluates, step.enters_wrapper)

    def whole(self) -> Text:
        """Return the text of the whole path, with the note among its words."""
        source, words = self.source, self.words
        if "parametrizations" in source:
            source, words = _parametrized(source, words)
        return Text(source, f"{words} ({self.note})" if self.note else words, *self[2:])


def _start(root: Root) -> Text:
    return Text(root.text, root.text, "", root.evaluates, False)


_HOW = {"given": "attribute", "module": "attribute", "task": "attribute", "traceback": "local", "state": "optimizer"}
_HOW |= dict.fromkeys(("cache", "hook", "held"), "item")
_KINDS = {"tag": 0, "parameter": 1, "buffer": 2, "optimizer": 3}
_ORDER = {"attribute": 0, "local": 1, "global": 2, "item": 3, "closure": 4}


def rank(path: ReferencePath) -> tuple[bool, bool, int, bool, int, int, int, int, int]:
    """Return the sort key of a path: of two names, the better one has the lower rank."""
    how, root = path.how, path.root
    return (
        how != "tag",
        root.quality >= LOOP or path.hidden,
        _KINDS.get(how, 4),
        path.internal,
        root.quality,
        path.length,
        _ORDER.get(how, 5),
        root.distance,
        path.labels,
    )


class PathMap:
    """All references that lead to some objects from the variables, with numbers in place of the objects.

    A search notes them at the moment of the call. The paths along them, and the names, are made when they are read.

    Args:
        roots, into: the roots that each object is the value of, and the references to it, by its number.
        things: the objects by their numbers, for the paths.
    """

    def __init__(
        self, roots: dict[int, list[Root]], into: dict[int, list[Link]], things: Sequence[object] = ()
    ) -> None:
        self.roots, self.into, self._things = roots, into, things
        self._paths: list[dict[int, list[ReferencePath]]] = [{} for _ in range(_DETOURS + 1)]

    @classmethod
    def along(cls, paths: Iterable[ReferencePath]) -> PathMap:
        """Return the map that these paths alone make to object 0."""
        path_map = cls({}, {})
        for path in paths:
            alone = ReferencePath(path.root._replace(value=None, code=None))  # without the objects on the way
            path_map._paths[_DETOURS].setdefault(0, []).append(
                functools.reduce(ReferencePath.extended_by, path.links, alone)
            )
        return path_map

    def paths(self, number: int, detours: int = _DETOURS) -> list[ReferencePath]:
        """Return the shortest paths to an object: the paths to its holders, computed once a holder, and one more step.

        On a path each object was met later than the one before it, except for up to `detours` steps, such as that from
        a list to an object in it that a variable holds too. No path passes through the object itself.
        """
        known = self._paths[detours]
        if number in known:
            return known[number]
        found = [ReferencePath(root, self._things) for root in self.roots.get(number, ())]
        for link in self.into[number]:
            before, _, _, rises = link
            if before == number or not (rises or detours):
                continue
            if len(found) >= MOST_WAYS:
                break
            paths = self.paths(before, detours if rises else detours - 1)
            found += [one.extended_by(link) for one in paths if (rises and one.rises) or not one.passes(number)]
        if len(found) > 1:
            found = sorted(found, key=attrgetter("length"))[:MOST_PATHS]
        known[number] = found
        return found


End: TypeAlias = tuple[PathMap, int]
"""An object as the end of ways that lead to it: these ways, and its number."""


class Names:
    """The names of a tensor, the best first. They are made on request, for few are read. They hold no objects.

    Args:
        ends: the tensor as the end of ways that searches found.
        site: where it was made, if that is known.
        best: its only name, where no path leads to it.
        relation: the relation of another tensor, which the names are for, to this one (`Name.relation`).
    """

    __slots__ = ("_best", "_ends", "_relation", "_site")

    def __init__(
        self, ends: Sequence[End], site: Site | None = None, best: Name | None = None, relation: str = ""
    ) -> None:
        self._ends, self._site, self._best, self._relation = ends, site, best, relation

    def of(self, site: Site | None = None, relation: str = "") -> Names:
        """Return the names with the site that made the tensor, or those of a tensor with a relation to this one."""
        return Names(self._ends, site, relation=relation) if site or relation else self

    @property
    def is_unnamed(self) -> bool:
        """Whether the program has no name for the tensor."""
        return self._best is not None and self._best.how == "unnamed"

    @property
    def best(self) -> Name:
        if self._best is None:
            self._best = self._written(min(self._paths(), key=rank))
        return self._best

    def path(self) -> str:
        """Return the source of the best path."""
        return printable(min(self._every(), key=rank).text.source)

    def owner(self) -> str:
        """Return the path of the module that owns this very tensor as parameter or buffer; empty if there is none."""
        every = () if self._relation else self._every()
        owned = [one for one in every if one.link and one.link[1].kind in ("parameter", "buffer")]
        before = min(owned, key=rank).before if owned else None
        return printable(before.text.source) if before else ""

    def __str__(self) -> str:
        return str(self.best)

    def _every(self) -> list[ReferencePath]:
        return [path for path_map, number in self._ends for path in path_map.paths(number)]

    def _paths(self) -> list[ReferencePath]:
        every = self._every()
        return [path for path in every if path.root.how != "given"] or every  # prefer any name to "model"

    def _written(self, path: ReferencePath) -> Name:
        name = with_site(path.name(), self._site)
        return with_relation(name, self._relation) if self._relation else name

    @property
    def reference_kinds(self) -> set[str]:
        """The kinds of reference of the names (`Name.how`)."""
        return {path.how for path in self._paths()} or {self.best.how}

    def all(self) -> tuple[Name, ...]:
        """Return all names, each once."""
        found = {(self.best.path, self.best.scope): self.best}
        for name in map(self._written, sorted(self._paths(), key=rank)):
            found.setdefault((name.path, name.scope), name)
        return tuple(found.values())


def pattern_of(path: ReferencePath) -> str:
    """Return a path in words, with ``[*]`` where one entry differs from the next: ``trainer.history[*]['loss']``.

    The links of a chain, three or more, are one: ``last.before*.value``.
    """
    text = _start(path.root)
    for step in path.steps:
        text = text.extended_by(step if step.wild is None else step._replace(write=step.wild))
    return printable(re.sub(_CHAIN, r"\1*", text.whole().words))


_CHAIN = r"(\.[^\W\d]\w*)\1{2,}(?!\w)"
_PARAMETRIZATION = r"\.parametrizations\['([^\W\d]\w*)'\]\.(original\d*)$"


def _parametrized(source: str, words: str) -> tuple[str, str]:
    match = re.search(_PARAMETRIZATION, source)
    if match is None or not writable(match[1]):
        return source, words
    before = source[: match.start()]
    said = words.removesuffix(match[0])
    return f"{before}.parametrizations.{match[1]}.{match[2]}", f"{said}.{match[1]} ({match[2]})"
