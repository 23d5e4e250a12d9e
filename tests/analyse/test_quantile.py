"""Quantiles lie where numpy's are, exactly as long as all values fit in, and within the stated bound ever after."""

import itertools
import math

import numpy as np
import pytest
import torch
from every_statistic import loaded, saved
from hypothesis import given, settings
from hypothesis import strategies as st

from byname.analyse import Quantile
from byname.errors import BadArgumentError

SHARES = [0, 0.001, 0.01, 0.25, 0.5, 0.5001, 0.9, 0.999, 1]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool]
ORDERS = ["random", "sorted", "reversed", "zigzag", "inwards", "blocks"]


def in_order(values, order):
    """Each feature's values as a stream that a sketch may find hard."""
    rng = np.random.default_rng(1)
    ordered, half = np.sort(values, axis=0), len(values) // 2
    if order == "random":
        return rng.permutation(values)
    if order == "zigzag":  # from the least and from the middle in turn
        return np.stack([ordered[:half], ordered[half : 2 * half]], 1).reshape(2 * half, *values.shape[1:])
    if order == "inwards":  # the outermost first, so that the middle comes last
        return np.stack([ordered[:half], ordered[: -half - 1 : -1]], 1).reshape(2 * half, *values.shape[1:])
    if order == "blocks":  # each full buffer from another part of the range
        return np.concatenate(rng.permutation(np.array_split(ordered[: len(ordered) // 64 * 64], 64)))
    return ordered[::-1] if order == "reversed" else ordered


def made(dtype, size, offset, features=2):
    """Values as a batch of that type has them, and the same in numpy no dtype holds both."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((size, features))
    values = values > 0 if dtype is torch.bool else values * (1 if dtype.is_floating_point else 1000) + offset
    exact = torch.from_numpy(values).to(dtype)
    return exact.double().numpy() if dtype.is_floating_point else exact.numpy()


def filled(batches, **options):
    seen = Quantile(**options)
    for batch in batches:
        seen.add(batch)
    return seen


def assert_within_bound(seen, values):
    """The statement of the docstring, feature by feature; values of shape (values, features)."""
    shares, bound = np.array(SHARES), seen.error_bound + 1e-12
    found = seen.quantile(SHARES).numpy().reshape(len(SHARES), -1)
    for feature, got in zip(np.asarray(values, dtype=np.float64).T, found.T, strict=True):
        low = np.quantile(feature, np.clip(shares - bound, 0, 1))
        high = np.quantile(feature, np.clip(shares + bound, 0, 1))
        rounding = 1e-14 * np.abs(got)
        assert (low - rounding <= got).all()
        assert (got <= high + rounding).all()
        assert got[0] == feature.min()
        assert got[-1] == feature.max()


def check(dtype, size, offset, ways, order, resolution=8, total=2600):
    values = in_order(made(dtype, total, offset), order)
    batches = torch.from_numpy(np.ascontiguousarray(values)).to(dtype).split(size)
    parts = [filled(batches[part::ways], resolution=resolution) for part in range(ways)]
    whole = parts[0]
    for part in parts[1:]:
        whole.merge(part)
    assert whole.count == len(values)
    assert 0 < whole.error_bound < 0.2
    assert_within_bound(whole, values)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("dtype", "ways"), [*zip(DTYPES, itertools.cycle([1, 4]), strict=False)])
def test_a_quantile_is_within_the_bound(dtype, ways, order):
    check(dtype, 32, 1e4, ways, order)


@pytest.mark.slow
@pytest.mark.parametrize("offset", [0, 1e3, 1e7])
@pytest.mark.parametrize("size", [1, 7, 4096])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_quantile_is_within_the_bound_everywhere(dtype, size, offset):
    offset = min(offset, 6e4) if dtype is torch.float16 else offset
    for ways, order in itertools.product([1, 4], ORDERS):
        check(dtype, size, offset, min(ways, -(-2600 // size)), order, total=700 if size == 1 else 2600)


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
def test_of_ten_million_values_the_usual_resolution_is_better_than_a_thousandth(order):
    values = in_order(np.random.default_rng(0).standard_normal((10_000_000, 1)), order)
    seen = filled(torch.from_numpy(values.copy()).split(400_000))
    assert seen.error_bound < 1e-3
    assert_within_bound(seen, values)


@pytest.mark.parametrize("dtype", DTYPES)
def test_few_values_give_what_numpy_gives(dtype):
    values = made(dtype, 501, 10, features=3)
    seen = filled(torch.from_numpy(values).to(dtype).split(7))
    assert seen.error_bound == 0
    for share in SHARES:
        expected = np.quantile(values.astype(np.float64), share, axis=0)
        np.testing.assert_array_equal(seen.quantile(share).numpy(), expected)
    assert seen.quantile(torch.tensor([0.1, 0.2])).shape == (2, 3)
    assert seen.result().median.equal(seen.median())


def test_what_comes_out_has_the_shape_of_a_sample():
    seen = Quantile().add(torch.arange(24.0).reshape(4, 2, 3))
    assert seen.quantile(0.5).shape == (2, 3)
    assert seen.quantile([0.5]).shape == (1, 2, 3)
    assert seen.quantile([]).shape == (0, 2, 3)
    assert Quantile().add([1, 2, 4]).quantile(0.75).item() == 3
    assert Quantile().add(torch.zeros(5, 0)).quantile([0.1, 0.2]).shape == (2, 0)


def test_a_channel_has_all_its_values_together():
    batch = torch.randn(8, 3, 5, 4).to(memory_format=torch.channels_last)
    expected = np.quantile(batch.movedim(1, 0).reshape(3, -1).double().numpy(), SHARES, axis=1)
    np.testing.assert_array_equal(Quantile(channel=1).add(batch).quantile(SHARES).numpy(), expected)
    last = Quantile(channel=-1).add(batch.movedim(1, -1))
    np.testing.assert_array_equal(last.quantile(SHARES).numpy(), expected)
    with pytest.raises(BadArgumentError, match="no dimension 2"):
        Quantile(channel=2).add(torch.zeros(2, 2))


def test_whole_numbers_are_not_rounded():
    large = torch.tensor([2**53 + 1, 2**62 + 1, -(2**62) - 1])
    seen = Quantile().add(large)
    assert [seen.quantile(q, interpolation="lower").item() for q in (0, 0.4, 1)] == [-(2**62) - 1] * 2 + [2**62 + 1]
    assert seen.quantile(0.4, interpolation="higher").item() == 2**53 + 1
    many = torch.arange(5000) + 2**60
    thin = filled(many.split(50), resolution=8)
    within = math.ceil(thin.error_bound * 4999)
    for place in range(0, 5000, 123):
        got = thin.quantile((place + 0.5) / 4999, interpolation="lower").item() - 2**60
        assert abs(got - place) <= within


def test_types_of_one_kind_may_be_mixed_and_others_not():
    seen = Quantile(resolution=4).add(torch.ones(1000)).add(torch.full((10,), 0.1, dtype=torch.float64))
    assert seen.quantile(0).item() == 0.1
    assert Quantile().add(torch.tensor([True])).add(torch.tensor([2**40])).quantile(1).item() == 2**40
    with pytest.raises(BadArgumentError, match="no dtype holds both"):
        seen.add(torch.ones(3, dtype=torch.int64))
    with pytest.raises(BadArgumentError, match="no dtype holds both"):
        seen.merge(Quantile(resolution=4).add([1]))


def test_infinities_take_part():
    seen = Quantile().add([-torch.inf, 0.0, 1.0, torch.inf, torch.inf])
    assert seen.quantile([0, 0.25, 0.5, 0.75, 1]).tolist() == [-torch.inf, 0, 1, torch.inf, torch.inf]
    assert seen.quantile(0.9).item() == torch.inf
    assert seen.nans == 0


def with_nan(size=3000, features=3):
    rng = np.random.default_rng(2)
    values = rng.standard_normal((size, features))
    values[rng.random(values.shape) < [0.0, 0.2, 0.7]] = np.nan
    return values


@pytest.mark.parametrize("ways", [1, 3])
def test_nan_is_left_out_of_its_feature(ways):
    values = with_nan()
    batches = torch.from_numpy(values).split(64)
    seen = filled(batches[::ways], resolution=8)
    for part in range(1, ways):
        seen.merge(filled(batches[part::ways], resolution=8))
    assert seen.nans == np.isnan(values).sum()
    assert seen.error_bound > 0
    for feature in range(3):
        kept = values[:, feature][~np.isnan(values[:, feature])]
        got, bound = seen.quantile(SHARES)[:, feature].numpy(), seen.error_bound + 1e-12
        assert (np.quantile(kept, np.clip(np.array(SHARES) - bound, 0, 1)) <= got).all()
        assert (got <= np.quantile(kept, np.clip(np.array(SHARES) + bound, 0, 1))).all()


def test_a_mask_leaves_out_what_is_false():
    values = with_nan()
    masked = Quantile(resolution=8)
    for batch in torch.from_numpy(values).split(64):
        masked.add(batch.nan_to_num(7.0), weights=~batch.isnan())
    left_out = filled(torch.from_numpy(values).split(64), resolution=8)
    assert masked.nans == 0
    assert masked.quantile(SHARES).equal(left_out.quantile(SHARES))
    rows = torch.arange(100) % 3 > 0
    batch = torch.randn(100, 2)
    assert Quantile().add(batch, rows).median().equal(Quantile().add(batch[rows]).median())


def test_nan_spoils_its_feature_or_is_refused_if_asked():
    batch = torch.tensor([[1.0, torch.nan], [2.0, 3.0]])
    spoilt = Quantile(nan="propagate").add(batch).merge(Quantile(nan="propagate").add([[2.0, 2.0]]))
    assert spoilt.quantile(1).tolist() == pytest.approx([2, torch.nan], nan_ok=True)
    assert spoilt.nans == 1
    with pytest.raises(BadArgumentError, match="1 values of the batch are NaN"):
        Quantile(nan="raise").add(batch)
    assert Quantile(nan="raise").add(batch, [[True, False], [True, True]]).median().tolist() == [1.5, 3]


def test_no_value_has_no_quantile():
    assert Quantile().add(torch.zeros(0, 2)).median().isnan().all()
    assert Quantile().add([[1.0, torch.nan]]).median().tolist() == pytest.approx([1, torch.nan], nan_ok=True)
    with pytest.raises(BadArgumentError, match="nothing was added yet"):
        Quantile().median()
    with pytest.raises(BadArgumentError, match="has no value"):
        Quantile().add(torch.zeros(0, 2, dtype=torch.int64)).quantile(0.5, interpolation="lower")


@pytest.mark.parametrize(
    ("batch", "weights", "message"),
    [
        (torch.zeros(2, 3), None, "had shape"),
        (torch.zeros(2, 2, dtype=torch.complex64), None, "must be real"),
        (torch.zeros(2, 2), torch.ones(2), "mask of bools"),
        (torch.tensor([[0.0, torch.nan]]), None, "NaN"),
        (torch.zeros(2, 2, dtype=torch.int32), None, "no dtype holds both"),
        (torch.zeros(()), None, "no"),
    ],
)
def test_a_refused_batch_changes_nothing(batch, weights, message):
    seen = Quantile(resolution=4, nan="raise").add(torch.randn(500, 2))
    before = saved(seen)
    with pytest.raises(BadArgumentError, match=message):
        seen.add(batch, weights)
    assert saved(seen) == before


@pytest.mark.parametrize("wrong", [-0.1, 1.1, torch.nan, [0.5, 2], [[0.5]]])
def test_what_is_no_share_is_refused(wrong):
    with pytest.raises(BadArgumentError, match="a number from 0 to 1"):
        Quantile().add([1.0]).quantile(wrong)


def test_settings_that_mean_nothing_are_refused():
    with pytest.raises(BadArgumentError, match="resolution"):
        Quantile(resolution=1)
    with pytest.raises(BadArgumentError, match="channel"):
        Quantile(channel="x")
    with pytest.raises(BadArgumentError, match="interpolation"):
        Quantile().add([1.0]).quantile(0.5, interpolation="nearest")
    with pytest.raises(BadArgumentError, match="cannot merge"):
        Quantile().merge(Quantile(resolution=4))


def test_what_was_saved_goes_on_as_before(tmp_path):
    first, second = torch.randn(2, 700, 3)
    seen = Quantile(resolution=4, channel=1).add(first)
    seen.save(tmp_path / "q")
    again = Quantile.load(tmp_path / "q")
    assert again.add(second).quantile(SHARES).equal(seen.add(second).quantile(SHARES))
    assert again.error_bound == seen.error_bound > 0
    seen.reset()
    assert seen.count == 0
    assert seen.add([[1.0]]).median().tolist() == [1]


def test_a_state_shares_nothing_with_the_sketch_nor_the_sketch_with_a_batch():
    batch = torch.arange(40.0)
    seen = Quantile(resolution=4).add(batch)
    state = seen.state_dict()
    batch.zero_()
    seen.add(torch.full((1000,), -5.0))
    assert Quantile(resolution=4).merge(seen).quantile(0).item() == -5
    restored = Quantile(resolution=4)
    restored.load_state_dict(state)
    assert restored.quantile([0, 1]).tolist() == [0, 39]


def test_merging_leaves_the_other_as_it_is_and_works_with_itself():
    values = torch.randn(3000, 2)
    one, other = Quantile(resolution=4).add(values[:1000]), Quantile(resolution=4).add(values[1000:])
    before = saved(other)
    one.merge(other).add(values[:100])
    assert saved(other) == before
    doubled = other.merge(other)
    assert doubled.count == 4000
    assert_within_bound(doubled, values[1000:].repeat(2, 1))


def test_the_state_stays_small_and_the_random_state_untouched():
    seen, before = Quantile(), torch.get_rng_state()
    batch = torch.linspace(0, 1, 100_000)
    for _ in range(30):
        seen.add(batch)
    runs = math.log2(3_000_000 / (64 * 2048)) + 1
    assert len(saved(seen)) < 4 * 2048 * (64 + runs) + 5000
    assert torch.get_rng_state().equal(before)


def test_any_batch_that_can_be_read_can_be_added():
    leaf = torch.randn(6, 2, requires_grad=True)
    with torch.inference_mode():
        inside = torch.randn(5000, 2)
        seen = Quantile(resolution=4).add(inside)
    seen.add(leaf * 2).add(torch.ones(1, 1).expand(3, 2)).add(np.zeros((2, 2), np.float32)).add([[1.0, 2.0]])
    assert not seen.quantile(0.5).requires_grad
    assert seen.count == 5012


@st.composite
def trees(draw):
    """Values with many ties, cut in batches, and which of the parts each batch goes to."""
    values = draw(st.lists(st.integers(-20, 20), min_size=1, max_size=400))
    cuts = sorted(draw(st.lists(st.integers(0, len(values)), max_size=8)))
    pieces = [values[a:b] for a, b in itertools.pairwise([0, *cuts, len(values)])]
    return pieces, draw(st.lists(st.integers(0, 3), min_size=len(pieces), max_size=len(pieces)))


@settings(max_examples=60)
@given(trees(), st.booleans())
def test_however_parts_are_merged_the_bound_holds(tree, uneven):
    pieces, goes = tree
    parts = [Quantile(resolution=2) for _ in range(4)]
    wide = torch.arange(40) % 3 > 0 if uneven else torch.ones(40, dtype=torch.bool)
    for number, (piece, part) in enumerate(zip(pieces, goes, strict=True)):
        batch = torch.tensor(piece, dtype=torch.int64)[:, None].expand(-1, 40)
        parts[part].add(batch, (wide | (number % 2 > 0)).expand(len(piece), 40))
    whole = (parts[0].merge(parts[1])).merge(parts[3].merge(parts[2]))
    everything = [value for piece in pieces for value in piece]
    some = [value for number, piece in enumerate(pieces) if number % 2 for value in piece] if uneven else everything
    again = loaded(whole)
    for column, values in ((1, everything), (0, some)):
        if values:
            of_column(again, column, values)


def of_column(seen, column, values):
    got, shares, bound = seen.quantile(SHARES)[:, column].numpy(), np.array(SHARES), seen.error_bound + 1e-12
    assert (np.quantile(values, np.clip(shares - bound, 0, 1)) - 1e-9 <= got).all()
    assert (got <= np.quantile(values, np.clip(shares + bound, 0, 1)) + 1e-9).all()
    assert (got[0], got[-1]) == (min(values), max(values))
