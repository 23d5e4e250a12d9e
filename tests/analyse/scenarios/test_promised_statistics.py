"""The grid of types, sizes, offsets and orders, sampled, against numpy in extended precision."""

import numpy as np
import pytest
import torch

from byname.analyse import Covariance, CrossCovariance, Extremes, Histogram, SecondMoment, TopK, Variance

CASES = [
    (torch.float64, 4096, 1e7, 4),
    (torch.float64, 7, 1e7, 4),
    (torch.float32, 4096, 1e7, 1),
    (torch.float32, 32, 1e3, 4),
    (torch.bfloat16, 4096, 1e3, 4),
    (torch.bfloat16, 1, 1.0, 4),
    (torch.float16, 4096, 3e4, 4),
    (torch.int64, 32, 1e7, 4),
    (torch.bool, 4096, 0.0, 4),
    (torch.bool, 7, 0.0, 1),
]


def merged(make, ways, *tensors):
    """Of parts of the shuffled samples, each by a statistic of its own."""
    order = torch.randperm(len(tensors[0]), generator=torch.Generator().manual_seed(2))
    parts = zip(*[tensor[order].tensor_split(ways) for tensor in tensors])
    first, *others = [make().add(*part) for part in parts]
    for other in others:
        assert first.merge(other) is first
    return first


@pytest.mark.parametrize(("dtype", "size", "offset", "ways"), CASES)
def test_figures_have_eight_digits(dtype, size, offset, ways):
    noise = torch.randn(size, 4, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    x = noise > 0 if dtype is torch.bool else (3 * noise + offset).to(dtype)
    exact = x.numpy() if dtype is torch.int64 else x.double().numpy()
    values = exact.astype(np.longdouble)
    mean, deviations = values.mean(0), values - values.mean(0)
    covariance = deviations.T @ deviations / size
    scale = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))

    variance = merged(Variance, ways, x)
    np.testing.assert_allclose(variance.mean(), mean.astype(float), rtol=1e-8)
    np.testing.assert_allclose(variance.variance(ddof=0), np.diag(covariance).astype(float), rtol=1e-8)
    for found in (merged(Covariance, ways, x), merged(CrossCovariance, ways, x, x)):
        assert (np.abs(found.covariance(ddof=0).numpy() - covariance) <= 1e-8 * scale).all()
    second = (values.T @ values / size).astype(float)
    np.testing.assert_allclose(merged(SecondMoment, ways, x).second_moment(), second, rtol=1e-8)

    top, extremes = merged(lambda: TopK(5), ways, x), merged(Extremes, ways, x)
    assert top.result().values.tolist() == np.sort(exact, axis=0)[::-1][:5].astype(float).tolist()
    assert extremes.min().tolist() == exact.min(0).astype(float).tolist()
    assert extremes.max().tolist() == exact.max(0).astype(float).tolist()


def test_one_sample_has_no_variance():
    assert bool(Variance().add(torch.ones(1, 3)).variance().isnan().all())


def test_the_edges_of_a_histogram_may_come_first():
    values, edges = np.random.default_rng(0).normal(size=1000), [-3.0, -0.5, 0.1, 2.0]
    assert Histogram(edges).add(values).counts.tolist() == np.histogram(values, edges)[0].tolist()
