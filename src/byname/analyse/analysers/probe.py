"""LinearProbe: what a linear classifier can read from the values at a place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor

from byname.analyse.analyser import Analyser
from byname.analyse.analysers.channels import checked_channel, feature_dim, positions_of, with_channel
from byname.analyse.analysers.classifier import (
    LinearClassifier,
    Loss,
    MakeOptimizer,
    Metric,
    checked_metrics,
    figures_of,
    no_scores,
    optimizer_of,
    scored,
)
from byname.analyse.sample import Sample
from byname.analyse.statistics.states import plain
from byname.errors import BadArgumentError


class LinearProbe(Analyser):
    """A linear classifier for each place, trained beside the model, which it does not touch (Alain and Bengio 2017).

    While it trains, each batch that passes is scored and then one step: its accuracy and loss are *progressive*, of
    batches it had not seen (Dawid 1984). After `eval` batches are only scored, and the figures are *held out*.

        >>> import torch, byname
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.ReLU())
        >>> probe = byname.analyse.LinearProbe(classes=2)
        >>> x = torch.randn(64, 2)
        >>> probe.targets = (x[:, 0] > 0).long()
        >>> with byname.observe(model, "1", probe):
        ...     for _ in range(100):
        ...         _ = model(x)
        ...     _ = probe.eval(), model(x)
        >>> figures = probe.result()["1"]
        >>> figures["accuracy"] > 0.9, figures["scored"], figures["samples"]
        (True, 'held out', 64)

    The figures of a place: ``accuracy`` and ``loss`` (the mean over samples) of the latest pass, and the metrics;
    ``scored``, what they are of; ``samples``, how many; ``left_out``, how many more were left out because a
    feature is NaN or infinite; ``steps`` and ``classes``. A pass is what is scored between calls of `train` and
    `eval`.

    Args:
        classes: how many there are. If None they are learnt from the targets, and the layer grows with a new one.
        optimizer: makes an optimizer of ``torch.optim`` of a list of parameters:
            ``lambda parameters: torch.optim.SGD(parameters, lr=0.1)``. Adam if None.
        loss: a function of logits ``(samples, classes)`` and class numbers; cross-entropy if None.
        metrics: by name, metrics of torchmetrics or functions of logits and targets that give a number, which are
            averaged over samples.
        standardise: whether features are centred and scaled by their running mean and standard deviation.
        features: what a sample's features are: None, all its values; ``"pool"``, their mean over positions;
            ``"positions"``, each position is a sample with a target of its own; or a function of the value.
        channel_dim: where the features are for ``"pool"`` and ``"positions"``: as in `FeatureStatistics`.
        limit: how many weights there may be at a place.
        nan: what is done with samples of which a feature is NaN or infinite: ``"omit"`` or ``"raise"``.
    """

    tells_classes_apart = True

    def __init__(
        self,
        classes: int | None = None,
        *,
        optimizer: MakeOptimizer | None = None,
        loss: Loss | None = None,
        metrics: Mapping[str, Metric] | None = None,
        standardise: bool = True,
        features: Features = None,
        channel_dim: int | None = None,
        limit: int = 20_000_000,
        nan: str = "omit",
    ) -> None:
        super().__init__()
        if classes is not None and (type(classes) is not int or classes < 1):
            raise BadArgumentError(f"classes is how many there are, not {classes!r:.80}")
        if nan not in ("omit", "raise"):
            raise BadArgumentError(f"nan is 'omit' or 'raise' for a probe, not {nan!r:.80}")
        self.classes = classes
        self.standardise = bool(standardise)
        self._make = _checked_optimizer(optimizer or default_optimizer)
        self._loss = loss or torch.nn.functional.cross_entropy
        self._metrics = checked_metrics(metrics)
        self._features = checked_features(features)
        self._channel_dim = checked_channel(channel_dim)
        self._limit = limit
        self._nan = nan
        self._training = True
        self._pass = object()

    def settings(self) -> dict[str, Any]:
        """What the classifiers are of, and what is scored."""
        return {
            "classes": self.classes,
            "standardise": self.standardise,
            "features": plain(self._features),
            "channel_dim": self._channel_dim,
            "loss": plain(self._loss),
            "nan": self._nan,
        }

    @property
    def training(self) -> bool:
        """Whether batches that pass are trained on; see `train` and `eval`. The mode of the model is another thing."""
        return self._training

    def train(self) -> Self:
        """From now on batches are scored and then trained on; returns itself."""
        self._training, self._pass = True, object()
        return self

    def eval(self) -> Self:
        """From now on batches are only scored; returns itself. Scores of before are forgotten."""
        self._training, self._pass = False, object()
        for kept in self._places.values():
            assert isinstance(kept, LinearClassifier)
            kept.scores, kept.scored, kept.latest = no_scores(), "held out", self._pass
        return self

    def restart(self) -> None:
        """Begins anew while training; in evaluation what was learnt stays, and only the scores begin anew."""
        if self._training:
            self.reset()
        else:
            self.eval()

    def begin(self, sample: Sample) -> LinearClassifier:
        """A classifier that knows nothing."""
        return LinearClassifier(classes=self.classes, standardise=self.standardise, nan=self._nan)

    def take(self, kept: Any, sample: Sample) -> None:
        """Scores a batch, and trains on it."""
        rows = rows_of(sample, self._features, self._channel_dim)
        targets = labels_of(sample, rows, self.classes, self._features, self._channel_dim)
        self._check(kept, sample, rows, targets)
        finite = rows.isfinite().all(1)
        left_out = len(rows) - int(finite.sum())
        if left_out and self._nan == "raise":
            raise BadArgumentError(f"`{sample.path}`: {left_out} samples have a feature that is NaN or infinite")
        self._score_and_learn(kept, *((rows[finite], targets[finite]) if left_out else (rows, targets)))
        if self._features in ("pool", "positions"):
            kept.note = kept.note or feature_dim(sample, with_channel(sample.value), self._channel_dim)[1]
        kept.scores["left_out"] += left_out
        kept.count += len(rows)
        kept.nans += int(rows.isnan().sum()) if left_out else 0

    def figures(self, kept: Any) -> dict[str, Any]:
        """Accuracy, loss, metrics, and what they are of."""
        return {
            **figures_of(kept.scores, self._metrics),
            "scored": kept.scored,
            "samples": kept.scores["samples"],
            "left_out": kept.scores["left_out"],
            "steps": kept.steps,
            "classes": 0 if kept.weight is None else len(kept.weight),
        }

    def weights(self, path: str) -> tuple[Tensor, Tensor]:
        """The classifier of a place: ``features @ weight.T + bias`` gives its logits.

        Args:
            path: a place at which something has passed.

        Returns:
            Weight ``(classes, features)`` and bias ``(classes,)`` of the features as they came, not standardised, in
            float64.

        Raises:
            BadArgumentError: if nothing was trained there.
        """
        kept = self._places.get(path)
        if not isinstance(kept, LinearClassifier) or kept.weight is None:
            raise BadArgumentError(f"nothing was trained at {path!r:.200}; there are probes at {[*self._places]}")
        return kept.result()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` gave, in place of what was seen here; the latest pass goes on."""
        super().load_state_dict(state)
        self._go_on()

    def merge(self, other: Self) -> Self:
        """Takes in what another of the same settings has scored; returns itself. The latest pass goes on."""
        super().merge(other)
        self._go_on()
        return self

    def reduce(self, group: Any = None) -> Self:
        """A new probe with what all ranks have scored, as `Analyser.reduce`."""
        whole = super().reduce(group)
        whole._go_on()
        return whole

    def _go_on(self) -> None:
        """Has scores that came from elsewhere be added to, if they are of what this probe does now."""
        for kept in self._places.values():
            assert isinstance(kept, LinearClassifier)
            if kept.latest is None and kept.scored == self._now:
                kept.latest = self._pass

    @property
    def _now(self) -> str:
        """What is scored now."""
        return "progressive" if self._training else "held out"

    def _score_and_learn(self, kept: LinearClassifier, rows: Tensor, targets: Tensor) -> None:
        scores = kept.scores if kept.latest is self._pass else no_scores()
        if len(rows):
            logits = kept.logits(rows, kept.wanted(targets))
            scores = scored(scores, logits, targets, self._loss, self._metrics)
            if self._training:
                kept.learn(rows, targets, self._loss, self._make)
        kept.scores, kept.latest = scores, self._pass
        kept.scored = self._now

    def _check(self, kept: LinearClassifier, sample: Sample, rows: Tensor, targets: Tensor) -> None:
        """Refuses what cannot be, before anything is changed."""
        if not kept.steps and not self._training:
            raise BadArgumentError(f"the probe of `{sample.path}` was not trained: call probe.train() first")
        if kept.weight is not None and kept.weight.shape[1] != rows.shape[1]:
            raise BadArgumentError(
                f"`{sample.path}` had {kept.weight.shape[1]} features a sample, now it has {rows.shape[1]}"
                f"{self._advice_on_width()}"
            )
        wanted = kept.wanted(targets) * rows.shape[1] if len(targets) else 0
        if wanted > self._limit:
            raise BadArgumentError(
                f"the probe of `{sample.path}` would have {wanted} weights, of {rows.shape[1]} features a sample and "
                f"{kept.wanted(targets)} classes: {self._narrower()}allow them by limit={wanted}"
            )

    def _advice_on_width(self) -> str:
        """What helps where samples change their width, of what was not done yet."""
        if self._features is None:
            return ": features='pool' is of one width where the number of positions changes"
        if self._features in ("pool", "positions") and self._channel_dim is None:
            return ": of sequences (N, length, channels) the features are channel_dim=-1"
        return ""

    def _narrower(self) -> str:
        return "features='pool' has fewer, or " if self._features is None else ""


