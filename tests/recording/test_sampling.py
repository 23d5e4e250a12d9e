"""What a recording says about how it was made: where, every, start, stop, mode, reduce, dtype and count of each place."""

import inspect

import h5py
import processes
import pytest
import torch
from fuzzing import change_index
from hypothesis import given
from hypothesis import strategies as st
from stored_runs import written
from torch import nn

import byname
from byname.errors import BadArgumentError, RecordingError
from byname.recording.sampling import IterationSchedule, Sampling, Time


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))


def doubled(path, value, iteration):
    return value * 2


def largest(tensor):
    return tensor.max()


WHERE = {
    "0": {"every": 3, "reduce": "norm"},
    "*.weight": {"start": 1, "stop": 5, "dtype": "float64", "mode": "both"},
    "1": {"reduce": ["mean", largest], "mode": "train", "on_value": doubled},
    nn.Linear: {"mode": "eval"},
}
EXPECTED = {
    "0": Sampling("0", every=3, reduce="norm", mode="train"),
    "0.weight": Sampling("*.weight", start=1, stop=5, dtype="float64", mode="both"),
    "2.weight": Sampling("*.weight", start=1, stop=5, dtype="float64", mode="both"),
    "1": Sampling("1", reduce=("mean", "largest"), mode="train", on_value=("doubled",)),
}


def recorded(to=None, **how):
    model, where = net(), {place: asked for place, asked in WHERE.items() if not isinstance(place, type)}
    with byname.record(model, where, to=to, mode="train", **how) as recorder:
        for _ in range(7):
            model(torch.randn(4, 2)).sum().backward()
            recorder.flush()
    return recorder


@pytest.mark.parametrize("to", [None, "run.h5"])
def test_each_series_says_what_was_asked_of_it(to, tmp_path):
    results = recorded(to and tmp_path / to).results
    assert {path: series.sampling for path, series in results.items()} == EXPECTED
    assert results["0"][1:].sampling == EXPECTED["0"]
    assert results["0"].iterations == [0, 3, 6]


def test_a_file_says_it_to_readers_of_byname_and_to_others(tmp_path):
    recorded(tmp_path / "run.h5")
    with byname.open(tmp_path / "run.h5") as recording:
        assert {path: recording[path].sampling for path in recording} == EXPECTED
        assert (
            recording["0"].to_xarray().attrs.items()
            >= {"where": "0", "every": 3, "start": 0, "reduce": "norm", "count": "forward", "mode": "train"}.items()
        )
        assert "stop" not in recording["0"].to_xarray().attrs
        assert (
            recording["0.weight"].to_xarray().attrs.items() >= {"stop": 5, "dtype": "float64", "mode": "both"}.items()
        )
    with h5py.File(tmp_path / "run.h5") as file:
        own = file["0"].attrs
        assert (own["where"], own["every"], own["start"], own["mode"], own["reduce"]) == ("0", 3, 0, "train", "norm")
        assert (own["dtype"], own["count"], "stop" in own) == ("float32", "forward", False)
        assert file["0.weight"].attrs["converted_to"] == "float64" and file["1"].attrs["reduce"] == "mean,largest"
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("h5netcdf")
    with xarray.open_dataset(tmp_path / "run.h5", group="0", engine="h5netcdf") as place:
        assert (place.attrs["every"], place.attrs["reduce"]) == (3, "norm")


def test_an_array_with_it_can_be_written_as_netcdf(tmp_path):
    pytest.importorskip("h5netcdf")
    array = recorded().results["0"].to_xarray()
    array.to_netcdf(tmp_path / "0.nc", engine="h5netcdf")


def test_byname_show_tells_it(tmp_path):
    recorded(tmp_path / "run.h5")
    shown = processes.run(["-m", "byname", "show", tmp_path / "run.h5"], capture_output=True, text=True).stdout
    lines = {line.split()[0]: line for line in shown.splitlines() if line}
    assert (
        "norm, every 3" in lines["0"] and "from 1, before 5" in lines["0.weight"] and "as float64" in lines["2.weight"]
    )
    assert "mean, largest" in lines["1"] and "by doubled" in lines["1"]
    shown = processes.run(
        ["-m", "byname", "show", "--place", "0", tmp_path / "run.h5"], capture_output=True, text=True
    ).stdout
    assert "norm, every 3" in shown.splitlines()[0]


def test_what_was_asked_for_in_no_special_way_takes_no_room_in_a_table(tmp_path):
    model = net()
    with byname.record(model, "0", to=tmp_path / "run.h5"):
        model(torch.randn(4, 2))
    with byname.open(tmp_path / "run.h5") as recording:
        assert "how" not in recording.rows()[0] and str(recording["0"].sampling) == ""
    assert IterationSchedule().mode == inspect.signature(byname.record).parameters["mode"].default


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (nn.Linear, "Linear"),
        (["0", "2"], "0"),
        (["**.forward", "1"], "**.forward"),
        (byname.select.linear if hasattr(byname.select, "linear") else "0", None),
    ],
)
def test_where_is_the_entry_that_matched(where, said):
    model = net()
    with byname.record(model, where) as recorder:
        model(torch.randn(4, 2))
    found = {series.sampling.where for series in recorder.results.values()}
    assert found and all(found) and (said is None or said in found)


