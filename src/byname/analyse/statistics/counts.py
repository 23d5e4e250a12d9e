"""How often is each number there?"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from byname.analyse.statistics.batches import checked_integer
from byname.analyse.statistics.statistic import Statistic
from byname.errors import BadArgumentError

__all__ = ["Bincount"]


class Bincount(Statistic):
    """How often each of the numbers 0, 1, 2 ... is there, as `numpy.bincount` tells it.

    >>> Bincount().add(torch.tensor([[0, 3], [1, 3]])).result()
    tensor([1, 1, 0, 2])

    Batches are non-negative integers, or bools, of any shape; a mask leaves numbers out
    (``add(labels, labels != -100)``). Counts are int64, or float64 sums once there were weights other than a mask.
    Integers have no NaN, so that ``nan`` makes no difference.

    Args:
        minlength: the least number of counts.
        limit: the most counts; a number of `limit` or more is refused, for there is a count for each number below it.
    """

    SETTINGS = ("minlength", "limit")
    STATE = ("_counts",)

    def __init__(self, minlength: int = 0, *, limit: int = 2**24, nan: str = "omit") -> None:
        super().__init__(nan=nan)
        self.minlength = checked_integer(minlength, "minlength")
        self.limit = checked_integer(limit, "limit")
        if self.minlength > self.limit:
            raise BadArgumentError(f"minlength={minlength} is more than limit={limit}")
        self._counts: Tensor | None = None

    def _add(self, samples: Tensor, weights: Tensor | None) -> None:
        if samples.is_floating_point():
            raise BadArgumentError(f"integers are counted, not {samples.dtype}: use value.long(), or a Histogram")
        numbers = samples.long()
        if weights is not None and weights.dtype is torch.bool:
            numbers, weights = numbers[weights.expand(samples.shape)], None
        self._checked(numbers)
        share = None if weights is None else weights.expand(samples.shape).flatten()
        self._take(torch.bincount(numbers.flatten(), share))

    def _checked(self, numbers: Tensor) -> None:
        if not numbers.numel():
            return
        least, most = map(int, numbers.aminmax())
        if least < 0:
            raise BadArgumentError(f"{least} cannot be counted: numbers are not negative; a mask leaves some out")
        if most >= self.limit:
            raise BadArgumentError(
                f"{most} is not below limit={self.limit}: counting it would take {8 * (most + 1):,} bytes; "
                "a Bincount(limit=...) allows it"
            )

    def _merge(self, other: Bincount) -> None:
        assert other._counts is not None
        self._take(other._counts)

    def _take(self, counts: Tensor) -> None:
        mine = counts.new_zeros(self.minlength) if self._counts is None else self._counts
        counts = counts.to(mine.device)
        length = max(len(mine), len(counts))
        self._counts = pad(mine, (0, length - len(mine))) + pad(counts, (0, length - len(counts)))

    def result(self) -> Tensor:
        """The count of each number, at least `minlength` of them.

        Raises:
            BadArgumentError: if nothing was added yet.
        """
        if self._counts is None:
            raise BadArgumentError("nothing was added yet")
        return self._counts.clone()
