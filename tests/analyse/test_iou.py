"""Are intersections and unions of units those that numpy counts?"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies

from byname.analyse import CrossIoU, IoU
from byname.errors import BadArgumentError

NAN = float("nan")


def counted(a, b, mask=None, other_mask=None):
    """Intersection and union of all pairs, by loops."""
    a, b = np.asarray(a), np.asarray(b)
    there = np.ones_like(a) if mask is None else np.broadcast_to(mask, a.shape)
    other_there = np.ones_like(b) if other_mask is None else np.broadcast_to(other_mask, b.shape)
    pairs = np.zeros((2, a.shape[1], b.shape[1]), dtype=np.int64)
    for i in range(a.shape[1]):
        for j in range(b.shape[1]):
            both = there[:, i] & other_there[:, j]
            pairs[:, i, j] = (a[:, i] & b[:, j] & both).sum(), ((a[:, i] | b[:, j]) & both).sum()
    return pairs


def assert_counts(overlap, expected):
    intersection, union = expected
    np.testing.assert_array_equal(overlap.intersection(), intersection)
    np.testing.assert_array_equal(overlap.union(), union)
    assert overlap.intersection().dtype is overlap.union().dtype is torch.int64
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(overlap.iou(), intersection / union)


@pytest.mark.parametrize("size", [1, 7, 32, 4096])
def test_pairs_are_counted_exactly(size):
    data = torch.rand(300, 5) < torch.tensor([0.0, 0.1, 0.5, 0.9, 1.0])
    other = torch.rand(300, 2) < 0.5
    iou, cross = IoU(), CrossIoU()
    for batch, others in zip(data.split(size), other.split(size)):
        iou.add(batch)
        cross.add(batch, others)
    assert_counts(iou, counted(data, data))
    assert_counts(cross, counted(data, other))
    assert iou.count == cross.count == 300


def test_counts_of_many_samples_are_exact():
    """Beyond 2**24, where float32 stops to count; and bfloat16 at 256."""
    full = torch.ones(1, dtype=torch.bool).expand(2**24 + 3, 1)
    with torch.autocast("cpu", torch.bfloat16):
        iou = IoU().add(full)
    assert iou.intersection().item() == 2**24 + 3
    iou.load_state_dict(
        {**iou.state_dict(), "_intersection": torch.tensor([[2**60]]), "_union": torch.tensor([[2**60]])}
    )
    assert iou.add([[True]]).union().item() == 2**60 + 1


BITS = strategies.lists(strategies.tuples(*[strategies.booleans()] * 3), max_size=8)


@given(BITS, BITS)
@settings(max_examples=60)
def test_two_merged_are_the_whole(first, second):
    a, b = (torch.tensor(rows, dtype=torch.bool).reshape(-1, 3) for rows in (first, second))
    both = torch.cat([a, b])
    assert_counts(IoU().add(a).merge(IoU().add(b)), counted(both, both))
    merged = CrossIoU().add(a, ~a[:, :2]).merge(CrossIoU().add(b, ~b[:, :2]))
    assert_counts(merged, counted(both, ~both[:, :2]))


def test_units_that_never_fired_have_no_iou():
    iou = IoU().add([[False, True], [False, False]])
    np.testing.assert_array_equal(iou.result(), [[NAN, 0.0], [0.0, 1.0]])
    np.testing.assert_array_equal(IoU().add(torch.ones(0, 2, dtype=torch.bool)).iou(), np.full((2, 2), NAN))


def test_a_threshold_makes_units_of_numbers():
    data = torch.randn(50, 3)
    assert_counts(IoU(threshold=0.5).add(data), counted(data > 0.5, data > 0.5))
    each = torch.tensor([0.0, 0.5, -0.5])
    assert_counts(IoU(threshold=each).add(data), counted(data > each, data > each))
    concepts = torch.rand(50, 2) < 0.3
    assert_counts(CrossIoU(threshold=each).add(data, concepts), counted(data > each, concepts))
    assert_counts(CrossIoU(other_threshold=0).add(concepts, data), counted(concepts, data > 0))
    assert_counts(IoU(threshold=0.5).add(data > 0), counted(data > 0, data > 0))  # bools are units already


def test_a_value_is_compared_with_the_threshold_as_it_is_given():
    """0.1 is 0.10009765625 in bfloat16, which is more than 0.1."""
    value = torch.tensor([[0.1]], dtype=torch.bfloat16)
    assert IoU(threshold=0.1).add(value).intersection().item() == 1
    assert IoU(threshold=2**31 - 0.5).add([[2**31]]).intersection().item() == 1


@pytest.mark.parametrize("data", [[[1.0]], [[1]], torch.ones(2, 1, dtype=torch.uint8)], ids=str)
def test_numbers_without_a_threshold_are_refused(data):
    with pytest.raises(BadArgumentError, match="give a threshold, or add value > 0"):
        IoU().add(data)
    with pytest.raises(BadArgumentError, match="give a threshold"):
        CrossIoU(threshold=0.5).add(data, data)


def test_masks_of_samples_and_of_values_leave_out_pairs():
    data, rows, values = torch.rand(60, 3) < 0.5, torch.rand(60) < 0.7, torch.rand(60, 3) < 0.7
    assert_counts(IoU().add(data, rows), counted(data, data, rows[:, None], rows[:, None]))
    assert_counts(IoU().add(data, values), counted(data, data, values, values))
    assert_counts(CrossIoU().add(data, data[:, :2], rows), counted(data[rows], data[rows, :2]))
    with pytest.raises(BadArgumentError, match="only a mask of bools as weights"):
        IoU().add(data, rows.double())
    with pytest.raises(BadArgumentError, match="one weight per sample"):
        CrossIoU().add(data, data, values)


def test_nan_are_left_out_by_pairs_or_refused():
    data = torch.randn(40, 3)
    spoilt = torch.where(torch.rand(40, 3) < 0.2, NAN, data)
    fired, there = data > 0, ~spoilt.isnan()
    iou = IoU(threshold=0).add(spoilt)
    assert_counts(iou, counted(fired, fired, there, there))
    assert iou.nans == int((~there).sum())
    cross = CrossIoU(threshold=0, other_threshold=0).add(spoilt, spoilt)
    assert_counts(cross, counted(fired, fired, there, there))
    assert cross.nans == 2 * iou.nans
    for strict in (IoU(threshold=0, nan="raise"), CrossIoU(other_threshold=0, nan="raise")):
        with pytest.raises(BadArgumentError, match="are NaN"):
            strict.add(*([spoilt] if isinstance(strict, IoU) else [fired, spoilt]))
        assert (strict.count, strict.nans) == (0, 0)
    for kind in (IoU, CrossIoU):
        with pytest.raises(BadArgumentError, match="cannot be NaN"):
            kind(nan="propagate")


def test_units_of_images_are_told_how_to_come():
    value = torch.rand(2, 3, 4, 4) > 0.5
    with pytest.raises(BadArgumentError, match=r"use value.movedim\(1, -1\).flatten\(0, -2\)"):
        IoU().add(value)
    rows = value.movedim(1, -1).flatten(0, -2)
    assert_counts(IoU().add(rows), counted(rows, rows))
    assert IoU().add([True, False]).intersection().tolist() == [[1]]


def test_what_does_not_fit_is_refused():
    iou, cross = IoU().add([[True, False]]), CrossIoU().add([[True]], [[True, False]])
    for attempt in (
        lambda: iou.add([[True]]),
        lambda: cross.add([[True]], [[True]]),
        lambda: cross.add([[True]], [[True, False]] * 2),
        lambda: IoU(threshold=torch.ones(3)).add(torch.ones(1, 2)),
        lambda: IoU(threshold=NAN),
        lambda: IoU(threshold=torch.ones(2, 2)),
        lambda: IoU(threshold="high"),
    ):
        with pytest.raises(BadArgumentError):
            attempt()
    assert (iou.count, cross.count) == (1, 1)


@pytest.mark.parametrize("shape", [(0,), (0, 3)])
def test_a_batch_without_samples_changes_nothing_whatever_its_shape(shape):
    units = shape[-1] if len(shape) > 1 else 1
    nothing, mask = torch.zeros(shape, dtype=torch.bool), torch.zeros(0, dtype=torch.bool)
    iou = IoU().add(nothing).add(torch.ones(2, units, dtype=torch.bool)).add(nothing, mask)
    assert (iou.count, iou.intersection().tolist()) == (2, [[2] * units] * units)
