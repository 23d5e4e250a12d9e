"""Similarity: how alike the representations of the same samples are at different places, also of two models."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NoReturn, Self

import torch
from torch import Tensor

from byname.analyse.analyser import Analyser, Sample
from byname.analyse.batches import checked_choice, checked_integer
from byname.analyse.layout import Layout, checked_channel_dim, positions_of, with_channel
from byname.analyse.results import Results
from byname.analyse.statistic import Statistic, tree_state, twin
from byname.errors import BadArgumentError
from byname.table import counted


class Similarity(Analyser):
    """Linear CKA between all places, by the unbiased HSIC over minibatches.

    It is 1 if two representations differ by a rotation and a scale only, and about 0 if they have nothing in common.

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
    other. Without labels a path that both have is ``model2.fc1`` for the second.

    The figure is ``sum_b HSIC(K, L) / sqrt(sum_b HSIC(K, K) sum_b HSIC(L, L))`` over the batches b that have both
    places, with the HSIC_1 of Song et al. 2012 ("Feature Selection via Dependence Maximization"), as Nguyen, Raghu and
    Kornblith 2021 ("Do Wide and Deep Networks Learn the Same Things?") have it. K and L are the inner products of the
    samples, flattened, in float64. It can be a little below 0 or above 1, as an estimate without bias has to; NaN where
    all samples of a place are equal. A batch of fewer than 4 samples has no unbiased HSIC, and is left out.

    Of a place that passes several times in a forward, the first counts. NaN and infinities spoil the pairs they are
    part of.

    Args:
        biased: whether HSIC is the biased one, so that a single batch with all data gives the CKA of Kornblith et al.
            2019. Over several batches it is then too large, the more so the smaller they are.
        ahead: how many forwards one model may be ahead of another; Gram matrices of that many batches are kept.
        samples: ``"batch"``: samples are compared, flattened. ``"tokens"``: each position is a sample, its channels are
            its features, as CKA of language models has it; the Gram matrix of a batch has a row for each token.
        channel_dim: the dimension of the features of a token; by default found from the modules around the place.
    """

    SETTINGS = ("biased",)

    def __init__(
        self, *, biased: bool = False, ahead: int = 1, samples: str = "batch", channel_dim: int | None = None
    ) -> None:
        super().__init__()
        self.biased = bool(biased)
        self.ahead = checked_integer(ahead, "ahead", 1)
        self.samples = checked_choice(samples, "samples", ("batch", "tokens"))
        self.channel_dim = checked_channel_dim(channel_dim)
        if channel_dim is not None and samples != "tokens":
            raise BadArgumentError('channel_dim= says where the features of a token are: give samples="tokens" too')
        self._waiting: dict[int, deque[dict[str, Tensor]]] = {}

    def settings(self) -> dict[str, Any]:
        """Return which HSIC is summed, and the samples if they are tokens."""
        tokens = {"samples": self.samples, "channel_dim": self.channel_dim} if self.samples == "tokens" else {}
        return {**super().settings(), **tokens}

    def started(self, observation: int) -> None:
        """Note one more model."""
        self._waiting[observation] = deque()

    def ended(self, observation: int) -> None:
        """Complete the present forward; wait for the model no more."""
        self._pair()
        self._waiting.pop(observation, None)

    def begun(self, observation: int, iteration: int) -> None:
        """Complete the last forward, and begin one more."""
        self._pair()
        mine = self._waiting.setdefault(observation, deque())
        if len(mine) >= self.ahead and len(self._waiting) > 1:
            raise BadArgumentError(
                f"one observed model is {len(mine) + 1} forwards ahead of another: run both on each batch, or give "
                f"Similarity(ahead={len(mine) + 1}), which keeps the Gram matrices of that many batches"
            )
        mine.append({})

    def put(self, sample: Sample) -> None:
        """Give a sample to the analyser; `byname.observe` does that."""
        mine = self._waiting.get(sample.observation)
        if not mine or sample.path in mine[-1]:  # outside of a forward of the model, or once more in one
            return
        if sample.parameter or not sample.value.ndim:
            raise BadArgumentError(f"`{sample.path}` has no samples along dimension 0 to compare")
        if sample.value.is_complex():
            raise BadArgumentError(f"`{sample.path}` is complex: compare its real part, or torch.view_as_real of it")
        value = self._rows(sample)
        for queue in self._waiting.values():
            for path, gram in [*queue[len(mine) - 1].items()][:1] if len(queue) >= len(mine) else ():
                if len(gram) != len(value):
                    raise BadArgumentError(
                        f"`{sample.path}` has {len(value)} samples where `{path}` has {len(gram)} in the same forward: "
                        "compare only places that have the same samples; run two models on the same batches, one "
                        "after the other"
                    )
        mine[-1][sample.path] = gram_of(value)

    def _rows(self, sample: Sample) -> Tensor:
        """Return the value with the samples that are compared along dimension 0."""
        if self.samples == "batch":
            return sample.value
        layouts = self._places.setdefault(_LAYOUTS, {})
        value = with_channel(sample.value)
        dim = layouts.setdefault(sample.path, Layout()).take(sample, value, self.channel_dim)
        return positions_of(value, dim)

    def _kept_of(self, path: str) -> Any:
        return self._places.get(_LAYOUTS, {}).get(path, {})

    def result(self) -> Results:
        """``{path: {"cka": {other path: number}}}``; a pair that never ran together is left out."""
        sums = self._sums()
        cka, together = sums.result().tolist(), sums.batches.tolist()
        names = [*enumerate(sums.names)]
        layouts = self._places.get(_LAYOUTS, {})
        figures = {
            path: {
                "cka": {other: cka[i][j] for j, other in names if i != j and together[i][j]},
                **(layouts[path].result() if path in layouts else {}),
            }
            for i, path in names
        }
        without = f", without {counted(sums.skipped, 'batch', 'batches')} with too few samples" if sums.skipped else ""
        without += ", which compares two places or more" if len(names) == 1 else ""
        return self._results(figures, f"{type(self).__name__}{without}")

    def _why_empty(self) -> str:
        sums = self._sums()
        if not sums.skipped:
            return super()._why_empty()
        biased = "" if self.biased else ". Similarity(biased=True) needs 2, and is meant for one batch with all samples"
        return (
            f"too few samples in a batch: {counted(sums.skipped, 'batch', 'batches')} with "
            f"{counted(sums.count, 'sample')} in all were left out, because a batch needs at least "
            f"{sums.fewest}: run larger batches{biased}"
        )

    def matrix(self) -> tuple[tuple[str, ...], Tensor]:
        """Return the paths, and the symmetric matrix of CKA between them; NaN where a pair never ran together."""
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
        """Forget what was seen."""
        super().reset()
        for queue in self._waiting.values():
            queue.clear()

    def _merge_checked(self, other: Self) -> None:
        super()._merge_checked(other._settled())

    def _state_contents(self) -> dict[str, Any]:
        return tree_state(self._settled()._places)

    def figures(self, kept: Any) -> NoReturn:
        """Raise an error: the data is of all places together."""
        raise NotImplementedError

    def _pair(self) -> None:
        """Take the forwards that all models have run."""
        while self._waiting and all(self._waiting.values()):
            grams = {path: gram for queue in self._waiting.values() for path, gram in queue.popleft().items()}
            if grams:
                self._places.setdefault(_ALL, Alignment(biased=self.biased)).take(grams)

    def _settled(self) -> Self:
        """Return a copy that waits for nothing; a running forward goes on in the original."""
        settled = self._fresh()
        settled._places = twin(self._places)
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
        super().__setstate__({**state, "_waiting": {}})


_ALL, _LAYOUTS = "all places", "layouts"


class Alignment(Statistic):
    """Sums of the HSIC of all pairs of representations, batch by batch (Nguyen, Raghu, Kornblith 2021).

    HSIC is the unbiased one of Song et al. 2012, or with ``biased`` that of Gretton et al. 2005. `cross` is the sum for
    each pair, of the batches that have both, and ``own[i, j]`` that for `i` with itself, of the same `batches`.
    """

    SETTINGS = ("biased",)
    STATE = ("names", "cross", "own", "batches", "skipped")
    names: Sequence[str] = ()
    skipped = 0

    def __init__(self, *, biased: bool = False, nan: str = "propagate") -> None:
        super().__init__(nan=nan)
        self.biased = biased
        self.fewest = 2 if biased else 4  # samples that a batch needs for an HSIC
        self.cross = self.own = torch.zeros(0, 0, dtype=torch.float64, device="cpu")  # whatever the default device is
        self.batches = torch.zeros(0, 0, dtype=torch.int64, device="cpu")

    def take(self, grams: dict[str, Tensor]) -> None:
        """Take the Gram matrices of one batch, from `gram_of`."""
        first = next(iter(grams.values()))
        self.count += len(first)
        if len(first) < self.fewest:
            self.skipped += 1
            return
        together = [gram.to(first.device) for gram in grams.values()]  # two models may be on different ones
        hsic = (_biased if self.biased else _unbiased)(together).cpu()
        self._sum([*grams], hsic, hsic.diagonal()[:, None].expand_as(hsic), torch.ones_like(hsic, dtype=torch.int64))

    def result(self) -> Tensor:
        """Return the CKA of each pair, NaN where there is none."""
        return torch.where(self.batches > 0, self.cross / (self.own * self.own.T).sqrt(), torch.nan)

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
    """Return the inner products of the samples of a batch, centred to keep digits; that changes no HSIC."""
    rows = value.detach().reshape(len(value), -1 if value.numel() else 0).double()
    rows = rows - rows.mean(dim=0)
    return rows @ rows.T


def _biased(grams: list[Tensor]) -> Tensor:
    """Return HSIC of all pairs: ``tr(K H L H) / (n - 1) ** 2``, with the matrices centred already."""
    flat = torch.stack(grams).flatten(1)
    return flat @ flat.T / (len(grams[0]) - 1) ** 2


def _unbiased(grams: list[Tensor]) -> Tensor:
    """Return HSIC of all pairs by equation 5 of Song et al. 2012, of matrices without their diagonals.

    ``(tr(K L) + sum(K) sum(L) / ((n - 1) (n - 2)) - 2 / (n - 2) sum(K L)) / (n (n - 3))``
    """
    n = len(grams[0])
    matrices = torch.stack(grams)
    matrices.diagonal(dim1=1, dim2=2).zero_()
    flat, rows = matrices.flatten(1), matrices.sum(dim=2)
    whole = rows.sum(dim=1)
    traces = flat @ flat.T
    return (traces + torch.outer(whole, whole) / ((n - 1) * (n - 2)) - 2 / (n - 2) * rows @ rows.T) / (n * (n - 3))
