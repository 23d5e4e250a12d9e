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
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from byname.errors import BadPathError

_SPECIAL = re.compile(r"([.*?{}\[\]\\])")


@dataclass(frozen=True, slots=True)
class NameSegment:
    r"""A name, or a pattern for names.

    Attributes:
        text: the name as written in the path, with its backslashes.
    """

    text: str

    def matches(self, name: str) -> bool:
        """Return whether a name, as a program has it, fits."""
        return any(_matches(_pieces(one), name) for one in _alternatives(self.text))

    @property
    def wild(self) -> bool:
        """Whether this segment can match more than one name."""
        return bool(re.search(r"(?<!\\)(?:\\\\)*[*?{]", self.text))

    @property
    def plain(self) -> str:
        """The name without its backslashes."""
        return re.sub(r"\\(.)", r"\1", self.text)

    def __str__(self) -> str:
        return self.text

    @classmethod
    def of(cls, name: str) -> NameSegment:
        """Return the segment that matches exactly this name."""
        return cls(_SPECIAL.sub(r"\\\1", name))


@dataclass(frozen=True, slots=True)
class Item:
    """An item of a container.

    Attributes:
        key: the index or key.
        text: the key as written in the path, without the brackets.
    """

    key: Hashable
    text: str = field(default="", compare=False)

    def counted(self, length: int) -> Item:
        """Return an index from the end as one from the beginning, as Python counts; any other key stays as it is.

        Args:
            length: the length of the list.
        """
        if type(self.key) is int and -length <= self.key < 0:
            return Item(self.key + length)
        return self

    def __str__(self) -> str:
        return f"[{self.text or repr(self.key)}]"


@dataclass(frozen=True, slots=True)
class AnyDepth:
    """Any number of segments, including none."""

    def __str__(self) -> str:
        return "**"


@dataclass(frozen=True, slots=True)
class AnyItem:
    """Any one item."""

    def __str__(self) -> str:
        return "[*]"


@dataclass(frozen=True, slots=True)
class Slice:
    """The items of a list at the positions of a slice.

    Attributes:
        start, stop, step: as in Python.
    """

    start: int | None
    stop: int | None
    step: int | None

    def positions(self, length: int) -> range:
        """Return the positions in a list of a length."""
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


Segment: TypeAlias = NameSegment | Item | AnyDepth | AnyItem | Slice
ANY, ANY_ITEM = AnyDepth(), AnyItem()


@dataclass(frozen=True, slots=True)
class Place:
    """A parsed path: a point of a model, or a pattern of such points.

    Attributes:
        segments: the parts of the path, in order.
    """

    segments: tuple[Segment, ...]

    @property
    def wild(self) -> bool:
        """Whether this path can match more than one path."""
        return any(is_wild(one) for one in self.segments)

    def matches(self, path: str | Place) -> bool:
        """Return whether a path without wildcards fits this one.

        Args:
            path: the path of one point, such as ``"layers.3.attn"``.
        """
        concrete = (parse(path) if isinstance(path, str) else path).segments
        return len(concrete) in ends_of(self.segments, concrete)

    def __str__(self) -> str:
        return join(self.segments)


def parse(path: str) -> Place:
    """Return the parsed form of a path.

    Args:
        path: such as ``"layers.*.attn.forward.scores"``.

    Raises:
        BadPathError: the text is not a path; the message points at the character.
    """
    if not isinstance(path, str):
        raise BadPathError(f"a path is text such as 'layers.*.attn', not {type(path).__name__}")
    return _parsed(path)


def join(segments: Iterable[Segment]) -> str:
    """Return the text of segments."""
    text = ""
    for one in segments:
        text += f".{one}" if text and isinstance(one, NameSegment | AnyDepth) else str(one)
    return text


def is_wild(segment: Segment) -> bool:
    """Return whether a segment can match more than one name or item."""
    return isinstance(segment, AnyDepth | AnyItem | Slice) or (isinstance(segment, NameSegment) and segment.wild)


