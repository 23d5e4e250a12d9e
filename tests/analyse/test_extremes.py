"""Are the smallest and the largest values exact, and is the right sample named?"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies

from byname.analyse import Extremes
from byname.errors import BadArgumentError

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32]
NAN, INF = float("nan"), float("inf")


def told(extremes):
    return [x.tolist() for x in (extremes.min(), extremes.argmin(), extremes.max(), extremes.argmax())]


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool], ids=str)
@pytest.mark.parametrize("size", [1, 7, 32, 4096])
def test_values_and_samples_are_those_of_numpy(dtype, size):
    data = (torch.rand(200, 2, 3) * 100).to(dtype)
    extremes = Extremes()
    for batch in data.split(size):
        extremes.add(batch)
    expected = data.to(torch.float64).numpy()
    assert extremes.min().double().numpy().tolist() == expected.min(0).tolist()
    assert extremes.max().double().numpy().tolist() == expected.max(0).tolist()
    assert extremes.argmin().numpy().tolist() == expected.argmin(0).tolist()
    assert extremes.argmax().numpy().tolist() == expected.argmax(0).tolist()
    if dtype not in (torch.uint16, torch.uint32):  # which PyTorch cannot compare
        assert extremes.min().dtype is (torch.float64 if dtype.is_floating_point else dtype)


def test_integers_are_exact_beyond_what_floats_tell_apart():
    big = 2**62
    extremes = Extremes().add(torch.tensor([big, big + 1])).merge(Extremes().add(torch.tensor([big + 3, big + 2])))
    assert told(extremes) == [big, 0, big + 3, 2]
    assert told(Extremes().add([-(2**63), 2**63 - 1])) == [-(2**63), 0, 2**63 - 1, 1]


def test_python_numbers_are_taken_with_all_their_digits():
    assert Extremes().add([0.1, 1e300]).result() == (0.1, 1e300)


def test_nan_is_left_out_value_by_value_and_counted():
    extremes = Extremes().add([[NAN, 1.0, NAN], [3.0, NAN, NAN]]).add([[2.0, 5.0, NAN]])
    assert told(extremes)[1:2] == [[2, 0, -1]]
    assert told(extremes)[3:] == [[1, 2, -1]]
    np.testing.assert_array_equal(extremes.min(), [2.0, 1.0, NAN])
    np.testing.assert_array_equal(extremes.max(), [3.0, 5.0, NAN])
    assert extremes.nans == 5
    assert extremes.add([[4.0, 4.0, 4.0]]).min().tolist() == [2.0, 1.0, 4.0]
    assert extremes.argmax().tolist() == [3, 2, 3]


def test_nan_spoils_its_feature_where_asked():
    extremes = Extremes(nan="propagate").add([[1.0, 1.0], [2.0, NAN], [0.0, NAN]]).add([[-5.0, -5.0]])
    np.testing.assert_array_equal(extremes.min(), [-5.0, NAN])
    np.testing.assert_array_equal(extremes.max(), [2.0, NAN])
    assert extremes.argmin().tolist() == [3, 1]  # the first NaN
    assert extremes.nans == 2
    masked = Extremes(nan="propagate").add([[NAN], [1.0], [NAN]], [False, True, True])
    assert (masked.argmin().item(), masked.nans) == (2, 1)


def test_nan_is_refused_where_asked_unless_it_is_masked():
    extremes = Extremes(nan="raise").add([1.0, NAN], [True, False])
    with pytest.raises(BadArgumentError, match="1 values of the batch are NaN"):
        extremes.add([0.0, NAN])
    assert (extremes.count, extremes.nans, extremes.min().item()) == (2, 0, 1.0)


def test_infinities_take_part_also_beside_nan_and_masks():
    assert told(Extremes().add([NAN, INF, INF])) == [INF, 1, INF, 1]
    assert told(Extremes().add([NAN, -INF])) == [-INF, 1, -INF, 1]
    assert told(Extremes().add([INF, 3.0, -INF])) == [-INF, 2, INF, 0]
    lowest = torch.iinfo(torch.int8).min
    assert told(Extremes().add(torch.tensor([5, lowest], dtype=torch.int8), [False, True])) == [lowest, 1, lowest, 1]


@pytest.mark.parametrize("kind", [torch.bool, torch.float64])
def test_masks_and_weights_of_zero_leave_out_values(kind):
    data = torch.arange(12.0).reshape(4, 3)
    mask = torch.tensor([[0, 1, 0], [1, 1, 0], [1, 0, 0], [0, 1, 0]]).to(kind) * (3 if kind is torch.float64 else True)
    extremes = Extremes().add(data, mask.to(kind))
    np.testing.assert_array_equal(extremes.min(), [3.0, 1.0, NAN])
    np.testing.assert_array_equal(extremes.max(), [6.0, 10.0, NAN])
    assert extremes.argmax().tolist() == [2, 3, -1]
    assert told(Extremes().add(data, mask[:, 0]))[1] == [1, 1, 1]


def test_integers_without_a_value_say_so():
    extremes = Extremes().add([[1, 2]], [[True, False]])
    with pytest.raises(BadArgumentError, match="1 of 2 features have no values"):
        extremes.result()
    assert extremes.add([[0, 5]]).max().tolist() == [1, 5]
    nothing = Extremes().add(torch.ones(0, 2))
    np.testing.assert_array_equal(nothing.min(), [NAN, NAN])
    assert nothing.argmin().tolist() == [-1, -1]


def test_the_first_of_equal_values_is_told():
    extremes = Extremes().add([1.0, 0.0, 0.0, 1.0]).add([0.0, 1.0]).merge(Extremes().add([0.0, 1.0]))
    assert told(extremes) == [0.0, 1, 1.0, 0]


def test_types_that_go_together_widen_and_others_are_refused():
    extremes = Extremes().add(torch.tensor([0.1], dtype=torch.bfloat16)).add(torch.tensor([7.0], dtype=torch.float16))
    assert extremes.max().dtype is torch.float64
    assert Extremes().add([True]).add(torch.tensor([3], dtype=torch.int8)).max().dtype is torch.int8
    for first, second in (([1], [1.5]), ([1.5], [1])):
        kept = Extremes().add(first)
        with pytest.raises(BadArgumentError, match="convert one"):
            kept.add(second)
        with pytest.raises(BadArgumentError, match="convert one"):
            kept.merge(Extremes().add(second))
        assert kept.max().item() == first[0]
    with pytest.raises(BadArgumentError, match="uint64"):
        Extremes().add(torch.tensor([1], dtype=torch.uint64))


def test_features_may_be_none_one_or_many_dimensions():
    assert Extremes().add(torch.ones(3)).min().shape == ()
    assert Extremes().add(torch.ones(3, 0)).min().shape == (0,)
    assert Extremes().add(torch.ones(3, 2, 0, 4), torch.ones(3)).argmin().shape == (2, 0, 4)


VALUES = strategies.lists(strategies.sampled_from([NAN, -INF, -1.0, 0.0, 1.0, 2.5, INF]), max_size=12)


@given(VALUES, VALUES, strategies.sampled_from(["omit", "propagate"]))
@settings(max_examples=100)
def test_two_merged_are_the_whole(first, second, nan):
    merged = Extremes(nan=nan).add(first).merge(Extremes(nan=nan).add(second))
    whole = Extremes(nan=nan).add(first + second)
    assert str(told(merged)) == str(told(whole))
    assert (merged.count, merged.nans) == (whole.count, whole.nans) == (len(first + second), whole.nans)
    kept = [x for x in first + second if x == x]
    if kept and (nan == "omit" or len(kept) == len(first + second)):
        assert told(whole)[::2] == [min(kept), max(kept)]
        assert (first + second)[whole.argmax()] == max(kept)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint16, torch.uint32, torch.float8_e4m3fn])
def test_types_that_torch_compares_badly_are_taken_batch_after_batch(dtype):
    first, second = torch.tensor([[0, 1, 1], [0, 1, 1]]), torch.tensor([[0, 0, 1], [1, 1, 0]])
    seen = Extremes().add(first.to(dtype)).add(second.to(dtype))
    whole = torch.cat([first, second]).numpy()
    assert seen.min().tolist() == whole.min(0).tolist()
    assert seen.max().tolist() == whole.max(0).tolist()
    assert (seen.argmin().tolist(), seen.argmax().tolist()) == (whole.argmin(0).tolist(), whole.argmax(0).tolist())
