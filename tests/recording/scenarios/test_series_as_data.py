"""Series picked by lists and masks, arrays with names of their dimensions, several places in one array, and plots."""

import numpy as np
import pytest
import torch
from torch import nn

import byname
from byname import Series
from byname.errors import BadArgumentError, BynameError


@pytest.fixture
def recording(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    with byname.record(model, ["0", "1", "2"], to=tmp_path / "run.h5"):
        for _ in range(5):
            model(torch.randn(2, 3, 4))
    with byname.open(tmp_path / "run.h5") as recording:
        yield recording


def scalars(values):
    size = len(values)
    return Series("loss", values, [*range(size)], [0] * size, [0] * size, ["train"] * size, [()] * size)


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        ([0, 3], [0, 3]),
        ([-1, 0, 0], [4, 0, 0]),
        (range(1, 3), [1, 2]),
        (np.array([2]), [2]),
        (torch.tensor([True, False, True, False, False]), [0, 2]),
        ([False] * 5, []),
        ([], []),
    ],
    ids=str,
)
def test_records_are_picked_by_lists_and_masks(recording, which, expected):
    series = recording["0"]
    picked = series[which]
    assert picked.iterations == expected
    assert all(torch.equal(one, series[number]) for one, number in zip(picked, expected, strict=True))


@pytest.mark.parametrize(
    ("which", "error"), [([5], IndexError), ([-6], IndexError), ([True], IndexError), ([0.5], TypeError)]
)
def test_what_picks_no_record_is_an_error(recording, which, error):
    with pytest.raises(error):
        recording["0"][which]


def test_dimensions_have_the_names_asked_for(recording):
    array = recording["0"].to_xarray(dims=("batch", "position", "feature"))
    assert array.dims == ("iteration", "rank", "call", "batch", "position", "feature")
    assert array.sel(iteration=3).isel(position=1).shape == (1, 1, 2, 8)
    for dims in [("batch",), ("a", "a", "b"), ("a", "b", "rank"), (1, 2, 3)]:
        with pytest.raises(BadArgumentError, match="dims="):
            recording["0"].to_xarray(dims=dims)


def test_several_places_are_one_array(recording):
    whole = recording["*"]
    with pytest.raises(BynameError, match="different shapes"):
        whole.to_xarray()
    del whole["2"]
    array = whole.to_xarray(dims=("batch", "position", "feature"))
    assert array.dims[0] == "path" and array.sizes["path"] == 2
    for path in ("0", "1"):
        expected = recording[path].to_numpy()
        assert np.array_equal(array.sel(path=path).values.reshape(expected.shape), expected)


def test_several_places_keep_their_modes_masks_and_types_in_one_array():
    model = nn.Sequential(nn.Identity(), nn.Identity())
    with byname.record(model, {"0": {"mode": "eval"}, "1": {"mode": "train"}}, reduce="max") as recorder:
        for number in range(3):
            model.train(number != 1)(torch.tensor([2**60 + number]))
    array = recorder.results["*"].to_xarray()
    assert (array.dtype, array.recorded.dtype) == (np.int64, bool)
    for path, mode, cells in (("0", "eval", [2**60 + 1, 0]), ("1", "train", [2**60, 2**60 + 2])):
        assert array.sel(path=path, mode=mode).values.ravel().tolist() == cells
    assert array.recorded.sum() == 3 and not array.recorded.sel(path="1", mode="eval").any()

    model = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Identity())
    crop = {"on_value": lambda path, value, iteration: value[: 2 - iteration]}
    with byname.record(model, {"0": {}, "1": crop}) as recorder:
        model(torch.ones(2)), model(torch.ones(2))
    mask = recorder.results["*"].to_xarray().mask
    assert mask.sum(("iteration", "rank", "call", "dim_0")).values.tolist() == [4, 3]


def test_several_places_lazily(recording):
    whole = recording["*"]
    del whole["2"]
    array = whole.to_xarray(chunks=2)
    assert array.chunks is not None
    assert np.array_equal(array.compute().values, whole.to_xarray().values)


def test_a_plot_of_numbers_is_a_line(tmp_path):
    axes = scalars([3.0, 2.0, float("nan"), 1.0]).plot()
    (line,) = axes.get_lines()
    assert line.get_xdata().tolist() == [0, 1, 3] and line.get_ydata().tolist() == [3, 2, 1]
    assert not axes.collections
    axes.figure.savefig(tmp_path / "loss.png")


def test_a_plot_of_tensors_has_the_median_and_its_bands(recording):
    series = recording["0"]
    axes = series.plot()
    (line,) = axes.get_lines()
    medians = [value.double().quantile(0.5).item() for value in series]
    assert line.get_ydata().tolist() == pytest.approx(medians)
    assert len(axes.collections) == 2
    low = axes.collections[1].get_datalim(axes.transData).ymin
    assert low == pytest.approx(min(value.double().quantile(0.05).item() for value in series))


def test_a_plot_of_several_places_is_drawn_where_it_is_asked_for(recording):
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    assert recording["*"].plot(ax=axes) is axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["0", "1", "2"]


def test_what_has_no_numbers_is_refused():
    with pytest.raises(BynameError, match="no numbers to draw: loss"):
        scalars(["a", "b"]).plot()
