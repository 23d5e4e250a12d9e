import pickle
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from byname.recording.columns import Scalars, SharedItems, distinct, end_to_end, picked

NUMBERS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=8)
WORDS = st.lists(st.sampled_from(["train", "eval", (), (2, 3), None]), max_size=8)
MAKERS = [(Scalars.of, NUMBERS), (SharedItems.of, WORDS), (list, WORDS)]


@pytest.mark.parametrize(("make", "lists"), MAKERS)
@given(data=st.data())
def test_a_column_is_like_the_list_it_stands_for(make, lists, data):
    plain = data.draw(lists)
    column = make(plain)
    which = data.draw(st.slices(len(plain)))
    assert column == plain and [*column] == plain and len(column) == len(plain) and repr(column) == repr(plain)
    assert column[which] == plain[which] and picked(column, which) == plain[which]
    assert [column[number] for number in range(-len(plain), len(plain))] == [*plain, *plain]
    assert [type(one) for one in column] == [*map(type, plain)]
    assert distinct(column) == set(plain)
    assert pickle.loads(pickle.dumps(column)) == plain
    for beyond in (len(plain), -len(plain) - 1):
        with pytest.raises(IndexError):
            column[beyond]


@pytest.mark.parametrize(("make", "lists"), MAKERS)
@given(data=st.data())
def test_several_numbers_pick_as_many_items_and_columns_are_joined(make, lists, data):
    several = data.draw(st.lists(lists, min_size=1, max_size=4))
    whole = [item for one in several for item in one]
    joined = end_to_end([make(one) for one in several])
    assert joined == whole and [*joined] == whole
    numbers = data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=6)) if whole else []
    assert picked(joined, np.array(numbers, np.int64)) == [whole[number] for number in numbers]
    mixed = end_to_end([make(several[0]), *several[1:]])
    assert mixed == whole


@given(first=NUMBERS, second=NUMBERS)
def test_it_equals_what_has_the_same_items(first, second):
    assert (Scalars.of(first) == second) is (first == second)
    assert (second == Scalars.of(first)) is (first == second)
    assert Scalars.of(first) != "12" and Scalars.of([]) != "" and Scalars.of(first) != 3


def test_one_item_for_all_records_takes_no_room_for_each():
    many = 10**12
    assert Scalars.all(3, many)[many - 1] == 3 and len(SharedItems.all("train", many)) == many
    assert (
        distinct(SharedItems.all("train", 10)) == {"train"}
        and sys.getsizeof(SharedItems.of(["train"] * 1000).array.base) < 200
    )


def test_nobody_writes_to_a_column():
    mine = np.arange(3)
    column = Scalars(mine)
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(column)[0] = 7
    mine[0] = 5  # the array is still its owner's
    assert not hasattr(column, "append")
    copy = np.array(column)
    copy[0] = 9
    assert column[0] == 5


@pytest.mark.parametrize("copy", [None, True])
def test_numpy_takes_the_array_as_it_is(copy):
    column = Scalars.of([1, 2, 3])
    assert np.asarray(column).base is not None
    assert np.array(column, np.float32, copy=copy).dtype == np.float32
    assert np.shares_memory(np.asarray(column), column.array)


@pytest.mark.parametrize(
    ("values", "packed"),
    [
        ([0.5, 2.0], True),
        ([1, 2], True),
        ([float("nan"), -0.0], True),
        ([1, 2.0], False),
        ([True, False], False),
        ([1, 2**63], False),
        ([-(2**63)], True),
        (["a"], False),
        ([], False),
    ],
)
def test_values_alike_lie_in_an_array(values, packed):
    found = Scalars.where_alike(values)
    assert (type(found) is Scalars) is packed
    assert [*map(type, found)] == [*map(type, values)] and repr([*found]) == repr(values)
