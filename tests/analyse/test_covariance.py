"""Covariance, cross-covariance, second moment and the streaming factor against numpy, in float64."""

import numpy as np
import pytest
import torch
from grid import added, in_parts, near_a_large_offset, over_the_grid, representable
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from byname.analyse import Covariance, CrossCovariance, Factor, SecondMoment
from byname.errors import BadArgumentError

ALL = [SecondMoment, Covariance, Factor]


def data(dtype, offset, shape=(500, 4)):
    """Features that vary together."""
    mixed = torch.randn(shape, dtype=torch.float64) @ (torch.eye(shape[1]) + 0.5).double()
    values = mixed * (20 if dtype is torch.int64 else 1) + offset
    return values > offset if dtype is torch.bool else values.to(dtype)


def check_covariance(found, whole):
    """Relative to the spread of both features."""
    expected = np.cov(whole.T)
    spread = np.sqrt(np.diag(expected))
    error = np.abs(found.covariance().numpy() - expected)
    assert (error <= 1e-8 * np.outer(spread, spread)).all()
    np.testing.assert_allclose(found.variance(), whole.var(0, ddof=1), rtol=1e-8)
    np.testing.assert_allclose(found.std(ddof=0), whole.std(0), rtol=1e-8)
    np.testing.assert_allclose(found.mean(), whole.mean(0), rtol=1e-8, atol=1e-8 * spread.max())
    assert found.covariance().dtype is torch.float64


def check_grid(dtype, offset, size, ways, rows):
    values = data(dtype, representable(dtype, offset), (rows, 4))
    values = values[torch.randperm(rows)]
    whole = values.double().numpy()
    check_covariance(in_parts(Covariance, values, size, ways), whole)
    second = in_parts(SecondMoment, values, size, ways).second_moment()
    np.testing.assert_allclose(second, whole.T @ whole / rows, rtol=1e-8, atol=1e-10)


test_the_whole_grid_of_covariances_is_as_numpy_has_it = over_the_grid(check_grid)
test_covariance_near_a_large_offset_is_as_numpy_has_it = near_a_large_offset(check_grid)


def test_correlation_is_that_of_numpy_and_nan_for_what_does_not_vary():
    values = data(torch.float32, 10.0, (200, 4))
    values[:, 2] = 0.1
    found = added(Covariance(), values.split(32)).correlation()
    with np.errstate(all="ignore"):
        expected = np.corrcoef(np.delete(values.double().numpy(), 2, 1).T)
    kept = torch.tensor([0, 1, 3])
    np.testing.assert_allclose(found[kept][:, kept], expected, rtol=1e-8)
    assert found[2].isnan().all() and found[:, 2].isnan().all()
    assert float(found[kept][:, kept].abs().max()) <= 1


@pytest.mark.parametrize("ways", [1, 4])
@pytest.mark.parametrize("size", [1, 32])
def test_cross_covariance_is_the_corner_of_the_whole_covariance(size, ways):
    values = data(torch.float32, 1e5, (300, 5))
    parts = []
    for part in values.chunk(ways):
        parts.append(CrossCovariance())
        for rows in part.split(size):
            parts[-1].add(rows[:, :2].reshape(-1, 2, 1), rows[:, 2:])
    for part in parts[1:]:
        parts[0].merge(part)
    whole = values.double().numpy()
    np.testing.assert_allclose(parts[0].covariance(), np.cov(whole.T)[:2, 2:], rtol=1e-8)
    np.testing.assert_allclose(parts[0].correlation(), np.corrcoef(whole.T)[:2, 2:], rtol=1e-8)
    first, last = parts[0].means()
    np.testing.assert_allclose(torch.cat([first, last]), whole.mean(0), rtol=1e-12)


def test_sides_of_different_length_or_width_are_refused():
    with pytest.raises(BadArgumentError, match="the first has 3, the second 2"):
        CrossCovariance().add(torch.ones(3, 1), torch.ones(2, 1))
    found = CrossCovariance().add(torch.ones(3, 1), torch.ones(3, 2))
    for other in (torch.ones(3, 3), torch.ones(3, 1)):
        with pytest.raises(BadArgumentError, match=rf"2 features.* {other.shape[1]}"):
            found.add(torch.ones(3, 1), other)
    with pytest.raises(BadArgumentError, match="1 features.* 2"):
        found.add(torch.ones(3, 2), torch.ones(3, 1))
    assert found.count == 3


