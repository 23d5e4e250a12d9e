"""How many dimensions do features fill, and the rows of a weight?"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from byname.analyse.analysers.matrices import AllRows, OfMatrices

__all__ = ["Rank", "ranks"]


class Rank(OfMatrices):
    """Numerical, stable and effective rank of the matrix of all samples, or of a weight.

        >>> import torch, byname
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 4))
        >>> rank = byname.analyse.Rank()
        >>> with byname.observe(model, ["1", "1.weight"], rank):
        ...     for _ in range(4):
        ...         _ = model(torch.randn(5, 3))
        >>> {path: (figures["rank"], figures["dimension"]) for path, figures in rank.result().items()}
        {'1': (3, 4), '1.weight': (2, 2)}

    The figures, with the singular values s of the matrix: ``rank``, how many are above ``max(s) * max(shape) * eps``,
    as in `numpy.linalg.matrix_rank`, eps being that of the type of the data (of float64 for integers); ``stable_rank``,
    ``sum(s²) / max(s)²``; ``effective_rank``, the exponential of the entropy of ``s / sum(s)`` (Roy and Vetterli 2007);
    ``dimension``, the number of columns; ``samples``, the number of rows; and ``nans``, how many values were NaN: their
    rows are left out. Of a matrix of zeros stable and effective rank are NaN; with an infinite value all three are.

    The rows are all samples of all batches, of which only a triangular factor is kept, columns by columns. Values of
    more than two dimensions have a row for each position of each sample, and a column for each channel. At a parameter
    the matrix is the parameter as it is at the latest forward, the first dimension against all others.

    Args:
        centred: whether the mean of the rows is taken off first; of a weight it never is.
        rows: ``"positions"``, or ``"samples"`` for one row a sample, flattened.
        channel_dim: the dimension of the channels; by default 1. For sequences ``(N, length, channels)`` it is -1.

    Raises:
        BadArgumentError: if an argument is none of these; in a forward, if the number of columns is another than
            before.
    """

    def __init__(self, *, centred: bool = False, rows: str = "positions", channel_dim: int | None = None) -> None:
        super().__init__(rows, channel_dim)
        self.centred = centred

    def settings(self) -> dict[str, Any]:
        """What the rows and channels are, and whether they are centred."""
        return {**super().settings(), "centred": self.centred}

    def figures(self, kept: Any) -> dict[Any, Any]:
        """The ranks."""
        matrix = kept["matrix"]
        rows, columns = matrix.shape
        values = matrix.singular_values(self.centred) if isinstance(matrix, AllRows) else matrix.singular_values()
        found = ranks(values, max(rows, columns) * matrix.eps)
        return {**found, "dimension": columns, "samples": rows, "nans": matrix.nans}


def ranks(values: Tensor, tolerance: float) -> dict[str, Any]:
    """Numerical, stable and effective rank of a matrix with these singular values.

    >>> ranks(torch.tensor([2.0, 2.0, 0.0]), 1e-7)
    {'rank': 2, 'stable_rank': 2.0, 'effective_rank': 2.0}

    Args:
        values: the singular values.
        tolerance: how far below the largest a value counts as zero, as a share of it.
    """
    largest = float(values.amax()) if len(values) else 0.0
    if math.isnan(largest):
        return dict.fromkeys(("rank", "stable_rank", "effective_rank"), math.nan)
    if largest == 0:
        return {"rank": 0, "stable_rank": math.nan, "effective_rank": math.nan}
    shares = values / largest
    entropy = torch.special.entr(shares / shares.sum()).sum()
    return {
        "rank": int((shares > tolerance).sum()),
        "stable_rank": float(shares.square().sum()),
        "effective_rank": float(entropy.exp()),
    }
