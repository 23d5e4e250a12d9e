"""Change: whether a value is another than the one stored last, and what that holds on to."""

import gc
import math
import threading
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_runs import kept
from torch import nn

from byname.recording.values.change import ChangeDetector, same_bits


def copy(value):
    """A plain copy, as recordings keep it."""
    if isinstance(value, torch.Tensor):
        return kept(value) if value.is_sparse else value.detach().resolve_conj().clone().contiguous()
    if isinstance(value, dict):
        return {key: copy(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(map(copy, value))
    return value


def stored(value, **options):
    last = ChangeDetector(**options)
    last.stored(value, copy(value))
    return last


def test_the_first_value_has_changed():
    assert ChangeDetector().changed(torch.ones(1)) and ChangeDetector().changed(None)


@pytest.mark.parametrize("make", [lambda: torch.ones(3), lambda: nn.Parameter(torch.ones(3)), lambda: torch.ones(3, 3).t(), lambda: torch.tensor(2.0), lambda: torch.zeros(0), lambda: torch.ones(2).to_sparse(), lambda: torch.ones(2, dtype=torch.complex64).conj()])  # fmt: skip
def test_an_untouched_tensor_has_not_changed(make):
    value = make()
    last = stored(value)
    assert not last.changed(value) and not last.changed(value)


def test_writing_in_place_is_a_change_also_when_the_numbers_end_up_the_same():
    value = torch.ones(3)
    last = stored(value)
    value.add_(1).sub_(1)
    assert last.changed(value)
    last.stored(value, copy(value))
    assert not last.changed(value)


def test_a_part_written_through_another_view_is_a_change():
    base = torch.ones(4)
    last = stored(base[:2])
    base[3] = 7  # the memory's own counter tells of it, wherever in it the write was
    assert last.changed(base[:2])


def test_writes_that_nothing_counts_are_found_by_content():
    weight = nn.Parameter(torch.ones(3))
    last = stored(weight)
    weight.data.add_(1)
    assert last.changed(weight)
    last.stored(weight, copy(weight))
    weight.data = torch.ones(3)
    assert last.changed(weight)


def test_the_running_mean_of_batch_norm_changes():
    norm = nn.BatchNorm1d(2)
    last = stored(norm.running_mean)
    norm(torch.randn(4, 2) + 5)
    assert last.changed(norm.running_mean)
    last.stored(norm.running_mean, copy(norm.running_mean))
    norm.eval()(torch.randn(4, 2))
    assert not last.changed(norm.running_mean)


def test_another_view_of_the_same_memory_is_another_value():
    base = torch.ones(4, 4)
    last = stored(base[0])
    assert last.changed(base[1]) and last.changed(base[:, 0]) and last.changed(base) and last.changed(base[0, :2])
    assert not last.changed(base[0])


def test_new_memory_is_a_change_also_at_the_old_address():
    value = torch.ones(1000)
    address, last = value.data_ptr(), stored(value)
    del value
    again = [torch.ones(1000) for _ in range(50)]
    assert all(last.changed(one) for one in again)
    assert last.changed(again[0])


def test_by_content_new_memory_with_the_old_numbers_is_no_change():
    last = stored(torch.ones(3), by_content=True)
    assert not last.changed(torch.ones(3)) and last.changed(torch.zeros(3)) and last.changed(torch.ones(3).double())


def test_inference_tensors_are_compared_by_content():
    with torch.inference_mode():
        value = torch.ones(3)
        last = stored(value)
        assert not last.changed(value)
        value.add_(1)
        assert last.changed(value)


def test_resizing_or_another_dtype_is_a_change():
    value = torch.ones(4)
    last = stored(value)
    assert last.changed(value.view(torch.int32))
    value.resize_(2)
    assert last.changed(value)


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        (1, 1, False),
        (1, True, True),
        (1, 1.0, True),
        (0.0, -0.0, True),
        (math.nan, math.nan, False),
        (complex(0, math.nan), complex(0, math.nan), False),
        ("a", "a", False),
        ("a", b"a", True),
        (None, None, False),
        (None, 0, True),
        ([1, 2], [1, 2], False),
        ([1, 2], (1, 2), True),
        ([1, 2], [1, 2, 3], True),
        ({"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}, False),
        ({"a": 1}, {"a": 2}, True),
        ({"a": 1}, {"b": 1}, True),
        ({1: "x"}, {True: "x"}, True),
        (torch.Size([1]), torch.Size([1]), False),
        (torch.float16, torch.float32, True),
        ({"x": torch.ones(2)}, {"x": torch.ones(2)}, False),
        ({"x": torch.ones(2)}, {"x": torch.zeros(2)}, True),
        ([torch.ones(2)], [1.0], True),
        (torch.ones(2), 1.0, True),
        (1.0, torch.ones(2), True),
        (torch.ones(2), [torch.ones(2)], True),
    ],
)
def test_plain_values_and_containers_are_compared_by_content(before, after, changed):
    assert stored(before).changed(after) is changed


def test_a_list_that_came_to_contain_itself_has_changed():
    value = [1, [2]]
    last = stored(value)
    value[1] = value
    assert last.changed(value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.complex128, torch.bool, torch.int64, torch.uint16])  # fmt: skip
def test_content_is_compared_bit_by_bit(dtype):
    ones = torch.ones(5, 3).to(dtype)
    other = ones.clone()
    other.view(torch.uint8)[4, -1] ^= 1
    for part in (slice(None), slice(1, None), slice(4), slice(3, 3), (slice(None), slice(1, None)), (4, 2)):
        turned = ones[part].t() if ones[part].dim() == 2 else ones[part]
        assert same_bits(ones[part], copy(ones[part])) and same_bits(turned, copy(turned))
    assert (
        not same_bits(other, copy(ones))
        and not same_bits(other.t(), copy(ones.t()))
        and not same_bits(other[1:], copy(ones[1:]))
    )
    assert same_bits(other[:4], copy(ones[:4]))


def test_nan_is_the_same_and_a_minus_before_zero_is_not():
    assert same_bits(torch.tensor([math.nan]), torch.tensor([math.nan]))
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))


