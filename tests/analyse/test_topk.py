"""The foremost values and their samples are exactly those of the whole data, the earlier one first among equals."""

import itertools

import numpy as np
import pytest
import torch
from every_statistic import saved
from hypothesis import given, settings
from hypothesis import strategies as st

from byname.analyse import TopK
from byname.errors import BadArgumentError

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool]
ORDERS = ["random", "sorted", "reversed", "zigzag"]


def foremost(values, k, largest=True):
    """By numpy: a stable sort has the earlier one first among equals; integers that are not rounded are negated."""
    key = (~values if values.dtype == bool else -values) if largest else values
    order = np.argsort(key, axis=0, kind="stable")[:k]
    return np.take_along_axis(values, order, 0), order


def made(dtype, offset, order):
    values = np.random.default_rng(0).standard_normal((1300, 2))
    values = values > 0 if dtype is torch.bool else np.round(values * 50) + offset
    values = {"random": values, "sorted": np.sort(values, 0), "reversed": np.sort(values, 0)[::-1]}.get(order, values)
    if order == "zigzag":
        values = np.sort(values, 0).reshape(2, -1, 2).swapaxes(0, 1).reshape(-1, 2)
    return torch.from_numpy(np.ascontiguousarray(values)).to(dtype)


def check(dtype, size, offset, ways, order, k=9):
    values = made(dtype, offset, order)[: 200 if size == 1 else None]
    exact = values.double().numpy() if dtype.is_floating_point else values.numpy()
    batches = values.split(size)
    some = -(-len(batches) // ways)
    for largest in (True, False):
        whole = TopK(k, largest)
        for first in range(0, len(batches), some):
            part = TopK(k, largest)
            for batch in batches[first : first + some]:
                part.add(batch)
            whole.merge(part)
        expected, numbers = foremost(exact, k, largest)
        found = whole.result()
        assert found.values.dtype is (torch.float64 if dtype.is_floating_point else dtype)
        np.testing.assert_array_equal(found.values.double().numpy(), expected)
        np.testing.assert_array_equal(found.indices.numpy(), numbers)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_foremost_are_those_of_the_whole(dtype, order):
    check(dtype, 32, 1000, 4, order)


@pytest.mark.slow
@pytest.mark.parametrize("offset", [0, 1e3, 1e7])
@pytest.mark.parametrize("size", [1, 7, 4096])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_foremost_are_those_of_the_whole_everywhere(dtype, size, offset):
    for ways, order in itertools.product([1, 4], ORDERS):
        check(dtype, size, min(offset, 6e4) if dtype is torch.float16 else offset, ways, order)


@settings(max_examples=80)
@given(
    st.lists(st.lists(st.integers(-4, 4), max_size=12), min_size=1, max_size=6),
    st.integers(1, 15),
    st.booleans(),
    st.integers(0, 6),
)
def test_parts_merged_are_the_whole(pieces, k, largest, cut):
    values = np.array([one for piece in pieces for one in piece], dtype=np.int64)
    one, other = TopK(k, largest).add(torch.zeros(0, dtype=torch.int64)), TopK(k, largest)
    for number, piece in enumerate(pieces):
        (one if number < cut else other).add(torch.tensor(piece, dtype=torch.int64))
    expected, numbers = foremost(values, k, largest)
    found = one.merge(other).result()
    np.testing.assert_array_equal(found.values.numpy(), expected)
    np.testing.assert_array_equal(found.indices.numpy(), numbers)


def test_values_are_those_of_torch_for_samples_of_any_shape():
    values = torch.randn(40, 3, 2)
    expected = torch.topk(values, 5, dim=0)
    found = TopK(5).add(values[:33]).add(values[33:]).topk()
    assert found.values.equal(expected.values)
    assert found.indices.equal(expected.indices)
    assert TopK(5, largest=False).add(values).result().values.equal(torch.topk(values, 5, 0, largest=False).values)
    assert TopK(2).add(torch.zeros(3, 0)).result().values.shape == (2, 0)


def test_fewer_samples_give_fewer_rows():
    assert TopK(5).add([1.0, 3.0]).result().values.tolist() == [3, 1]
    assert TopK(5).add(torch.zeros(0, 2)).result().indices.shape == (0, 2)
    with pytest.raises(BadArgumentError, match="nothing was added yet"):
        TopK(5).result()


def test_large_whole_numbers_are_exact():
    found = TopK(2).add(torch.tensor([2**62, 2**62 + 1, 5])).result()
    assert found.values.tolist() == [2**62 + 1, 2**62]


@pytest.mark.parametrize("largest", [True, False])
def test_nan_and_what_is_masked_is_left_out_but_numbered(largest):
    values = torch.randn(300, 3)
    left_out = torch.rand(300, 3) < torch.tensor([0.1, 0.5, 0.99])
    by_nan, by_mask = TopK(8, largest), TopK(8, largest)
    for batch, out in zip(values.split(7), left_out.split(7), strict=True):
        by_nan.add(batch.masked_fill(out, torch.nan))
        by_mask.add(batch.masked_fill(out, 99.0 if largest else -99.0), ~out)
    assert (by_nan.nans, by_mask.nans) == (int(left_out.sum()), 0)
    for found in (by_nan.result(), by_mask.result()):
        for feature in range(3):
            there = (~left_out[:, feature]).nonzero().squeeze(1)
            expected, order = foremost(values[there, feature].numpy(), 8, largest)
            numbers = found.indices[:, feature]
            assert numbers[numbers >= 0].tolist() == there[torch.from_numpy(order)].tolist()
            assert found.values[numbers >= 0, feature].tolist() == expected.tolist()
            assert found.values[numbers < 0, feature].isnan().all()


def test_integers_left_out_stand_for_nothing():
    found = TopK(2).add(torch.tensor([[3, 4], [5, 6]]), [[True, False], [True, True]]).result()
    assert found.indices.tolist() == [[1, 1], [0, -1]]
    assert found.values.tolist() == [[5, 6], [3, -(2**63)]]
    assert TopK(1).add(torch.tensor([True]), [False]).result().indices.tolist() == [-1]


def test_nan_spoils_its_feature_or_is_refused_if_asked():
    batch = torch.tensor([[1.0, torch.nan], [2.0, 3.0]])
    found = TopK(1, nan="propagate").add([[0.0, 9.0]]).merge(TopK(1, nan="propagate").add(batch)).result()
    assert found.indices.tolist() == [[2, -1]]
    assert found.values.tolist()[0] == pytest.approx([2, torch.nan], nan_ok=True)
    with pytest.raises(BadArgumentError, match="NaN"):
        TopK(1, nan="raise").add(batch)


def test_infinities_are_values():
    assert TopK(3).add([0.0, -torch.inf, torch.inf]).result().indices.tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("batch", "weights"),
    [
        (torch.zeros(2, 3), None),
        (torch.zeros(2, 2, dtype=torch.complex64), None),
        (torch.zeros(2, 2), torch.ones(2)),
        (torch.tensor([[0.0, torch.nan]]), None),
        (torch.zeros(2, 2, dtype=torch.int32), None),
    ],
)
def test_a_refused_batch_changes_nothing(batch, weights):
    seen = TopK(3, nan="raise").add(torch.randn(20, 2))
    before = saved(seen)
    with pytest.raises(BadArgumentError):
        seen.add(batch, weights)
    assert saved(seen) == before


