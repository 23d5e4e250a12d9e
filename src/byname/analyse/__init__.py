"""Analysis: running statistics of data in batches, and analysers of what passes in a model."""

from __future__ import annotations

from typing import Any

_PLACES = {
    "analyser": "Analyser Sample",
    "covariance": "Covariance CrossCovariance Factor SecondMoment",
    "evaluation": "Evaluation",
    "extremes": "Extremes History TopK",
    "features": "DeadUnits FeatureStatistics NameList Outliers",
    "gradients": "GradientStatistics",
    "groups": "ClassVersusRest PerClass Several",
    "moments": "Mean Moments NormMean Variance",
    "probe": "LinearProbe",
    "quantile": "Quantile",
    "rank": "Rank Spectrum",
    "results": "Results",
    "similarity": "Similarity",
    "snapshots": "Record Records Schedule",
    "statistic": "Statistic",
    "tallies": "Bincount CrossIoU Histogram IoU",
}
"""The public names, by the module that has them; `__init__.pyi` says the same to type checkers."""

_MODULES = {name: f"byname.analyse.{module}" for module, names in _PLACES.items() for name in names.split()}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _MODULES:
        from byname.table import closest

        raise AttributeError(f"byname.analyse has no {name!r}; there is {closest(name, __all__)}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
