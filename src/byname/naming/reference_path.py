"""Reference path: the references from a variable to an object, and their source text."""

from __future__ import annotations

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
        length: the number of references.
    """

    __slots__ = ("_text", "before", "length", "link", "root", "things")

    def __init__(
        self, root: Root, things: Sequence[object] = (), before: ReferencePath | None = None, link: Link | None = None
    ) -> None:
        self.root = root
        self.things = things
        self.before = before
        self.link = link
        self._text: Text | None = None
        self.length: int = 0 if before is None else before.length + 1

    def then(self, link: Link) -> ReferencePath:
        """Return the path that goes on from its end by one reference."""
        return ReferencePath(self.root, self.things, self, link)

    def passes(self, number: int) -> bool:
        """Return whether the path leads through the object of this number."""
        return any(link[0] == number for link in self.links)

    @property
    def links(self) -> tuple[Link, ...]:
        return tuple([path.link for path in self.parts() if path.link is not None])

    @property
    def steps(self) -> tuple[Reference, ...]:
        return tuple([link[1] for link in self.links])

    @property
    def passed(self) -> tuple[object, ...]:
        """The objects on the way, from the root's value on, without the one at the end."""
        return tuple([self.things[link[0]] for link in self.links])

    @property
    def stateful(self) -> bool:
        """Whether the path leads through an optimizer's state."""
        return any(step.kind == "state" for step in self.steps)

    @property
    def text(self) -> Text:
        if self._text is None:
            before, link = self.before, self.link
            self._text = _start(self.root) if before is None or link is None else before.text.then(link[1])
        return self._text

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
    seen_through: bool

    def then(self, step: Reference) -> Text:
        evaluates = self.evaluates and step.evaluates and not (self.seen_through and step.reads_registry)
        source = step.write(self.source)
        if step.label:
            return Text(source, step.label, step.note(self.words), evaluates, step.seen_through)
        words = step.write(self.words) if self.note else source
        return Text(source, words, self.note, evaluates, step.seen_through)

    def whole(self) -> Text:
        """Return the text of the whole path, with the note among its words."""
        source, words = self.source, self.words
        if "parametrizations" in source:
            source, words = _parametrized(source, words)
        return Text(source, f"{words} ({self.note})" if self.note else words, *self[2:])


def _start(root: Root) -> Text:
    return Text(root.text, root.text, "", root.evaluates, False)


class Start(NamedTuple):
    """Text and rank of a reference path, without its objects; `how` is the kind of its last step, or of its root."""

    text: Text
    how: str
    scope: str
    given: bool
    dubious: bool
    internal: bool
    quality: int
    length: int
    distance: int
    labels: int

    @classmethod
    def of(cls, way: ReferencePath) -> Start:
        """Return the text and rank of a path."""
        root, steps = way.root, way.steps
        kinds = [root.how, *(step.kind for step in steps)]
        how = "tag" if root.how == "tag" else "state" if "state" in kinds else kinds[-1]
        dubious = root.quality >= LOOP or not _HIDDEN.isdisjoint(kinds[1:])
        internal = any(link[2] for link in way.links)
        labels = sum(len(step.label) for step in steps)
        ranked = dubious, internal, root.quality, way.length, root.distance, labels
        return cls(way.text, how, root.scope, root.how == "given", *ranked)


class Branch:
    """Some paths to an object: a few to one place, its `starts`, and the same references from there. Holds no objects.

    The modules of a model that many variables lead to share the paths to the model, and each has one reference more
    than the module that holds it. So a branch costs the same however many paths it stands for.
    """

    __slots__ = ("_best", "_texts", "before", "hidden", "internal", "labels", "length", "starts", "step")

    def __init__(self, starts: Sequence[Start], before: Branch | None = None, link: Link | None = None) -> None:
        self.starts, self.before, self.step = starts, before, None if link is None else link[1]
        self._best: Start | None = None
        self._texts: dict[int, Text] | None = None
        if before is None or link is None:
            self.hidden = self.internal = False
            self.length = self.labels = 0
        else:
            self.hidden = before.hidden or link[1].kind in _HIDDEN
            self.internal = before.internal or link[2]
            self.length, self.labels = before.length + 1, before.labels + len(link[1].label)

    @classmethod
    def along(cls, way: ReferencePath) -> Branch:
        """Return a branch of one path, of which the last step is known."""
        if way.before is None:
            return cls([Start.of(way)])
        starts = [Start.of(way.before)]
        return cls(starts, cls(starts), way.link)

    @property
    def best(self) -> Start:
        """The start of the best path: that of the best path to the holder, unless the last step changes their order."""
        if self._best is None:
            before = self.before
            same = before and before.step and (before.hidden, before.internal) == (self.hidden, self.internal)
            self._best = before.best if before and same else min(self.starts, key=lambda start: rank((start, self)))
        return self._best

    def text(self, start: Start) -> Text:
        """Return the text of one of the paths."""
        if self.before is None or self.step is None:
            return start.text
        return self.before.remembered(start).then(self.step)

    def remembered(self, start: Start) -> Text:
        """Return the text of one of the paths, which is written once for all paths that go on from it."""
        self._texts = self._texts or {}
        if id(start) not in self._texts:
            self._texts[id(start)] = self.text(start)
        return self._texts[id(start)]

    def how(self, start: Start) -> str:
        """Return the kind of the name that one of the paths writes."""
        how = start.how if self.step is None or start.how in ("tag", "state") else self.step.kind
        return _HOW.get(how, how)

    def name(self, start: Start) -> Name:
        """Return the name that one of the paths writes."""
        text = self.text(start).whole()
        said = "" if text.words == text.source else printable(text.words)
        return Name(printable(text.source), self.how(start), start.scope, text.evaluates, text=said)


