"""Similarity: how alike the representations of the same samples are at different places, also of two models."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NoReturn, Self

import torch
from torch import Tensor

from byname.analyse.analyser import Analyser
from byname.analyse.keeping import twin
from byname.analyse.results.results import Results
from byname.analyse.sample import Sample
from byname.analyse.statistics.statistic import Statistic
from byname.errors import BadArgumentError
from byname.table import counted


class Similarity(Analyser):
    """Linear CKA between all places, by the unbiased HSIC over minibatches.

    1 where two representations are the same but for a rotation and a scale, about 0 where they have nothing in common.

        >>> import torch, byname
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> similarity = byname.analyse.Similarity()
        >>> with byname.observe(model, "*", similarity):
        ...     for _ in range(3):
        ...         _ = model(torch.randn(16, 4))
        >>> list(similarity.result()["0"]["cka"])
        ['1', '2']
        >>> similarity.matrix()[1].shape
        torch.Size([3, 3])

    Of two models every place of one is compared with every place of the other, too: observe both with one analyser and
    a ``label`` each, and run both on each batch. Forwards are paired in order, the first of one with the first of the
    other. Without labels a path that both have is told as ``model2.fc1`` of the second.

    The figure is ``sum_b HSIC(K, L) / sqrt(sum_b HSIC(K, K) sum_b HSIC(L, L))`` over the batches b that have both
    places, with the HSIC_1 of Song et al. 2012 ("Feature Selection via Dependence Maximization"), as Nguyen, Raghu and
    Kornblith 2021 ("Do Wide and Deep Networks Learn the Same Things?") have it. K and L are the inner products of the
    samples, flattened, in float64. It can be a little below 0 or above 1, as an estimate without bias has to; NaN where
    a place tells the samples not apart. A batch of fewer than 4 samples has no unbiased HSIC, and is left out.

    Of a place that passes several times in a forward, the first counts. NaN and infinities spoil the pairs they are
    part of.

    Args:
        biased: whether HSIC is the biased one, so that a single batch with all data gives the CKA of Kornblith et al.
            2019. Over several batches it is then too large, the more so the smaller they are.
        ahead: how many forwards one model may be ahead of another. So many batches of Gram matrices are kept.
    """

    def __init__(self, *, biased: bool = False, ahead: int = 1) -> None:
        super().__init__()
        if type(ahead) is not int or ahead < 1:
            raise BadArgumentError(f"ahead is how many forwards one model may be ahead, at least 1, not {ahead!r:.80}")
        self.biased = bool(biased)
        self.ahead = ahead
        self._waiting: dict[int, deque[dict[str, Tensor]]] = {}

    def settings(self) -> dict[str, Any]:
        """Which HSIC is summed."""
        return {"biased": self.biased}

    def started(self, observation: int) -> None:
        """One more model is observed."""
        self._waiting[observation] = deque()

    def ended(self, observation: int) -> None:
        """What has run so far is complete; the model is not waited for any more."""
        self._pair()
        self._waiting.pop(observation, None)

    def begun(self, observation: int, iteration: int) -> None:
        """The forward before is complete, and one more begins."""
        self._pair()
        mine = self._waiting.setdefault(observation, deque())
        if len(mine) >= self.ahead and len(self._waiting) > 1:
            raise BadArgumentError(
                f"one observed model is {len(mine) + 1} forwards ahead of another: run both on each batch, or let one "
                f"be ahead by Similarity(ahead={len(mine) + 1}), which keeps so many batches of Gram matrices"
            )
        mine.append({})

    def put(self, sample: Sample) -> None:
        """Gives a sample to the analyser; `byname.observe` does that."""
        mine = self._waiting.get(sample.observation)
        if not mine or sample.path in mine[-1]:  # outside of a forward of the model, or once more in one
            return
        if sample.parameter or not sample.value.ndim:
            raise BadArgumentError(f"`{sample.path}` has no samples along dimension 0 that could be compared")
        if sample.value.is_complex():
            raise BadArgumentError(f"`{sample.path}` is complex: compare its real part, or torch.view_as_real of it")
        for queue in self._waiting.values():
            for path, gram in [*queue[len(mine) - 1].items()][:1] if len(queue) >= len(mine) else ():
                _check_size(sample, path, len(gram))
        mine[-1][sample.path] = gram_of(sample.value)

    def result(self) -> Results:
        """``{path: {"cka": {other path: number}}}``; a pair that never ran together is left out."""
        sums = self._sums()
        cka, together = sums.result().tolist(), sums.batches.tolist()
        names = [*enumerate(sums.names)]
        figures = {
            path: {"cka": {other: cka[i][j] for j, other in names if i != j and together[i][j]}} for i, path in names
        }
        told = f", without {counted(sums.skipped, 'batch', 'batches')} of too few samples" if sums.skipped else ""
        return Results(figures, name=f"{type(self).__name__}{told}", notes=() if names else self._notes_when_empty())

    def _why_empty(self) -> str:
        sums = self._sums()
        if not sums.skipped:
            return super()._why_empty()
        biased = "" if self.biased else ". Similarity(biased=True) needs 2, and is meant for one batch with all samples"
        return (
            f"too few samples passed at once: {counted(sums.skipped, 'batch', 'batches')} with "
            f"{counted(sums.count, 'sample')} in all were left out, because a batch needs at least "
            f"{_fewest(biased=self.biased)}: run larger batches{biased}"
        )

    def matrix(self) -> tuple[tuple[str, ...], Tensor]:
        """The paths, and the symmetric matrix of CKA between them; NaN where a pair never ran together."""
        sums = self._sums()
        return tuple(sums.names), sums.result()

    @property
    def skipped(self) -> int:
        """How many batches had too few samples: fewer than 4, or with ``biased=True`` than 2."""
        return self._sums().skipped

    @property
    def paths(self) -> tuple[str, ...]:
        """The places at which something has passed."""
        return tuple(self._sums().names)

    def reset(self) -> None:
        """Forgets what was seen."""
        super().reset()
        for queue in self._waiting.values():
            queue.clear()

    def merge(self, other: Self) -> Self:
        """Takes in what another of the same settings has seen; returns itself."""
        return super().merge(other._settled() if isinstance(other, Similarity) else other)

    def state_dict(self) -> dict[str, Any]:
        """Everything seen, as tensors and plain values that are not shared with this."""
        return self._described(self._settled()._places)

    def begin(self, sample: Sample) -> NoReturn:
        """Is not asked: what is kept is of all places together."""
        raise NotImplementedError

    def take(self, kept: Any, sample: Sample) -> NoReturn:
        """Is not asked either."""
        raise NotImplementedError

    def figures(self, kept: Any) -> NoReturn:
        """Is not asked either."""
        raise NotImplementedError

    def _pair(self) -> None:
        """Takes what all models have run."""
        while self._waiting and all(self._waiting.values()):
            grams = {path: gram for queue in self._waiting.values() for path, gram in queue.popleft().items()}
            if grams:
                if not self._places:
                    self._places[_ALL] = Alignment(biased=self.biased)
                self._places[_ALL].take(grams)  # type: ignore[union-attr]

    def _settled(self) -> Self:
        """Another that has seen the same, and waits for nothing; a forward that runs at the moment goes on here."""
        settled = self._fresh()
        settled._places = {path: twin(kept) for path, kept in self._places.items()}
        settled._waiting = {number: deque(queue) for number, queue in self._waiting.items()}
        settled._pair()
        return settled

    def _sums(self) -> Alignment:
        places = self._settled()._places
        sums = places.get(_ALL, Alignment(biased=self.biased))
        assert isinstance(sums, Alignment)
        return sums

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_places": self._settled()._places}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "_waiting": {}, "_owners": {}})


_ALL = "all places"


def _check_size(sample: Sample, path: str, size: int) -> None:
    if len(sample.value) != size:
        raise BadArgumentError(
            f"`{sample.path}` has {len(sample.value)} samples where `{path}` has {size} in the same forward: only "
            "places that pass the same samples are compared; two models have to run on the same batches in turn"
        )


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
        if samples < _fewest(biased=self.biased):
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


def _fewest(*, biased: bool) -> int:
    """The samples that a batch needs for an HSIC."""
    return 2 if biased else 4


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