def test_a_reduced_value_is_compared_in_its_reduced_form():
    value, asked = torch.ones(4), []

    def convert(tensor):
        asked.append(1)
        return tensor.sum()

    last = ChangeDetector(convert)
    last.stored(value, copy(value.sum()))
    assert not last.changed(value) and asked == [1]
    value.data[0] = 9
    assert last.changed(value) and asked == [1, 1]
    value.add_(1)
    assert last.changed(value) and asked == [1, 1]  # the counter tells it


def test_what_lies_on_another_device_is_doubtful_where_only_its_content_would_tell():
    value = torch.zeros(2, device="meta")
    last = ChangeDetector()
    last.stored(value, torch.zeros(2))
    assert last.changed(value) and last.doubtful
    assert last.changed(torch.zeros(2, device="meta")) and not last.doubtful
    inside = ChangeDetector()
    inside.stored([value], [torch.zeros(2)])
    assert inside.changed([value]) and inside.doubtful


def test_neither_the_tensor_nor_its_memory_is_kept_alive(no_collection):
    value = torch.ones(3)
    last = stored(value)
    tensor, memory = weakref.ref(value), weakref.ref(value.untyped_storage())
    del value
    assert tensor() is None and memory() is None and last.changed(torch.ones(3))


def test_the_copy_is_let_go_with_the_memory_that_it_is_of(no_collection):
    value = torch.ones(3)
    made = copy(value)
    gone = weakref.ref(made)
    last = ChangeDetector()
    last.stored(value, made)
    del made
    assert gone() is not None
    del value
    assert gone() is None and last.changed(torch.ones(3))


def test_the_death_of_an_earlier_value_does_not_touch_the_later_copy(no_collection):
    first, second = torch.ones(3), torch.zeros(3)
    last = stored(first)
    last.stored(second, copy(second))
    del first
    assert not last.changed(second)


def test_nothing_of_it_is_left_when_it_goes(no_collection):
    value = torch.ones(3)
    last = stored(value)
    gone = weakref.ref(last)
    del last
    assert gone() is None and value.sum() == 3


def test_a_tensor_that_dies_in_another_thread_takes_its_copy_along():
    last, held = ChangeDetector(), [torch.ones(3)]
    last.stored(held[0], copy(held[0]))
    thread = threading.Thread(target=held.clear)
    thread.start(), thread.join()
    gc.collect()
    assert last.changed(torch.ones(3))


def test_function_modes_of_the_program_see_nothing():
    from torch.overrides import TorchFunctionMode

    seen = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    value, last = torch.ones(2), ChangeDetector()
    made = copy(value)
    with Functions():
        last.stored(value, made)
        last.changed(value)
    assert seen == []


numbers = st.one_of(st.booleans(), st.integers(), st.floats(), st.complex_numbers(), st.text(), st.binary(), st.none())
tensors = st.builds(lambda values, dtype: torch.tensor(values).to(dtype), st.lists(st.floats(width=32), max_size=4), st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.complex64]))  # fmt: skip
values = st.recursive(
    st.one_of(numbers, tensors),
    lambda inside: st.one_of(
        st.lists(inside, max_size=3),
        st.tuples(inside, inside),
        st.dictionaries(st.one_of(st.text(), st.integers(), st.floats(), st.booleans()), inside, max_size=3),
    ),
    max_leaves=8,
)


@settings(max_examples=150)
@given(values)
def test_every_value_is_the_same_as_its_copy(value):
    made = copy(value)
    assert same_bits(value, made) and same_bits(made, copy(made)) and not same_bits([value], made)
    assert not stored(value).changed(value)


@settings(max_examples=150)
@given(values, values)
def test_values_that_print_differently_are_not_the_same(one, other):
    if repr(one) != repr(other):
        assert not same_bits(one, copy(other))