def default_optimizer(parameters: list[Tensor]) -> torch.optim.Optimizer:
    """Adam, with steps that change a logit of standardised features by about 1 at most, however many there are."""
    return torch.optim.Adam(parameters, lr=min(0.03, 1 / max(parameters[0].shape[1], 1)))


def _checked_optimizer(make: MakeOptimizer) -> MakeOptimizer:
    """The function, after it has made an optimizer once: an error is better here than in the middle of a forward."""
    if isinstance(make, torch.optim.Optimizer) or not callable(make):
        raise BadArgumentError(
            "each place has parameters of its own: optimizer is a function that makes one of them, such as "
            "lambda parameters: torch.optim.SGD(parameters, lr=0.1)"
        )
    optimizer_of([torch.zeros(1, 1, requires_grad=True), torch.zeros(1, requires_grad=True)], make)
    return make


Features: TypeAlias = str | Callable[[Tensor], Tensor] | None


def checked_features(features: Features) -> Features:
    """What features are made by, if it is one of the ways there are."""
    if features is None or features in ("pool", "positions") or callable(features):
        return features
    raise BadArgumentError(
        f"features is None (all values of a sample), 'pool' (their mean over positions), 'positions' (each position is "
        f"a sample) or a function of the value, not {features!r:.80}"
    )


