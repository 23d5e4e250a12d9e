"""LinearProbe: a linear classifier of the values at a place, which shows what can be read from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor

from byname.analyse.analyser import Analyser, Sample, class_numbers
from byname.analyse.batches import checked_choice, checked_integer
from byname.analyse.classifier import (
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
from byname.analyse.layout import checked_channel_dim, feature_dim, positions_of, shown_dim, with_channel
from byname.analyse.state import mapped, plain_setting
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
    ``scored``, whether they are progressive or held out; ``samples``, their number; ``left_out``, the number left out
    because a feature is NaN or infinite; ``steps`` and ``classes``; and ``channel_dim``, the dimension taken for the
    features, if there was a choice. A pass lasts from one call of `train` or `eval` to the next.

    Args:
        classes: their number. If None they are learnt from the targets; with a new one the layer grows, and its
            optimizer starts anew.
        optimizer: makes an optimizer of ``torch.optim`` of a list of parameters:
            ``lambda parameters: torch.optim.SGD(parameters, lr=0.1)``. Adam if None.
        loss: a function of logits ``(samples, classes)`` and class numbers; cross-entropy if None.
        metrics: by name, metrics of torchmetrics or functions of logits and targets that give a number, which are
            averaged over samples.
        standardise: whether features are centred and scaled by their running mean and standard deviation.
        features: what a sample's features are: None, all its values; ``"pool"``, their mean over positions;
            ``"positions"``, each position is a sample with a target of its own; or a function of the value.
        channel_dim: where the features are for ``"pool"`` and ``"positions"``: as in `FeatureStatistics`.
        samples: ``"tokens"`` is another word for ``features="positions"``: each token has a target.
        limit: how many weights there may be at a place.
        nan: how samples with a NaN or infinite feature are treated: ``"omit"`` or ``"raise"``.
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
        samples: str = "batch",
        limit: int = 20_000_000,
        nan: str = "omit",
    ) -> None:
        super().__init__()
        self.classes = None if classes is None else checked_integer(classes, "classes", 1)
        self._nan = checked_choice(nan, "nan", ("omit", "raise"))
        self.standardise = bool(standardise)
        self._make = _checked_optimizer(optimizer or default_optimizer)
        self._loss = loss or torch.nn.functional.cross_entropy
        self._metrics = checked_metrics(metrics)
        if not (features is None or features in ("pool", "positions") or callable(features)):
            raise BadArgumentError(
                "features= takes None (all values of a sample), 'pool' (their mean over positions), 'positions' (each "
                f"position is a sample) or a function of the value, not {features!r:.80}"
            )
        self._features = features
        if checked_choice(samples, "samples", ("batch", "tokens")) == "tokens":
            if features not in (None, "positions"):
                raise BadArgumentError(f'samples="tokens" means features="positions", not {features!r:.80}')
            self._features = "positions"
        self._channel_dim = checked_channel_dim(channel_dim)
        self._limit = limit
        self._training = True
        self._pass = object()

    def settings(self) -> dict[str, Any]:
        """Return the settings of the classifiers and of the scores."""
        own = {"features": self._features, "channel_dim": self._channel_dim, "loss": self._loss, "nan": self._nan}
        return {"classes": self.classes, "standardise": self.standardise, **mapped(own, plain_setting)}

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
            kept.scores, kept.scored, kept.latest = no_scores(), "held out", self._pass
        return self

    def restart(self) -> None:
        """Begin anew while training; in evaluation keep the weights, and begin only the scores anew."""
        if self._training:
            self.reset()
        else:
            self.eval()

    def begin(self, sample: Sample) -> LinearClassifier:
        """Return an untrained classifier."""
        return LinearClassifier(classes=self.classes, standardise=self.standardise, nan=self._nan)

    def take(self, kept: Any, sample: Sample) -> None:
        """Score a batch, and train on it."""
        rows = self._rows(sample)
        targets = self._labels(sample, rows)
        self._check(kept, sample, rows, targets)
        finite = rows.isfinite().all(1)
        left_out = len(rows) - int(finite.sum())
        if left_out and self._nan == "raise":
            raise BadArgumentError(f"`{sample.path}`: {left_out} samples have a feature that is NaN or infinite")
        self._score_and_learn(kept, *((rows[finite], targets[finite]) if left_out else (rows, targets)))
        if self._features in ("pool", "positions"):
            value = with_channel(sample.value)
            dim, note = feature_dim(sample, value, self._channel_dim)
            kept.note = kept.note or note
            kept.channel_dim = kept.channel_dim or shown_dim(value, dim, self._channel_dim)
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
            **({} if kept.channel_dim is None else {"channel_dim": kept.channel_dim}),
        }

    def weights(self, path: str) -> tuple[Tensor, Tensor]:
        """Return the classifier of a place: ``features @ weight.T + bias`` gives its logits.

        Args:
            path: a place at which something has passed.

        Returns:
            Weight ``(classes, features)`` and bias ``(classes,)`` of the features as they came, not standardised, in
            float64.

        Raises:
            BadArgumentError: if nothing was trained there.
        """
        kept = self._places.get(path)
        if kept is None or kept.weight is None:
            raise BadArgumentError(f"no probe was trained at {path!r:.200}; there are probes at {[*self._places]}")
        return kept.result()  # type: ignore[no-any-return]

    def _replace_contents(self, contents: dict[str, Any]) -> None:
        super()._replace_contents(contents)
        self._go_on()

    def _merge_checked(self, other: Self) -> None:
        super()._merge_checked(other)
        self._go_on()

    def _go_on(self) -> None:
        """Go on with scores that were loaded or merged, if they are of the present mode."""
        for kept in self._places.values():
            if kept.latest is None and kept.scored == _SCORED[self._training]:
                kept.latest = self._pass

    def _score_and_learn(self, kept: LinearClassifier, rows: Tensor, targets: Tensor) -> None:
        scores = kept.scores if kept.latest is self._pass else no_scores()
        if len(rows):
            logits = kept.logits(rows, kept.wanted(targets))
            scores = scored(scores, logits, targets, self._loss, self._metrics)
            if self._training:
                kept.learn(rows, targets, self._loss, self._make)
        kept.scores, kept.latest, kept.scored = scores, self._pass, _SCORED[self._training]

    def _check(self, kept: LinearClassifier, sample: Sample, rows: Tensor, targets: Tensor) -> None:
        """Raise the errors of a batch before anything is changed."""
        if not kept.steps and not self._training:
            raise BadArgumentError(f"the probe of `{sample.path}` was not trained: call probe.train() first")
        if kept.weight is not None and kept.weight.shape[1] != rows.shape[1]:
            raise BadArgumentError(
                f"`{sample.path}` had {kept.weight.shape[1]} features per sample, now it has {rows.shape[1]}"
                f"{self._advice_on_width()}"
            )
        wanted = kept.wanted(targets) * rows.shape[1] if len(targets) else 0
        if wanted > self._limit:
            narrower = "features='pool' has fewer, or " if self._features is None else ""
            raise BadArgumentError(
                f"the probe of `{sample.path}` would have {wanted} weights, for {rows.shape[1]} features per sample "
                f"and {kept.wanted(targets)} classes: {narrower}give limit={wanted}"
            )

    def _rows(self, sample: Sample) -> Tensor:
        """Return the features of a value, ``(samples, features)``, in a floating type."""
        value = sample.value
        if sample.parameter or not value.ndim or value.is_complex():
            raise BadArgumentError(
                f"a probe needs real values with samples along dimension 0; `{sample.path}` is "
                f"{'a parameter' if sample.parameter else f'{tuple(value.shape)} of {value.dtype}'}"
            )
        value = value.to_dense() if value.layout is not torch.strided else value
        rows = self._features(value) if callable(self._features) else self._made(sample, with_channel(value))
        if not isinstance(rows, Tensor) or rows.ndim != 2:
            shape = tuple(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
            raise BadArgumentError(f"`{sample.path}`: features= must return (samples, features), not {shape}")
        return rows.detach() if rows.is_floating_point() else rows.detach().float()

    def _made(self, sample: Sample, value: Tensor) -> Tensor:
        if self._features == "positions":
            return positions_of(value, feature_dim(sample, value, self._channel_dim)[0])
        if self._features == "pool" and value.ndim > 2:
            wide = value if value.is_floating_point() else value.float()
            return wide.movedim(feature_dim(sample, value, self._channel_dim)[0], 1).flatten(2).mean(2)
        return value.flatten(1)

    def _labels(self, sample: Sample, rows: Tensor) -> Tensor:
        """Return the class number of each row, as a copy."""
        targets = class_numbers(sample, len(rows), lambda: self._advice_on_targets(sample, sample.value))
        labels = targets.to(rows.device, torch.int64, copy=True)
        low, high = (int(labels.min()), int(labels.max())) if len(labels) else (0, 0)
        if low < 0 or (self.classes is not None and high >= self.classes):
            among = "from 0" if self.classes is None else f"from 0 to {self.classes - 1}"
            raise BadArgumentError(f"class numbers go {among}; the targets of `{sample.path}` go from {low} to {high}")
        return labels

    def _advice_on_targets(self, sample: Sample, value: Tensor) -> str:
        anew, given = "Set analyser.targets again for each batch", self._channel_dim is not None
        if self._features is None and value.ndim > 2:
            sequences = "" if given else ", for sequences (N, length, channels) with channel_dim=-1"
            return f"{anew}; if each position has its own class, give features='positions'{sequences}"
        if self._features == "positions" and value.ndim > 2:
            dimension = feature_dim(sample, value, self._channel_dim)[0]
            taken = f"In {tuple(value.shape)}, dimension {dimension} is taken for the features"
            if not given and dimension == 1:
                taken += "; for sequences (N, length, channels) give channel_dim=-1"
            return f"{taken}. {anew}"
        return anew

    def _advice_on_width(self) -> str:
        if self._features is None:
            return ": features='pool' has one width for any number of positions"
        if self._features in ("pool", "positions") and self._channel_dim is None:
            return ": for sequences (N, length, channels) give channel_dim=-1"
        return ""


_SCORED = {True: "progressive", False: "held out"}


def default_optimizer(parameters: list[Tensor]) -> torch.optim.Optimizer:
    """Return an Adam whose steps change a logit by about 1 at most, however many standardised features there are."""
    return torch.optim.Adam(parameters, lr=min(0.03, 1 / max(parameters[0].shape[1], 1)))


def _checked_optimizer(make: MakeOptimizer) -> MakeOptimizer:
    """Return the function after one trial: an error is better here than in the middle of a forward."""
    if isinstance(make, torch.optim.Optimizer) or not callable(make):
        raise BadArgumentError(
            "each place has its own parameters: optimizer= takes a function that makes an optimizer of them, such as "
            "lambda parameters: torch.optim.SGD(parameters, lr=0.1)"
        )
    optimizer_of([torch.zeros(shape, device="cpu", requires_grad=True) for shape in ((1, 1), (1,))], make)
    return make


Features: TypeAlias = str | Callable[[Tensor], Tensor] | None
