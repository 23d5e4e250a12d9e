"""DTensor: the part of a distributed tensor that a process holds, and where it belongs in the whole.

Nothing here talks to another process. Where a part belongs follows from the mesh, the placements and the shape of the
whole alone: a dimension is cut as ``torch.chunk`` cuts it, for one mesh dimension after the other.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from byname.errors import NotStorableError
from byname.reading.quiet import DisableTorchFunction

_MOST = 2**20
"""Processes of a mesh, and pieces into which a dimension is cut, that a file may speak of."""


def is_distributed(value: object) -> bool:
    """Return whether this is a ``DTensor``, judged by its class alone; what defines it is not imported to find out."""
    defining = sys.modules.get("torch.distributed.tensor")
    return defining is not None and issubclass(type(value), defining.DTensor)


def local_part(tensor: Any) -> tuple[Tensor, Shard]:
    """Return this process's part of a distributed tensor, and where it belongs, without a collective or autograd.

    The part is the tensor's own memory, not a copy.
    """
    with DisableTorchFunction():
        return _local_part(tensor._local_tensor, tensor._spec)


def _local_part(local: Any, spec: Any) -> tuple[Tensor, Shard]:
    if hasattr(local, "trigger_wait"):
        local = local.trigger_wait()  # an AsyncCollectiveTensor: on its way since it was made
    mesh = spec.mesh
    coordinate = mesh.get_coordinate()
    sizes, shape = tuple(int(size) for size in mesh.shape), tuple(int(size) for size in spec.shape)
    placements = _placements(spec, sizes)
    names = tuple(mesh.mesh_dim_names or ())
    if coordinate is None:  # this process is outside of the mesh and has nothing of the tensor
        return local, Shard(sizes, names, (), placements, shape, ())
    held = Shard(sizes, names, tuple(int(one) for one in coordinate), placements, shape, ())
    where = indices(held)
    expected = tuple(sum(map(len, ranges)) for ranges in where)
    if tuple(local.shape) != expected:
        raise NotStorableError(
            f"a distributed tensor of shape {shape} with placements {list(placements)} has a part of shape "
            f"{tuple(local.shape)} instead of {expected} at {held.coordinate} of its mesh {sizes}: its position in "
            "the whole is unknown; record the result of `to_local()` instead"
        )
    offset = tuple(ranges[0].start if ranges else size for ranges, size in zip(where, shape, strict=True))
    return local, Shard(sizes, names, held.coordinate, placements, shape, offset)


def checked_shard(shard: Shard) -> Shard:
    """Return a shard as a file describes it, or raise a ValueError if it cannot be one."""
    numbers = (*shard.mesh, *shard.coordinate, *shard.shape, *shard.offset)
    texts = (*shard.names, *shard.placements)
    if any(type(one) is not int or not 0 <= one < 2**63 for one in numbers) or any(
        type(one) is not str for one in texts
    ):
        raise ValueError("a size is not a number, or a name or placement not a string")
    if 0 in shard.mesh or math.prod(shard.mesh) > _MOST:
        raise ValueError("the mesh has an invalid size")
    within = zip(shard.coordinate, shard.mesh, strict=False)
    fits = (
        len(shard.placements) == len(shard.mesh),
        len(shard.names) in (0, len(shard.mesh)),
        len(shard.coordinate) in (0, len(shard.mesh)) and all(one < size for one, size in within),
        len(shard.offset) in (0, len(shard.shape)),
    )
    if not all(fits):
        raise ValueError("the mesh, the placements and the tensor have different numbers of dimensions")
    for cut in filter(None, map(cuts, shard.placements)):
        if not 0 <= cut[0] < len(shard.shape) or not 0 < cut[1] <= _MOST:
            raise ValueError("a placement shards a dimension that the tensor does not have")
    return shard


def indices(shard: Shard) -> list[list[range]]:
    """Return which elements of the whole a part has, for each dimension of the tensor: ranges, one after another."""
    where = [[range(size)] if size else [] for size in shard.shape]
    for size, position, placement in zip(shard.mesh, shard.coordinate, shard.placements, strict=True):
        cut = cuts(placement)
        if cut is not None:
            dimension, pieces = cut
            where[dimension] = _cut(where[dimension], size, position, pieces)
    return where


def cuts(placement: str) -> tuple[int, int] | None:
    """Return the dimension that a placement cuts, and into how many pieces before each is cut; None for others."""
    kind, _, inside = placement.rstrip(")").partition("(")
    if kind not in ("Shard", "StridedShard"):
        return None
    dimension, *pieces = (int(number) for number in inside.split(","))
    return dimension, pieces[0] if pieces else 1


def _cut(ranges: list[range], size: int, position: int, pieces: int) -> list[range]:
    """Return what is left of these elements at one position of a mesh dimension."""
    total = sum(map(len, ranges))
    left = []
    for piece in range(pieces):
        start, stop = _chunk(total, pieces, piece)
        first, last = _chunk(stop - start, size, position)
        left += _taken(ranges, start + first, start + last)
    return left


def _chunk(length: int, parts: int, number: int) -> tuple[int, int]:
    """Return where ``torch.chunk`` begins and ends one of its parts; the last ones may be smaller, or empty."""
    each = math.ceil(length / parts)
    return min(number * each, length), min((number + 1) * each, length)


def _taken(ranges: list[range], start: int, stop: int) -> list[range]:
    taken = []
    for one in ranges:
        piece = one[max(start, 0) : max(stop, 0)]
        if piece:
            taken.append(piece)
        start, stop = start - len(one), stop - len(one)
    return taken


def _placements(spec: Any, mesh: Sequence[int]) -> tuple[str, ...]:
    """Return the placements as text, with an order of cutting that is not that of the mesh written into them.

    Since PyTorch 2.9 a ``DTensor`` may say in ``shard_order`` that a later mesh dimension cuts first; ``_StridedShard``
    says the same in the placements.
    """
    texts = [_placement(placement) for placement in spec.placements]
    order = None if any(text.startswith("Strided") for text in texts) else getattr(spec, "shard_order", None)
    for entry in order or ():
        done: list[int] = []
        for number in entry.mesh_dims:
            pieces = math.prod(mesh[one] for one in done if one > number)
            if pieces > 1:
                texts[number] = f"StridedShard({entry.tensor_dim}, {pieces})"
            done.append(number)
    return tuple(texts)


def _placement(placement: Any) -> str:
    kind = type(placement).__name__.lstrip("_")
    if kind == "Shard":
        return f"Shard({placement.dim})"
    if kind == "StridedShard":
        return f"StridedShard({placement.dim}, {placement.split_factor})"
    if kind == "Partial":
        return f"Partial({placement.reduce_op})"
    return f"{kind}()"


@dataclass(frozen=True, slots=True)
class Shard:
    """Where a rank's part of a `DTensor` belongs.

    Attributes:
        mesh: the size of each dimension of the device mesh.
        names: the names of these dimensions, if it has names.
        coordinate: of this rank in the mesh.
        placements: one for each mesh dimension: ``"Shard(0)"``, ``"Replicate()"``, ``"Partial(sum)"``.
        shape: of the whole tensor.
        offset: of this part in the whole, in elements, one for each dimension of the tensor.
    """

    mesh: tuple[int, ...]
    names: tuple[str, ...]
    coordinate: tuple[int, ...]
    placements: tuple[str, ...]
    shape: tuple[int, ...]
    offset: tuple[int, ...]
