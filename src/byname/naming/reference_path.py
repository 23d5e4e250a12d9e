"""Reference path: how an object is reached from a variable, and how the program would write it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from byname.naming.children.reference import Reference, writable
from byname.naming.name import Name
from byname.naming.roots import Root, is_of_a_library
from byname.text import printable


class ReferencePath:
    """One path to an object: a root, or a path to the object that holds it and one more reference.

    The parameters of a module share the path to the module, and so its text, which is written once.

    Attributes:
        root: the variable from which the path starts.
        before: the path to the holder; None for the path to the root's own value.
        last: the last reference; None for a root's own value.
        length: the number of references.
        labels: the number of characters in their notes.
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
        """The references from the root on."""
        return tuple([path.last for path in self.parts() if path.last is not None])

    @property
    def passed(self) -> tuple[object, ...]:
        """The objects on the way, from the root's value on, without the one at the end."""
        return tuple([path._holder for path in self.parts() if path.before is not None])

    @property
    def internal(self) -> bool:
        """Whether it leads through a private attribute of a library's object, or what an optimizer's group has."""
        if self._internal is None:
            before, step = self.before, self.last
            self._internal = before is not None and (before.internal or _is_internal(step, self._holder))
        return self._internal

    @property
    def source(self) -> str:
        """The path as the program would write it."""
        return self.text.source

    @property
    def evaluates(self) -> bool:
        """Whether that source, evaluated in the root's scope, is the object at the end."""
        return self.text.evaluates

    @property
    def text(self) -> Text:
        """What the references so far write."""
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

    A variable that the source reaches only by detours, such as one in a closure, starts the words anew, and a note
    behind them says where it is: ``acts[3] (closure of hook)``.
    """

    source: str
    words: str
    note: str
    evaluates: bool
    seen_through: bool

    def then(self, step: Reference) -> Text:
        """Return the text with one more reference."""
        evaluates = self.evaluates and step.evaluates and not (self.seen_through and step.reads_registry)
        source = step.write(self.source)
        if step.label:
            return Text(source, step.label, step.note(self.words), evaluates, step.seen_through)
        words = step.write(self.words) if self.note else source
        return Text(source, words, self.note, evaluates, step.seen_through)

    def whole(self) -> Written:
        """Return the text as source and as words, with the note."""
        source, words = self.source, self.words
        if "parametrizations" in source:
            source, words = _parametrized(source, words)
        return Written(source, f"{words} ({self.note})" if self.note else words)


def _start(root: Root) -> Text:
    return Text(root.text, root.text, "", root.evaluates, False)


class Written(NamedTuple):
    """A path as source and as words; the two are equal unless the source is hard to read."""

    source: str
    words: str


def written(way: ReferencePath) -> Written:
    """Return a path as source and as words."""
    return way.text.whole()


class Unwritten(NamedTuple):
    """A path as text only: that to the holder, the last step, and what else its name says. It holds no objects."""

    before: Text
    step: Reference | None
    how: str
    scope: str

    def name(self) -> Name:
        """Return the name that writes the path."""
        text = self.before if self.step is None else self.before.then(self.step)
        source, words = text.whole()
        said = "" if words == source else printable(words)
        return Name(printable(source), self.how, self.scope, text.evaluates, text=said)


class Names:
    """The names of a tensor, the best first. The others are written when they are asked for; few ever are.

    Attributes:
        best: the best name.
    """

    __slots__ = ("_others", "best")

    def __init__(self, best: Name, others: Sequence[Unwritten] = ()) -> None:
        self.best = best
        self._others = others

    @property
    def hows(self) -> list[str]:
        """The kind of reference of each name (`Name.how`)."""
        return [self.best.how, *(one.how for one in self._others)]

    def all(self) -> tuple[Name, ...]:
        """Return all names, each once."""
        found = {(self.best.path, self.best.scope): self.best}
        for one in self._others:
            name = replace(one.name(), site=self.best.site)
            found.setdefault((name.path, name.scope), name)
        return tuple(found.values())


def pattern_of(way: ReferencePath) -> str:
    """Return a path in words, with ``[*]`` where one entry differs from the next: ``trainer.history[*]['loss']``."""
    text = _start(way.root)
    for step in way.steps:
        text = text.then(step if step.wild is None else step._replace(write=step.wild))
    return printable(text.whole().words)


_PARAMETRIZATION = re.compile(r"\.parametrizations\['([^\W\d]\w*)'\]\.(original\d*)$")


def _parametrized(source: str, words: str) -> tuple[str, str]:
    """Return the source and words of the tensor behind a parametrized weight as PyTorch's users write them."""
    match = _PARAMETRIZATION.search(source)
    if match is None or not writable(match[1]):
        return source, words
    before = source[: match.start()]
    said = words.removesuffix(match[0])
    return f"{before}.parametrizations.{match[1]}.{match[2]}", f"{said}.{match[1]} ({match[2]})"
