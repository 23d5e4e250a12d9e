"""Name: one name of a tensor, the scope where it is valid, and whether it is exact; and tags, names given by hand."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from torch.utils.weak import WeakIdKeyDictionary

from byname.errors import BadArgumentError
from byname.source.location import Site
from byname.text import printable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Name:
    """One name of a tensor in the program.

    Attributes:
        path: an expression of the program, such as ``trainer.history[17]['loss']``; empty if there is no name.
        how: the kind of reference by which the program reaches the tensor: ``tag``, ``parameter``, ``buffer``,
            ``optimizer``, ``local``, ``global``, ``attribute``, ``item``, ``closure``, ``graph`` (a neighbour in the
            autograd graph has a name), ``unnamed``.
        scope: where the path is valid: a module's name, or a function with its file and line.
        exact: True if the path, evaluated in its scope, is this very tensor. There are two exceptions, which other
            fields show: a tag (`how`), and the name that an overwritten tensor had (`rebound_at`).
        distance: steps in the autograd graph between this tensor and the one whose name this is; 0 for its own name.
        rebound_at: the statement that gave the name to another tensor.
        site: where the tensor was made, if that is known.
        relation: the relation of the tensor to the one that the path names (``view of``); empty if it is that tensor.
        text: the name in words, if the path would be hard to read; otherwise empty. Without a name: how far byname
            searched, if it stopped at a bound.

    >>> str(Name("model.fc.weight", "parameter", "__main__"))
    'model.fc.weight'
    """

    path: str
    how: str
    scope: str = ""
    exact: bool = True
    distance: int = 0
    rebound_at: Site | None = None
    site: Site | None = None
    relation: str = ""
    text: str = ""

    def __str__(self) -> str:
        return printable(self._words())

    def _words(self) -> str:
        if self.how == "unnamed" and not self.path:
            return f"unnamed, made at {_line(self.site)}" if self.site else f"unnamed {self.text}".rstrip()
        words = f"{self.relation} {self.text or self.path}" if self.relation else self.text or self.path
        if self.rebound_at is not None and not self.distance:
            return f"{words} (before {_line(self.rebound_at)})"
        if self.distance:
            steps = "1 step" if self.distance == 1 else f"{self.distance} steps"
            rebound = f"before {_line(self.rebound_at)}, " if self.rebound_at is not None else ""
            return f"perhaps {words} ({rebound}{steps} away)"
        return words


def _line(site: Site) -> str:
    """Return the line as text; for a line in a helper of another file, with the line that called it."""
    return f"{site}" if site.caller is None or site.caller.file == site.file else f"{site}, called at {site.caller}"


def with_site(name: Name, site: Site | None) -> Name:
    return name if site is None else replace(name, site=site)


def with_relation(name: Name, relation: str) -> Name:
    """Return the name of one tensor as that of another, which has this relation to it (`Name.relation`)."""
    return Name(  # `replace` takes twice the time, and `saved` needs thousands
        name.path, name.how, name.scope, False, name.distance, name.rebound_at, name.site, relation, name.text
    )


def unnamed(site: Site | None = None, among: str = "") -> Name:
    """Return the name of a tensor for which the program has none; `among` says how far byname searched."""
    return Name("", "unnamed", exact=False, site=site, text=among)


NAMELESS = unnamed()


def in_words(words: str) -> Name:
    """Return words in place of a name that the program does not have; sentences have them without quotes.

    >>> quote(in_words("the model")), str(in_words("the model"))
    ('the model', 'the model')
    """
    return Name(words, "unnamed", exact=False)


def quote(name: Name) -> str:
    """Return a name as text for a sentence: ```loss```, ``a view of `weight```, ``a tensor without a name``."""
    if not name.path:
        return f"the tensor made at {name.site}" if name.site else f"a tensor without a name {name.text}".rstrip()
    if name.how == "unnamed":
        return name.path
    relation = {"view of": "a view of ", "in the memory of": "a tensor in the memory of "}.get(name.relation)
    if relation is None:
        relation = f"{name.relation} " if name.relation else ""
    words = str(replace(name, relation=""))
    return f"{relation}`{words}`"


def quote_all(names: Iterable[object], most: int = 6) -> str:
    """Return names as text for a sentence: ```a`, `b` and 3 more``."""
    words = list(dict.fromkeys(quote(name) if type(name) is Name else f"`{name}`" for name in names))
    if len(words) > most:
        return f"{', '.join(words[:most])} and {len(words) - most} more"
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def at(site: Site | None) -> str:
    """Return `` at train.py:12``, or an empty string if the line is not known."""
    return "" if site is None else f" at {site}"


_TAGS: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""Tag by object. Process-wide because the function `tag` is; an entry goes when its object goes."""


def tag(obj: T, name: str) -> T:
    """Give a tensor a name by hand; or a module or optimizer, and with it everything it owns.

    The tag comes before every other name. It is held weakly: nothing is written on the object and nothing is kept
    alive. A second tag replaces the first.

    Args:
        obj: a tensor, a module, an optimizer, or any object that can be referred to weakly.
        name: the name, such as ``"latent"``; a parameter of a module so tagged is then ``latent.fc.weight``.

    Returns:
        `obj` itself, so that the call can stand inside an expression.

    Raises:
        BadArgumentError: the name is empty or no text, or the object cannot be referred to weakly.

    >>> import byname, torch
    >>> noise = [byname.tag(torch.ones(3), "noise")]
    >>> str(byname.name(noise[0]))
    'noise'
    """
    if not issubclass(type(name), str) or not name.strip():
        given = repr(name) if type(name) is str else type(name).__name__
        raise BadArgumentError(f"a tag must be a string that is not blank, but got {given}")
    try:
        weakref.ref(obj)
    except TypeError:
        raise BadArgumentError(
            f"an object of type {type(obj).__name__} cannot be tagged: Python cannot refer to it weakly; "
            "tag the tensors in it one by one"
        ) from None
    _TAGS[obj] = name
    return obj


def tag_of(obj: object) -> str | None:
    referable = _TAGS and type(obj).__weakrefoffset__  # a list, say, has no tag
    return _TAGS.get(obj) if referable else None  # type: ignore[no-untyped-call]


def tagged() -> list[tuple[str, object]]:
    return [(name, obj) for obj, name in list(_TAGS.items())]  # type: ignore[no-untyped-call]
