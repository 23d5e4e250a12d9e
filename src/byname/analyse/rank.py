"""Rank and Spectrum: how many dimensions the rows of a matrix fill, and how evenly; of all samples, or of a weight."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from byname.analyse.analyser import Sample
from byname.analyse.batches import checked_choice, known
from byname.analyse.covariance import Factor
from byname.analyse.layout import ChannelAnalyser, positions_of, with_channel
from byname.analyse.statistic import Statistic
from byname.errors import BadArgumentError


class AllRows(Factor):
    """The rows of all batches, and how exact the numbers in them are.

    >>> matrix = AllRows().add(torch.ones(5, 3, dtype=torch.bfloat16))
    >>> matrix.shape, matrix.eps
    ((5, 3), 0.0078125)
    """

    STATE: ClassVar[tuple[str, ...]] = (*Factor.STATE, "eps")
    eps = 0.0

    def _add(self, samples: Tensor, weights: Tensor | None) -> None:
        columns = math.prod(samples.shape[1:])
        if self._shift is not None and len(self._shift) != columns:
            raise BadArgumentError(
                f"the matrix has {len(self._shift)} columns, the added samples {columns}: if samples differ in shape, "
                'rows="positions" has a column for each channel'
            )
        super()._add(samples, weights)
        self.eps = max(self.eps, _eps(samples))

    def _merge(self, other: Any) -> None:
        super()._merge(other)
        self.eps = max(self.eps, other.eps)

    @property
    def shape(self) -> tuple[int, int]:
        """How many rows took part, and of how many columns."""
        return int(self.counts), len(known(self._shift))


class LatestWeight(Statistic):
    """A parameter as it was the last time, the first dimension against all others."""

    STATE = ("_weight",)
    _weight: Tensor | None

    def _add(self, samples: Tensor, weights: Tensor | None) -> None:
        matrix = samples.reshape(len(samples), math.prod(samples.shape[1:]))
        self._weight = matrix.clone()
        self.nans = int(matrix.isnan().sum())

    def _merge(self, other: LatestWeight) -> None:
        self._weight = known(other._weight).clone()

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = known(self._weight).shape
        return rows, columns

    @property
    def eps(self) -> float:
        """How exact its numbers are."""
        return _eps(known(self._weight))

    def singular_values(self, centred: bool = False) -> Tensor:
        """Return one for each row or column, the largest first, never centred; NaN if a value is not finite."""
        weight = known(self._weight).double()
        if not bool(weight.isfinite().all()):
            return weight.new_full((min(weight.shape),), torch.nan)
        found: Tensor = torch.linalg.svdvals(weight)
        return found

    result = singular_values

    def eigenvalues(self) -> Tensor:
        """Return the eigenvalues of ``W.T @ W``."""
        return self.singular_values().square()


class OfMatrices(ChannelAnalyser):
    """An analyser of the matrix of all samples of a place, or of a weight; see `Rank` for what its rows are."""

    SETTINGS: ClassVar[tuple[str, ...]] = ("rows", "channel_dim")

    def __init__(self, *, rows: str = "positions", channel_dim: int | None = None, samples: str = "tokens") -> None:
        super().__init__(channel_dim=channel_dim)
        whole = checked_choice(samples, "samples", ("batch", "tokens")) == "batch"
        self.rows = "samples" if whole else checked_choice(rows, "rows", ("positions", "samples"))

    def begin(self, sample: Sample) -> dict[str, Any]:
        """No rows yet."""
        return {**super().begin(sample), "matrix": LatestWeight() if sample.parameter else AllRows()}

    def take(self, kept: Any, sample: Sample) -> None:
        """Add the rows of a sample."""
        value = with_channel(sample.value)
        if not sample.parameter and self.rows == "positions":
            value = positions_of(value, kept["layout"].take(sample, value, self.channel_dim))
        kept["matrix"].add(value)

    def _sizes(self, kept: Any) -> dict[str, Any]:
        rows, columns = kept["matrix"].shape
        return {"dimension": columns, "samples": rows, "nans": kept["matrix"].nans, **kept["layout"].result()}


def _eps(values: Tensor) -> float:
    """Return the distance from 1 to the next number of a type; of float64 where numbers are whole."""
    return torch.finfo(values.dtype if values.is_floating_point() else torch.float64).eps


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

    The rows are all samples of all batches; only a triangular factor of them is kept, columns by columns. Values of
    more than two dimensions have a row for each position of each sample, and a column for each channel. At a parameter
    the matrix is the parameter as it is at the latest forward, the first dimension against all others.

    Args:
        centred: whether the mean of the rows is taken off first; of a weight it never is.
        rows: ``"positions"``, or ``"samples"`` for one row a sample, flattened.
        channel_dim: the dimension of the channels; by default found from the modules around the place.
        samples: as of other analysers: ``"batch"`` is ``rows="samples"``, ``"tokens"`` is as by default.

    Raises:
        BadArgumentError: if an argument is none of these; in a forward, if the number of columns is another than
            before.
    """

    SETTINGS = ("rows", "channel_dim", "centred")

    def __init__(
        self,
        *,
        centred: bool = False,
        rows: str = "positions",
        channel_dim: int | None = None,
        samples: str = "tokens",
    ) -> None:
        super().__init__(rows=rows, channel_dim=channel_dim, samples=samples)
        self.centred = centred

    def figures(self, kept: Any) -> dict[Any, Any]:
        """Return the ranks."""
        matrix = kept["matrix"]
        return {**_ranks(matrix.singular_values(self.centred), max(matrix.shape) * matrix.eps), **self._sizes(kept)}


def _ranks(values: Tensor, tolerance: float) -> dict[str, Any]:
    """Return the numerical, stable and effective rank of a matrix with these singular values.

    >>> _ranks(torch.tensor([2.0, 2.0, 0.0]), 1e-7)
    {'rank': 2, 'stable_rank': 2.0, 'effective_rank': 2.0}
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
    of the parameter as it is at the latest forward: ``min(rows, columns)`` of them, all others are zero.

    Args:
        rows: ``"positions"``, or ``"samples"`` for one row a sample, flattened.
        channel_dim: the dimension of the channels; by default found from the modules around the place.
        samples: as of other analysers: ``"batch"`` is ``rows="samples"``, ``"tokens"`` is as by default.

    Raises:
        BadArgumentError: if an argument is none of these; in a forward, if the number of columns is another than
            before.
    """

    def figures(self, kept: Any) -> dict[Any, Any]:
        """Return the eigenvalues, and figures of them."""
        return {**_spread(kept["matrix"].eigenvalues()), **self._sizes(kept)}


def _spread(eigenvalues: Tensor) -> dict[str, Any]:
    largest = float(eigenvalues.amax()) if len(eigenvalues) else math.nan
    shares = eigenvalues / (largest if largest > 0 else math.nan)
    explained = shares / shares.sum()
    ratio = float(1 / explained.square().sum()) if len(eigenvalues) else math.nan
    return {"eigenvalues": eigenvalues, "explained": explained, "participation_ratio": ratio}
