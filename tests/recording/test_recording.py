"""A recording that is opened says what is in it, what is missing, and reads nothing before it is asked."""

import sys
from pathlib import Path

import numpy
import pytest
import torch
from ranks import as_rank
from stored_runs import Writer, bits, written

import byname
from byname.errors import NoMatchError, RecordingError


@pytest.fixture
def recording(tmp_path):
    places = {
        f"layers.{number}.mlp": [torch.full((2, 3), float(number + one)) for one in range(4)] for number in range(3)
    }
    with byname.open(written(tmp_path / "run.h5", {**places, "loss": [0.5, 0.25]})) as found:
        yield found


def test_a_path_gives_a_series_and_a_wildcard_a_dict(recording):
    assert list(recording["loss"].values) == [0.5, 0.25]
    assert list(recording["layers.*.mlp"]) == ["layers.0.mlp", "layers.1.mlp", "layers.2.mlp"]
    assert recording["layers.*.mlp"]["layers.1.mlp"].values[1].tolist() == [[2.0] * 3] * 2
    assert list(recording) == [*recording["layers.**"], "loss"] and len(recording) == 4


def test_an_unknown_path_names_the_closest(recording):
    with pytest.raises(NoMatchError, match=r"layers\.0\.mpl.*layers\.0\.mlp"):
        recording["layers.0.mpl"]
    with pytest.raises(NoMatchError):
        recording["encoder.*"]
    with pytest.raises(KeyError):
        recording["layers.0.mpl"]
    assert recording.get("layers.0.mpl") is None and recording.get("encoder.*", 0) == 0, "as of any mapping"


def test_the_attributes_of_the_run_come_back(recording):
    assert recording.run["model"] == "Places" and recording.run["arguments"] == sys.argv
    assert recording.run["world_size"] == 1 and recording.complete and recording.missing == ()


def test_rows_say_what_is_inside(recording):
    first, *_, last = recording.rows(ranges=True)
    assert first == {"path": "layers.0.mlp", "kind": "float32", "shape": (2, 3), "records": 4, "iterations": "0-3",
                     "ranks": (0,), "bytes": 96, "min": 0.0, "max": 3.0, "mean": 1.5, "how": "changed or not"}  # fmt: skip
    assert (last["kind"], last["shape"], last["max"]) == ("float", (), 0.5)
    assert "loss" in str(recording) and ">loss</td>" in recording._repr_html_()


def test_values_are_sliced_like_a_list_and_their_array_like_numpy(recording):
    series = recording["layers.0.mlp"]
    values, whole = series.values, numpy.stack([one.numpy() for one in series])
    assert bits(list(values[::-1])) == bits(list(values)[::-1]) and bits(values[-1]) == bits(list(values)[3])
    assert bits(list(values[1:][1:])) == bits(list(values)[2:])
    for key in (slice(1, 3), slice(None, None, -2), [0, 3, 0], [-1], [True, False, True, False]):
        numpy.testing.assert_array_equal(series[key].to_numpy(), whole[key])
    with pytest.raises(IndexError):
        values[4]


def test_a_closed_recording_says_so(recording):
    found = recording["loss"]
    recording.close()
    with pytest.raises(RecordingError, match="closed"):
        found.values[0]


def test_while_it_is_written_the_moment_of_opening_is_seen(tmp_path):
    numbers = range(2, 40)
    writer = Writer(tmp_path / "run.h5", ["a", *(f"b{number}" for number in numbers)])
    writer.window({"a": [torch.zeros(4), torch.ones(4)]})
    early = byname.open(tmp_path / "run.h5")
    for number in numbers:
        writer.window({"a": [torch.full((4,), float(number))], f"b{number}": [1.0]})
        assert len(early["a"]) == 2 and early["a"].values[1].tolist() == [1.0] * 4
    assert not early.complete and "after iteration 1 " in early.missing[0]
    late = byname.open(tmp_path / "run.h5")
    assert len(late["a"]) == 40 and late["a"].values[-1].tolist() == [39.0] * 4
    writer.close()
    assert late["a"].values[7].tolist() == [7.0] * 4
    assert byname.open(tmp_path / "run.h5").complete


def test_the_files_of_all_ranks_are_one_recording(tmp_path):
    for rank in range(2):
        with as_rank(rank, 2):
            written(tmp_path / "run.h5", {"a": [torch.tensor([float(rank), float(one)]) for one in range(3)]})
    with byname.open(tmp_path / "run.h5") as recording:
        found = recording["a"]
        assert recording.complete and recording.missing == ()
        assert sorted(zip(found.iterations, found.ranks)) == [(one, rank) for one in range(3) for rank in range(2)]
        for iteration, rank, value in zip(found.iterations, found.ranks, found.values):
            assert value.tolist() == [float(rank), float(iteration)]
        assert recording.rows()[0]["ranks"] == (0, 1)


def test_a_rank_that_is_missing_foreign_or_broken_is_said_and_never_read_as_zeros(tmp_path):
    for rank in (2, 0, 1):
        with as_rank(rank, 5, "old" if rank == 2 else "new"):
            written(tmp_path / "run.h5", {"a": [1.0 + rank]})
    (tmp_path / "run.rank3.h5").write_bytes(b"not a recording at all")
    recording = byname.open(tmp_path / "run.h5")
    assert list(recording["a"].values) == [1.0, 2.0] and not recording.complete
    said = " | ".join(recording.missing)
    assert (
        "rank 3:" in said and "run.rank2.h5 is from another run" in said and "rank 4 of 5: no file run.rank4.h5" in said
    )
    recording.close()


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="counted by Linux")
@pytest.mark.parametrize("finish", [True, False])
def test_a_large_recording_opens_without_reading_it(finish, tmp_path):
    writer = Writer(tmp_path / "run.h5", "a", finish=finish)
    for _ in range(8):
        writer.window({"a": [torch.ones(1024, 256)] * 8})
    writer.close()

    def read():
        return int(Path("/proc/self/io").read_text().splitlines()[0].removeprefix("rchar:"))

    before = read()
    with byname.open(tmp_path / "run.h5") as recording:
        assert recording.rows()[0]["bytes"] == 64 * 2**20
        assert recording["a"].shapes == [(1024, 256)] * 64
        assert read() - before < 100_000
        assert recording["a"].values[33].sum() == 1024 * 256
        assert read() - before < 100_000 + 2**20


def test_the_tables_have_no_shape_where_there_is_none_and_the_recorders_has_the_same_places(tmp_path):
    values = {"jagged": [[torch.ones(2, 3), torch.ones(4, 3)]] * 2, "text": ["a", "b"], "one": [1.5, 2.5]}
    with byname.open(written(tmp_path / "run.h5", values)) as recording:
        assert [row["shape"] for row in recording.rows()] == [None, None, ()]
    writer = Writer(None, values)
    writer.window(values)
    results = writer.recorder.results
    assert str(results).splitlines()[1].split() == ["path", "records", "iterations"]
    assert [line.split() for line in str(results).splitlines()[3:]] == [[path, "2", "0-1"] for path in values]
    assert ">jagged</td>" in results._repr_html_()
