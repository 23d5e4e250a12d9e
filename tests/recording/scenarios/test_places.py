"""One place, or one value, of a recording costs what it costs by itself; several places are a result of their own."""

import pytest
import torch
from processes import run
from stored_runs import reads_of
from torch import nn

import byname
from byname import Series
from byname.errors import BadArgumentError, NoMatchError, RecordingError

COUNTING = """
import sys, tempfile, torch, byname
from pathlib import Path
opened = []
sys.addaudithook(lambda event, given: opened.append(1) if event == "open" and "watched.h5" in str(given[0]) else None)
model = torch.nn.Identity()
with byname.record(model, "forward", to="watched.h5", mode="both") as recorder:
    for number in range(300):
        model({make})
    recorder.flush()
    values = byname.open("watched.h5")["forward"].values
    opened.clear()
    got = [values[number] for number in range(300)] + [values[-1], values[7]]
    print(len(opened), [float({read}) for one in got] == [*map(float, range(300)), 299.0, 7.0])
values = recorder.results["forward"].values
opened.clear()
print(len(opened), [float({read}) for one in (values[number] for number in range(300))] == [*map(float, range(300))])
"""


@pytest.mark.grid(fast=2)
@pytest.mark.parametrize(
    ("make", "read"),
    [
        ("torch.full((5,), float(number))", "one[0]"),
        ("number", "one"),
        ("{'k': torch.tensor(number)}", "one['k']"),
        ("torch.full((1 + number % 20,), float(number))", "one[0]"),
        ("str(number)", "one"),
    ],
    ids=["tensors", "numbers", "dicts", "shapes", "texts"],
)
def test_values_of_an_open_recording_take_a_few_openings(make, read, tmp_path):
    program = COUNTING.replace("{make}", make).replace("{read}", read)
    done = run(["-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    told = [line.split() for line in done.stdout.splitlines()]
    assert [right for _, right in told] == ["True"] * 2
    assert all(int(openings) <= 60 for openings, _ in told)


def test_large_containers_are_read_a_few_at_a_time(tmp_path, monkeypatch):
    model = nn.Identity()
    with byname.record(model, "forward", to=tmp_path / "run.h5", mode="both") as recorder:
        for number in range(12):
            model({"k": torch.full((1 << 17,), float(number))})  # 512 KiB
        recorder.flush()
        with byname.open(tmp_path / "run.h5") as recording:
            asked = reads_of(monkeypatch)
            assert float(recording["forward"].values[7]["k"][0]) == 7.0 and max(asked) < 2 << 19
            assert [float(one["k"][0]) for one in recording["forward"].values] == [*map(float, range(12))]
            assert max(asked) <= 8 << 19


def test_a_value_that_its_reader_changes_is_the_same_when_read_again(tmp_path):
    model = nn.Identity()
    with byname.record(model, "forward", to=tmp_path / "run.h5", mode="both") as recorder:
        for number in range(3):
            model({"k": [torch.full((2,), float(number))]})
        recorder.flush()
        recording = byname.open(tmp_path / "run.h5")
        values = recording["forward"].values
        values[1]["k"][0].fill_(9)
        values[1]["k"].append(1)
        assert values[1]["k"][0].tolist() == [1.0, 1.0] and len(values[1]["k"]) == 1
        recording.close()
        with pytest.raises(RecordingError, match="was closed"):
            values[1]


@pytest.mark.parametrize("to", [None, "run.h5"])
def test_results_are_those_of_the_moment(to, tmp_path):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    with byname.record(model, ["*"], to=to and tmp_path / to) as recorder:
        for _ in range(3):
            model(torch.randn(1, 2))
        early = recorder.results
        for _ in range(4):
            model(torch.randn(1, 2))
        later = recorder.results
        assert [len(early[str(number)]) for number in range(3)] == [3, 3, 3]
        assert [len(later[str(number)]) for number in range(3)] == [7, 7, 7]
        assert [*early] == ["0", "1", "2"] and "1" in early and "nope" not in early
    assert len(recorder.results["0"]) == 7 and len(early["2"]) == 3


def test_places_of_changing_shapes_are_the_same_while_written_and_afterwards(tmp_path):
    model = nn.Identity()
    with byname.record(model, "forward", to=tmp_path / "run.h5", mode="both") as recorder:
        for number in range(40):
            model(torch.full((number % 12, 3), float(number)) if number % 5 else {"n": number})
            if not number % 7:
                recorder.results["forward"]
        during = recorder.results["forward"]
        seen = [str(one) for one in during]
    after = recorder.results["forward"]
    with byname.open(tmp_path / "run.h5") as recording:
        stored = recording["forward"]
        for series in (during, after, stored):
            assert [str(one) for one in series] == seen and series.iterations == [*range(40)]
            assert series.shapes == during.shapes


def several(to=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    with byname.record(model, "*", to=to) as recorder:
        for _ in range(30):
            model(torch.randn(2, 4))
    return recorder


def test_several_places_have_a_row_for_each_record(tmp_path):
    recorder = several(tmp_path / "run.h5")
    with byname.open(tmp_path / "run.h5") as recording:
        for found in (recorder.results["*"], recording["*"], recorder.results):
            assert [*found] == ["0", "1"] and found["0"].iterations == [*range(30)]
            rows = found.rows()
            assert len(rows) == 60 and [row["path"] for row in rows] == ["0"] * 30 + ["1"] * 30
            assert {**rows[31]} == {"path": "1", **found["1"].rows()[1]}
            frame = found.to_pandas()
            assert [*frame.columns] == ["path", "iteration", "mode", "rank", "call", "value"] and len(frame) == 60
            assert frame.iteration.tolist() == [*range(30)] * 2
        table = recording.to_pandas()
        assert table.path.tolist() == ["0", "1"] and table.records.tolist() == [30, 30]
        assert isinstance(recording["*"], dict)


def test_several_places_print_as_a_table():
    found = several().results["*"]
    lines = repr(found).splitlines()
    assert lines[0] == "2 places: 60 records" and lines[1].split()[0] == "path"
    assert ">1</td>" in found._repr_html_()
    assert found.head(4).splitlines()[-1] == "56 records not shown; .rows() has them"


def moments(records):
    return Series("p", list(range(len(records))), *map(list, zip(*records, strict=True)), [()] * len(records))


def by_definition(series, iteration, rank, call, mode):
    mine = [
        number
        for number in range(len(series))
        if series.ranks[number] in (rank, -1)
        and mode in (None, series.modes[number])
        and (series.iterations[number], series.calls[number]) <= (iteration, call)
    ]
    return max(mine, key=lambda number: (series.iterations[number], series.calls[number], number), default=None)


@pytest.mark.parametrize("seed", range(20))
def test_the_record_in_force_is_that_of_the_definition(seed):
    torch.manual_seed(seed)
    records = [
        (int(torch.randint(12, ())), int(torch.randint(-1, 2, ())), int(torch.randint(3, ())), "train")
        for _ in range(int(torch.randint(1, 40, ())))
    ]
    series = moments(records)
    for iteration in (-1, 0, 3, 7, 11, 100, 10**30):
        for rank in (0, 1, 5):
            for call in (0, 1, 2, 9):
                expected = by_definition(series, iteration, rank, call, None)
                if expected is None:
                    with pytest.raises(NoMatchError):
                        series.at(iteration, rank, call)
                else:
                    assert series.at(iteration, rank, call) == expected


def test_what_is_done_to_the_lists_of_a_series_changes_no_record():
    iterations = [*range(10)]
    series = Series("p", [*range(10)], iterations, [0] * 10, [0] * 10, ["train"] * 10, [()] * 10)
    iterations[4] = 400
    series.iterations[5] = 500
    assert [series.at(number) for number in (4, 5, 400)] == [4, 5, 9]
    assert series[:].iterations == [*range(10)]


def test_the_records_are_looked_at_once():
    asked = []

    class Asked(list):
        def __iter__(self):
            asked.append(1)
            return super().__iter__()

    long = Series("p", range(1000), Asked(range(1000)), [0] * 1000, [0] * 1000, Asked(["train"] * 1000), [()] * 1000)
    long.at(5)
    asked.clear()
    assert [long.at(number) for number in (0, 999, 500)] == [0, 999, 500] and asked == []


def test_of_two_modes_it_says_what_no_record_tells():
    series = moments([(0, 0, 0, "train"), (0, 0, 0, "eval"), (3, 0, 0, "train")])
    assert series.at(0, mode="train") == 0 and series.at(3, mode="train") == 2 and series.at(5, mode="train") == 2
    with pytest.raises(BadArgumentError, match="changed in the other"):
        series.at(1, mode="train")


def test_a_module_of_several_names_is_recorded_under_each_that_was_asked_for():
    model = nn.Sequential(*[nn.ReLU()] * 3)
    with byname.record(model, ["0", "2", "0.forward"]) as recorder:
        model(torch.ones(2))
    assert {path: series.calls for path, series in recorder.results.items()} == {
        path: [0, 1, 2] for path in ("0", "2", "0.forward")
    }
    assert recorder.notes == ()
