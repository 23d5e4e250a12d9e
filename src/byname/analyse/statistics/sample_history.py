"""History: everything that was added, one after the other."""

from __future__ import annotations

import torch
from torch import Tensor

from byname.analyse.statistics.batches import checked_integer, common_type, missing
from byname.analyse.statistics.statistic import Statistic
from byname.errors import BadArgumentError


class History(Statistic):
    """Everything that was added, in order and in its own type.

    >>> History().add(torch.tensor([[1, 2]])).add(torch.tensor([[3, 4], [5, 6]])).result()
    tensor([[1, 2],
            [3, 4],
            [5, 6]])

    It grows with the data, and refuses what would make it larger than its limit. NaN are kept; only ``nan="raise"`` is
    another policy. A mask leaves out whole samples, other weights make no sense. Batches may differ in type as long as
    one holds the numbers of both exactly.

    Args:
        limit: how many bytes it may hold; None for as many as there are.
        nan: ``"propagate"`` or ``"raise"``.
    """

    SETTINGS = ("limit",)
    STATE = ("_parts",)

    def __init__(self, *, limit: int | None = 2**30, nan: str = "propagate") -> None:
        super().__init__(nan=nan)
        if nan == "omit":
            raise BadArgumentError('a History keeps everything: nan is "propagate" or "raise", not "omit"')
        self.limit = None if limit is None else checked_integer(limit, "limit")
        self._parts: list[Tensor] = []

    def _add(self, samples: Tensor, weights: Tensor | None) -> None:
        if weights is not None:
            if weights.dtype is not torch.bool or weights.numel() != len(samples):
                raise BadArgumentError("a History takes no weights but a mask of samples, bools of shape (samples,)")
            samples = samples[weights.flatten()]
        _, isnan = missing(samples, None, self.nan)
        self._append([samples])
        self.nans += 0 if isnan is None else int(isnan.sum())

    def _merge(self, other: History) -> None:
        self._append(other._parts)

    @property
    def nbytes(self) -> int:
        """How many bytes are held."""
        return sum(part.nbytes for part in self._parts)

    def result(self) -> Tensor:
        """All samples, along dimension 0.

        Raises:
            BadArgumentError: if nothing was added yet.
        """
        if not self._parts:
            raise BadArgumentError("nothing was added yet")
        return torch.cat(self._parts)

    def _append(self, parts: list[Tensor]) -> None:
        """Copies the parts to the end. As neighbours of like size are put together, there are always few."""
        dtype = self._checked([*self._parts, *parts])
        device = self._parts[0].device if self._parts else parts[0].device
        kept = [part.to(dtype) for part in self._parts]
        for part in parts:
            kept.append(part.to(device, dtype, copy=True, memory_format=torch.contiguous_format))
            while len(kept) > 1 and len(kept[-2]) <= 2 * len(kept[-1]):
                kept[-2:] = [torch.cat(kept[-2:])]
        self._parts = kept

    def _checked(self, parts: list[Tensor]) -> torch.dtype:
        """The type of all parts together, if they fit together and are not too large."""
        dtype = parts[0].dtype
        for part in parts[1:]:
            dtype = dtype if dtype is part.dtype else common_type("History", dtype, part.dtype)
            if part.shape[1:] != parts[0].shape[1:]:
                shapes = tuple(parts[0].shape[1:]), tuple(part.shape[1:])
                raise BadArgumentError(f"samples were of shape {shapes[0]} before, these are {shapes[1]}")
        size = sum(part.numel() for part in parts) * dtype.itemsize
        if self.limit is not None and size > self.limit:
            raise BadArgumentError(
                f"this History would hold {size:,} bytes, more than limit={self.limit:,}: give it a larger limit, add "
                "fewer samples, or keep a TopK, a Quantile or a Histogram instead"
            )
        return dtype
