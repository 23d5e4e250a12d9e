"""Where do the batches of a pass come from? From a loader that gives them again and again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from byname.errors import BadArgumentError

__all__ = ["Source"]


class Source:
    """A loader, which is iterated once a pass.

    Args:
        loader: a ``DataLoader``, a list, or anything else that can be iterated more than once.

    Raises:
        BadArgumentError: if it cannot.
    """

    def __init__(self, loader: Any) -> None:
        if isinstance(loader, Iterator):
            raise BadArgumentError(
                f"a {type(loader).__name__} can be iterated once, and each snapshot needs all batches: give a "
                "DataLoader or a list of batches"
            )
        iterable = hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")
        if isinstance(loader, Tensor | Mapping | str) or not iterable:
            raise BadArgumentError(f"a loader gives batches when it is iterated; a {type(loader).__name__} does not")
        self.loader = loader
        self._left = False  # in the middle, by a pass that was interrupted

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        if not self._left:
            self._refuse_if_busy()
        self._left = True
        yield from self.loader
        self._left = False

    def generators(self) -> list[torch.Generator]:
        """The random generators of the loader and of its samplers."""
        sampler, batches = getattr(self.loader, "sampler", None), getattr(self.loader, "batch_sampler", None)
        holders = (self.loader, sampler, batches, getattr(batches, "sampler", None))
        found = (getattr(holder, "generator", None) for holder in holders)
        return [*{id(one): one for one in found if isinstance(one, torch.Generator)}.values()]

    def _refuse_if_busy(self) -> None:
        """A ``DataLoader`` with persistent workers has one iterator for all, which begins anew for the latest."""
        if getattr(getattr(self.loader, "_iterator", None), "_tasks_outstanding", 0):
            raise BadArgumentError(
                "another loop is in the middle of this DataLoader, and would lose its place: with "
                "persistent_workers=True it has one iterator for all. Make another DataLoader for the snapshots"
            )
