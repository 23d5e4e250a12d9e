"""Assemble: a whole distributed tensor from the parts that the ranks recorded."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from byname.errors import BadArgumentError, RecordingError
from byname.recording.distributed.dtensor import Shard, cuts, indices
from byname.recording.series import Series
from byname.recording.values.change import same_bits

Coordinate = tuple[int, ...]
_Parts = Mapping[Coordinate, Tensor]
"""The parts of one tensor by their coordinates in the mesh."""

_REDUCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}


def assembled(series: Series) -> Series:
    """Return the whole tensors of a place, put together from the parts that the ranks recorded.

    Args:
        series: the series of one place, with the records of all ranks.

    Returns:
        One record for each mode, iteration and call, with rank -1, since it belongs to no single rank. Parts of a
        sharded tensor stand at their offsets, replicas are taken once, and partial values are reduced, those of half
        precision in float32, so that a sum may differ from that of ``full_tensor()`` in its last bit.

    Raises:
        RecordingError: if a part is missing (it is named, and never read as zeros), or replicas differ.
        BadArgumentError: a record of the series is no part of a distributed tensor.

    >>> from torch import ones, zeros
    >>> from byname.recording.distributed.dtensor import Shard
    >>> from byname.recording.series import Series
    >>> parts = [Shard((2,), (), (rank,), ("Shard(0)",), (3,), (2 * rank,)) for rank in (0, 1)]
    >>> both = Series("w", [zeros(2), ones(1)], [0, 0], [0, 1], [0, 0], ["train"] * 2, [(2,), (1,)], parts)
    >>> assembled(both).values
    [tensor([0., 0., 1.])]
    """
    groups: dict[tuple[str, int, int], dict[Coordinate, int]] = {}
    shards = _shards_of(series)
    for record, shard in enumerate(shards):
        moment = (series.modes[record], series.iterations[record], series.calls[record])
        group = groups.setdefault(moment, {})
        if shard.coordinate in group and shard.coordinate:
            raise RecordingError(f"{_at(series.path, moment)} has two parts at {shard.coordinate} of its mesh")
        if shard.coordinate or not shard.mesh:  # a rank outside of the mesh has no part
            group[shard.coordinate] = record
    wholes = [
        _whole(_at(series.path, moment), [shards[record] for record in group.values()], group, series.values)
        for moment, group in groups.items()
        if group
    ]
    moments = [moment for moment, group in groups.items() if group]
    modes, iterations, calls = (list(column) for column in zip(*moments, strict=True)) if moments else ([], [], [])
    shapes = [tuple(whole.shape) for whole in wholes]
    return Series(series.path, wholes, iterations, [-1] * len(wholes), calls, modes, shapes, sampling=series.sampling)


def _at(path: str, moment: tuple[str, int, int]) -> str:
    mode, iteration, call = moment
    return f"{path} at iteration {iteration} ({mode}, call {call})"


def _shards_of(series: Series) -> list[Shard]:
    shards = [shard for shard in series.shards if shard is not None]
    if len(shards) != len(series):
        raise BadArgumentError(
            f"{len(series) - len(shards)} of {len(series)} records of {series.path} are not parts of distributed "
            "tensors and cannot be put together: each is the whole value of its rank"
        )
    return shards


def _whole(at: str, shards: Sequence[Shard], records: Mapping[Coordinate, int], values: Any) -> Tensor:
    first = shards[0]
    for one in shards:
        if (one.mesh, one.placements, one.shape) != (first.mesh, first.placements, first.shape):
            raise RecordingError(f"the ranks disagree about {at}: {_words(first)} and {_words(one)}")
    parts: _Parts = {coordinate: values[record] for coordinate, record in records.items()}
    kinds = {(part.dtype, part.device) for part in parts.values()}
    if len(kinds) > 1:
        raise RecordingError(f"the parts of {at} differ in dtype or device: {', '.join(sorted(map(str, kinds)))}")
    parts = _without_replicas(at, first, parts)
    parts = _reduced(at, first, parts)
    return _placed(at, first, parts)


def _words(shard: Shard) -> str:
    return f"shape {shard.shape} on mesh {shard.mesh} as {', '.join(shard.placements)}"


def _dimensions(shard: Shard, kind: str) -> list[int]:
    return [number for number, placement in enumerate(shard.placements) if placement.startswith(kind)]


def _merged(parts: _Parts, dimensions: Iterable[int]) -> dict[Coordinate, dict[Coordinate, Tensor]]:
    """Return the parts that differ in these mesh dimensions only, by their common coordinate (0 there)."""
    merged: dict[Coordinate, dict[Coordinate, Tensor]] = {}
    for coordinate in sorted(parts):
        merged.setdefault(_zeroed(coordinate, dimensions), {})[coordinate] = parts[coordinate]
    return merged


def _without_replicas(at: str, shard: Shard, parts: _Parts) -> _Parts:
    kept = {}
    for common, replicas in _merged(parts, _dimensions(shard, "Replicate")).items():
        (where, first), *others = replicas.items()
        for other, replica in others:
            if not same_bits(replica.cpu(), first.cpu()):
                raise RecordingError(
                    f"{at} is replicated, but its values at {where} and {other} of the mesh {shard.mesh} differ: "
                    "read each by its rank"
                )
        kept[common] = first
    return kept


def _reduced(at: str, shard: Shard, parts: _Parts) -> _Parts:
    partial = _dimensions(shard, "Partial")
    operations = {shard.placements[number][len("Partial(") : -1] for number in partial}
    if not partial:
        return parts
    if len(operations) > 1 or not operations <= set(_REDUCTIONS):
        raise RecordingError(f"{at} is {', '.join(shard.placements)}, and byname does not know how to reduce these")
    (operation,) = operations
    reduced = {}
    for common, terms in _merged(parts, partial).items():
        due = [range(size) if number in partial else (common[number],) for number, size in enumerate(shard.mesh)]
        same = [number for number, placement in enumerate(shard.placements) if placement == "Replicate()"]
        missing = set(itertools.product(*due)) - {_zeroed(one, same) for one in terms}
        if missing:
            raise _missing(at, shard, sorted(missing), "a term of its reduction")
        reduced[common] = _reduction(operation, list(terms.values()))
    return reduced


def _zeroed(coordinate: Coordinate, dimensions: Iterable[int]) -> Coordinate:
    return tuple(0 if number in dimensions else one for number, one in enumerate(coordinate))


def _reduction(operation: str, terms: Sequence[Tensor]) -> Tensor:
    dtype = terms[0].dtype
    wide = dtype.is_floating_point and dtype.itemsize < 4
    result = reduce(_REDUCTIONS[operation], [term.float() if wide else term for term in terms])
    if operation == "avg":
        result = result / len(terms)
    return result.to(dtype)


def _placed(at: str, shard: Shard, parts: _Parts) -> Tensor:
    due = [range(size) if cuts(text) else (0,) for size, text in zip(shard.mesh, shard.placements, strict=True)]
    others = [text for text in shard.placements if not cuts(text) and text.partition("(")[0] not in _KNOWN]
    if others:
        raise RecordingError(f"{at} is {', '.join(shard.placements)}, and byname does not know {others[0]}")
    places = {}
    for coordinate in itertools.product(*due):
        here = Shard(shard.mesh, shard.names, coordinate, shard.placements, shard.shape, ())
        where = indices(here)
        expected = tuple(sum(map(len, ranges)) for ranges in where)
        part = parts.get(coordinate)
        if part is None and all(where):
            raise _missing(at, shard, [coordinate], f"{math.prod(expected)} elements of it")
        if part is not None and tuple(part.shape) != expected:
            raise RecordingError(
                f"the part of {at} at {coordinate} of its mesh has shape {tuple(part.shape)} instead of {expected}"
            )
        places[coordinate] = where
    some = next(iter(parts.values()))  # nothing is allocated before all parts are known to be there
    whole = torch.empty(shard.shape, dtype=some.dtype, device=some.device)
    for coordinate, where in places.items():
        if coordinate in parts:
            _put(whole, parts[coordinate], where)
    return whole


_KNOWN = ("Replicate", "Partial")


def _put(whole: Tensor, part: Tensor, where: Sequence[Sequence[range]]) -> None:
    """Copy a part to its places, block for block; in most cases it is one block."""
    for block in itertools.product(*(_blocks(ranges) for ranges in where)):
        there = tuple(slice(elements.start, elements.stop) for elements, _ in block)
        here = tuple(slice(start, start + len(elements)) for elements, start in block)
        whole[there].copy_(part[here])


def _blocks(ranges: Sequence[range]) -> list[tuple[range, int]]:
    starts = itertools.accumulate((len(one) for one in ranges), initial=0)
    return list(zip(ranges, starts, strict=False))


def _missing(at: str, shard: Shard, coordinates: Sequence[Coordinate], what: str) -> RecordingError:
    shown = ", ".join(map(str, coordinates[:4])) + (" and more" if len(coordinates) > 4 else "")
    names = f" ({', '.join(shard.names)})" if shard.names else ""
    return RecordingError(
        f"{at} cannot be put together: the part at {shown} of its mesh {shard.mesh}{names} was not recorded, and with "
        f"it {what}; read the recorded parts by their ranks"
    )