def rows_of(sample: Sample, features: Features, channel_dim: int | None) -> Tensor:
    """The features of a value, ``(samples, features)``, in a floating type."""
    value = sample.value
    if sample.parameter or not value.ndim or value.is_complex():
        raise BadArgumentError(
            f"a probe is trained on real values with samples along dimension 0; `{sample.path}` is "
            f"{'a parameter' if sample.parameter else f'{tuple(value.shape)} of {value.dtype}'}"
        )
    rows = _made(sample, value.to_dense() if value.layout is not torch.strided else value, features, channel_dim)
    if not isinstance(rows, Tensor) or rows.ndim != 2:
        shape = tuple(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
        raise BadArgumentError(f"`{sample.path}`: features=... gives (samples, features), not {shape}")
    return rows.detach() if rows.is_floating_point() else rows.detach().float()


def labels_of(
    sample: Sample, rows: Tensor, classes: int | None, features: Features = None, channel_dim: int | None = None
) -> Tensor:
    """The class number of each row, as a copy."""
    targets = sample.targets
    if targets is None:
        raise BadArgumentError(
            "a probe has to know the classes of the samples: set probe.targets to class numbers before each "
            'forward, or once to a path of the model such as "forward.targets"'
        )
    if targets.is_floating_point() or targets.is_complex() or targets.numel() != len(rows):
        advice = _advice_on_targets(sample, features, channel_dim)
        raise BadArgumentError(
            f"`{sample.path}` has {len(rows)} samples; the targets are one class number each, not "
            f"{tuple(targets.shape)} of {targets.dtype}. {advice}"
        )
    labels = targets.detach().reshape(-1).to(rows.device, torch.int64, copy=True)
    low, high = (int(labels.min()), int(labels.max())) if len(labels) else (0, 0)
    if low < 0 or (classes is not None and high >= classes):
        among = "from 0" if classes is None else f"from 0 to {classes - 1}"
        raise BadArgumentError(f"class numbers go {among}; the targets of `{sample.path}` from {low} to {high}")
    return labels


def _advice_on_targets(sample: Sample, features: Features, channel_dim: int | None) -> str:
    """What helps where there are other numbers of samples and targets, of what was not done yet."""
    value = sample.value
    anew = "Set probe.targets anew for each batch"
    if features is None and value.ndim > 2:
        sequences = ", of sequences (N, length, channels) with channel_dim=-1" if channel_dim is None else ""
        return f"{anew}; where each position has a class of its own, features='positions'{sequences}"
    if features == "positions" and value.ndim > 2:
        dimension = feature_dim(sample, value, channel_dim)[0]
        told = f"Of {tuple(value.shape)} dimension {dimension} is taken for the features"
        if channel_dim is None and dimension == 1:
            told += "; of sequences (N, length, channels) these are channel_dim=-1"
        return f"{told}. {anew}"
    return anew


def _made(sample: Sample, value: Tensor, features: Features, channel_dim: int | None) -> Tensor:
    if callable(features):
        return features(value)
    value = with_channel(value)
    if features == "positions":
        return positions_of(value, feature_dim(sample, value, channel_dim)[0])
    if features == "pool":
        wide = value if value.is_floating_point() else value.float()
        return (
            wide.movedim(feature_dim(sample, value, channel_dim)[0], 1).flatten(2).mean(2) if value.ndim > 2 else wide
        )
    return value.flatten(1)
