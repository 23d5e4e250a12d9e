"""How alike are the representations of the same samples at different places, also of two models? `Similarity`."""

from __future__ import annotations

from collections import deque
from typing import Any, NoReturn, Self

from torch import Tensor

from byname.analyse.analysers.alignment import Alignment, gram_of
from byname.analyse.analysers.analyser import Analyser
from byname.analyse.analysers.keeping import twin
from byname.analyse.analysers.sample import Sample
from byname.analyse.results.results import Results
from byname.errors import BadArgumentError
from byname.table import counted

__all__ = ["Similarity"]


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
        return Results(figures, name=f"{type(self).__name__}{told}", notes=() if names else [self._why_empty()])

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