def test_types_of_one_kind_may_be_mixed():
    found = (
        TopK(2).add(torch.tensor([1.5], dtype=torch.bfloat16)).add(torch.tensor([0.1], dtype=torch.float64)).result()
    )
    assert found.values.tolist() == [1.5, 0.1]


def test_it_is_saved_and_keeps_nothing_of_a_batch(tmp_path):
    batch = torch.tensor([4.0, 8.0, 2.0])
    seen = TopK(2).add(batch)
    batch.zero_()
    seen.save(tmp_path / "t")
    again = TopK.load(tmp_path / "t").add([5.0])
    assert again.result().indices.tolist() == [1, 3]
    assert seen.merge(seen).result().indices.tolist() == [1, 4]
    seen.result().values.zero_()
    assert seen.result().values.tolist() == [8, 8]
    seen.reset()
    with pytest.raises(BadArgumentError):
        seen.result()


def test_the_settings_have_to_mean_something():
    with pytest.raises(BadArgumentError, match="k is an integer"):
        TopK(0)
    with pytest.raises(BadArgumentError, match="cannot merge"):
        TopK(2).merge(TopK(3))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint16, torch.uint32, torch.float8_e4m3fn, torch.float8_e5m2])
def test_types_that_torch_sorts_badly_are_taken(dtype):
    values = torch.tensor([[0, 1], [1, 0], [1, 1], [0, 0]])
    found = TopK(3).add(values[:2].to(dtype)).add(values[2:].to(dtype)).topk()
    assert found.values.int().tolist() == [[1, 1], [1, 1], [0, 0]]
    assert found.indices.tolist() == [[1, 0], [2, 2], [0, 1]]