def test_what_counts_is_said():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for count, said in (("step", "step"), (optimizer, "SGD")):
        with byname.record(model, "0", count=count) as recorder:
            model(torch.randn(4, 2))
        assert recorder.results["0"].sampling.count == said


def test_it_survives_callbacks_that_make_values_of_their_own(tmp_path):
    model = net()
    with byname.record(
        model,
        {"0": {"every": 2}},
        to=tmp_path / "run.h5",
        gather_every=2,
        before_gather=byname.stack,
        after_gather=lambda path, series: series.values.mean(),
        at_end=lambda path, series: 1.0,
    ) as recorder:
        for _ in range(4):
            model(torch.randn(4, 2))
    assert recorder.results["0"].sampling.every == 2
    with byname.open(tmp_path / "run.h5") as recording:
        assert recording["0"].sampling.every == 2


def test_figures_of_an_analyser_say_it(tmp_path):
    model, outliers = net(), byname.analyse.Outliers()
    with byname.observe(model, ["0"], outliers):
        with byname.record(model, {outliers: {"every": 2}}, to=tmp_path / "run.h5"):
            for _ in range(4):
                model(torch.randn(4, 2))
    with byname.open(tmp_path / "run.h5") as recording:
        sampling = recording["0.Outliers.kurtosis"].sampling
        assert (sampling.where, sampling.every) == ("Outliers", 2)


def test_a_file_of_an_older_byname_does_not_say_it_and_is_read_as_before(tmp_path):
    path = written(tmp_path / "run.h5", {"loss": [0.5, 0.25]})
    change_index(path, lambda index: index["places"][0].__setitem__(1, None))
    with byname.open(path) as recording:
        assert recording["loss"].sampling is None and list(recording["loss"]) == [0.5, 0.25]
        assert "how" not in recording.rows()[0] and "every" not in recording["loss"].to_xarray().attrs


@pytest.mark.parametrize(("name", "wrong"), [("every", "three"), ("where", 3), ("reduce", 1.5), ("on_change", "x")])
def test_what_no_recorder_writes_is_refused(name, wrong, tmp_path):
    recorded(tmp_path / "run.h5")
    change_index(tmp_path / "run.h5", lambda index: index["places"][0][1].update({name: wrong}))
    with pytest.raises(RecordingError, match=r"run\.h5"):
        byname.open(tmp_path / "run.h5")


def test_whatever_is_asked_for_can_be_written(tmp_path):
    def strange(tensor):
        return tensor

    strange.__name__ = "a,\x1b[31m\0b"
    model = net()
    with byname.record(
        model, "0", every=10**30, start=0, stop=10**40, reduce=[strange, "mean"], to=tmp_path / "run.h5"
    ):
        model(torch.randn(4, 2))
    with byname.open(tmp_path / "run.h5") as recording:
        sampling = recording["0"].sampling
        assert sampling.every == sampling.stop == 2**63 - 1 and len(sampling.reduce) == 2
        assert "\x1b" not in str(sampling)


# which iterations are due

MODES = {"train": {"train"}, "eval": {"eval"}, "both": {"train", "eval"}}


@given(
    st.integers(1, 9),
    st.integers(0, 9),
    st.none() | st.integers(1, 20),
    st.sampled_from([*MODES]),
    st.sampled_from(["train", "eval"]),
)
def test_iterations_are_due_as_counted_by_hand(every, start, length, mode, now):
    stop = None if length is None else start + length
    schedule = IterationSchedule(every, start, stop, mode)
    due = [number for number in range(40) if schedule.due(Time(now, number))]
    counted = list(range(start, 40 if stop is None else min(stop, 40), every))
    assert due == (counted if now in MODES[mode] else [])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"every": 0}, "every= takes an integer of at least 1, not 0"),
        ({"every": 2.0}, "every= takes an integer of at least 1, not 2.0"),
        ({"every": True}, "not True"),
        ({"start": -1}, "start= takes an integer of at least 0"),
        ({"start": 5, "stop": 5}, "stop=5 is not after start=5"),
        ({"stop": 0}, "stop= takes an integer of at least 1"),
        ({"mode": "training"}, "'train', 'eval', 'both', not 'training'"),
    ],
)
def test_a_schedule_without_meaning_is_refused(wrong, said):
    with pytest.raises(BadArgumentError, match=said):
        IterationSchedule(**wrong)


def test_a_schedule_is_over_when_its_last_iteration_has_passed_in_every_mode_it_has():
    times = Time("train", 5), Time("eval", 2)
    in_training = {"mode": "train"}
    assert IterationSchedule(stop=5, **in_training).over(*times) and not IterationSchedule(stop=6, **in_training).over(
        *times
    )
    assert not IterationSchedule().over(*times) and not IterationSchedule(stop=5).over(*times)
    assert IterationSchedule(stop=2).over(*times) and IterationSchedule(stop=2, mode="eval").over(*times)
