"""Are counts those of numpy, and exact?"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies

from byname.analyse import Bincount
from byname.errors import BadArgumentError

DTYPES = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1, 7, 32, 4096])
def test_counts_are_those_of_numpy(dtype, size):
    data = torch.randint(0, 100, (300, 2, 3)).to(dtype)
    counts = Bincount()
    for batch in data.split(size):
        counts.add(batch)
    assert counts.result().dtype is torch.int64
    np.testing.assert_array_equal(counts.result(), np.bincount(data.long().numpy().ravel()))
    assert counts.count == 300


@given(*[strategies.lists(strategies.integers(0, 30), max_size=20)] * 2, strategies.integers(0, 40))
@settings(max_examples=100)
def test_two_merged_are_the_whole(first, second, minlength):
    first, second = (np.array(numbers, dtype=np.int64) for numbers in (first, second))
    merged = Bincount(minlength).add(first).merge(Bincount(minlength).add(second))
    np.testing.assert_array_equal(merged.result(), np.bincount(np.concatenate([first, second]), minlength=minlength))


def test_weights_give_sums_in_float64_and_integers_stay_exact():
    data = torch.randint(0, 5, (50, 3))
    weights = torch.randint(0, 2**40, (50, 3))
    counts = Bincount().add(data).add(data, weights).add(data, weights[:, 0].double())
    numbers = data.numpy().ravel()
    expected = sum(
        np.bincount(numbers, each.expand(50, 3).reshape(-1).numpy())
        for each in (torch.ones(50, 3), weights, weights[:, :1])
    )
    assert counts.result().dtype is torch.float64
    np.testing.assert_array_equal(counts.result(), expected)
    np.testing.assert_array_equal(
        Bincount().add(data).merge(Bincount().add(data, weights)).result(),
        np.bincount(numbers) + np.bincount(numbers, weights.numpy().ravel()),
    )


def test_a_mask_keeps_counts_and_may_leave_out_what_cannot_be_counted():
    labels = torch.tensor([[0, -100], [2, 1]])
    counts = Bincount().add(labels, labels != -100)
    assert counts.result().tolist() == [1, 1, 1]
    assert counts.result().dtype is torch.int64
    assert Bincount().add(labels, [False, True]).result().tolist() == [0, 1, 1]
    assert Bincount(2).add(labels, [False, False]).result().tolist() == [0, 0]


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        ([1, -1], "-1 cannot be counted"),
        ([0.0, 1.0], r"use value.long\(\), or a Histogram"),
        ([float("nan")], "counts integers"),
        ([2**24], "134,217,736 bytes"),
        ([2**63 - 1], "is not below limit=16777216"),
        (torch.tensor([2**63 + 1], dtype=torch.uint64), "cannot be counted"),
    ],
)
def test_what_cannot_be_counted_is_refused_whole(bad, match):
    counts = Bincount().add([1, 1])
    with pytest.raises(BadArgumentError, match=match):
        counts.add(bad)
    assert (counts.result().tolist(), counts.count) == ([0, 2], 2)


def test_the_limit_can_be_set_and_is_sensible():
    assert Bincount(limit=4).add([3]).result().tolist() == [0, 0, 0, 1]
    with pytest.raises(BadArgumentError, match="limit=3"):
        Bincount(limit=3).add([3])
    for options in (
        {"minlength": -1},
        {"minlength": 2**24 + 1},
        {"minlength": 1.5},
        {"limit": "many"},
        {"limit": None},
    ):
        with pytest.raises(BadArgumentError, match="minlength|limit"):
            Bincount(**options)


def test_of_no_data_all_counts_are_zero():
    assert Bincount(3).add(torch.ones(0, 4, dtype=torch.int64)).result().tolist() == [0, 0, 0]
    assert Bincount().add(torch.ones(4, 0, dtype=torch.int64)).result().tolist() == []