_HOW = {"given": "attribute", "module": "attribute", "task": "attribute", "traceback": "local", "state": "optimizer"}
_HOW |= dict.fromkeys(("cache", "hook", "held"), "item")
_KINDS = {"tag": 0, "parameter": 1, "buffer": 2, "optimizer": 3}
_ORDER = {"attribute": 0, "local": 1, "global": 2, "item": 3, "closure": 4}


def rank(path: tuple[Start, Branch]) -> tuple[bool, bool, int, bool, int, int, int, int, int]:
    """Return the sort key of a path: of two names, the better one has the lower rank."""
    start, branch = path
    how = branch.how(start)
    return (
        how != "tag",
        start.dubious or branch.hidden,
        _KINDS.get(how, 4),
        start.internal or branch.internal,
        start.quality,
        start.length + branch.length,
        _ORDER.get(how, 5),
        start.distance,
        start.labels + branch.labels,
    )


class Ways:
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
        self._before: dict[tuple[int, int], tuple[Branch, frozenset[int]]] = {}
        self._branches: dict[int, list[Branch]] = {}

    @classmethod
    def along(cls, paths: Iterable[ReferencePath]) -> Ways:
        """Return the ways that these paths alone make to object 0."""
        ways = cls({}, {})
        ways._branches[0] = list(map(Branch.along, paths))
        return ways

    def branches(self, number: int) -> list[Branch]:
        """Return the `paths` to an object as branches: one for each reference to the object, and for its roots.

        Where that gives too many paths, or one that passes through the object, each of its paths is a branch.
        """
        if number not in self._branches:
            self._branches[number] = self._short(number) or list(map(Branch.along, self.paths(number)))
        return self._branches[number]

    def _short(self, number: int) -> list[Branch] | None:
        roots = self.roots.get(number, ())
        found, count = [Branch([Start.of(ReferencePath(root)) for root in roots])] if roots else [], len(roots)
        for link in self.into[number]:
            if link[0] != number:
                branch, passed = self._branch(link[0], _DETOURS if link[3] else _DETOURS - 1)
                count += len(branch.starts)
                if count > MOST_PATHS or number in passed:
                    return None
                if branch.starts:
                    found.append(Branch(branch.starts, branch, link))
        return found

    def _branch(self, number: int, detours: int) -> tuple[Branch, frozenset[int]]:
        """Return the paths to an object as one branch, and the numbers of all objects on them."""
        known = self._before.get((number, detours))
        if known is None:
            into = self.into[number]
            if len(into) == 1 and number not in self.roots and into[0][3]:
                branch, passed = self._branch(into[0][0], detours)  # no path goes through the object: it leaves there
                branch = Branch(branch.starts, branch, into[0])
            else:
                paths = self.paths(number, detours)
                branch = Branch(list(map(Start.of, paths)))
                passed = frozenset([link[0] for way in paths for link in way.links])
            known = self._before[number, detours] = branch, passed | {number}
        return known

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
            only = rises and len(paths) == 1  # the path of the search itself, which passes no object twice
            found += [one.then(link) for one in paths if only or not one.passes(number)]
        if len(found) > 1:
            found = sorted(found, key=attrgetter("length"))[:MOST_PATHS]
        known[number] = found
        return found


End: TypeAlias = tuple[Ways, int]
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
    def _branches(self) -> list[Branch]:
        return [branch for ways, number in self._ends for branch in ways.branches(number)]

    @property
    def is_unnamed(self) -> bool:
        """Whether the program has no name for the tensor."""
        return self._best is not None and self._best.how == "unnamed"

    @property
    def best(self) -> Name:
        if self._best is None:
            path = _best_of(self._branches)
            self._best = self._written(min(self._paths(), key=rank) if path[0].given else path)
        return self._best

    def path(self) -> str:
        """Return the source of the best path."""
        start, branch = _best_of(self._branches)
        return printable(branch.text(start).source)

    def owner(self) -> str:
        """Return the path of the module that owns this very tensor as parameter or buffer; empty if there is none."""
        branches = () if self._relation else self._branches
        owned = [one for one in branches if one.step and one.step.kind in ("parameter", "buffer")]
        start, branch = _best_of(owned) if owned else (None, None)
        before = branch and branch.before
        return printable(before.remembered(start).source) if start and before else ""

    def __str__(self) -> str:
        return str(self.best)

    def _paths(self) -> list[tuple[Start, Branch]]:
        every = [(start, branch) for branch in self._branches for start in branch.starts]
        return [path for path in every if not path[0].given] or every  # prefer any name to "model"

    def _written(self, path: tuple[Start, Branch]) -> Name:
        start, branch = path
        name = with_site(branch.name(start), self._site)
        return with_relation(name, self._relation) if self._relation else name

    @property
    def hows(self) -> set[str]:
        """The kinds of reference of the names (`Name.how`)."""
        return {branch.how(start) for start, branch in self._paths()} or {self.best.how}

    def all(self) -> tuple[Name, ...]:
        """Return all names, each once."""
        found = {(self.best.path, self.best.scope): self.best}
        for name in map(self._written, sorted(self._paths(), key=rank)):
            found.setdefault((name.path, name.scope), name)
        return tuple(found.values())


def _best_of(branches: Iterable[Branch]) -> tuple[Start, Branch]:
    return min([(branch.best, branch) for branch in branches], key=rank)


def pattern_of(way: ReferencePath) -> str:
    """Return a path in words, with ``[*]`` where one entry differs from the next: ``trainer.history[*]['loss']``.

    The links of a chain, three or more, are one: ``last.before*.value``.
    """
    text = _start(way.root)
    for step in way.steps:
        text = text.then(step if step.wild is None else step._replace(write=step.wild))
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