def test_a_nan_on_one_side_leaves_out_the_sample_on_both():
    nan = float("nan")
    found = CrossCovariance().add([[1.0], [nan], [2.0], [4.0]], [[1.0], [7.0], [nan], [3.0]])
    assert (float(found.counts), found.nans, found.count) == (2, 2, 4)
    assert found.covariance().tolist() == [[3.0]]


@pytest.mark.parametrize("make", ALL)
def test_samples_of_more_dimensions_are_flattened(make):
    values = data(torch.float32, 1.0, (30, 12))
    flat, deep = make().add(values), make().add(values.reshape(30, 3, 4))
    assert torch.equal(flat.result(), deep.result())
    across = make().add(values.reshape(30, 3, 4).transpose(1, 2))
    assert across.result().shape == flat.result().shape


@pytest.mark.parametrize("make", ALL)
def test_a_sample_with_nan_is_left_out_as_a_whole(make):
    values = data(torch.float32, 50.0)
    values[torch.rand(values.shape) < 0.05] = float("nan")
    found = added(make(), values.split(33))
    kept = values[~values.isnan().any(1)]
    np.testing.assert_allclose(found.result(), make().add(kept).result(), rtol=1e-9, atol=1e-9)
    assert found.nans == int(values.isnan().sum())
    assert (found.count, int(found.counts)) == (500, len(kept))


def test_nan_spoils_the_rows_and_columns_of_its_feature_if_it_is_to_propagate():
    values = data(torch.float32, 0.0, (20, 3))
    values[5, 1] = float("nan")
    for make in (Covariance, SecondMoment):
        found = added(make(nan="propagate"), values.split(4)).result()
        assert found[1].isnan().all() and found[:, 1].isnan().all()
        assert found[::2, ::2].isfinite().all()
    factor = added(Factor(nan="propagate"), values.split(4))
    assert factor.singular_values().isnan().all() and factor.eigenvalues().isnan().all()
    assert Factor().add([[1.0]]).merge(Factor().add([[float("inf")]])).singular_values().isnan().all()


@pytest.mark.parametrize("make", ALL)
def test_what_is_refused_changes_nothing(make):
    found = make(nan="raise").add(data(torch.float32, 1.0, (9, 3)))
    before = found.result()
    refused = [
        lambda: found.add([[1.0, float("nan"), 2.0]]),
        lambda: found.add(torch.ones(2, 4)),
        lambda: found.add(torch.ones(2, 3), torch.ones(2, 3)),
        lambda: found.add(torch.ones(2, 3, dtype=torch.complex64)),
        lambda: found.merge(make(nan="raise").add(torch.ones(2, 4))),
    ]
    for attempt, words in zip(
        refused,
        ["1 values of the batch are NaN", "3 features.* 4", "one weight per sample", "abs", "3 features.* 4"],
        strict=True,
    ):
        with pytest.raises(BadArgumentError, match=words):
            attempt()
    assert torch.equal(found.result(), before)
    assert (found.count, found.nans) == (9, 0)


@pytest.mark.parametrize("make", ALL)
def test_integer_weights_are_repetition_and_masks_leave_out(make):
    values, times = data(torch.float32, 50.0, (60, 3)), torch.randint(0, 4, (60,))
    found = make().add(values[:20], times[:20]).add(values[20:], times[20:])
    expected = make().add(values.repeat_interleave(times, 0))
    np.testing.assert_allclose(found.result(), expected.result(), rtol=1e-9, atol=1e-9)
    if make is Factor:
        np.testing.assert_allclose(found.eigenvalues(), expected.eigenvalues(), rtol=1e-9, atol=1e-9)
    assert int(found.counts) == int(times.sum())
    spoilt = torch.where((times > 0)[:, None], values, float("nan"))
    masked = make().add(spoilt, times > 0)
    np.testing.assert_allclose(masked.result(), make().add(values[times > 0]).result(), rtol=1e-9, atol=1e-9)
    assert masked.nans == 0


@pytest.mark.parametrize("make", ALL)
def test_before_there_is_data_nothing_is_said(make):
    with pytest.raises(BadArgumentError, match="nothing was added"):
        make().result()
    empty = make().add(torch.ones(0, 2))
    assert empty.result().shape[-1] == 2
    if make is not Factor:
        assert empty.result().isnan().all()
        assert empty.add(torch.ones(3, 2)).result().isfinite().all()
    assert make().add(torch.ones(4, 0)).result().shape[-1] == 0


