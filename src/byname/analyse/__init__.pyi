"""Analysis: running statistics of data in batches, and analysers of what passes in a model."""

from byname.analyse.analyser import Analyser as Analyser
from byname.analyse.analysers.dead_units import DeadUnits as DeadUnits
from byname.analyse.analysers.features import FeatureStatistics as FeatureStatistics
from byname.analyse.analysers.gradients import GradientStatistics as GradientStatistics
from byname.analyse.analysers.name_list import NameList as NameList
from byname.analyse.analysers.outliers import Outliers as Outliers
from byname.analyse.analysers.probe import LinearProbe as LinearProbe
from byname.analyse.analysers.rank import Rank as Rank
from byname.analyse.analysers.rank import Spectrum as Spectrum
from byname.analyse.analysers.similarity import Similarity as Similarity
from byname.analyse.evaluation.evaluation import Evaluation as Evaluation
from byname.analyse.evaluation.snapshots import Record as Record
from byname.analyse.evaluation.snapshots import Records as Records
from byname.analyse.evaluation.snapshots import Schedule as Schedule
from byname.analyse.groups import ClassVersusRest as ClassVersusRest
from byname.analyse.groups import PerClass as PerClass
from byname.analyse.groups import Several as Several
from byname.analyse.results.results import Results as Results
from byname.analyse.sample import Sample as Sample
from byname.analyse.statistics.counts import Bincount as Bincount
from byname.analyse.statistics.counts import Histogram as Histogram
from byname.analyse.statistics.covariance import Covariance as Covariance
from byname.analyse.statistics.covariance import CrossCovariance as CrossCovariance
from byname.analyse.statistics.covariance import SecondMoment as SecondMoment
from byname.analyse.statistics.extremes import Extremes as Extremes
from byname.analyse.statistics.extremes import TopK as TopK
from byname.analyse.statistics.factor import Factor as Factor
from byname.analyse.statistics.iou import CrossIoU as CrossIoU
from byname.analyse.statistics.iou import IoU as IoU
from byname.analyse.statistics.moments import Mean as Mean
from byname.analyse.statistics.moments import Moments as Moments
from byname.analyse.statistics.moments import NormMean as NormMean
from byname.analyse.statistics.moments import Variance as Variance
from byname.analyse.statistics.quantile import Quantile as Quantile
from byname.analyse.statistics.sample_history import History as History
from byname.analyse.statistics.statistic import Statistic as Statistic

__all__: list[str]
