"""Inventory: what a file has, in two arrays at one place, so that to open it and to show it takes no look at a place.

`byname/places` are lines of JSON, which are only ever added: one describes a part of a place, and one with `line` says
that the part of an earlier line has come to have records of these ranks. `byname/numbers` has a row for each part:
records, first and last iteration, and bytes. Both change with each flush, in the commit of the values themselves.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy

from byname.recording.sampling import Sampling
from byname.recording.stores.arrays import GrowingArray, Settings, group_name, numbers, place_of
from byname.recording.stores.described import ASKED_KINDS, Extent, Stored, check_kind, sampling_of, shard_of
from byname.recording.stores.parts import Form, Part
from byname.recording.stores.stored_values import PartAt
from byname.recording.stores.validate import broken, check_shape, dataset_in, first_rows, group_in, names_in
from byname.table import counted, listed
from byname.text import printable

_COLUMNS = 4
"""Of the numbers: records, first and last iteration, bytes."""
_LONGEST = 2**20
"""Bytes of a line at most that is read."""
_KINDS = {"path": str, "layout": str, "kind": str, "dtype": str, "shape": list, "padded": bool, "ranks": list}
"""What a line about a part has; ``asked`` and ``shard`` may be in it, too."""
_OWN = "byname"
"""The group of the inventory."""


class FileInventory:
    """The inventory of a file that is being written.

    Args:
        file: open for writing.
        settings: of the file.
    """

    def __init__(self, file: Any, settings: Settings) -> None:
        self._group = file[_OWN]
        self._settings = settings
        self._rows: list[tuple[int, int, int, int]] = []
        self._known: dict[Part, tuple[int, frozenset[int]]] = {}
        self._arrays: tuple[GrowingArray, GrowingArray] | None = None

    def note(self, path: str, sampling: Sampling | None, parts: Iterable[Part]) -> str:
        """Takes what the parts of a place have now; the lines that are to be added for them."""
        return "".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in self._lines(path, sampling, parts))

    def _lines(self, path: str, sampling: Sampling | None, parts: Iterable[Part]) -> Iterator[dict[str, Any]]:
        for part in parts:
            number, ranks = self._known.get(part, (len(self._rows), None))
            if ranks is None:
                self._rows.append((0, 0, 0, 0))
                yield {"path": path, **_facts(part.form), "asked": _asked(sampling), "ranks": sorted(part.ranks)}
            elif ranks != part.ranks:
                yield {"line": number, "ranks": sorted(part.ranks)}
            self._rows[number] = (part.count, part.first, part.last, part.size)
            self._known[part] = number, frozenset(part.ranks)

    def write(self, lines: str) -> None:
        """Writes the lines behind those that there are, and all numbers."""
        data = numpy.frombuffer(lines.encode(), numpy.uint8)
        if self._arrays is None:
            if not self._rows:
                return
            self._arrays = (
                GrowingArray(self._group, "places", numpy.dtype("<u1"), (), self._settings, expected=len(data)),
                GrowingArray(self._group, "numbers", numpy.dtype("<i8"), (_COLUMNS,), self._settings, usual=0),
            )
        places, table = self._arrays
        places.put_bytes(places.count, len(data), data)
        table.put(0, numpy.array(self._rows, "<i8"))


def _facts(form: Form) -> dict[str, Any]:
    return {name: fact for name, fact in asdict(form).items() if fact is not None}


def _asked(sampling: Sampling | None) -> dict[str, Any] | None:
    return None if sampling is None else dict(sampling.facts())


@dataclass(slots=True)
class _Line:
    """A line about a part, as it was read."""

    path: str
    form: Form
    sampling: Sampling | None
    ranks: frozenset[int]


def places_of_inventory(file: Any) -> tuple[dict[str, Stored], tuple[str, ...]]:
    """The places by their paths, in order, and in words what else there should be."""
    names, links = names_in(file)
    missing = [
        f"what was recorded at `{place_of(name)}`: there is {kind}, which is not followed"
        for name, kind in links.items()
    ]
    here, found = {*names} - {_OWN}, _read(file)
    gone = [path for path in found if group_name(path) not in here and group_name(path) not in links]
    if gone:
        missing.append(f"{counted(len(gone), 'place')} that the file had: {listed(gone, 8)}")
    unknown = here - {group_name(path) for path in found}
    for name in unknown:
        group_in(file, name)  # anything else is refused
    missing += [f"what was recorded at `{place_of(name)}`: the inventory does not have it" for name in sorted(unknown)]
    return {path: one for path, one in found.items() if group_name(path) in here}, tuple(map(printable, missing))


def _read(file: Any) -> dict[str, Stored]:
    own = group_in(file, _OWN)
    if b"places" not in own.id:
        return {}
    text = dataset_in(own, "places", numbers("<u1"), (None,))
    table = dataset_in(own, "numbers", numbers("<i8"), (None, _COLUMNS))
    lines = _lines_of(first_rows(text, len(text)).tobytes())
    rows = first_rows(table, len(table)).tolist()
    if len(rows) != len(lines):
        raise broken(f"its inventory has {len(lines)} parts of places, and the numbers of {len(rows)}")
    places: dict[str, Stored] = {}
    for line, row in zip(lines, rows, strict=True):
        places[line.path] = _with(places.get(line.path), line, row)
    return places


def _with(known: Stored | None, line: _Line, row: list[int]) -> Stored:
    """A place with a further part."""
    count, first, last, size = row
    if count <= 0 or size < 0 or first > last:
        raise broken(f"its inventory says that {line.path} has {count} records, from iteration {first} to {last}")
    own = group_name(line.path)
    if known is None:
        extent = Extent(first, last, line.ranks, size)
        return Stored(line.path, (PartAt((own,), line.form, count),), line.sampling, extent)
    before = known.extent
    assert before is not None, "every place of an inventory has one"
    extent = Extent(min(first, before.first), max(last, before.last), line.ranks | before.ranks, size + before.size)
    part = PartAt((own, "more", str(len(known.parts))), line.form, count)
    return Stored(line.path, (*known.parts, part), known.sampling, extent)


def _lines_of(raw: bytes) -> list[_Line]:
    lines: list[_Line] = []
    start = 0
    while start < len(raw):  # one at a time: what JSON makes of a line is much larger than it
        stop = raw.find(b"\n", start, start + _LONGEST)
        if stop < 0:
            raise broken("its inventory has a line without an end")
        _take(lines, _json(raw[start:stop]))
        start = stop + 1
    return lines


def _take(lines: list[_Line], facts: dict[str, Any]) -> None:
    if "line" not in facts:
        lines.append(_line(facts))
        return
    number = facts["line"]
    if type(number) is not int or not 0 <= number < len(lines):
        raise broken(f"its inventory speaks of line {number!r:.60}, which it does not have")
    lines[number].ranks = _ranks(facts.get("ranks"))


def _json(line: bytes) -> dict[str, Any]:
    try:
        facts = json.loads(line)
    except (ValueError, RecursionError) as reason:
        raise broken(f"its inventory has a line that is not JSON: {line!r:.60}") from reason
    if type(facts) is not dict:
        raise broken(f"its inventory has a line that describes nothing: {line!r:.60}")
    return facts


def _line(facts: dict[str, Any]) -> _Line:
    for name, kind in _KINDS.items():
        if type(facts.get(name)) is not kind:
            raise broken(f"its inventory has a place whose {name} is no {kind.__name__}: {facts.get(name)!r:.60}")
    path = facts["path"]
    form = _form(path, facts)
    return _Line(path, form, _sampling(path, facts.get("asked")), _ranks(facts["ranks"]))


def _form(path: str, facts: dict[str, Any]) -> Form:
    layout, kind, dtype, padded = facts["layout"], facts["kind"], facts["dtype"], facts["padded"]
    check_kind(path, layout, kind, dtype)
    shape = tuple(facts["shape"])
    check_shape(path, shape)
    if (shape and kind != "tensor") or (any(shape) and layout == "flat") or (padded and layout != "rows"):
        raise broken(f"{path} has the layout {layout} and the kind {kind}, and the shape {shape} of something else")
    shard = facts.get("shard")
    return Form(layout, kind, dtype, shape, None if shard is None else shard_of(path, shard), padded)


def _sampling(path: str, asked: Any) -> Sampling | None:
    if asked is None:
        return None
    if type(asked) is not dict or any(type(fact) is not ASKED_KINDS.get(name) for name, fact in asked.items()):
        raise broken(f"{path} does not say how its values were taken")
    return sampling_of(path, asked)


def _ranks(found: Any) -> frozenset[int]:
    if type(found) is not list or any(type(one) is not int or not -1 <= one < 2**31 for one in found):
        raise broken(f"its inventory has ranks that are none: {found!r:.60}")
    return frozenset(found)
