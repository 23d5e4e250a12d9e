"""A series: one value a record, in force until the next; joined in order; never read from a file before it is asked."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from byname import Series, stack, stack_padded
from byname.errors import BadArgumentError, BynameError, NoMatchError
from byname.recording.series import joined


def series_of(values, iterations=None, ranks=None, calls=None, modes=None, path="fc1", shards=()):
    size = len(values)
    return Series(
        path,
        values,
        list(range(size)) if iterations is None else iterations,
        [0] * size if ranks is None else ranks,
        [0] * size if calls is None else calls,
        ["train"] * size if modes is None else modes,
        [tuple(one.shape) if isinstance(one, torch.Tensor) else () for one in values],
        shards,
    )


class Read(list):
    """Values as those of a file: reading is counted."""

    def __init__(self, values):
        super().__init__(values)
        self.count = 0

    def __getitem__(self, which):
        self.count += 1
        return super().__getitem__(which)


class FromFile:
    """A sequence that is no list, over values that count how often they are read."""

    def __init__(self, values):
        self.inner = Read(values)

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, which):
        return self.inner[which]


def test_an_index_gives_the_value_and_a_slice_a_series():
    series = series_of([10, 20, 30, 40], calls=[0, 1, 2, 3])
    assert series[1] == 20 and series[-1] == 40
    assert list(series[1:3]) == [20, 30]
    assert series[1:3].calls == [1, 2] and series[1:3].iterations == [1, 2] and series[1:3].shapes == [(), ()]
    assert list(series) == [10, 20, 30, 40] and len(series) == 4
    with pytest.raises(IndexError, match="no record 4 of fc1: it has 4 records"):
        series[4]


def test_a_slice_of_a_stacked_series_is_stacked():
    series = stack("fc1", series_of([torch.full((2,), float(one)) for one in range(4)]))
    assert series[1:3].values.tolist() == [[1, 1], [2, 2]]
    assert series[3].tolist() == [3, 3]
    assert series[::-2].values.tolist() == [[3, 3], [1, 1]] and series[::-2].iterations == [3, 1]


def test_at_gives_the_last_value_stored_until_then():
    series = series_of([1.0, 2.0, 3.0, 4.0], iterations=[2, 5, 5, 9], calls=[0, 0, 1, 0])
    assert [series.at(number) for number in (2, 3, 4, 5, 8, 9, 1000)] == [1, 1, 1, 2, 3, 4, 4]
    assert [series.at(5, call=call) for call in (0, 1, 2)] == [2, 3, 3]
    with pytest.raises(
        NoMatchError, match=r"no value at iteration 1 or before it for rank 0, call 0; its iterations are 2, 5, 9"
    ):
        series.at(1)
    with pytest.raises(LookupError, match="there are ranks 0, calls 0, 1 and mode train"):
        series.at(1, rank=3)
    with pytest.raises(NoMatchError, match="fc1 has no records"):
        series[:0].at(1)
    for number in ("3", 2.5, None):
        with pytest.raises(BadArgumentError, match="the number of an iteration, not"):
            series.at(number)


def test_at_tells_ranks_apart_and_takes_what_stands_for_all_of_them():
    series = series_of(["a", "b", "all"], iterations=[0, 0, 4], ranks=[0, 1, -1])
    assert [series.at(1, rank=rank) for rank in (0, 1)] == ["a", "b"]
    assert [series.at(5, rank=rank) for rank in (0, 1)] == ["all", "all"]


def test_at_asks_for_the_mode_where_there_are_two():
    series = series_of(["t", "e"], iterations=[3, 0], modes=["train", "eval"])
    with pytest.raises(BadArgumentError, match='mode="train" or mode="eval"'):
        series.at(3)
    assert (series.at(3, mode="train"), series.at(5, mode="eval")) == ("t", "e")
    with pytest.raises(BadArgumentError, match="then changed in the other mode"):
        series.at(5, mode="train")  # "t", or already "e"?


def test_with_values_keeps_the_columns_and_refuses_another_length():
    series = series_of([torch.ones(2), torch.ones(3)], iterations=[4, 8])
    doubled = series.with_values([value.sum() for value in series])
    assert doubled.iterations == [4, 8] and doubled.shapes == [(), ()] and [one.item() for one in doubled] == [2, 3]
    assert series.with_values(torch.ones(2, 5)).shapes == [(5,), (5,)]
    assert series.with_values(np.zeros((2, 1))).shapes == [(1,), (1,)]
    with pytest.raises(BadArgumentError, match="has 2 records and was given 3 values"):
        series.with_values([1, 2, 3])
    with pytest.raises(BadArgumentError, match="not int"):
        series.with_values(3)
    with pytest.raises(BadArgumentError, match="one value a record"):
        series.with_values(torch.tensor(1.0))


def test_with_values_of_a_padded_series_keeps_the_sizes_from_before():
    padded = stack_padded("fc1", series_of([torch.ones(2), torch.ones(3)]))
    assert padded.with_values(padded.values * 2).shapes == [(2,), (3,)]


def test_with_values_of_another_shape_is_no_shard_any_more():
    shard = "the first of two"
    series = series_of([torch.ones(2)], shards=[shard])
    assert series.with_values([torch.zeros(2)]).shards == [shard]
    assert series.with_values([torch.zeros(1)]).shards == ()


def test_rows_tell_the_range_of_tensors_and_plain_values_themselves():
    series = series_of([torch.tensor([1, 2, 6]), torch.tensor(2.5), "text", None, {"a": 1}, torch.ones(0), 7])
    rows = series.rows()
    assert rows[0] == {
        "iteration": 0,
        "mode": "train",
        "rank": 0,
        "call": 0,
        "shape": (3,),
        "type": "int64",
        "value": None,
        "mean": 3.0,
        "min": 1,
        "max": 6,
    }
    assert [row["value"] for row in rows[1:]] == [2.5, "text", None, {"a": 1}, None, 7]
    assert [row["type"] for row in rows[1:]] == ["float32", "str", "NoneType", "dict", "float32", "int"]
    assert all(row["mean"] is None for row in rows[1:])


@pytest.mark.parametrize(
    "dtype",
    [torch.float8_e4m3fn, torch.bfloat16, torch.float16, torch.uint16, torch.uint64, torch.complex64, torch.bool],
)
def test_rows_of_every_type_of_tensor(dtype):
    row = series_of([torch.ones(3).to(dtype)]).rows()[0]
    assert row["type"] == str(dtype)[6:] and row["mean"] == 1


def test_the_range_of_a_padded_value_is_that_of_the_value():
    padded = stack_padded("fc1", series_of([torch.full((2,), 5.0), torch.full((3,), 7.0)]))
    assert [row["min"] for row in padded.rows()] == [5, 7]


def test_the_table_of_a_long_series_reads_its_ends_only():
    values = FromFile([torch.full((2,), float(one)) for one in range(500)])
    series = Series("fc1", values, list(range(500)), [0] * 500, [0] * 500, ["train"] * 500, [(2,)] * 500)
    shown = str(series)
    assert "fc1: 500 records, iterations 0 to 499, train" in shown
    assert "480 records between the first 10 and the last 10 not shown" in shown
    assert values.inner.count == 20
    assert len(series.head(3).splitlines()) == 7
    assert series._repr_html_().count("<tr>") == 21
    assert len(series.rows()) == 500


def test_the_table_shortens_long_values_and_steers_no_terminal():
    shown = str(series_of(["x" * 1000, "\x1b[2J", {"k": torch.ones(3), "l": list(range(999))}]))
    assert max(map(len, shown.splitlines())) < 200
    assert "\x1b" not in shown and "float32 3" in shown
    assert str(series_of([])) == "fc1: no records"


@pytest.mark.parametrize(
    ("dtype", "becomes"),
    [
        (torch.bool, bool),
        (torch.int64, np.int64),
        (torch.uint8, np.uint8),
        (torch.uint32, np.uint32),
        (torch.float16, np.float16),
        (torch.bfloat16, np.float32),
        (torch.float8_e4m3fn, np.float32),
        (torch.float8_e5m2, np.float32),
        (torch.float64, np.float64),
        (torch.complex64, np.complex64),
    ],
)
@pytest.mark.parametrize("stacked", [False, True])
def test_to_numpy_keeps_every_number(dtype, becomes, stacked):
    values = [torch.tensor([0, 1]).to(dtype), torch.tensor([1, 0]).to(dtype)]
    series = series_of(torch.stack(values) if stacked else values)
    array = series.to_numpy()
    assert array.dtype == becomes and array.tolist() == [[0, 1], [1, 0]]


def test_to_numpy_of_large_integers_rounds_nothing():
    large = 2**62 + 1
    assert series_of([torch.tensor(large), torch.tensor(1)]).to_numpy().tolist() == [large, 1]
    assert series_of([large, 1]).to_numpy().dtype == np.int64
    assert series_of([2**70, 1]).to_numpy().tolist() == [2**70, 1]
    assert series_of([2**53 + 1, 0.5]).to_numpy().tolist() == [2**53 + 1, 0.5]
    mixed = series_of([torch.tensor(2**53 + 1), torch.tensor(0.5)]).to_numpy()
    assert mixed.dtype == object and mixed[0] == 2**53 + 1


def test_to_numpy_of_bfloat16_is_exact():
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)
    array = series_of([every]).to_numpy()[0]
    assert np.array_equal(array, every.float().numpy(), equal_nan=True)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1, 2], np.int64),
        ([True, False], bool),
        ([1, 0.5], np.float64),
        ([1j, 0.5], np.complex128),
        (["a", "bc"], object),
        ([None, 1.0], object),
        ([True, 1], object),
        ([{"a": 1}, {"a": 2}], object),
        ([[1, 2], [3, 4]], object),
        ([(1, 2), (3,)], object),
        ([torch.ones(1), None], object),
        ([], np.float64),
    ],
)
def test_to_numpy_of_plain_values(values, dtype):
    array = series_of(values).to_numpy()
    assert array.dtype == dtype and array.shape == (len(values),)
    assert all(
        type(got) is type(value) and got == value
        for got, value in zip(array.tolist(), values)
        if type(value) in (int, bool, list, tuple, dict, str) and dtype is object
    )


def test_to_numpy_of_different_sizes_is_an_array_of_arrays():
    array = series_of([torch.ones(2, 3), torch.ones(2, 4)]).to_numpy()
    assert array.dtype == object and array.shape == (2,) and [one.shape for one in array] == [(2, 3), (2, 4)]
    also = series_of([torch.ones(1), torch.ones(1, 1), torch.tensor(1.0)]).to_numpy()
    assert also.shape == (3,) and [np.shape(one) for one in also] == [(1,), (1, 1), ()]


def test_arrays_are_copies_of_what_was_recorded():
    values = [torch.zeros(2), torch.zeros(3)]
    series_of(values).to_numpy()[0][:] = 1
    series_of(values).to_pandas()["value"][1][:] = 1
    series_of(torch.stack([values[0]])).to_numpy()[:] = 1
    assert values[0].sum() == 0 and values[1].sum() == 0


def test_to_pandas_has_a_row_a_record():
    frame = series_of([0.5, 0.25], iterations=[3, 7], ranks=[0, 1]).to_pandas()
    assert list(frame.columns) == ["iteration", "mode", "rank", "call", "value"]
    assert (
        frame["value"].dtype == np.float64
        and frame["iteration"].tolist() == [3, 7]
        and frame["rank"].tolist() == [0, 1]
    )


def test_to_pandas_keeps_strings_none_and_tensors():
    frame = series_of(["a", None, torch.ones(2, 2), torch.tensor(3)]).to_pandas()
    column = frame["value"].tolist()
    assert frame["value"].dtype == object and column[:2] == ["a", None] and column[2].shape == (2, 2) and column[3] == 3
    assert series_of([torch.ones(1), torch.ones(1, 1)]).to_pandas()["value"].dtype == np.float32
    assert len(series_of([]).to_pandas()) == 0


@pytest.mark.parametrize(("call", "package"), [("to_pandas", "pandas"), ("to_xarray", "xarray")])
def test_what_is_not_installed_is_named(monkeypatch, call, package):
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(BynameError, match=rf'needs {package}: pip install "byname\[frames\]"'):
        getattr(series_of([1.0]), call)()


RECORDS = st.tuples(st.sampled_from(["train", "eval"]), st.integers(0, 3), st.integers(-1, 2), st.integers(0, 1))


@settings(max_examples=60)
@given(st.lists(st.lists(RECORDS, max_size=5), min_size=1, max_size=4), st.booleans())
def test_joined_is_a_stable_sort_of_all_records_in_which_the_modes_take_turns_as_they_did(windows, from_file):
    parts, number = [], 0
    for window in windows:
        values = list(range(number, number + len(window)))
        number += len(window)
        modes, iterations, ranks, calls = (list(column) for column in zip(*window)) if window else ([], [], [], [])
        parts.append(
            Series("h", FromFile(values) if from_file else values, iterations, ranks, calls, modes, [()] * len(values))
        )
    expected = []
    for part in parts:
        turn, before = 0, None
        for record, value in zip(columns(part), part):
            turn += before not in (None, record[0])
            before = record[0]
            expected.append(((turn, *record[1:]), (record, value)))
    expected = [pair for _, pair in sorted(expected, key=lambda keyed: keyed[0])]
    whole = joined(parts)
    assert list(zip(columns(whole), whole)) == expected
    assert [len(whole.shapes), len(whole.shards)] == [number, 0]


def columns(series):
    return list(zip(series.modes, series.iterations, series.ranks, series.calls))


def test_joining_reads_nothing_from_files():
    files = [FromFile([f"rank {rank} of {one}" for one in range(100)]) for rank in range(2)]
    parts = [
        Series("h", values, list(range(100)), [rank] * 100, [0] * 100, ["train"] * 100, [()] * 100)
        for rank, values in enumerate(files)
    ]
    whole = joined([joined(parts)])[10:14]
    assert [one.inner.count for one in files] == [0, 0]
    assert list(whole) == ["rank 0 of 5", "rank 1 of 5", "rank 0 of 6", "rank 1 of 6"]
    assert [one.inner.count for one in files] == [1, 1]


def test_thousands_of_windows_are_joined_at_once():
    parts = [series_of([float(one)], iterations=[one]) for one in reversed(range(5000))]
    whole = joined(parts)
    assert whole.iterations == list(range(5000)) and whole.values[4999] == 4999.0


def test_stacked_windows_stay_stacked_where_they_fit():
    first, second = (
        stack("h", series_of([torch.full((2,), float(one))], iterations=[one], path="h")) for one in (1, 0)
    )
    assert joined([first, second]).values.tolist() == [[0, 0], [1, 1]]
    wider = stack_padded("h", series_of([torch.ones(3), torch.ones(1)], iterations=[2, 3], path="h"))
    whole = joined([first, wider])
    assert [tuple(one.shape) for one in whole.values] == [(2,), (3,), (1,)]


def test_joined_keeps_shards_and_refuses_other_places():
    shard = "the first of two"
    whole = joined([series_of([torch.ones(2)], iterations=[1], shards=[shard]), series_of([torch.ones(2)])])
    assert whole.shards == [None, shard]
    with pytest.raises(BadArgumentError, match="not of fc1, fc2"):
        joined([series_of([1]), series_of([1], path="fc2")])
    with pytest.raises(BadArgumentError, match="none"):
        joined([])
