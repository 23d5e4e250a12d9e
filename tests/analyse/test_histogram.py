"""Counts are those of numpy, and what is outside of the bins is not forgotten."""

import itertools

import numpy as np
import pytest
import torch
from every_statistic import saved
from hypothesis import given, settings
from hypothesis import strategies as st

from byname.analyse import Histogram
from byname.errors import BadArgumentError

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool]


def made(dtype, offset):
    values = np.random.default_rng(0).standard_normal((1300, 2))
    values = values > 0 if dtype is torch.bool else values * 3 + offset
    return torch.from_numpy(values).to(dtype)


def check(dtype, size, offset, ways, order):
    values = made(dtype, offset)
    exact = values.double().numpy().reshape(-1)
    low, high = (offset - 4, offset + 5) if dtype is not torch.bool else (0, 1)
    for options in ({"bins": 12, "low": low, "high": high}, {"edges": [low, low + 0.25, high - 0.25, high]}):
        stream = values.reshape(-1).sort().values.reshape(-1, 2) if order == "sorted" else values
        parts = [Histogram(**options) for _ in range(ways)]
        for number, batch in enumerate(stream.split(size)):
            parts[number % ways].add(batch)
        whole = parts[0]
        for part in parts[1:]:
            whole.merge(part)
        counts, edges = np.histogram(exact, options.get("edges", options.get("bins")), (low, high))
        np.testing.assert_array_equal(whole.counts.numpy(), counts)
        np.testing.assert_array_equal(whole.edges.numpy(), edges)
        assert whole.counts.dtype is torch.int64
        assert (whole.below, whole.above) == ((exact < low).sum(), (exact > high).sum())


@pytest.mark.parametrize("dtype", DTYPES)
def test_counts_are_those_of_numpy(dtype):
    check(dtype, 32, 100, 4, "random")


