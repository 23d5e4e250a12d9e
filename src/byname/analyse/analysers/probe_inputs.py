"""Which rows of features, and which class numbers, does a value have that a probe is given?"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from byname.analyse.analysers.channels import channel_of, positions_of, with_channel
from byname.analyse.analysers.sample import Sample
from byname.errors import BadArgumentError

__all__ = ["Features", "checked_features", "labels_of", "rows_of"]

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
    rows = _made(value.to_dense() if value.layout is not torch.strided else value, features, channel_dim)
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
        advice = _advice_on_targets(sample.value, targets, features, channel_dim)
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


def _advice_on_targets(value: Tensor, targets: Tensor, features: Features, channel_dim: int | None) -> str:
    """What helps where there are other numbers of samples and targets, of what was not done yet."""
    anew = "Set probe.targets anew for each batch"
    if features is None and value.ndim > 2:
        sequences = ", of sequences (N, length, channels) with channel_dim=-1" if channel_dim is None else ""
        return f"{anew}; where each position has a class of its own, features='positions'{sequences}"
    if features == "positions" and value.ndim > 2:
        dimension = 1 if channel_dim is None else channel_dim
        told = f"Of {tuple(value.shape)} dimension {dimension} is taken for the features"
        if channel_dim is None:
            told += "; of sequences (N, length, channels) these are channel_dim=-1"
        return f"{told}. {anew}"
    return anew


def _made(value: Tensor, features: Features, channel_dim: int | None) -> Tensor:
    if callable(features):
        return features(value)
    value = with_channel(value)
    if features == "positions":
        return positions_of(value, channel_dim)
    if features == "pool":
        wide = value if value.is_floating_point() else value.float()
        return wide.movedim(channel_of(value, channel_dim), 1).flatten(2).mean(2) if value.ndim > 2 else wide
    return value.flatten(1)