@pytest.mark.parametrize("make", ALL)
def test_what_is_kept_survives_a_file_and_shares_nothing_with_a_batch(make, tmp_path):
    batch = data(torch.float64, 3.0, (2, 4))
    found = make().add(batch)
    expected = found.result()
    batch.fill_(77)
    assert torch.equal(found.result(), expected)
    found.add(torch.ones(20, 4)).save(tmp_path / "statistic")
    loaded = make.load(tmp_path / "statistic")
    assert torch.equal(loaded.result(), found.result())
    loaded.add(torch.zeros(30, 4))
    assert (loaded.count, found.count) == (52, 22)


@pytest.mark.parametrize("make", ALL)
def test_batches_of_inference_mode_are_taken_by_covariances_too(make):
    with torch.inference_mode():
        found = make().add(torch.eye(3))
    found.add(torch.ones(5, 3, requires_grad=True))
    assert found.result().isfinite().all() and not found.result().requires_grad


# The streaming factor


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e7])
@pytest.mark.parametrize("ways", [1, 4])
@pytest.mark.parametrize("size", [1, 7, 4096])
def test_singular_values_are_those_of_the_data(size, ways, offset):
    values = data(torch.float32, offset, (150, 12))
    found = in_parts(Factor, values, size, ways)
    whole = values.double().numpy()
    centred = whole - whole.mean(0)
    raw = np.linalg.svd(whole, compute_uv=False)
    np.testing.assert_allclose(found.singular_values(), raw, rtol=1e-8, atol=1e-14 * raw[0])
    np.testing.assert_allclose(found.singular_values(centred=True), np.linalg.svd(centred, compute_uv=False), rtol=1e-8)
    np.testing.assert_allclose(found.eigenvalues(), np.linalg.eigvalsh(np.cov(whole.T))[::-1], rtol=1e-7)


def test_small_singular_values_are_not_lost_as_in_a_covariance():
    left, _ = torch.linalg.qr(torch.randn(100, 5, dtype=torch.float64))
    right, _ = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64))
    values = torch.tensor([1.0, 1e-3, 1e-6, 1e-9, 1e-12], dtype=torch.float64)
    found = added(Factor(), ((left * values) @ right.T).split(9)).singular_values()
    np.testing.assert_allclose(found, values, rtol=1e-3)


def test_with_fewer_samples_than_features_the_rest_is_zero():
    values = data(torch.float32, 1.0, (3, 8))
    found = added(Factor(), values.split(1))
    np.testing.assert_allclose(found.singular_values()[:3], np.linalg.svd(values.double().numpy(), compute_uv=False))
    assert found.singular_values()[3:].tolist() == [0.0] * 5
    assert found.singular_values(centred=True)[2:].abs().max() < 1e-6
    assert Factor().add([[1.0, 2.0]]).eigenvalues().isnan().all()


def test_no_more_rows_are_kept_than_twice_as_many_as_features():
    found = Factor()
    for _ in range(100):
        found.add(torch.randn(3, 10))
        assert sum(map(len, found.state_dict()["_rows"])) <= 2 * 11
    assert found.count == 300


small = st.integers(-50, 50).map(lambda number: number / 8)
tables = arrays.arrays(np.float64, st.tuples(st.integers(1, 20), st.just(3)), elements=small)


@settings(max_examples=15)
@given(tables, st.data())
def test_two_merged_are_the_whole_matrix_in_any_order(rows, draw):
    cut = draw.draw(st.integers(0, len(rows)))
    order = draw.draw(st.permutations(range(len(rows))))
    for make in ALL:
        whole = make().add(rows)
        first, second = (added(make(), torch.tensor(part).split(3)) for part in (rows[:cut], rows[cut:]))
        for one in (first.merge(second), added(make(), torch.tensor(rows[list(order)]).split(2))):
            np.testing.assert_allclose(one.result(), whole.result(), rtol=1e-9, atol=1e-9)
    if len(rows) > 1:
        np.testing.assert_allclose(Covariance().add(rows).covariance(), np.cov(rows.T), rtol=1e-9, atol=1e-9)