@pytest.mark.slow
@pytest.mark.parametrize("offset", [0, 1e3, 1e7])
@pytest.mark.parametrize("size", [1, 7, 4096])
@pytest.mark.parametrize("dtype", DTYPES)
def test_counts_are_those_of_numpy_everywhere(dtype, size, offset):
    offset = min(offset, 6e4) if dtype is torch.float16 else offset
    for ways, order in itertools.product([1, 4], ["random", "sorted"]):
        check(dtype, size, offset, min(ways, -(-1300 // size)), order)


@settings(max_examples=60)
@given(st.lists(st.floats(-3, 3, width=32), max_size=60), st.integers(0, 60), st.integers(1, 9))
def test_parts_merged_are_the_whole_in_any_order(values, cut, bins):
    first, second = torch.tensor(values[:cut]), torch.tensor(values[cut:])
    one, other = Histogram(bins, -1, 1).add(first), Histogram(bins, -1, 1).add(second)
    backwards = Histogram(bins, -1, 1).add(second).merge(one)
    counts, _ = np.histogram(np.array(values, dtype=np.float64), bins, (-1, 1))
    np.testing.assert_array_equal(one.merge(other).counts.numpy(), counts)
    assert backwards.counts.equal(one.counts)
    assert one.below + int(one.counts.sum()) + one.above == len(values)


def test_weights_are_summed_and_a_mask_leaves_out():
    values, weights = torch.randn(50, 3), torch.rand(50)
    counts, edges = np.histogram(values.double().numpy(), 8, (-2, 2), weights=np.tile(weights[:, None].double(), 3))
    weighted = Histogram(8, -2, 2).add(values, weights)
    np.testing.assert_allclose(weighted.counts.numpy(), counts, rtol=1e-14)
    mask = values > 0.3
    masked = Histogram(8, -2, 2).add(values, mask)
    np.testing.assert_array_equal(masked.counts.numpy(), np.histogram(values[mask].double().numpy(), edges)[0])
    assert masked.counts.dtype is torch.int64
    assert Histogram(8, -2, 2).add(values[:0], weights[:0]).merge(masked).counts.sum() == masked.counts.sum()


def test_the_density_is_that_of_numpy():
    values = torch.randn(500)
    edges = [-1, -0.5, 0.7, 1.0]
    expected, _ = np.histogram(values.double().numpy(), edges, density=True)
    np.testing.assert_allclose(Histogram(edges=edges).add(values).density().numpy(), expected, rtol=1e-14)
    assert Histogram(3, 0, 1).add([7]).density().isnan().all()


def test_infinities_are_outside_and_nan_is_as_asked():
    batch = torch.tensor([-torch.inf, 0.5, torch.nan, torch.inf])
    seen = Histogram(2, 0, 1).add(batch)
    assert (seen.below, seen.counts.tolist(), seen.above, seen.nans, seen.count) == (1, [0, 1], 1, 1, 4)
    with pytest.raises(BadArgumentError, match="NaN"):
        Histogram(2, 0, 1, nan="raise").add(batch)
    spoilt = Histogram(2, 0, 1, nan="propagate").add([0.1]).merge(Histogram(2, 0, 1, nan="propagate").add(batch))
    assert spoilt.counts.isnan().all()
    assert np.isnan(spoilt.below)


def test_no_value_is_nothing_in_any_bin():
    seen = Histogram(2, 0, 1).add(torch.zeros(0, 3))
    assert (seen.counts.tolist(), seen.below) == ([0, 0], 0)
    assert Histogram(2, 0, 1).result().counts.tolist() == [0, 0]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bins": 3},
        {"bins": 0, "low": 0, "high": 1},
        {"bins": 3, "low": 1, "high": 1},
        {"bins": 3, "low": 0, "high": torch.inf},
        {"bins": 3, "low": 0, "high": 1, "edges": [0, 1]},
        {"edges": [1]},
        {"edges": [0, 1, 1]},
        {"edges": [0, torch.nan]},
    ],
)
def test_bins_that_are_none_are_refused(options):
    with pytest.raises(BadArgumentError, match=r"bins|edges|low must be less"):
        Histogram(**options)


def test_only_equal_edges_merge():
    seen = Histogram(4, 0, 1).add([0.3])
    assert seen.merge(Histogram(edges=[0, 0.25, 0.5, 0.75, 1]).add([0.3])).counts.tolist() == [0, 2, 0, 0]
    with pytest.raises(BadArgumentError, match="cannot merge"):
        seen.merge(Histogram(5, 0, 1).add([0.3]))


def test_it_is_saved_and_a_refused_batch_changes_nothing(tmp_path):
    seen = Histogram(4, 0, 1, nan="raise").add(torch.rand(9))
    before = saved(seen)
    for wrong in (torch.zeros(2, dtype=torch.complex64), [0.5, torch.nan]):
        with pytest.raises(BadArgumentError):
            seen.add(wrong)
    assert saved(seen) == before
    seen.save(tmp_path / "h")
    assert Histogram.load(tmp_path / "h").counts.equal(seen.counts)
    seen.reset()
    assert seen.add([0.1]).counts.tolist() == [1, 0, 0, 0]


def test_a_value_of_weight_zero_may_be_anything():
    weights = [[1.0, 0.0, 2.0]]
    seen = Histogram(2, 0, 2, nan="raise").add([[0.5, float("nan"), 1.5]], weights)
    assert (seen.counts.tolist(), seen.nans) == ([1.0, 2.0], 0)
    spoilt = Histogram(2, 0, 2, nan="propagate").add([[0.5, float("nan"), 1.5]], weights)
    assert spoilt.counts.tolist() == [1.0, 2.0]


def test_eight_bit_floats_are_counted():
    assert Histogram(2, 0, 2).add(torch.tensor([[0.5, 1.5, 1.0]]).to(torch.float8_e5m2)).counts.tolist() == [1, 2]


def test_many_edges_are_not_all_printed():
    assert repr(Histogram(100, 0, 1)) == "<Histogram(edges=<(101,) of torch.float64>) of 0 samples>"
    assert "edges=tensor([0., 1., 2.]" in repr(Histogram(2, 0, 2))
