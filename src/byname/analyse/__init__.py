"""Analysis: running statistics of data in batches, and analysers of what passes in a model."""

from __future__ import annotations

from typing import Any

_PLACES = {
    "analyser": "Analyser",
    "analysers.dead_units": "DeadUnits",
    "analysers.features": "FeatureStatistics",
    "analysers.gradients": "GradientStatistics",
    "analysers.name_list": "NameList",
    "analysers.outliers": "Outliers",
    "analysers.probe": "LinearProbe",
    "analysers.rank": "Rank Spectrum",
    "analysers.similarity": "Similarity",
    "evaluation.evaluation": "Evaluation",
    "evaluation.snapshots": "Record Records Schedule",
    "groups": "ClassVersusRest PerClass Several",
    "results.results": "Results",
    "sample": "Sample",
    "statistics.counts": "Bincount Histogram",
    "statistics.covariance": "Covariance CrossCovariance SecondMoment",
    "statistics.extremes": "Extremes TopK",
    "statistics.factor": "Factor",
    "statistics.iou": "CrossIoU IoU",
    "statistics.moments": "Mean Moments NormMean Variance",
    "statistics.quantile": "Quantile",
    "statistics.sample_history": "History",
    "statistics.statistic": "Statistic",
}
"""The public names, by the module that has them; `__init__.pyi` says the same to type checkers."""

_MODULES = {name: f"byname.analyse.{module}" for module, names in _PLACES.items() for name in names.split()}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _MODULES:
        from byname.table import closest

        raise AttributeError(f"byname.analyse has no {name!r}; it has {closest(name, __all__)}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
