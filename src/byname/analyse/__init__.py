"""Analysis: running statistics of data in batches, and analysers of what passes in a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from byname.analyse.analyser import Analyser
    from byname.analyse.analysers.dead_units import DeadUnits
    from byname.analyse.analysers.features import FeatureStatistics
    from byname.analyse.analysers.gradients import GradientStatistics
    from byname.analyse.analysers.name_list import NameList
    from byname.analyse.analysers.outliers import Outliers
    from byname.analyse.analysers.probe import LinearProbe
    from byname.analyse.analysers.rank import Rank, Spectrum
    from byname.analyse.analysers.similarity import Similarity
    from byname.analyse.evaluation.evaluation import Evaluation
    from byname.analyse.evaluation.snapshots import Record, Records, Schedule
    from byname.analyse.groups import ClassVersusRest, PerClass, Several
    from byname.analyse.results.results import Results
    from byname.analyse.sample import Sample
    from byname.analyse.statistics.counts import Bincount, Histogram
    from byname.analyse.statistics.covariance import Covariance, CrossCovariance, SecondMoment
    from byname.analyse.statistics.extremes import Extremes, TopK
    from byname.analyse.statistics.factor import Factor
    from byname.analyse.statistics.iou import CrossIoU, IoU
    from byname.analyse.statistics.moments import Mean, Moments, NormMean, Variance
    from byname.analyse.statistics.quantile import Quantile
    from byname.analyse.statistics.sample_history import History
    from byname.analyse.statistics.statistic import Statistic

__all__ = [
    "Analyser",
    "Bincount",
    "ClassVersusRest",
    "Covariance",
    "CrossCovariance",
    "CrossIoU",
    "DeadUnits",
    "Evaluation",
    "Extremes",
    "Factor",
    "FeatureStatistics",
    "GradientStatistics",
    "Histogram",
    "History",
    "IoU",
    "LinearProbe",
    "Mean",
    "Moments",
    "NameList",
    "NormMean",
    "Outliers",
    "PerClass",
    "Quantile",
    "Rank",
    "Record",
    "Records",
    "Results",
    "Sample",
    "Schedule",
    "SecondMoment",
    "Several",
    "Similarity",
    "Spectrum",
    "Statistic",
    "TopK",
    "Variance",
]

_PLACES = {
    "Analyser": "analyser",
    "Bincount": "statistics.counts",
    "ClassVersusRest": "groups",
    "Covariance": "statistics.covariance",
    "CrossCovariance": "statistics.covariance",
    "CrossIoU": "statistics.iou",
    "DeadUnits": "analysers.dead_units",
    "Evaluation": "evaluation.evaluation",
    "Extremes": "statistics.extremes",
    "Factor": "statistics.factor",
    "FeatureStatistics": "analysers.features",
    "GradientStatistics": "analysers.gradients",
    "Histogram": "statistics.counts",
    "History": "statistics.sample_history",
    "IoU": "statistics.iou",
    "LinearProbe": "analysers.probe",
    "Mean": "statistics.moments",
    "Moments": "statistics.moments",
    "NameList": "analysers.name_list",
    "NormMean": "statistics.moments",
    "Outliers": "analysers.outliers",
    "PerClass": "groups",
    "Quantile": "statistics.quantile",
    "Rank": "analysers.rank",
    "Record": "evaluation.snapshots",
    "Records": "evaluation.snapshots",
    "Results": "results.results",
    "Sample": "sample",
    "Schedule": "evaluation.snapshots",
    "SecondMoment": "statistics.covariance",
    "Several": "groups",
    "Similarity": "analysers.similarity",
    "Spectrum": "analysers.rank",
    "Statistic": "statistics.statistic",
    "TopK": "statistics.extremes",
    "Variance": "statistics.moments",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _PLACES:
        from byname.table import closest

        raise AttributeError(f"byname.analyse has no {name!r}; it has {closest(name, __all__)}")
    value = globals()[name] = getattr(import_module(f"byname.analyse.{_PLACES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
