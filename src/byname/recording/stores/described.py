"""Described: a place as a file describes it; and how the attributes of its group did that in format 1."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from byname.codec import dtype_named
from byname.errors import RecordingError
from byname.recording.distributed.dtensor import Shard, checked
from byname.recording.sampling import Sampling
from byname.recording.stores.arrays import ASKED, group_name, numbers, place_of
from byname.recording.stores.parts import Form
from byname.recording.stores.stored_values import PartAt
from byname.recording.stores.validate import attribute, broken, dataset_in, flat_shape, group_in, names_in, row_shape
from byname.table import counted
from byname.text import printable

ASKED_KINDS = {name: int if name in ("every", "start", "stop", "on_change") else str for name in Sampling.__slots__}
_NOTHING: Any = object()
_KINDS = {"rows": ("tensor", "int", "float", "bool", "complex", "str"), "flat": ("tensor",), "nested": ("nested",)}
"""Of the values that each layout has."""


@dataclass(frozen=True, slots=True)
class Extent:
    """What a place has, in numbers.

    Attributes:
        first: the first iteration of a record.
        last: the last one; before the first where there is no record.
        ranks: of the records.
        size: the bytes of the values in the file; of text, without the letters.
    """

    first: int
    last: int
    ranks: frozenset[int]
    size: int


@dataclass(frozen=True, slots=True)
class Stored:
    """A place in a file.

    Attributes:
        path: the place.
        parts: of its values.
        sampling: how they were taken; None in a file of an older byname.
        extent: what it has, where that is known without a look at its arrays.
    """

    path: str
    parts: tuple[PartAt, ...]
    sampling: Sampling | None = None
    extent: Extent | None = None

    @property
    def count(self) -> int:
        """Of its records."""
        return sum(part.count for part in self.parts)


def places_of_groups(file: Any) -> tuple[dict[str, Stored], tuple[str, ...]]:
    """The places by their paths, in order, and in words what else there should be."""
    names, links = names_in(file)
    missing = [
        f"what was recorded at `{place_of(name)}`: there is {kind}, which is not followed"
        for name, kind in links.items()
    ]
    numbered: dict[str, tuple[int, str, Stored]] = {}
    last = -1
    for name in names:
        if name == "byname":
            continue  # the mark by which the file and its journal know each other
        number, place = _place_at(file, name)
        other = numbered.get(place.path)
        if other is not None:
            kept, left_out = (name, other[1]) if group_name(place.path) == name else (other[1], name)
            missing.append(
                f"what was recorded at `{place_of(left_out)}`: it says that it is `{place.path}`, as does {kept}"
            )
        if other is None or kept == name:
            numbered[place.path] = number, name, place
        last = max(last, number)
    gone = last + 1 - len(numbered) - len(missing)
    if gone > 0:
        missing.append(f"{counted(gone, 'place')} that the file had: its numbers of places lead to {last}")
    in_order = sorted(numbered.values(), key=lambda one: one[0])
    return {place.path: place for _, _, place in in_order}, tuple(map(printable, missing))


def _place_at(file: Any, name: str) -> tuple[int, Stored]:
    """A place by the name of its group, and the number that it has among all places."""
    group = group_in(file, name)
    parts = [_part_at(group, (name,))]
    if b"more" in group.id:
        further = group_in(group, "more")
        inside, links = names_in(further)
        if links:
            raise broken(f"{next(iter(links))} in {further.name} is a link, which is not followed")
        inside.sort(key=lambda one: (len(one), one))
        parts += [_part_at(group_in(further, one), (name, "more", one)) for one in inside]
    return attribute(group, "number", int), Stored(attribute(group, "path", str), tuple(parts), _sampling(group))


def _sampling(group: Any) -> Sampling | None:
    if "every" not in group.attrs:
        return None
    read: dict[str, Any] = {}
    for name, kind in ASKED_KINDS.items():
        found = attribute(group, ASKED.get(name, name), kind, _NOTHING)
        if found is not _NOTHING:
            read[name] = found
    return sampling_of(group.name, read)


def _part_at(group: Any, names: tuple[str, ...]) -> PartAt:
    form = _form_at(group)
    iterations = dataset_in(group, "iterations", numbers("<i8"), (None,))
    return PartAt(names, form, len(iterations))


def _form_at(group: Any) -> Form:
    layout, kind = attribute(group, "layout", str), attribute(group, "kind", str)
    dtype = attribute(group, "dtype", str, "")
    check_kind(group.name, layout, kind, dtype)
    shape: tuple[int, ...] = ()
    if kind == "tensor":
        shape = flat_shape(group) if layout == "flat" else row_shape(group, "values")
    return Form(layout, kind, dtype, shape, _shard(group), padded=layout == "rows" and b"shapes" in group.id)


def check_described(groups: Sequence[Any], place: Stored) -> None:
    """Refuses groups that do not say of themselves what is known of a place."""
    for group, part in zip(groups, place.parts, strict=True):
        found = _form_at(group)
        if found != part.form:
            raise broken(f"{group.name} says that it has {found}, and not {part.form}")
    if attribute(groups[0], "path", str) != place.path or _sampling(groups[0]) != place.sampling:
        raise broken(f"{groups[0].name} says that it is another place than {place.path}, or was taken in another way")


def _shard(group: Any) -> Shard | None:
    text = attribute(group, "shard", str, "")
    try:
        return shard_of(group.name, json.loads(text)) if text else None
    except (ValueError, RecursionError) as reason:
        raise _no_shard(group.name) from reason


def check_kind(name: str, layout: str, kind: str, dtype: str) -> None:
    """Refuses what no values have: a layout, kind or dtype of another version, or those that do not belong together."""
    if kind not in _KINDS.get(layout, ()):
        raise broken(f"{name} has the layout {layout} and the kind {kind}, which this version does not know")
    if kind == "tensor":
        dtype_named(dtype)
    elif dtype:
        raise broken(f"{name} has the kind {kind} and the dtype {dtype}, which only tensors have")


def shard_of(name: str, facts: Any) -> Shard:
    """The part of a distributed tensor that a file describes."""
    try:
        return checked(Shard(**{key: tuple(fact) for key, fact in facts.items()}))
    except (ValueError, TypeError, AttributeError) as reason:
        raise _no_shard(name) from reason


def _no_shard(name: str) -> RecordingError:
    return broken(f"{name} is a part of a distributed tensor, and which cannot be read")


def sampling_of(name: str, read: dict[str, Any]) -> Sampling:
    """How values were taken, as a file says; what it says has been found to be of the right types."""
    try:
        return Sampling.of({key: printable(fact) if isinstance(fact, str) else fact for key, fact in read.items()})
    except (TypeError, KeyError) as reason:
        raise broken(f"{name} does not say how its values were taken") from reason
