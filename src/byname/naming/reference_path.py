"""Reference path: the references from a variable to an object, and their source text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from byname.naming.children.reference import Reference, writable
from byname.naming.name import Name, with_site
from byname.naming.roots import Root, is_of_a_library
from byname.source.location import Site
from byname.text import printable


class ReferencePath:
    """One path to an object: a root, or a path to the object that holds it and one more reference.

    The parameters of a module share the path to the module, and so its text, which is written once.

    Attributes:
        before, last: the path to the holder and the last reference; None for the path to the root's own value.
        length, labels: the number of references, and of the characters in their notes.
        hidden: whether it leads through a place that a program does not show, such as a suspended function or a queue.
        stateful: whether it leads through an optimizer's state.
    """

    __slots__ = ("_holder", "_internal", "_text", "before", "hidden", "labels", "last", "length", "root", "stateful")

    def __init__(
        self,
        root: Root,
        before: ReferencePath | None = None,
        step: Reference | None = None,
        holder: object = None,
    ) -> None:
        self.root = root
        self.before = before
        self.last = step
        self._holder = holder
        self._text: Text | None = None
        self._internal: bool | None = None
        if before is None or step is None:
            self.length, self.labels, self.hidden, self.stateful = 0, 0, False, False
        else:
            self.length, self.labels = before.length + 1, before.labels + len(step.label)
            self.hidden = before.hidden or step.kind in _HIDDEN
            self.stateful = before.stateful or step.kind == "state"

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
        return tuple([path._holder for path in self.parts() if path.before is not None])

    @property
    def internal(self) -> bool:
        """Whether it leads through a private attribute of a library's object, or the list of an optimizer's group."""
        if self._internal is None:
            before, step = self.before, self.last
            self._internal = before is not None and (before.internal or _is_internal(step, self._holder))
        return self._internal

    @property
    def source(self) -> str:
        """The path as the program would write it."""
        return self.text.source

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


def _is_internal(step: Reference | None, holder: object) -> bool:
    if step is None or step.kind != "attribute":
        return step is not None and step.kind == "item" and step.write("") == "['params']"
    return step.write("").startswith("._") and is_of_a_library(type(holder))


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


class Unwritten(NamedTuple):
    """A name before its text is made: the path to the holder, the last step, kind and scope. It holds no objects."""

    before: Text
    step: Reference | None
    how: str
    scope: str

    def name(self) -> Name:
        text = (self.before if self.step is None else self.before.then(self.step)).whole()
        said = "" if text.words == text.source else printable(text.words)
        return Name(printable(text.source), self.how, self.scope, text.evaluates, text=said)


class Names:
    """The names of a tensor that was made at a site, the best first. They are written on request, for few are read."""

    __slots__ = ("_best", "_site", "_unwritten")

    def __init__(self, unwritten: Sequence[Unwritten | Name], site: Site | None) -> None:
        self._unwritten, self._site = unwritten, site
        self._best: Name | None = None

    @property
    def best(self) -> Name:
        if self._best is None:
            self._best = self._written(self._unwritten[0])
        return self._best

    def __str__(self) -> str:
        return str(self.best)

    def _written(self, one: Unwritten | Name) -> Name:
        return with_site(one.name() if isinstance(one, Unwritten) else one, self._site)

    @property
    def hows(self) -> list[str]:
        """The kind of reference of each name (`Name.how`)."""
        return [one.how for one in self._unwritten]

    def all(self) -> tuple[Name, ...]:
        """Return all names, each once."""
        found = {(self.best.path, self.best.scope): self.best}
        for name in map(self._written, self._unwritten[1:]):
            found.setdefault((name.path, name.scope), name)
        return tuple(found.values())


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
