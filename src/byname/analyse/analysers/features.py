"""Which values do features and channels take? Their mean, variance, and how often they are zero."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from torch import Tensor

from byname.analyse.analysers.channels import ChannelTally, Layout, OfChannels, with_channel
from byname.analyse.sample import Sample
from byname.analyse.statistics.moments import Variance


class FeatureStatistics(OfChannels):
    """Mean and variance of each feature and of each channel, and the share of zeros.

        >>> import torch, byname
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.ReLU())
        >>> features = byname.analyse.FeatureStatistics()
        >>> with byname.observe(model, "1", features):
        ...     _ = model(torch.tensor([[1.0, -1.0], [3.0, 2.0]]))
        >>> figures = features.result()["1"]
        >>> figures["mean"], figures["variance"], figures["sparsity"]
        (tensor([2., 1.], dtype=torch.float64), tensor([2., 2.], dtype=torch.float64), 0.25)

    A feature is one place of a sample, a channel is one index of the dimension of the channels over all positions.
    The figures are ``mean`` and ``variance`` (ddof=1), of the shape of a sample; ``channel_mean`` and
    ``channel_variance`` of shape ``(channels,)``, over samples and positions; ``sparsity``, the share of values that
    are exactly zero, and ``channel_sparsity``; ``samples``; and ``nans``, how many values were NaN, which are left out.
    Where samples change their shape features cannot be told: ``mean`` and ``variance`` are left out, and ``note`` says
    so.

    Args:
        channel_dim: the dimension of the channels; by default what the modules around the place tell.

    Raises:
        BadArgumentError: in a forward, if the number of channels is another than before.
    """

    def begin(self, sample: Sample) -> dict[Any, Any]:
        """Nothing yet; where features are channels, no more than their figures.

        Else channels are told by their features as long as samples have one shape, and take what has another.
        """
        kept = {"layout": Layout(), "channels": Variance(channel=1), "zeros": Zeros()}
        return kept if sample.value.ndim == 2 else {**kept, "features": {}}

    def take(self, kept: Any, sample: Sample) -> None:
        """Adds the values."""
        value = with_channel(sample.value)
        channels = self.by_channel(kept["layout"], sample, value)
        kept["zeros"].add(channels)
        if "features" not in kept and value.ndim > 2:  # until now a sample was no more than its channels
            kept["features"] = {(channels.shape[1],): Variance()}
        shape = tuple(sample.value.shape[1:])
        if self._takes_features(kept, shape):
            kept["features"].setdefault(shape, Variance()).add(value.reshape(sample.value.shape))
        else:
            kept["channels"].add(channels)

    def figures(self, kept: Any) -> dict[Any, Any]:
        """Means, variances and zeros."""
        channels, zeros = self._channels(kept), kept["zeros"].result()
        known = channels.counts
        return {
            **_of_features(kept, channels),
            "channel_mean": channels.mean(),
            "channel_variance": channels.variance(),
            "sparsity": float(zeros.sum() / known.sum()),
            "channel_sparsity": zeros / known,
            "samples": kept["zeros"].count,
            "nans": channels.nans,
            **kept["layout"].figures(),
        }

    def _takes_features(self, kept: Any, shape: tuple[int, ...]) -> bool:
        """Whether there are figures of features; when there is a second shape of samples, they are given up."""
        features = kept.get("features")
        if features and len(features) == 1 and shape not in features:
            kept["channels"] = self._channels(kept)
            features.update({one: Variance() for one in [*features, shape]})
        return features is not None and [*features] in ([], [shape])

    def _channels(self, kept: Any) -> Variance:
        """The figures of channels, also from those of the features."""
        dim = kept["layout"].channel_dim or self.channel_dim or 1
        pooled = [one.pooled(dim - (dim > 0)) for one in kept.get("features", {}).values() if one.begun]
        whole: Variance = deepcopy(kept["channels"])
        if not whole.begun and pooled:
            whole = pooled.pop()
        for one in pooled:
            whole.merge(one)
        return whole


def _of_features(kept: Any, channels: Variance) -> dict[str, Any]:
    features: dict[Any, Variance] = kept.get("features", {None: channels})
    if len(features) > 1 or any(one.count != kept["zeros"].count for one in features.values()):
        shapes = [*features]
        if len(shapes) == 1 and kept["channels"].begun:  # those of another, in whose samples there were channels only
            shapes.insert(0, (kept["layout"].channels,))
        return {"note": f"no figures of features: samples have shapes such as {' and '.join(map(str, shapes))}"}
    (found,) = features.values()
    return {"mean": found.mean(), "variance": found.variance()}


class Zeros(ChannelTally):
    """How many values of each channel, dimension 1, are exactly zero.

    >>> Zeros().add([[0.0, 1.0], [0.0, 0.0]]).result()
    tensor([2, 1])
    """

    def _counted(self, samples: Tensor) -> Tensor:
        return samples.numel() // max(1, samples.shape[1]) - super()._counted(samples)
