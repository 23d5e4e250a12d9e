"""As an array with named dimensions: every record in its cell, what is missing marked, and read when it is asked for."""

import itertools

import dask
import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import as_rank
from stored_runs import NOTHING, reads_of, written
from test_series import series_of

import byname
from byname import Series, stack_padded
from byname.errors import BadArgumentError, BynameError


class Stored:
    """The values of a file, an HDF5 dataset, and a list of the positions that were read."""

    def __init__(self, dataset):
        self.dataset, self.reads = dataset, []
        self.tail = dataset.shape[1:], dataset.dtype

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, which):
        return torch.from_numpy(self.dataset[which]) if type(which) is int else self.dataset[which]

    def numbers(self, which):
        self.reads.append(which.tolist())
        there, back = np.unique(which, return_inverse=True)
        return self.dataset[there][back]


@pytest.fixture
def file(tmp_path):
    with h5py.File(tmp_path / "values.h5", "w") as opened:
        yield opened


def stored(file, name, array, **columns):
    values = Stored(file.create_dataset(name, data=array))
    size = len(array)
    defaults = {"iterations": list(range(size)), "ranks": [0] * size, "calls": [0] * size, "modes": ["train"] * size}
    return Series("h", values, **(defaults | columns), shapes=[array.shape[1:]] * size)


def test_dimensions_coordinates_and_attributes():
    array = series_of(
        [torch.full((2, 3), float(one)) for one in range(4)], iterations=[0, 0, 5, 5], ranks=[0, 1, 0, 1]
    ).to_xarray()
    assert array.name == "fc1" and array.dims == ("iteration", "rank", "call", "dim_0", "dim_1")
    assert dict(array.sizes) == {"iteration": 2, "rank": 2, "call": 1, "dim_0": 2, "dim_1": 3}
    assert array.sel(iteration=5, rank=1, call=0).values.tolist() == [[3] * 3] * 2
    assert array.dtype == np.float32 and bool(array.recorded.all()) and "mask" not in array.coords
    assert array.attrs["path"] == "fc1" and array.attrs["byname_version"]
    assert array.iteration.dtype == np.int64


def test_missing_records_are_marked():
    array = series_of([1.0, 2.0], iterations=[0, 1], ranks=[0, 1]).to_xarray()
    assert array.recorded.values[:, :, 0].tolist() == [[True, False], [False, True]]
    assert np.array_equal(array.values[:, :, 0], [[1, np.nan], [np.nan, 2]], equal_nan=True)
    counts = series_of([1, 2], iterations=[0, 1], ranks=[0, 1]).to_xarray()
    assert counts.dtype == np.int64 and counts.values[:, :, 0].tolist() == [[1, 0], [0, 2]]
    words = series_of(["a", "b"], iterations=[0, 1], ranks=[0, 1]).to_xarray()
    assert words.values[:, :, 0].tolist() == [["a", ""], ["", "b"]]
    assert np.isnan(series_of([1j, 2j], iterations=[0, 1], ranks=[0, 1]).to_xarray().values[0, 1, 0])
    nothing = series_of([None, {"a": 1}], iterations=[0, 1], ranks=[0, 1]).to_xarray()
    assert nothing.dtype == object and nothing.values[:, :, 0].tolist() == [[None, None], [None, {"a": 1}]]


def test_both_modes_come_first_and_one_is_left_out():
    both = series_of([1.0, 2.0, 3.0], iterations=[0, 1, 0], modes=["train", "train", "eval"]).to_xarray()
    assert both.dims == ("mode", "iteration", "rank", "call")
    assert both.sel(mode="eval", iteration=0).item() == 3 and not bool(
        both.recorded.sel(mode="eval", iteration=1).item()
    )
    assert "mode" not in series_of([1.0]).to_xarray().dims


def test_a_value_for_all_ranks_keeps_its_number():
    assert series_of([1.0], ranks=[-1]).to_xarray()["rank"].values.tolist() == [-1]


@pytest.mark.parametrize("padded", [False, True])
def test_ragged_values_are_padded_and_masked(padded):
    series = series_of([torch.ones(1, 2), torch.full((2, 1), 2.0)])
    array = (stack_padded("fc1", series) if padded else series).to_xarray().isel(rank=0, call=0)
    assert np.array_equal(array.values, [[[1, 1], [np.nan, np.nan]], [[2, np.nan], [2, np.nan]]], equal_nan=True)
    assert array.mask.values.tolist() == [[[True, True], [False, False]], [[True, False], [True, False]]]
    counts = series_of([torch.tensor([5]), torch.tensor([6, 7])]).to_xarray()
    assert counts.values[:, 0, 0].tolist() == [[5, 0], [6, 7]] and counts.mask.values[:, 0, 0].tolist() == [
        [True, False],
        [True, True],
    ]


