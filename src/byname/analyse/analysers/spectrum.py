"""Along which directions do features vary, and how evenly? The eigenvalues of their covariance."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from byname.analyse.analysers.matrices import AllRows, OfMatrices

__all__ = ["Spectrum", "spread"]


class Spectrum(OfMatrices):
    """The eigenvalues of the covariance of all samples, or the squared singular values of a weight.

        >>> import torch, byname
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Identity())
        >>> spectrum = byname.analyse.Spectrum()
        >>> with byname.observe(model, "1", spectrum):
        ...     _ = model(torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
        >>> figures = spectrum.result()["1"]
        >>> figures["eigenvalues"].round(decimals=6), round(figures["participation_ratio"], 6)
        (tensor([6.0000, 0.6667], dtype=torch.float64), 1.219512)

    The figures are ``eigenvalues``, the largest first, one for each feature: of the covariance of the centred samples
    (ddof=1), NaN of fewer than two; ``explained``, the share of each in their sum; ``participation_ratio``, the squared
    sum of the eigenvalues over the sum of their squares, which is 1 where all lies along one direction and the number
    of features where all directions are alike; ``dimension``, the number of columns; ``samples``, that of rows; and
    ``nans``, how many values were NaN: their rows are left out. With an infinite value the figures are NaN, and so are
    shares of nothing.

    The rows are those of `Rank`. At a parameter the eigenvalues are those of ``W.T @ W``, not centred and not divided,
    of the parameter as it is at the latest forward: ``min(rows, columns)`` of them, the others being zero.

    Args:
        rows: ``"positions"``, or ``"samples"`` for one row a sample, flattened.
        channel_dim: the dimension of the channels; by default 1. For sequences ``(N, length, channels)`` it is -1.

    Raises:
        BadArgumentError: if an argument is none of these; in a forward, if the number of columns is another than
            before.
    """

    def __init__(self, *, rows: str = "positions", channel_dim: int | None = None) -> None:
        super().__init__(rows, channel_dim)

    def figures(self, kept: Any) -> dict[Any, Any]:
        """The eigenvalues and what they tell."""
        matrix = kept["matrix"]
        values = matrix.eigenvalues() if isinstance(matrix, AllRows) else matrix.singular_values().square()
        rows, columns = matrix.shape
        return {**spread(values), "dimension": columns, "samples": rows, "nans": matrix.nans}


def spread(eigenvalues: Tensor) -> dict[str, Any]:
    """How a variance is spread over its directions."""
    largest = float(eigenvalues.amax()) if len(eigenvalues) else math.nan
    shares = eigenvalues / (largest if largest > 0 else math.nan)
    explained = shares / shares.sum()
    ratio = float(1 / explained.square().sum()) if len(eigenvalues) else math.nan
    return {"eigenvalues": eigenvalues, "explained": explained, "participation_ratio": ratio}
