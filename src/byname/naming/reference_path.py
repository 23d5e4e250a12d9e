"""Reference path: the references from a variable to an object, and their source text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from byname.naming.children.reference import Reference, writable
from byname.naming.name import Name, with_relation, with_site
from byname.naming.roots import LOOP, Root, is_of_a_library
from byname.source.location import Site
from byname.text import printable


class ReferencePath:
    """One path to an object: a root, or a path to the object that holds it and one more reference.

    The parameters of a module share the path to the module, and so its text, which is written once.

    Attributes:
        before, last, holder: the path to the holder, the last reference and the holder; None for the path to the root's
            own value.
        length: the number of references.
    """

    __slots__ = ("_text", "before", "holder", "last", "length", "root")

    def __init__(
        self, root: Root, before: ReferencePath | None = None, step: Reference | None = None, holder: object = None
    ) -> None:
        self.root = root
        self.before = before
        self.last = step
        self.holder = holder
        self._text: Text | None = None
        self.length: int = 0 if before is None else before.length + 1

    def then(self, step: Reference, holder: object) -> ReferencePath:
        """Return the path that goes on from its end, the object `holder`, by one reference."""
        return ReferencePath(self.root, self, step, holder)

    def passes(self, thing: object) -> bool:
        """Return whether the path leads through an object, or to it."""
        return any(one is thing for one in self.passed)

    @property
    def steps(self) -> tuple[Reference, ...]:
        return tuple([path.last for path in self.parts() if path.last is not None])

    @property
    def passed(self) -> tuple[object, ...]:
        """The objects on the way, from the root's value on, without the one at the end."""
        return tuple([path.holder for path in self.parts() if path.before is not None])

    @property
    def stateful(self) -> bool:
        """Whether the path leads through an optimizer's state."""
        return any(step.kind == "state" for step in self.steps)

    @property
    def text(self) -> Text:
        if self._text is None:
            before, step = self.before, self.last
            self._text = _start(self.root) if before is None or step is None else before.text.then(step)
        return self._text

    def parts(self) -> Iterator[ReferencePath]:
        """Yield the path to the root's value, that to the next object, and so on, this one last."""
        parts: list[ReferencePath] = []
        path: ReferencePath | None = self
        while path is not None:
            parts.append(path)
            path = path.before
        return reversed(parts)


def _is_internal(step: Reference, holder: object) -> bool:
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
    stateful: bool
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
        internal = any(map(_is_internal, steps, way.passed))
        labels = sum(len(step.label) for step in steps)
        ranked = "state" in kinds, dubious, internal, root.quality, way.length, root.distance, labels
        return cls(way.text, how, root.scope, root.how == "given", *ranked)


class Branch:
    """Some paths to an object: a few to one place, its `starts`, and the same references from there. Holds no objects.

    The modules of a model that many variables lead to share the paths to the model, and each has one reference more
    than the module that holds it. So a branch costs the same however many paths it stands for.
    """

    __slots__ = ("_best", "_texts", "before", "hidden", "internal", "labels", "length", "starts", "stateful", "step")

    def __init__(
        self,
        starts: Sequence[Start],
        before: Branch | None = None,
        step: Reference | None = None,
        holder: object = None,
    ) -> None:
        self.starts, self.before, self.step = starts, before, step
        self._best: Start | None = None
        self._texts: dict[int, Text] | None = None
        if before is None or step is None:
            self.hidden = self.internal = False
            self.stateful = any(start.stateful for start in starts)
            self.length = self.labels = 0
        else:
            self.hidden = before.hidden or step.kind in _HIDDEN
            self.internal = before.internal or _is_internal(step, holder)
            self.stateful = before.stateful or step.kind == "state"
            self.length, self.labels = before.length + 1, before.labels + len(step.label)

    @classmethod
    def along(cls, way: ReferencePath) -> Branch:
        """Return a branch of one path, of which the last step is known."""
        if way.before is None:
            return cls([Start.of(way)])
        starts = [Start.of(way.before)]
        return cls(starts, cls(starts), way.last, way.holder)

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


class Names:
    """The names of a tensor, the best first. They are written on request, for few are read. They hold no objects.

    Args:
        branches: the paths to the tensor.
        site: where it was made, if that is known.
        best: its only name, where no path leads to it.
        relation: the relation of another tensor, which the names are for, to this one (`Name.relation`).
    """

    __slots__ = ("_best", "_branches", "_relation", "_site")

    def __init__(
        self, branches: Sequence[Branch], site: Site | None = None, best: Name | None = None, relation: str = ""
    ) -> None:
        self._branches, self._site, self._best, self._relation = branches, site, best, relation

    def of(self, site: Site | None = None, relation: str = "") -> Names:
        """Return the names with the site that made the tensor, or those of a tensor with a relation to this one."""
        return Names(self._branches, site, relation=relation) if site or relation else self

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
