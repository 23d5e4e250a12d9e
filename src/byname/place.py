r"""Places: the path language that addresses points of a running model, with parsing, printing and matching.

A path is made of segments: names between dots, and items in brackets.

    >>> place = parse("layers.*.attn.forward.cache['k'][0]")
    >>> str(place)
    "layers.*.attn.forward.cache['k'][0]"
    >>> place.matches("layers.3.attn.forward.cache['k'][0]")
    True

| segment | matches |
|---|---|
| ``fc1`` | the name itself |
| ``layer?``, ``h_*``, ``*`` | one name: ``?`` stands for one character, ``*`` for any number |
| ``{q,v}_proj`` | one of several names |
| ``**`` | any number of segments, including none |
| ``[0]``, ``['k']`` | the item under that key; the key is a Python literal |
| ``[*]``, ``[1:3]``, ``[::2]`` | any item; those of a slice |

In a name, a backslash escapes each of ``. * ? [ ] { } \``. The model decides what the segments mean: see
`byname.model.resolve`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import TypeAlias

from byname.errors import BadPathError

_SPECIAL = re.compile(r"([.*?{}\[\]\\])")


@dataclass(frozen=True, slots=True)
class NameSegment:
    """A name, or a pattern for names, as written in the path, with its backslashes."""

    text: str

    def matches(self, name: str) -> bool:
        """Return whether a name, as a program has it, fits."""
        return _expression(self.text).fullmatch(name) is not None

    @property
    def wild(self) -> bool:
        """Whether this segment can match more than one name."""
        return _has_wildcards(self.text)

    @property
    def plain(self) -> str:
        """The name without its backslashes."""
        return _unescaped(self.text)

    def __str__(self) -> str:
        return self.text

    @classmethod
    def of(cls, name: str) -> NameSegment:
        """Return the segment that matches exactly this name."""
        return cls(_SPECIAL.sub(r"\\\1", name))


@dataclass(frozen=True, slots=True)
class Item:
    """An item of a container, by its index or key, with the text of the key in the path."""

    key: Hashable
    text: str = field(default="", compare=False)

    def counted(self, length: int) -> Item:
        """Return an index from the end of a list of a length as one from the beginning; any other key stays."""
        if type(self.key) is int and -length <= self.key < 0:
            return Item(self.key + length)
        return self

    def __str__(self) -> str:
        return f"[{self.text or repr(self.key)}]"


class Wildcard(Enum):
    """A segment that fits more than a name: ``**`` any number of segments, including none; ``[*]`` any one item."""

    DEPTH = "**"
    ITEM = "[*]"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Slice:
    """The items of a list at the positions of a slice."""

    start: int | None
    stop: int | None
    step: int | None

    def positions(self, length: int) -> range:
        return range(*slice(self.start, self.stop, self.step).indices(length))

    def counted(self, length: int) -> Slice:
        """Return a slice of a list of a length without positions that count from the end."""
        found = self.positions(length)
        rising = found if found.step > 0 else found[::-1]
        return Slice(rising.start, max(rising.stop, 0), rising.step)

    def holds(self, position: int) -> bool:
        """Return whether a position from the beginning is in it; not where that depends on the length."""
        if any(one is not None and one < 0 for one in (self.start, self.stop, self.step)):
            return False
        stop = position + 1 if self.stop is None else self.stop
        return position in range(self.start or 0, stop, self.step or 1)

    def __str__(self) -> str:
        start, stop = ("" if one is None else one for one in (self.start, self.stop))
        return f"[{start}:{stop}{'' if self.step is None else f':{self.step}'}]"


Segment: TypeAlias = NameSegment | Item | Wildcard | Slice
Segments: TypeAlias = tuple[Segment, ...]
ANY, ANY_ITEM = Wildcard.DEPTH, Wildcard.ITEM


@dataclass(frozen=True, slots=True)
class Place:
    """A parsed path: a point of a model, or a pattern of such points."""

    segments: tuple[Segment, ...]

    @property
    def wild(self) -> bool:
        return any(is_wild(one) for one in self.segments)

    def matches(self, path: str | Place) -> bool:
        """Return whether a path without wildcards fits this one."""
        concrete = as_place(path).segments
        return len(concrete) in ends_of(self.segments, concrete)

    def __str__(self) -> str:
        return join(self.segments)


def parse(path: str) -> Place:
    """Return the parsed form of a path.

    Raises:
        BadPathError: the text is not a path; the message points at the character.
    """
    if not isinstance(path, str):
        raise BadPathError(f"a path is a string such as 'layers.*.attn', not {type(path).__name__}")
    return _parsed(path)


def as_place(path: str | Place) -> Place:
    return path if isinstance(path, Place) else parse(path)


def join(segments: Iterable[Segment]) -> str:
    text = ""
    for one in segments:
        text += f".{one}" if text and (one is ANY or isinstance(one, NameSegment)) else str(one)
    return text


def after_a_name(segments: Iterable[Segment]) -> str:
    """Return the text of segments as it stands after a name: with a dot before a name."""
    text = join(segments)
    return f".{text}" if text and not text.startswith("[") else text


def is_wild(segment: Segment) -> bool:
    return isinstance(segment, Wildcard | Slice) or (isinstance(segment, NameSegment) and segment.wild)


def fits(pattern: Segment, segment: Segment) -> bool:
    """Return whether a segment of a pattern, other than ``**``, fits a segment without wildcards."""
    if isinstance(pattern, NameSegment):
        return isinstance(segment, NameSegment) and pattern.matches(segment.plain)
    if isinstance(pattern, Slice):
        return isinstance(segment, Item) and type(segment.key) is int and pattern.holds(segment.key)
    return isinstance(segment, Item) and (pattern is ANY_ITEM or pattern == segment)


def ends_of(pattern: Sequence[Segment], concrete: Sequence[Segment]) -> set[int]:
    """Return each number of leading segments of a concrete path that the whole pattern can match."""
    reached = {0}
    for one in pattern:
        if one is ANY:
            reached = set(range(min(reached), len(concrete) + 1)) if reached else set()
        else:
            reached = {at + 1 for at in reached if at < len(concrete) and fits(one, concrete[at])}
    return reached


@lru_cache(maxsize=4096)
def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)


@lru_cache(maxsize=4096)
def _has_wildcards(text: str) -> bool:
    return re.search(r"(?<!\\)(?:\\\\)*[*?{]", text) is not None


@lru_cache(maxsize=4096)
def _expression(text: str) -> re.Pattern[str]:
    return re.compile("|".join(map(_without_braces, _alternatives(text))), re.DOTALL)


def _without_braces(text: str) -> str:
    """Return the regular expression of a pattern without braces.

    After a star, the first position at which the next piece fits is as good as any later one, so nothing is tried
    twice: the groups are atomic. Otherwise a pattern of many stars would try every way to cut a name.
    """
    pieces = [""]
    for part in re.findall(r"\\.|.", text, re.DOTALL):
        if part == "*":
            pieces.append("")
        else:
            pieces[-1] += "." if part == "?" else re.escape(part[-1])
    first, *middle = pieces
    if not middle:
        return first
    return "".join([first, *(f"(?>.*?{piece})" for piece in middle[:-1]), ".*", middle[-1]])


def _alternatives(text: str) -> list[str]:
    """Return the names that the braces of a pattern stand for, each a pattern without braces."""
    found = _BRACES.search(text)
    if found is None:
        return [text]
    start, end = text[: found.start(1)], text[found.end() :]
    return [one for part in found.group(2).split(",") for one in _alternatives(f"{start}{part}{end}")]


_BRACES = re.compile(r"(?<!\\)(?:\\\\)*(\{((?:\\.|[^{}\\])*)\})", re.DOTALL)


_NAME = re.compile(r"(?:\\.|[^.\[\]\\])+", re.DOTALL)
_SLICE = re.compile(r"\s*(-?\d+)?\s*:\s*(-?\d+)?\s*(:\s*(-?\d+)?\s*)?")
_ITEM = re.compile(r"\[((?:'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|[^\[\]'\"])+)\]", re.DOTALL)


@lru_cache(maxsize=4096)
def _parsed(path: str) -> Place:
    segments: list[Segment] = []
    at = 0
    while at < len(path):
        segment, at = _item(path, at) if path[at] == "[" else _name(path, at, first=not segments)
        segments.append(segment)
    if not segments:
        raise BadPathError("an empty path names nothing; the output of the model itself is 'forward'")
    return Place(tuple(segments))


def _name(path: str, at: int, *, first: bool) -> tuple[Segment, int]:
    if not first:
        if path[at] != ".":
            raise _wrong(path, at, "expected a dot or a bracket")
        at += 1
    found = _NAME.match(path, at)
    if found is None:
        raise _wrong(path, at, "a name was expected")
    text = found.group()
    if text == "**":
        return ANY, found.end()
    if "**" in re.sub(r"\\.", "", text):
        raise _wrong(path, at, "`**` must stand alone between dots")
    if re.search(r"[{}]", re.sub(r"\\.", "", _BRACES.sub(lambda found: found.group()[: -len(found[1])], text))):
        raise _wrong(path, at, "braces take names without dots, such as {q,v}_proj; write a brace in a name as \\{")
    return NameSegment(text), found.end()


def _item(path: str, at: int) -> tuple[Segment, int]:
    found = _ITEM.match(path, at)
    if found is None:
        raise _wrong(path, at, "expected a closed bracket, such as [0] or ['k']")
    text = found.group(1)
    if text == "*":
        return ANY_ITEM, found.end()
    if _SLICE.fullmatch(text):
        start, stop, step = ([int(one) if one.strip() else None for one in text.split(":")] + [None])[:3]
        if step == 0:
            raise _wrong(path, at, "the step of a slice cannot be 0")
        return Slice(start, stop, step), found.end()
    try:
        key = ast.literal_eval(text)
        hash(key)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise _wrong(path, at, "a key must be a literal, such as [0], ['k'] or [*]") from None
    return Item(key, text), found.end()


def _wrong(path: str, at: int, expected: str) -> BadPathError:
    return BadPathError(f"not a path: {path!r}, at character {at}: {expected}")
