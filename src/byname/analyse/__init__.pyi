"""Analysis: running statistics of data in batches, and analysers of what passes in a model."""

from byname.analyse.analyser import Analyser as Analyser
from byname.analyse.analyser import Sample as Sample
from byname.analyse.covariance import Covariance as Covariance
from byname.analyse.covariance import CrossCovariance as CrossCovariance
from byname.analyse.covariance import Factor as Factor
from byname.analyse.covariance import SecondMoment as SecondMoment
from byname.analyse.evaluation import Evaluation as Evaluation
from byname.analyse.extremes import Extremes as Extremes
from byname.analyse.extremes import History as History
from byname.analyse.extremes import TopK as TopK
from byname.analyse.features import DeadUnits as DeadUnits
from byname.analyse.features import FeatureStatistics as FeatureStatistics
from byname.analyse.features import NameList as NameList
from byname.analyse.features import Outliers as Outliers
from byname.analyse.gradients import GradientStatistics as GradientStatistics
from byname.analyse.groups import ClassVersusRest as ClassVersusRest
from byname.analyse.groups import PerClass as PerClass
from byname.analyse.groups import Several as Several
from byname.analyse.moments import Mean as Mean
from byname.analyse.moments import Moments as Moments
from byname.analyse.moments import NormMean as NormMean
from byname.analyse.moments import Variance as Variance
from byname.analyse.probe import LinearProbe as LinearProbe
from byname.analyse.quantile import Quantile as Quantile
from byname.analyse.rank import Rank as Rank
from byname.analyse.rank import Spectrum as Spectrum
from byname.analyse.results import Results as Results
from byname.analyse.similarity import Similarity as Similarity
from byname.analyse.snapshots import Record as Record
from byname.analyse.snapshots import Records as Records
from byname.analyse.snapshots import Schedule as Schedule
from byname.analyse.statistic import Statistic as Statistic
from byname.analyse.tallies import Bincount as Bincount
from byname.analyse.tallies import CrossIoU as CrossIoU
from byname.analyse.tallies import Histogram as Histogram
from byname.analyse.tallies import IoU as IoU

__all__: list[str]
