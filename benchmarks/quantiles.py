"""How many values a second does the sketch of quantiles take, against a bare sort of the same values?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from benchmarks.timing import Row, Variant, interleaved, small_heap, timed
from byname.analyse import Quantile

__all__ = ["quantiles"]

_VALUES = 1 << 23
_SLOWEST = 50.0
"""Nanoseconds a value: 20 million values a second."""


def quantiles() -> list[Row]:
    """One feature and many, in large and in small batches; making the sketch and reading five numbers included."""
    with small_heap():
        return [
            *_taking("1 feature, batches of 400,000", features=1, size=400_000),
            *_taking("1 feature, batches of 4096", features=1, size=4096),
            *_taking("1 feature, batches of 32 (not a target)", features=1, size=32, values=1 << 18, target=None),
            *_taking("64 features, batches of 4096", features=64, size=4096),
            *_taking("64 features, batches of 32", features=64, size=32),
            *_taking("512 features, batches of 4096", features=512, size=4096),
            *_taking("512 features, batches of 32", features=512, size=32),
        ]


def _taking(
    title: str,
    features: int,
    size: int,
    values: int = _VALUES,
    target: float | None = _SLOWEST,
    rounds: int = 7,
) -> list[Row]:
    data = torch.randn(values // features, features)
    lines = np.ascontiguousarray(data.T.numpy())
    variants: dict[str, Variant] = {
        "sort": timed(lambda: (lines, None), _sorted),
        "again": timed(lambda: (lines, None), _sorted),
        "sketch": timed(lambda: (torch.split(data, size), None), _sketched),
    }
    took = interleaved(variants, rounds)
    return [
        Row(f"{title}: a value", took.each("sketch", values, 1e-9), "ns", target),
        Row("  against a sort of all values of each feature", took.ratio("sketch", "sort"), "×"),
        Row("  that sort again (A/A)", took.ratio("again", "sort"), "×"),
    ]


def _sorted(lines: np.ndarray) -> object:
    return np.sort(lines, axis=1)


def _sketched(batches: Sequence[Tensor]) -> object:
    sketch = Quantile()
    for batch in batches:
        sketch.add(batch)
    return sketch.result()
