"""How alike are several representations of the same samples? Sums over batches, of which CKA is the ratio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Tensor

from byname.analyse.statistics.statistic import Statistic
from byname.errors import BadArgumentError

__all__ = ["Alignment", "gram_of"]


class Alignment(Statistic):
    """Sums of the HSIC of all pairs of representations, batch by batch (Nguyen, Raghu, Kornblith 2021).

    Args:
        biased: whether HSIC is that of Gretton et al. 2005, not the unbiased one of Song et al. 2012.

    Attributes:
        names: of the representations.
        cross: the sum for each pair, of the batches that have both.
        own: ``own[i, j]``: the sum for `i` with itself, of the same batches.
        batches: how many these were.
        skipped: how many batches had too few samples.
    """

    SETTINGS = ("biased",)
    STATE = ("names", "cross", "own", "batches", "skipped")

    def __init__(self, *, biased: bool = False, nan: str = "propagate") -> None:
        super().__init__(nan=nan)
        self.biased = biased
        self.names: list[str] = []
        self.cross = torch.zeros(0, 0, dtype=torch.float64, device="cpu")  # whatever the default device is
        self.own = torch.zeros(0, 0, dtype=torch.float64, device="cpu")
        self.batches = torch.zeros(0, 0, dtype=torch.int64, device="cpu")
        self.skipped = 0

    def take(self, grams: dict[str, Tensor]) -> None:
        """Takes the Gram matrices of one batch, from `gram_of`."""
        samples = len(next(iter(grams.values())))
        self.count += samples
        if samples < (2 if self.biased else 4):
            self.skipped += 1
            return
        hsic = (_biased if self.biased else _unbiased)([*grams.values()]).cpu()
        self._sum([*grams], hsic, hsic.diagonal()[:, None].expand_as(hsic), torch.ones_like(hsic, dtype=torch.int64))

    def result(self) -> Tensor:
        """CKA of each pair, NaN where there is none."""
        return torch.where(self.batches > 0, self.cross / (self.own * self.own.T).sqrt(), torch.nan)

    def _add(self, samples: Tensor, weights: Tensor | None) -> NoReturn:
        raise BadArgumentError("this takes Gram matrices, not samples")

    def _merge(self, other: Alignment) -> None:
        self._sum(other.names, other.cross, other.own, other.batches)
        self.skipped += other.skipped

    def _sum(self, names: Sequence[str], cross: Tensor, own: Tensor, batches: Tensor) -> None:
        every = [*dict.fromkeys([*self.names, *names])]
        at = torch.tensor([every.index(name) for name in names], dtype=torch.int64, device="cpu")
        before = len(self.names)
        for attribute, more in (("cross", cross), ("own", own), ("batches", batches)):
            sums = more.new_zeros(len(every), len(every))
            sums[:before, :before] = getattr(self, attribute)
            sums[at[:, None], at] += more
            setattr(self, attribute, sums)
        self.names = every


def gram_of(value: Tensor) -> Tensor:
    """The inner products of the samples of a batch, along dimension 0, in float64.

    The samples are centred first, which changes no HSIC, and keeps a large mean from eating up the digits.
    """
    rows = value.detach().reshape(len(value), -1 if value.numel() else 0).double()
    rows = rows - rows.mean(dim=0)
    return rows @ rows.T


def _biased(grams: list[Tensor]) -> Tensor:
    """HSIC of all pairs: ``tr(K H L H) / (n - 1) ** 2``, with the matrices centred already."""
    flat = _together(grams).flatten(1)
    return flat @ flat.T / (len(grams[0]) - 1) ** 2


def _unbiased(grams: list[Tensor]) -> Tensor:
    """HSIC of all pairs by equation 5 of Song et al. 2012, of matrices without their diagonals.

    ``(tr(K L) + sum(K) sum(L) / ((n - 1) (n - 2)) - 2 / (n - 2) sum(K L)) / (n (n - 3))``
    """
    n = len(grams[0])
    matrices = _together(grams)
    matrices.diagonal(dim1=1, dim2=2).zero_()
    flat, rows = matrices.flatten(1), matrices.sum(dim=2)
    whole = rows.sum(dim=1)
    traces = flat @ flat.T
    return (traces + torch.outer(whole, whole) / ((n - 1) * (n - 2)) - 2 / (n - 2) * rows @ rows.T) / (n * (n - 3))


def _together(grams: list[Tensor]) -> Tensor:
    """As one new tensor, on the device of the first: two models may be on different ones."""
    return torch.stack([gram.to(grams[0].device) for gram in grams])
