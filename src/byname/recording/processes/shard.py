"""Which part of a distributed tensor is this? What is stored with a shard to put the whole together again."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Shard"]


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