def test_values_that_no_array_holds_are_refused():
    with pytest.raises(BynameError, match=r"number of dimensions \(\(2, 2\), \(2,\)\): use .values"):
        series_of([torch.ones(2), torch.ones(2, 2)]).to_xarray()
    with pytest.raises(BynameError, match="torch.float32, torch.int64"):
        series_of([torch.ones(2), torch.ones(2).long()]).to_xarray()
    with pytest.raises(BynameError, match="torch.float32, torch.int64"):
        series_of([torch.ones(2), torch.ones(3).long()]).to_xarray()


def test_two_records_of_one_cell_are_refused():
    with pytest.raises(BynameError, match="two records of train iteration 3, rank 0, call 0"):
        series_of([1.0, 2.0], iterations=[3, 3]).to_xarray()


def test_a_huge_and_empty_array_is_refused_before_it_is_made():
    size = 20_000
    with pytest.raises(BynameError, match=r"400,000,000 elements, of which 20,000 .*series\[:1000\]"):
        series_of([1.0] * size, ranks=list(range(size))).to_xarray()
    with pytest.raises(BynameError, match="elements, of which"):
        series_of([torch.ones(1, 20_000), torch.ones(20_000, 1)]).to_xarray()
    with pytest.raises(BynameError, match="over the iterations asked for"):
        series_of([1.0]).to_xarray(fill=range(10**12))


def test_fill_carries_values_to_the_iterations_of_the_series():
    series = series_of([1.0, 2.0, 3.0, 4.0], iterations=[0, 1, 1, 2], ranks=[0, 0, 1, 0])
    array = series.to_xarray(fill=True)
    assert np.array_equal(array.values[:, :, 0], [[1, np.nan], [2, 3], [4, 3]], equal_nan=True)
    assert array.recorded.values[:, :, 0].tolist() == [[True, False], [True, True], [True, False]]
    assert array.filled.values[:, :, 0].tolist() == [[False, False], [False, False], [False, True]]


def test_fill_gives_what_was_in_force_at_the_iterations_asked_for():
    series = series_of([10, 20, 30], iterations=[2, 4, 9])
    array = series.to_xarray(fill=range(1, 7)).isel(rank=0, call=0)
    assert array.values.tolist() == [0, 10, 10, 20, 20, 20]
    assert array.recorded.values.tolist() == [False, True, False, True, False, False]
    assert array.filled.values.tolist() == [False, False, True, False, True, True]
    assert all(series.at(step) == array.sel(iteration=step) for step in range(2, 7))
    for wrong in ("all", 3, [0.5]):
        with pytest.raises(BadArgumentError, match="fill= takes True"):
            series.to_xarray(fill=wrong)


@pytest.mark.parametrize("chunks", [None, 2])
@pytest.mark.parametrize("fill", [False, True, range(3)])
def test_an_empty_series_is_an_empty_array(chunks, fill):
    array = series_of([]).to_xarray(chunks=chunks, fill=fill)
    assert array.dims == ("iteration", "rank", "call") and array.size == 0 and array.compute().size == 0


def defined(series, fill):
    """The same by its definition: for each cell the record of it, or the last one before it."""
    modes, ranks, calls = (sorted(set(column)) for column in (series.modes, series.ranks, series.calls))
    iterations = sorted(set(series.iterations)) if isinstance(fill, bool) else sorted(set(fill))
    cells = {}

    def at(number):
        return series.iterations[number], series.calls[number]

    for mode, iteration, rank, call in itertools.product(modes, iterations, ranks, calls):
        records = [
            (at(number), number)
            for number in range(len(series))
            if (series.modes[number], series.ranks[number]) == (mode, rank)
            and (at(number) == (iteration, call) if fill is False else at(number) <= (iteration, call))
        ]
        found = max(records)[1] if records else None
        exact = found is not None and at(found) == (iteration, call)
        cells[mode, iteration, rank, call] = found, exact
    return cells


RECORDS = st.tuples(st.sampled_from(["train", "eval"]), st.integers(0, 5), st.integers(-1, 1), st.integers(0, 1))
FILLS = st.one_of(st.booleans(), st.builds(range, st.integers(0, 3), st.integers(4, 8)))


@settings(max_examples=40)
@given(
    st.lists(RECORDS, min_size=1, max_size=8, unique=True),
    st.integers(0, 2),
    st.booleans(),
    FILLS,
    st.sampled_from([None, 1, 2]),
    st.randoms(),
)
def test_every_cell_against_the_definition(records, dims, ragged, fill, chunks, random):
    shapes = [tuple(random.randint(1, 3) for _ in range(dims)) for _ in records]
    if not ragged or chunks:
        shapes = shapes[:1] * len(records)
    values = [torch.randint(1, 9, shape).float() for shape in shapes]
    modes, iterations, ranks, calls = (list(column) for column in zip(*records))
    series = series_of(values, iterations, ranks, calls, modes)
    if fill is not False and len(set(modes)) > 1:
        with pytest.raises(BynameError, match="one mode"):
            series.to_xarray(fill=fill, chunks=chunks)
        return
    array = series.to_xarray(fill=fill, chunks=chunks)
    for (mode, iteration, rank, call), (number, exact) in defined(series, fill).items():
        cell = array.sel(iteration=iteration, rank=rank, call=call)
        cell = cell.sel(mode=mode) if "mode" in array.dims else cell
        own = () if number is None else tuple(slice(0, size) for size in shapes[number])
        rest = np.ones(cell.shape, bool)
        if number is not None:
            assert np.array_equal(cell.values[own], values[number].numpy())
            rest[own] = False
        assert np.isnan(cell.values[rest]).all()
        assert bool(cell.recorded) is exact
        assert fill is False or bool(cell.filled) is (number is not None and not exact)
        assert "mask" not in array.coords or np.array_equal(cell.mask.values, ~rest)


