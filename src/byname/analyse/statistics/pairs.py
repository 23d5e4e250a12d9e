"""How are two batches of the same samples added? What is told of one set of features with another takes both."""

from __future__ import annotations

from abc import abstractmethod
from typing import Self

import torch
from torch import Tensor

from byname.analyse.statistics.batches import Batch, checked_weights, per_sample, samples_of
from byname.analyse.statistics.statistic import Statistic
from byname.errors import BadArgumentError

__all__ = ["PairStatistic"]


class PairStatistic(Statistic):
    """A statistic of two sets of features of the same samples."""

    @abstractmethod
    def _add_pair(self, samples: Tensor, others: Tensor, weights: Tensor | None) -> None:
        """Takes a batch of each, on one device, with weights of shape ``(len(samples),)``."""

    def add(self, batch: Batch, other: Batch, weights: Batch | None = None) -> Self:  # type: ignore[override]
        """Takes one more batch of each set.

        Args:
            batch: the first set, with the samples along dimension 0.
            other: the second set, of the same samples in the same order.
            weights: how often each sample counts, of shape ``(samples,)``; a mask of bools leaves out what is False.

        Raises:
            BadArgumentError: as of `Statistic.add`, and if there are not as many samples in both. Nothing is taken
                then.
        """
        samples, others = samples_of(batch), samples_of(other)
        if len(samples) != len(others):
            raise BadArgumentError(
                f"both batches are of the same samples, but the first has {len(samples)} and the second {len(others)}"
            )
        with torch.inference_mode(False), torch.no_grad():
            checked = per_sample(checked_weights(weights, samples), samples)
            self._add_pair(samples, others.to(samples.device), checked)
        self.count += len(samples)
        return self

    def _add(self, samples: Tensor, weights: Tensor | None) -> None:
        raise BadArgumentError(f"a {type(self).__name__} takes two batches: add(batch, other)")
