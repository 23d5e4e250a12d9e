"""Mean, variance and higher moments against numpy and scipy, in float64."""

import numpy as np
import pytest
import torch
from every_statistic import saved
from grid import added, in_parts, near_a_large_offset, over_the_grid, representable
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats

from byname.analyse import Mean, Moments, NormMean, Variance
from byname.errors import BadArgumentError


def data(dtype, offset, shape=(4096, 5)):
    values = torch.randn(shape, dtype=torch.float64) * (20 if dtype is torch.int64 else 1) + offset
    return values > offset if dtype is torch.bool else values.to(dtype)


def check(found, expected, scale=None, tolerance=1e-8):
    """Relative to each figure; where a figure is a small rest of large ones, to their scale."""
    scale = np.abs(expected) if scale is None else scale
    np.testing.assert_array_less(np.abs(found.numpy() - expected), tolerance * scale + 1e-300)


def check_moments(found, whole):
    mean, spread = whole.mean(0), whole.std(0)
    assert found.mean().dtype is torch.float64
    check(found.mean(), mean, np.abs(mean) + 1e-6 * spread)
    check(found.variance(), whole.var(0, ddof=1))
    check(found.std(), whole.std(0, ddof=1))
    varying = spread > 0
    np.testing.assert_allclose(found.skewness()[varying], stats.skew(whole[:, varying]), rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(found.kurtosis()[varying], stats.kurtosis(whole[:, varying]), rtol=1e-8, atol=1e-8)


def check_grid(dtype, offset, size, ways, rows):
    values = data(dtype, representable(dtype, offset), (rows, 5))
    values = values[torch.randperm(len(values))]
    check_moments(in_parts(Moments, values, size, ways), values.double().numpy())


test_the_whole_grid_is_as_numpy_has_it = over_the_grid(check_grid)
test_moments_near_a_large_offset_are_as_numpy_has_them = near_a_large_offset(check_grid)


def test_single_samples_make_the_variance_of_all():
    values = data(torch.float32, 0.0, (200, 3))
    check_moments(in_parts(Moments, values, 1, 1), values.double().numpy())


@pytest.mark.parametrize("channel", [1, 2, -1])
def test_a_channel_has_one_figure_for_all_that_is_not_channel(channel):
    values = data(torch.float32, 1e3, (9, 4, 5, 6))
    found = added(Moments(channel=channel), values.split(2))
    whole = values.double().movedim(channel, -1).flatten(0, -2).numpy()
    check_moments(found, whole)
    assert found.counts.tolist() == [len(whole)] * whole.shape[1]


@pytest.mark.parametrize("shape", [(3, 70_000), (70_000, 3), (700, 900), (40_000,), (2, 3, 150, 150), (600, 1, 300)])
@pytest.mark.parametrize("channel", [None, 1])
def test_batches_of_any_size_are_cut_and_put_together(shape, channel):
    if channel and len(shape) == 1:
        channel = None
    values = data(torch.float32, 10.0, shape)
    found = added(Variance(channel=channel), [values, values + 1])
    whole = torch.cat([values.double(), (values + 1).double()]).numpy()
    over = 0 if channel is None else tuple(dim for dim in range(len(shape)) if dim != 1)
    check(found.mean(), whole.mean(over))
    check(found.variance(), whole.var(over, ddof=1))


@pytest.mark.parametrize("channel", [None, 1])
@pytest.mark.parametrize(
    "layout",
    [
        lambda x: x.to(memory_format=torch.channels_last),
        lambda x: x.transpose(2, 3),
        lambda x: x[:, :, ::2],
        lambda x: x[:, :1].expand(-1, 4, -1, -1),
        lambda x: x.clone().requires_grad_(),
    ],
    ids=["channels_last", "transposed", "strided", "expanded", "requires_grad"],
)
def test_the_layout_of_a_batch_does_not_matter(layout, channel):
    values = layout(data(torch.float32, 5.0, (6, 4, 8, 8)))
    found, expected = (
        Variance(channel=channel).add(values),
        Variance(channel=channel).add(values.detach().numpy().copy()),
    )
    assert torch.allclose(found.variance(), expected.variance(), rtol=1e-12)
    assert not found.variance().requires_grad


def test_values_that_are_all_equal_do_not_vary_at_all():
    found = added(Moments(), [torch.full((7, 2), 0.1), torch.full((5, 2), 0.1)])
    assert found.variance().tolist() == [0.0, 0.0]
    assert found.mean().tolist() == [float(torch.tensor(0.1))] * 2
    assert found.skewness().isnan().all()
    assert found.kurtosis().isnan().all()


def test_huge_values_do_not_overflow_where_numpy_has_none():
    whole = np.array([1e200, 3e200, 1e200, -2e200])
    assert np.isfinite(whole.mean())
    check(added(Mean(), torch.tensor(whole).split(1)).mean(), whole.mean())
    near = 1e200 * (1 + np.arange(4) * 1e-60)  # all the same float64
    assert float(added(Variance(), torch.tensor(near).split(1)).variance()) == near.var(ddof=1) == 0
    large = np.array([1e150, 3e150, -2e150, 5e149])
    check(added(Variance(), torch.tensor(large).split(1)).variance(), large.var(ddof=1))
    assert float(NormMean().add(np.array([[3e200, 4e200]])).mean()) == pytest.approx(5e200)
    assert float(NormMean().add(np.array([[3e-200, 4e-200]])).mean()) == pytest.approx(5e-200)
    assert float(NormMean(8).add(np.array([[1e-60, 0.0], [0.0, 0.0]])).mean()) == pytest.approx(0.5e-60)


def test_infinite_values_take_part_as_in_numpy():
    values = torch.tensor([[1.0, 1.0], [2.0, float("inf")], [4.0, 3.0]])
    for batches in (values.split(1), [values], values.flip(0).split(2)):
        found = added(Variance(), batches)
        assert found.mean().tolist() == [pytest.approx(7 / 3), float("inf")]
        assert float(found.variance()[0]) == pytest.approx(7 / 3)
        assert found.variance()[1].isnan()
    assert added(Mean(), torch.tensor([float("inf"), float("-inf")]).split(1)).mean().isnan()


def with_nans(rows=300):
    values = data(torch.float32, 100.0, (rows, 4))
    values[torch.rand(values.shape) < 0.1] = float("nan")
    values[:, 3] = float("nan")
    return values


@pytest.mark.parametrize("size", [1, 7, 300])
def test_each_nan_is_left_out_alone_and_counted(size):
    values = with_nans()
    found = added(Moments(), values.split(size))
    whole = values[:, :3].double().numpy()
    check(found.mean()[:3], np.nanmean(whole, 0))
    check(found.variance()[:3], np.nanvar(whole, 0, ddof=1))
    np.testing.assert_allclose(found.kurtosis()[:3], stats.kurtosis(whole, nan_policy="omit"), rtol=1e-8)
    assert found.mean()[3].isnan() and found.variance()[3].isnan() and found.skewness()[3].isnan()
    assert found.counts.tolist() == [*(~np.isnan(whole)).sum(0), 0]
    assert found.nans == int(values.isnan().sum())
    assert found.count == len(values)


def test_a_nan_of_a_channel_is_left_out_alone():
    values = data(torch.float32, 1.0, (6, 3, 4, 4))
    values[2, 1, 0, 3] = float("nan")
    found = added(Variance(channel=1), values.split(2))
    check(found.variance(), np.nanvar(values.double().numpy(), (0, 2, 3), ddof=1))
    assert found.counts.tolist() == [96, 95, 96]


def test_nan_spoils_its_own_figures_if_it_is_to_propagate():
    values = torch.tensor([[1.0, 1.0], [float("nan"), 3.0], [2.0, 5.0]])
    found = added(Variance(nan="propagate"), values.split(1))
    assert found.mean()[0].isnan() and found.variance()[0].isnan()
    assert float(found.variance()[1]) == 4
    assert found.nans == 1


@pytest.mark.parametrize("statistic", [Mean, Variance, Moments, NormMean])
def test_a_batch_with_nan_is_refused_as_a_whole(statistic):
    found = statistic(nan="raise").add([[1.0, 2.0], [3.0, 5.0]])
    before = saved(found)
    with pytest.raises(BadArgumentError, match="1 values of the batch are NaN"):
        found.add([[1.0, float("nan")]])
    assert saved(found) == before


def test_integer_weights_count_as_repetition():
    values, times = data(torch.float32, 50.0, (60, 3)), torch.randint(0, 4, (60,))
    found = Moments().add(values[:20], times[:20]).add(values[20:], times[20:])
    check_moments(found, values.repeat_interleave(times, 0).double().numpy())
    assert found.counts.tolist() == [int(times.sum())] * 3
    assert found.count == 60


def test_weights_of_single_values_count_those():
    values, times = data(torch.float64, 0.0, (30, 2)), torch.randint(0, 4, (30, 2))
    found = Moments().add(values, times)
    for column in range(2):
        whole = values[:, column].repeat_interleave(times[:, column]).numpy()
        assert float(found.variance()[column]) == pytest.approx(whole.var(ddof=1), rel=1e-12)
        assert float(found.kurtosis()[column]) == pytest.approx(stats.kurtosis(whole), rel=1e-9)


@pytest.mark.parametrize("shape", [(8,), (8, 3), (8, 3, 4)])
def test_a_mask_leaves_out_what_is_false_whatever_it_is(shape):
    values = data(torch.float32, 10.0, (8, 3, 4))
    mask = torch.rand(shape) < 0.6
    spread = mask.reshape(mask.shape + (1,) * (3 - mask.ndim)).expand(values.shape)
    spoilt = torch.where(spread, values, torch.tensor([float("nan"), float("inf"), 1e30]).reshape(3, 1))
    found = Variance(channel=1).add(spoilt, mask)
    for channel in range(3):
        whole = values[:, channel][spread[:, channel]].double().numpy()
        assert float(found.mean()[channel]) == pytest.approx(whole.mean(), rel=1e-12)
        assert float(found.variance()[channel]) == pytest.approx(whole.var(ddof=1), rel=1e-10)
    assert found.nans == 0


def test_weights_go_with_their_values_whatever_the_strides():
    tokens, wide = data(torch.float32, 1.0, (2, 5, 8)), data(torch.float32, 1.0, (2, 4, 15))
    for values in (tokens.mT, wide.chunk(3, -1)[1], wide[..., ::3].mT, wide[:1, :, :4].mT):
        values.masked_fill_(torch.rand(values.shape) < 0.2, float("nan"))
        for weights in (torch.rand(len(values), 1, 1), torch.rand(values.shape)):
            found = Moments(channel=1).add(values, weights.expand(values.shape))
            for channel, share in enumerate(weights.expand(values.shape).unbind(1)):
                expected = Moments().add(values[:, channel].reshape(-1, 1), share.reshape(-1, 1))
                check(found.mean()[channel], expected.mean().numpy())
                check(found.kurtosis()[channel], expected.kurtosis().numpy())


def test_nothing_masked_in_is_like_nothing_added():
    found = Variance().add(torch.full((3, 2), 1e30), torch.zeros(3, dtype=torch.bool))
    assert found.mean().isnan().all()
    found.add([[1.0, 2.0], [3.0, 2.0]])
    assert found.mean().tolist() == [2, 2]
    assert found.variance().tolist() == [2, 0]


@pytest.mark.parametrize(("batch", "weights"), [(torch.ones(3, 2), torch.ones(2)), (torch.ones(3, 2), -torch.ones(3))])
def test_weights_that_are_none_are_refused(batch, weights):
    with pytest.raises(BadArgumentError, match="weights"):
        Variance().add(batch, weights)


numbers = st.floats(-1e6, 1e6, allow_subnormal=False).map(lambda x: round(x, 3))
tables = arrays.arrays(np.float64, st.tuples(st.integers(1, 30), st.just(2)), elements=numbers)


def close(one, other, whole):
    """Nothing but rounding lies between them: relative to the largest value for the mean, to its square for squares."""
    size = np.abs(whole).max() + 1e-12
    np.testing.assert_allclose(one.mean(), other.mean(), rtol=1e-9, atol=1e-12 * size)
    np.testing.assert_allclose(one.variance(0), other.variance(0), rtol=1e-9, atol=1e-12 * size**2)
    for mine, theirs in zip(one._about_mean()[1], other._about_mean()[1], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-7, atol=1e-10 * size**4 * len(whole) + 1e-10)


@settings(max_examples=40)
@given(tables, st.data())
def test_two_merged_are_the_whole_in_any_order(rows, draw):
    cut = draw.draw(st.integers(0, len(rows)))
    order = draw.draw(st.permutations(range(len(rows))))
    size = draw.draw(st.sampled_from([1, 3, 50]))
    whole = Moments().add(rows)
    first, second = (added(Moments(), torch.tensor(part).split(size)) for part in (rows[:cut], rows[cut:]))
    close(first.merge(second), whole, rows)
    close(added(Moments(), torch.tensor(rows[list(order)]).split(size)), whole, rows)
    size = np.abs(rows).max() + 1e-12
    np.testing.assert_allclose(whole.mean(), rows.mean(0), rtol=1e-9, atol=1e-12 * size)
    np.testing.assert_allclose(whole.variance(0), rows.var(0), rtol=1e-9, atol=1e-12 * size**2)


def test_the_other_is_left_alone_and_nothing_is_shared_after_a_merge():
    one, other = Variance(), Variance().add([[1.0], [2.0]])
    before = saved(other)
    one.merge(other).add([[5.0]])
    assert saved(other) == before
    for value in vars(other).values():
        if torch.is_tensor(value):
            value.fill_(77)
    assert float(one.mean()) == pytest.approx(8 / 3)


def test_nothing_of_a_batch_is_kept():
    batch = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    found = [Mean().add(batch), Variance().add(batch), Moments().add(batch), Variance(channel=1).add(batch)]
    batch.fill_(99)
    assert [one.mean().tolist() for one in found] == [[1, 2]] * 4
    pointers = {
        value.untyped_storage().data_ptr() for one in found for value in vars(one).values() if torch.is_tensor(value)
    }
    assert batch.untyped_storage().data_ptr() not in pointers


@pytest.mark.parametrize("make", [Mean, lambda: Variance(channel=1), Moments, lambda: NormMean(1)])
def test_a_state_survives_a_dict_and_a_file(make, tmp_path):
    found = added(make(), data(torch.float32, 3.0, (20, 3)).split(6))
    again = make()
    again.load_state_dict(found.state_dict())
    found.save(tmp_path / "moments")
    loaded = type(found).load(tmp_path / "moments")
    for one in (again, loaded):
        assert saved(one) == saved(found)
        one.add(torch.ones(2, 3))
    assert found.count == 20 and loaded.count == 22
    assert not torch.equal(loaded.mean(), found.mean())


def test_other_features_are_refused_and_both_shapes_named():
    found = Variance().add(torch.ones(2, 3))
    before = saved(found)
    for refused in (lambda: found.add(torch.ones(2, 4)), lambda: found.merge(Variance().add(torch.ones(2, 4)))):
        with pytest.raises(BadArgumentError, match=r"\(3,\).*\(4,\)"):
            refused()
    assert saved(found) == before


def test_channels_are_looked_for_where_there_is_such_a_dimension():
    with pytest.raises(BadArgumentError, match="channel=2"):
        Variance(channel=2).add(torch.ones(2, 3))
    with pytest.raises(BadArgumentError, match="channel=0"):
        Variance(channel=0).add(torch.ones(2, 3))
    found = added(Variance(channel=1), [torch.ones(2, 3, 4), torch.ones(2, 3, 9)])
    assert found.counts.tolist() == [26, 26, 26]


def test_complex_numbers_are_refused():
    with pytest.raises(BadArgumentError, match=r"value\.abs"):
        Mean().add(torch.ones(2, dtype=torch.complex64))


def test_without_data_a_figure_is_refused_and_without_enough_it_is_nan():
    with pytest.raises(BadArgumentError, match="nothing was added"):
        Variance().variance()
    empty = Variance().add(torch.ones(0, 3))
    assert empty.mean().isnan().all() and empty.variance().shape == (3,)
    one = empty.add([[1.0, 2.0, 3.0]])
    assert one.mean().tolist() == [1, 2, 3]
    assert one.variance().isnan().all()
    assert one.variance(ddof=0).tolist() == [0, 0, 0]
    assert Variance(channel=1).add(torch.ones(4, 0)).variance().shape == (0,)


def test_batches_of_inference_mode_are_taken_and_can_be_added_to_outside():
    with torch.inference_mode():
        found = Moments().add(torch.tensor([[1.0], [2.0]]))
    found.add([[6.0]])
    assert found.mean().tolist() == [3]
    assert not any(one.is_inference() for one in vars(found).values() if torch.is_tensor(one))


@pytest.mark.parametrize("ord", [1, 2, 3, float("inf")])
def test_lengths_are_those_of_numpy(ord):
    values = data(torch.float32, 0.0, (50, 3, 4))
    whole = np.linalg.norm(values.double().numpy().reshape(50, 12), ord, axis=1)
    assert float(added(NormMean(ord), values.split(7)).mean()) == pytest.approx(whole.mean(), rel=1e-12)


def test_a_sample_with_nan_has_no_length():
    found = NormMean().add([[3.0, 4.0], [float("nan"), float("nan")], [0.0, 1.0]])
    assert float(found.mean()) == 3
    assert (found.count, found.nans, float(found.counts)) == (3, 2, 2)
    assert NormMean(nan="propagate").add([[float("nan"), 1.0]]).mean().isnan()


def test_lengths_are_weighed_by_samples():
    assert float(NormMean().add([[3.0, 4.0], [0.0, 1.0]], [3, 1]).mean()) == 4
    assert float(NormMean().add([[3.0, 4.0], [0.0, 1.0]], [True, False]).mean()) == 5
    with pytest.raises(BadArgumentError, match="one weight per sample"):
        NormMean().add([[3.0, 4.0]], [[1.0, 2.0]])


def test_numpy_and_lists_are_batches_too():
    assert Mean().add(np.arange(6).reshape(3, 2)).add([[5, 6]]).mean().tolist() == [2.75, 3.75]


@pytest.mark.parametrize("scale", [1e-120, 1e-90, 1e-50, 1.0, 1e50, 1e90, 1e120])
def test_a_kurtosis_whose_powers_leave_the_range_is_not_told(scale):
    values = torch.randn(200, 2, dtype=torch.float64)
    near, far = Moments().add(values), Moments().add(values * scale)
    if 1e-60 < scale < 1e60:
        np.testing.assert_allclose(far.kurtosis(), near.kurtosis(), rtol=1e-9)
        np.testing.assert_allclose(far.skewness(), near.skewness(), rtol=1e-9)
    else:
        assert far.kurtosis().isnan().all()
        assert far.skewness().isnan().all()


@pytest.mark.parametrize("order", [2, 3, 4])
def test_central_moments_are_those_of_scipy(order):
    values = torch.rand(50, 3, dtype=torch.float64)
    found = Moments().add(values[:20]).add(values[20:]).central_moment(order)
    np.testing.assert_allclose(found, stats.moment(values.numpy(), order), rtol=1e-10)
    with pytest.raises(BadArgumentError, match="2, 3 or 4"):
        Moments().add(values).central_moment(5)


def test_settings_that_mean_nothing_are_refused_when_it_is_made():
    for make in (lambda: Variance(channel=1.5), lambda: Moments(channel=True)):
        with pytest.raises(BadArgumentError, match="index of a dimension"):
            make()
    for ord in ("fro", float("nan"), True):
        with pytest.raises(BadArgumentError, match="ord is the order of a norm"):
            NormMean(ord)


def test_a_refused_merge_tells_the_settings_that_differ_and_no_others():
    with pytest.raises(BadArgumentError, match=r"^a Variance with channel=1 cannot merge one with channel=None: their"):
        Variance(channel=1).merge(Variance())