def test_a_lazy_array_reads_nothing_before_it_is_asked(file):
    numbers = np.arange(600, dtype=np.float32).reshape(100, 2, 3)
    series = stored(file, "h", numbers)
    array = series.to_xarray(chunks=10)
    assert series.values.reads == [] and array.chunks[0] == (10,) * 10 and "dask" in repr(array.data)
    assert array.sel(iteration=25).compute().values.tolist() == numbers[25:26].reshape(1, 1, 2, 3).tolist()
    assert series.values.reads == [[25]]
    assert float(array.mean()) == pytest.approx(numbers.mean())


def test_a_lazy_array_of_rank_files_finds_every_value(tmp_path, monkeypatch):
    for rank in range(2):
        values = [*(torch.arange(20.0).reshape(10, 2) + 100 * rank), *[NOTHING] * 2, torch.tensor([7.0, 8.0])]
        with as_rank(rank, 2):
            written(tmp_path / "run.h5", {"h": values if rank else values[:10]})
    whole = byname.open(tmp_path / "run.h5")["h"][2:]
    reads = reads_of(monkeypatch)
    array = whole.to_xarray(chunks={"iteration": 4, "dim_0": 1})
    assert reads == []
    assert array.chunks == ((4, 4, 2), (2,), (1,), (1, 1))
    with dask.config.set(scheduler="synchronous"):
        assert np.array_equal(array.values, whole.to_xarray().values, equal_nan=True)
    assert array.sel(rank=1, iteration=12).values.tolist() == [[7, 8]]
    assert not array.recorded.sel(rank=0, iteration=12).any()


@pytest.mark.parametrize("chunks", ["auto", 3, {"dim_0": 2}])
def test_pieces_of_every_kind_give_the_same(chunks):
    series = series_of([torch.randn(4) for _ in range(7)])
    assert series.to_xarray(chunks=chunks).compute().equals(series.to_xarray())


@pytest.mark.parametrize(
    ("chunks", "says"),
    [
        (0, "not 0"),
        (True, "not True"),
        ("big", "not 'big'"),
        ({"time": 1}, "names time; the dimensions are iteration, rank, call"),
        ({"iteration": -1}, "not -1"),
    ],
)
def test_pieces_that_make_no_sense_are_refused(chunks, says):
    with pytest.raises(BadArgumentError, match=says):
        series_of([1.0]).to_xarray(chunks=chunks)


def test_only_numbers_of_one_shape_come_in_pieces():
    for values in (["a", "b"], [torch.ones(1), torch.ones(2)]):
        with pytest.raises(BynameError, match="chunks= needs numbers of one shape"):
            series_of(values).to_xarray(chunks=1)


def test_dask_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "dask.array", None)
    with pytest.raises(BynameError, match=r'pip install "byname\[lazy\]"'):
        series_of([1.0]).to_xarray(chunks=1)


def test_neighbours_in_a_file_are_read_at_once(tmp_path, monkeypatch):
    series = byname.open(written(tmp_path / "run.h5", {"h": [*range(30)]}))["h"]
    sizes = reads_of(monkeypatch)
    assert series[[5, 4, 6, 4, 20, 29]].to_numpy().tolist() == [5, 4, 6, 4, 20, 29]
    assert sizes == [3 * 8, 8, 8]
    assert series.to_numpy().tolist() == list(range(30)) and sizes[3:] == [30 * 8]


def test_an_array_larger_than_memory_is_opened_and_looked_into(file):
    dataset = file.create_dataset("h", (20_000, 512, 512), "f4", chunks=(1, 512, 512))  # 20 GB that nobody wrote
    dataset[12_345, 5, 7] = 3
    size = len(dataset)
    series = Series("h", Stored(dataset), range(size), [0] * size, [0] * size, ["train"] * size, [(512, 512)] * size)
    array = series.to_xarray(chunks="auto")
    assert array.nbytes == 4 * 20_000 * 512 * 512 and series.values.reads == []
    assert array.sel(iteration=12_345, dim_0=5, dim_1=7).values.tolist() == [[3]]
    assert series.values.reads == [[12_345]]
    assert array.chunks[0][0] * 4 * 512 * 512 <= 2**27 and array.chunks[1:] == ((1,), (1,), (512,), (512,))
