"""How often was something so, for each channel?"""

from __future__ import annotations

import torch
from torch import Tensor

from byname.analyse.statistics.statistic import Statistic
from byname.errors import BadArgumentError

__all__ = ["Tally", "check_channels"]


class Tally(Statistic):
    """Counts of a channel each, dimension 1 of a batch of bools: in how many places it is True.

    >>> Tally().add([[True, False], [True, True]]).result()
    tensor([2, 1])
    """

    STATE = ("_counts",)

    def __init__(self, *, nan: str = "omit") -> None:
        super().__init__(nan=nan)
        self._counts: Tensor | None = None

    def _add(self, samples: Tensor, weights: Tensor | None) -> None:
        if weights is not None:
            raise BadArgumentError("each sample counts once here: weights make no sense")
        self._take(self._counted(samples))

    def _counted(self, samples: Tensor) -> Tensor:
        return torch.count_nonzero(samples, [0, *range(2, samples.ndim)])

    def _merge(self, other: Tally) -> None:
        self._take(other.result())

    def _take(self, more: Tensor) -> None:
        if self._counts is None:
            self._counts = more.clone()
        else:
            check_channels(self._counts, more)
            self._counts = self._counts + more.to(self._counts.device)

    def result(self) -> Tensor:
        """The counts, int64."""
        if self._counts is None:
            raise BadArgumentError("nothing was added yet")
        return self._counts.clone()


def check_channels(before: Tensor, now: Tensor) -> None:
    """Refuses another number of channels than before.

    Raises:
        BadArgumentError: if there is.
    """
    if len(before) != len(now):
        raise BadArgumentError(f"there were {len(before)} channels before, and are {len(now)} now")