def fits(pattern: Segment, segment: Segment) -> bool:
    """Return whether a segment of a pattern, other than ``**``, fits a segment without wildcards."""
    if isinstance(pattern, NameSegment):
        return isinstance(segment, NameSegment) and pattern.matches(segment.plain)
    if isinstance(pattern, Slice):
        return isinstance(segment, Item) and type(segment.key) is int and pattern.holds(segment.key)
    return isinstance(segment, Item) and (pattern == segment or isinstance(pattern, AnyItem))


def ends_of(pattern: Sequence[Segment], concrete: Sequence[Segment]) -> set[int]:
    """Return each number of leading segments of a concrete path that the whole pattern can match."""
    reached = {0}
    for one in pattern:
        if isinstance(one, AnyDepth):
            reached = set(range(min(reached), len(concrete) + 1)) if reached else set()
        else:
            reached = {at + 1 for at in reached if at < len(concrete) and fits(one, concrete[at])}
    return reached


def begun(pattern: Sequence[Segment], reached: set[int]) -> set[int]:
    """Return these positions in a pattern, and those reached along with them because ``**`` may stand for nothing."""
    found = set(reached)
    for position in sorted(reached):
        while position < len(pattern) and isinstance(pattern[position], AnyDepth):
            position += 1
            found.add(position)
    return found


class _Piece(NamedTuple):
    """The part of a name pattern between two stars; each of its characters matches exactly one character."""

    expression: re.Pattern[str]
    size: int


@lru_cache(maxsize=4096)
def _alternatives(text: str) -> tuple[str, ...]:
    """Return the names that the braces of a pattern stand for, each a pattern without braces."""
    found = _BRACES.search(text)
    if found is None:
        return (text,)
    start, end = text[: found.start(1)], text[found.end() :]
    return tuple(one for part in found.group(2).split(",") for one in _alternatives(f"{start}{part}{end}"))


_BRACES = re.compile(r"(?<!\\)(?:\\\\)*(\{((?:\\.|[^{}\\])*)\})", re.DOTALL)


@lru_cache(maxsize=4096)
def _pieces(text: str) -> tuple[_Piece, ...]:
    pieces: list[list[str]] = [[]]
    for part in re.findall(r"\\.|.", text, re.DOTALL):
        if part == "*":
            pieces.append([])
        else:
            pieces[-1].append("." if part == "?" else re.escape(part[-1]))
    return tuple(_Piece(re.compile("".join(piece), re.DOTALL), len(piece)) for piece in pieces)


def _matches(pieces: Sequence[_Piece], name: str) -> bool:
    """Return whether a name has these pieces in order, the first at its beginning and the last at its end.

    The first position at which a piece fits is as good as any later one, so nothing is tried twice. A single expression
    with ``.*`` between the pieces would try every way to cut the name.
    """
    first, last = pieces[0], pieces[-1]
    if len(pieces) == 1:
        return first.expression.fullmatch(name) is not None
    end = len(name) - last.size
    if first.size > end or not (first.expression.match(name) and last.expression.match(name, end)):
        return False
    at = first.size
    for piece in pieces[1:-1]:
        found = piece.expression.search(name, at, end)
        if found is None:
            return False
        at = found.end()
    return True


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
            raise _wrong(path, at, "a dot or a bracket was expected")
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
        raise _wrong(path, at, "braces hold names without dots, such as {q,v}_proj; a brace of a name is written \\{")
    return NameSegment(text), found.end()


def _item(path: str, at: int) -> tuple[Segment, int]:
    found = _ITEM.match(path, at)
    if found is None:
        raise _wrong(path, at, "a closed bracket was expected, such as [0] or ['k']")
    text = found.group(1)
    if text == "*":
        return ANY_ITEM, found.end()
    if _SLICE.fullmatch(text):
        start, stop, step = ([int(one) if one.strip() else None for one in text.split(":")] + [None])[:3]
        if step == 0:
            raise _wrong(path, at, "the step of a slice is not 0")
        return Slice(start, stop, step), found.end()
    try:
        key = ast.literal_eval(text)
        hash(key)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise _wrong(path, at, "a key is a literal, such as [0], ['k'] or [*]") from None
    return Item(key, text), found.end()


def _wrong(path: str, at: int, expected: str) -> BadPathError:
    return BadPathError(f"not a path: {path!r}, at character {at}: {expected}")
