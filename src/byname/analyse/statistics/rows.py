"""Which rows of a batch take part where features are combined? Those without NaN that count."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from byname.analyse.statistics.batches import per_sample
from byname.errors import BadArgumentError

__all__ = ["Rows", "check_features", "rows_of"]


@dataclass(frozen=True, slots=True)
class Rows:
    """What takes part of a batch.

    Attributes:
        values: float64, one row a sample.
        weights: how often each counts, float64; None if once.
        nans: how many values of the batch were NaN.
    """

    values: Tensor
    weights: Tensor | None
    nans: int

    @property
    def counts(self) -> Tensor:
        """The sum of the weights."""
        if self.weights is not None:
            return self.weights.sum()
        return torch.tensor(float(len(self.values)), dtype=torch.float64, device=self.values.device)

    @property
    def origin(self) -> Tensor:
        """A row to take distances from: the first one, with zeros for what is not finite."""
        if not len(self.values):
            return self.values.new_zeros(self.values.shape[1])
        return torch.where(self.values[0].isfinite(), self.values[0], 0.0)

    @property
    def weighted(self) -> Tensor:
        """The rows times their weights."""
        return self.values if self.weights is None else self.values * self.weights[:, None]

    @property
    def mean(self) -> Tensor:
        """The mean of each column; zeros if there are no rows."""
        if not len(self.values):
            return self.values.new_zeros(self.values.shape[1])
        if self.weights is None:
            return self.values.mean(0)
        return self.weights @ self.values / self.weights.sum()


def rows_of(samples: Tensor, weights: Tensor | None, nan: str) -> Rows:
    """The samples, flattened, that take part.

    Raises:
        BadArgumentError: for weights of single values, and for NaN if they are refused.
    """
    weights = per_sample(weights, samples)
    flat = samples.reshape(len(samples), math.prod(samples.shape[1:]))
    if weights is not None and not bool((chosen := weights > 0).all()):
        flat, weights = flat[chosen], weights[chosen]
    absent = flat.isnan()
    nans = int(absent.sum())
    if nans and nan == "raise":
        raise BadArgumentError(f"{nans} values are NaN, and nan='raise'")
    if nans and nan == "omit":
        whole = ~absent.any(1)
        flat, weights = flat[whole], None if weights is None else weights[whole]
    weights = None if weights is None or weights.dtype is torch.bool else weights
    return Rows(flat.double(), weights, nans)


def check_features(to: object, features: int, added: int) -> None:
    """Refuses samples of another size than before."""
    if features != added:
        raise BadArgumentError(
            f"the samples of this {type(to).__name__} have {features} features, what is added has {added}"
        )
