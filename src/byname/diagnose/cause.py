"""Cause: one way in which a program goes wrong, as a row of a table: when it applies, its facts, sentence and remedy.

A sentence mentions facts in braces. Its culprits are the names that it mentions, and its lines are those that it
mentions, so that neither is listed anywhere else:

    {loss}             `loss`                     a name, or several: `a`, `b` and 3 more
    {names:3}          `a`, `b`, `c` and 1 more   at most three of several names
    {made:at}          at train.py:3              a line; nothing if it is unknown
    {names:has|have}   has                        by the number of names, or a number
    {made:-}                                      prints nothing: the line, or all these names, belong to the story, too

The fact ``noticed`` is the line that ends a story, wherever the sentence mentions it.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from byname.diagnose.finding import Finding
from byname.naming.name import Name, at, quote, quote_all
from byname.reading.quiet import DisableTorchFunction
from byname.source.location import Site

if TYPE_CHECKING:
    from byname.diagnose.context import FailureContext

Facts: TypeAlias = dict[str, Any]


class Case(Protocol):
    """An error, a graph, a loss or an optimizer: the subject of a table of causes."""

    @property
    def known(self) -> Facts:
        """The facts that every sentence of the table may mention; ``noticed`` is one of them, or None."""


C = TypeVar("C", bound=Case)


@dataclass(frozen=True)
class Cause(Generic[C]):
    """One way in which a program goes wrong. Several rows may have one identifier, with different sentences."""

    id: str  # as in `Finding.cause`
    when: Callable[[C], bool]  # whether the case may be about this cause, which is quick to tell
    facts: Callable[[C], Iterable[Facts]]  # of each problem of this kind; nothing where the evidence is missing
    template: str  # the sentence about these facts
    remedy: str  # the sentence about what to write instead

    def findings(self, case: C) -> list[Finding]:
        """Return the findings of this cause about a case; no ``__torch_function__`` runs meanwhile."""
        with DisableTorchFunction():
            facts = self.facts(case) if self.when(case) else ()
            return [self.finding({**case.known, **one}) for one in facts]

    def finding(self, facts: Facts) -> Finding:
        """Return the finding that states some facts; ``details`` among them are further lines of it."""
        said, remedy = render(self.template, **facts), render(self.remedy, **facts)
        sites = said.sites if facts["noticed"] is None else (*said.sites, facts["noticed"])
        mentioned = {**said.facts, **remedy.facts}
        return Finding(self.id, str(said), said.names, sites, str(remedy), facts.get("details", ()), mentioned)


def always(case: object) -> bool:
    """Return True: the condition of a cause that any case may have."""
    return True


def no_extra_facts(case: object) -> Iterable[Facts]:
    """Return no further facts, for a sentence with only the facts that every sentence of the table may mention."""
    return ({},)


class Sentence(str):
    """A sentence, or a part of one, with the names and the lines that it mentions."""

    names: tuple[Name, ...]
    sites: tuple[Site, ...]
    facts: Facts

    @classmethod
    def joined(cls, separator: str, parts: Iterable[Sentence]) -> Sentence:
        every = list(parts)
        whole = cls(separator.join(every))
        whole.names = tuple([name for part in every for name in part.names])
        whole.sites = tuple([site for part in every for site in part.sites])
        return whole


def variable(path: str | None) -> Name:
    """Return the name of a variable that the source mentions."""
    return Name(path or "", "local", exact=False)


class Subject(NamedTuple):
    """A name, and the line that belongs to it."""

    name: Name
    site: Site | None


def render(words: str, /, **facts: Any) -> Sentence:
    """Return a sentence with facts in place of its braces.

    >>> sentence = render("{names} {names:has|have} no gradient{made:at}", names=(Name("w", "local"),), made=None)
    >>> sentence, [str(name) for name in sentence.names]
    ('`w` has no gradient', ['w'])
    """
    formatter = _Renderer()
    sentence = Sentence(formatter.vformat(words, (), facts))
    sentence.names, sentence.sites, sentence.facts = tuple(formatter.names), tuple(formatter.sites), formatter.facts
    return sentence


class _Renderer(string.Formatter):
    """Formatter of sentences, which remembers the names and lines among the facts that it prints, each fact once."""

    def __init__(self) -> None:
        self.names: list[Name] = []
        self.sites: list[Site] = []
        self.facts: Facts = {}
        self._met = {"noticed"}

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        """Return a fact, with its name."""
        value, _ = super().get_field(field_name, args, kwargs)
        self.facts[field_name] = _plain(value)
        return (field_name, value), field_name

    def format_field(self, fact: tuple[str, Any], spec: str) -> str:
        field, value = fact
        if "|" in spec:
            one, several = spec.split("|")
            return one if (value if type(value) is int else len(value)) == 1 else several
        if field not in self._met:
            self._met.add(field)
            self._remember(value, every=spec == "-")
        return "" if spec == "-" else _text(value, spec)

    def _remember(self, value: Any, every: bool) -> None:
        if isinstance(value, Site):
            self.sites.append(value)
        elif isinstance(value, Name):
            if every or (value.path and value not in self.names):
                self.names.append(value)
        elif isinstance(value, Sentence):
            self._remember([*value.names, *value.sites], every)
        elif isinstance(value, list | tuple):
            for one in value:
                self._remember(one, every)


def _plain(value: Any) -> Any:
    """Return a fact as a value that JSON has."""
    if isinstance(value, list | tuple) and not isinstance(value, Subject):
        return [_plain(one) for one in value]
    return value if value is None or type(value) in (int, float, bool, str) else _text(value, "")


def _text(value: Any, spec: str) -> str:
    if spec == "at":
        return at(value)
    if isinstance(value, Subject):
        unnamed = value.site is not None and not value.name.path
        return f"the tensor made at {value.site}" if unnamed else f"{quote(value.name)}{at(value.site)}"
    if isinstance(value, Name):
        return quote(value)
    if isinstance(value, list | tuple) and all(isinstance(one, Name) for one in value):
        return quote_all(value, most=int(spec or 6))
    return format(value, spec)


@dataclass(frozen=True)
class Raised:
    """An error of some type whose message fits a pattern (PyTorch 2.7 to 2.13); the case gets the match."""

    kinds: type[BaseException] | tuple[type[BaseException], ...]
    pattern: str

    def __call__(self, failure: FailureContext) -> bool:
        match = re.search(self.pattern, failure.message, re.DOTALL)
        if match is None or not issubclass(type(failure.error), self.kinds):
            return False
        failure.match = match
        return True


def is_before_backward(case: FailureContext) -> bool:
    """Return whether there is no error: when a cause is looked for before a backward call."""
    return case.error is None


def any_of(*whens: Callable[[C], bool]) -> Callable[[C], bool]:
    return lambda case: any(when(case) for when in whens)
