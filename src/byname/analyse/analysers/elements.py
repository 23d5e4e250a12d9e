"""What are mean and variance of each element of tensors that come one by one, as the gradients of weights do?"""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor

from byname.analyse.statistics.statistic import Statistic
from byname.errors import BadArgumentError

__all__ = ["ElementMoments"]


class ElementMoments(Statistic):
    """Mean and variance of each element of finite samples.

    `Variance` does more, with weights and NaN. This keeps but two tensors and goes over them a few times, which counts
    where each sample has the size of a weight and comes alone.
    """

    STATE = ("_mean", "_squares")

    def __init__(self, *, nan: str = "propagate") -> None:
        super().__init__(nan=nan)
        self._mean = self._squares = torch.zeros(0, dtype=torch.float64)

    def mean(self) -> Tensor:
        """The mean of each element."""
        return self._mean.clone()

    def variance(self) -> Tensor:
        """The variance of each element, with ``count - 1``; NaN of a single sample."""
        if self.count < 2:
            return torch.full_like(self._squares, torch.nan)
        return self._squares / (self.count - 1)

    def result(self) -> Tensor:
        """The variance."""
        return self.variance()

    def _add(self, samples: Tensor, weights: Tensor | None) -> None:
        if weights is not None:
            _refuse("takes no weights")
        if not len(samples):
            return
        self._check_shape(samples.shape[1:])
        if not self.count:
            self._mean = torch.zeros_like(samples[0], dtype=torch.float64)
            self._squares = torch.zeros_like(self._mean)
        if len(samples) == 1:
            self._join(samples[0], None, 1)
        else:
            mean = samples.mean(dim=0, dtype=torch.float64)
            self._join(mean, (samples - mean).square_().sum(dim=0), len(samples))

    def _merge(self, other: ElementMoments) -> None:
        self._check_shape(other._mean.shape)
        if not self.count:
            self._mean, self._squares = other._mean.clone(), other._squares.clone()
        else:
            device = self._mean.device
            self._join(other._mean.to(device), other._squares.to(device), other.count)

    def _join(self, mean: Tensor, squares: Tensor | None, count: int) -> None:
        """The update of Chan, Golub and LeVeque 1979; for a single sample that of Welford 1962."""
        whole = self.count + count
        distance = mean - self._mean  # in float64, whatever the sample is in
        self._mean.add_(distance, alpha=count / whole)
        self._squares.addcmul_(distance, distance, value=self.count / whole * count)
        if squares is not None:
            self._squares += squares

    def _check_shape(self, shape: torch.Size) -> None:
        if self.count and shape != self._mean.shape:
            _refuse(f"has samples of shape {tuple(self._mean.shape)}; what is added has {tuple(shape)}")


def _refuse(why: str) -> NoReturn:
    raise BadArgumentError(f"this {why}")
