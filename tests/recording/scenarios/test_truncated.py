"""Files that are cut off, damaged, foreign or hostile are refused in words, and lead to no other file."""

import fuzzing
import h5py
import numpy
import pytest
import torch
from stored_runs import written

import byname
from byname.errors import BynameError, NotARecordingError, RecordingError


@pytest.fixture
def path(tmp_path):
    nested = [{"k": [torch.ones(3), one]} for one in range(3)]
    ragged = [torch.ones(one) for one in range(20)]
    return written(
        tmp_path / "run.h5", {"a": [torch.randn(4, 5) for _ in range(30)], "n": nested, "r": ragged, "t": ["x"]}
    )


def read_all(path):
    with byname.open(path) as recording:
        for found in recording:
            list(recording[found].values)
        recording.rows(ranges=True)


def test_a_file_cut_off_anywhere_is_an_error_in_words(path):
    whole = path.read_bytes()
    for size in sorted({1, 7, 8, 9, 50, 96, 512, 2047, 2048, 2049, *range(3000, len(whole), len(whole) // 15)}):
        path.write_bytes(whole[:size])
        with pytest.raises(BynameError, match=r"run\.h5"):
            read_all(path)


def test_bytes_that_changed_never_crash_the_reader(path):
    """Every outcome but a foreign exception is right: the file may still be whole where it is read."""
    import random

    whole, chance = path.read_bytes(), random.Random(0)
    outcomes = set()
    for _ in range(20):
        broken = bytearray(whole)
        for _ in range(8):
            broken[chance.randrange(min(len(whole), 60_000))] = chance.randrange(256)
        path.write_bytes(broken)
        try:
            read_all(path)
            outcomes.add("read")
        except BynameError:
            outcomes.add("refused")
    assert outcomes <= {"read", "refused"}


def test_what_is_no_recording_is_named(tmp_path):
    (tmp_path / "empty.h5").touch()
    (tmp_path / "text.h5").write_text("hello")
    torch.save({"a": 1}, tmp_path / "model.pt")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x\x1b[31m"] = 1
    for name, words in {
        "empty.h5": "is empty",
        "text.h5": "hello",
        "model.pt": "zip",
        "other.h5": r"is HDF5, but not a recording of byname",
    }.items():
        with pytest.raises(NotARecordingError, match=words) as error:
            byname.open(tmp_path / name)
        assert "\x1b" not in str(error.value)
    with pytest.raises(NotARecordingError, match="is a directory; in it: empty.h5, other.h5, text.h5"):
        byname.open(tmp_path)
    with pytest.raises(RecordingError, match="there is no file .*; the closest that exists: .*other.h5"):
        byname.open(tmp_path / "othr.h5")


def indexed(path, change):
    """The file with another index, that is as whole as that of a recorder."""
    fuzzing.change_index(path, change)
    return path


def number_of(index, path):
    return next(number for number, (one, _) in enumerate(index["places"]) if one == path)


def entry(path, **facts):
    def change(index):
        next(one for one in index["entries"] if one["place"] == number_of(index, path)).update(facts)

    return change


def last_type(path, at, fact):
    """Another fact of the type of the last values of a place."""

    def change(index):
        last = [one for one in index["entries"] if one["place"] == number_of(index, path)][-1]
        index["types"][last["type"]][at] = fact

    return change


def column(at, fact):
    return lambda index: index["columns"][0].__setitem__(at, fact)


@pytest.mark.grid(fast=11)
@pytest.mark.parametrize(
    "change",
    [
        entry("a", count=2**31 - 1),
        entry("a", count=31),
        entry("a", count=-1),
        entry("a", count=0),
        entry("a", place=99),
        entry("a", type=99),
        entry("a", type=-1),
        entry("a", records=99),
        entry("a", records=-1),
        entry("a", size=10**12),
        entry("a", size=-8),
        entry("a", size=601),
        entry("a", values=10**12),
        entry("a", values=-8),
        entry("n", size=8),
        entry("n", size=25),
        last_type("a", 0, "object"),
        last_type("a", 1, "float64"),
        last_type("a", 1, "load_library"),
        last_type("a", 1, 3),
        last_type("a", 1, "qint8"),
        last_type("a", 2, [2**62, 2**62]),
        last_type("a", 2, [0, 2**61, 5]),
        last_type("a", 2, [0, 2**40]),
        last_type("a", 2, [-4, 5]),
        last_type("r", 5, [1]),
        last_type("r", 5, [2**60]),
        last_type("r", 5, []),
        column(0, 10**12),
        column(0, "x"),
        column(0, -8),
        column(3, 2**62),
        column(3, 2**64),
        lambda index: index["columns"][0].pop(),
        lambda index: index.update(columns=3),
        lambda index: index.update(types=[]),
        lambda index: index.update(types=[["tensor"]]),
        lambda index: index["places"][0].pop(),
        lambda index: index.pop("places"),
        lambda index: index.update(missing=3),
        lambda index: index.update(run=[]),
        lambda index: index.update(ends=[[1]]),
        lambda index: index.update(places=index["places"] * 2),
        lambda index: index.update(packed={"0": {"chunk": 8, "each": 4, "chunks": [[0, 8]] * 10**6}}),
        lambda index: index.update(packed={"0": {"chunk": 1 << 40, "each": 8, "chunks": [[0, 8]]}}),
    ],
)
def test_an_index_that_no_recorder_writes_is_refused(change, path):
    with pytest.raises(RecordingError, match=r"run\.h5|stored value"):
        read_all(indexed(path, change))


def test_another_place_may_not_stand_under_a_name_of_two(path):
    whole = path.read_bytes()
    with pytest.raises(RecordingError, match="two places"):
        byname.open(indexed(path, lambda index: index["places"][0].__setitem__(0, "n")))
    path.write_bytes(whole)
    read_all(path)


def test_hdf5_that_others_add_to_a_recording_is_not_in_the_way(path, tmp_path):
    with h5py.File(path, "r+") as file:
        file["mine"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "/a")
        file["note"] = numpy.arange(1000)
        file.attrs["note"] = "of a reader"
    with byname.open(path) as recording:
        assert recording.complete and len(recording) == 4
    read_all(path)


def test_nothing_of_a_file_is_given_to_hdf5(path, monkeypatch):
    def refused(*given, **named):
        raise AssertionError("HDF5 was asked")

    monkeypatch.setattr(h5py.File, "__init__", refused)
    read_all(path)


def test_names_from_a_file_cannot_steer_the_terminal(tmp_path):
    path = written(tmp_path / "run.h5", {"a\x1b[31m": [1.0]})
    with byname.open(path) as recording:
        assert "\x1b" not in str(recording) and "\x1b" not in recording._repr_html_()
        with pytest.raises(byname.errors.NoMatchError) as error:
            recording["b"]
        assert "\x1b" not in str(error.value)
