"""Is everything that was added there again, in order?"""

import pytest
import torch
from hypothesis import given, settings, strategies

from byname.analyse import History
from byname.errors import BadArgumentError

DTYPES = [
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.bool,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_everything_comes_back_in_order_and_in_its_type(dtype):
    data = (torch.rand(500, 2, 3) * 100).to(dtype)
    history = History()
    for batch in data.split([1] * 100 + [0, 150, 3, 7, 240]):
        history.add(batch)
    assert history.result().dtype is dtype
    assert torch.equal(history.result(), data)
    assert history.count == 500
    assert history.nbytes == data.nbytes


def test_it_holds_few_tensors_and_copies_each_value_few_times():
    history = History()
    copied = 0
    for number in range(4096):
        before = {part.data_ptr() for part in history._parts}
        history.add(torch.tensor([number]))
        copied += sum(len(part) for part in history._parts if part.data_ptr() not in before)
    assert len(history._parts) <= 13
    assert copied <= 4096 * 14
    assert torch.equal(history.result(), torch.arange(4096))


@given(
    strategies.lists(strategies.integers(0, 9), max_size=12), strategies.lists(strategies.integers(0, 9), max_size=12)
)
@settings(max_examples=50)
def test_two_merged_are_the_whole(first, second):
    sizes = [*first, *second]
    batches = torch.arange(2 * sum(sizes)).reshape(-1, 2).split(sizes) if sizes else []
    one, other = History(), History()
    for number, batch in enumerate(batches):
        (one if number < len(first) else other).add(batch)
    merged = one.merge(other)
    assert merged.count == sum(sizes)
    if sum(sizes):
        assert torch.equal(merged.result(), torch.cat(list(batches)))


def test_nan_are_kept_or_refused_but_not_left_out():
    history = History().add([1.0, float("nan")])
    assert str(history.result().tolist()) == "[1.0, nan]"
    assert history.nans == 1
    strict = History(nan="raise").add([1.0])
    with pytest.raises(BadArgumentError, match="are NaN"):
        strict.add([2.0, float("nan")])
    assert (strict.result().tolist(), strict.count, strict.nans) == ([1.0], 1, 0)
    with pytest.raises(BadArgumentError, match="keeps everything"):
        History(nan="omit")


def test_a_mask_chooses_samples_and_weights_are_refused():
    data = torch.arange(8.0).reshape(4, 2)
    mask = torch.tensor([True, False, True, False])
    assert History().add(data, mask).add(data, mask).result().tolist() == [*data[::2].tolist()] * 2
    for weights in (torch.ones(4), torch.ones(4, 2, dtype=torch.bool)):
        with pytest.raises(BadArgumentError, match="mask of samples"):
            History().add(data, weights)


def test_nothing_above_the_limit_is_taken():
    history = History(limit=80).add(torch.zeros(6, dtype=torch.float64))
    for attempt in (lambda: history.add(torch.ones(5).double()), lambda: history.merge(history)):
        with pytest.raises(BadArgumentError, match=r"would hold \d+ bytes, more than limit=80: give it a larger limit"):
            attempt()
        assert torch.equal(history.result(), torch.zeros(6, dtype=torch.float64))
        assert history.count == 6
    assert history.add(torch.ones(4).double()).nbytes == 80
    assert History(limit=None).add(torch.zeros(10**6)).nbytes == 4 * 10**6
    with pytest.raises(BadArgumentError, match="more than limit=1,073,741,824"):
        History().add(torch.zeros(1).expand(2**29))  # refused before it is copied
    for limit in (-1, 1.5, True, "1 GB"):
        with pytest.raises(BadArgumentError, match="limit"):
            History(limit=limit)


def test_types_that_go_together_widen_and_others_are_refused():
    half, single = torch.tensor([0.1], dtype=torch.float16), torch.tensor([0.1])
    assert torch.equal(History().add(half).add(single).result(), torch.cat([half, single]))
    history = History().add([1, 2])
    with pytest.raises(BadArgumentError, match="convert one"):
        history.add([1.5])
    assert history.result().tolist() == [1, 2]


def test_an_expanded_batch_is_kept_as_what_it_says():
    history = History().add(torch.tensor([1.0, 2.0]).expand(3, 2))
    assert history.nbytes == 24
    assert history.result().tolist() == [[1.0, 2.0]] * 3
