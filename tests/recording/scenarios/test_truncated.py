"""Files that are cut off, damaged, foreign or hostile are refused in words, and lead to no other file."""

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
        "other.h5": r"no recording of byname; in it: x\\x1b",
    }.items():
        with pytest.raises(NotARecordingError, match=words) as error:
            byname.open(tmp_path / name)
        assert "\x1b" not in str(error.value)
    with pytest.raises(NotARecordingError, match="is a directory; in it: empty.h5, other.h5, text.h5"):
        byname.open(tmp_path)
    with pytest.raises(RecordingError, match="there is no file .*; the closest there is: .*other.h5"):
        byname.open(tmp_path / "othr.h5")


def edited(path, change):
    with h5py.File(path, "r+") as file:
        change(file)
    return path


def test_links_to_other_files_are_not_followed(path, tmp_path):
    secret = written(tmp_path / "secret.h5", {"a": [torch.ones(4, 5)] * 30})

    def values_outside(file):
        del file["a/values"]
        file["a/values"] = h5py.ExternalLink(str(secret), "/a/values")

    edited(path, values_outside)
    with pytest.raises(RecordingError, match="link"), byname.open(path) as recording:
        recording["a"].values[0]


def test_soft_links_virtual_datasets_and_external_storage_are_refused(path, tmp_path):
    (tmp_path / "secret.bin").write_bytes(b"s" * 4800)
    layout = h5py.VirtualLayout((30, 4, 5), "f4")
    layout[:] = h5py.VirtualSource(str(path), "a/order", (30, 4, 5))

    def soft(file):
        file["a/values"] = h5py.SoftLink("/t/values")

    def virtual(file):
        file["a"].create_virtual_dataset("values", layout)

    def external(file):
        file["a"].create_dataset("values", (30, 4, 5), "f4", external=str(tmp_path / "secret.bin"))

    whole = path.read_bytes()
    for change in (soft, virtual, external):
        path.write_bytes(whole)
        edited(path, lambda file: file.__delitem__("a/values"))
        edited(path, change)
        with pytest.raises(RecordingError), byname.open(path) as recording:
            recording["a"].values[0]


def test_a_whole_place_behind_a_link_is_not_shown(path, tmp_path):
    secret = written(tmp_path / "secret.h5", {"a": [1.0]})
    edited(path, lambda file: file.__setitem__("b", h5py.ExternalLink(str(secret), "/a")))
    with byname.open(path) as recording:
        assert "b" not in recording.paths and len(recording) == 4


def grown(name, size):
    """An array that says it is of another length, and whose chunks are not in the file."""

    def change(file):
        place, _, column = name.partition("/")
        for one in ("iterations", "ranks", "calls", "modes", "values") if column == "*" else (column,):
            old = file[place][one]
            shape, kind = (size, *old.shape[1:]), h5py.Datatype(old.id.get_type())
            del file[place][one]
            file[place].create_dataset(one, shape, kind, maxshape=(None, *shape[1:]), chunks=(64, *shape[1:]))

    return change


@pytest.mark.parametrize(
    "change",
    [
        grown("a/*", 10**12),
        grown("a/values", 3),
        grown("a/modes", 3),
        grown("n/offsets", 2),
        lambda file: file["n/offsets"].__setitem__(1, 2**60),
        lambda file: file["n/offsets"].__setitem__(0, -8),
        lambda file: file["n/values"].__setitem__(0, '{"tensor": ["float32", [99999999999], 0]}'),
        lambda file: file["n/values"].__setitem__(0, "{"),
        lambda file: file["r/more/8/shapes"].__setitem__((0, 0), 2**40),
        lambda file: file["r/more/8/offsets"].__setitem__(0, 2**40),
        lambda file: file["r/more/1/order"].__setitem__(0, 0),
        lambda file: file["a"].attrs.__setitem__("dtype", "load_library"),
        lambda file: file["a"].attrs.__setitem__("dtype", 3),
        lambda file: file["a"].attrs.__setitem__("dtype", "float64"),
        lambda file: file["a"].attrs.__setitem__("layout", "pickle"),
        lambda file: file["a"].attrs.__setitem__("shard", '{"mesh": 1}'),
        lambda file: file["a"].attrs.__setitem__("path", numpy.zeros(3)),
        lambda file: file.attrs.__setitem__("version", 99),
        lambda file: file.attrs.__setitem__("missing", "[[["),
        lambda file: file.attrs.__setitem__("complete", "yes"),
        lambda file: file.attrs.__setitem__("json", "3"),
        lambda file: file.__delitem__("a/iterations"),
        lambda file: file.__setitem__("stray", 3),
    ],
)  # fmt: skip
def test_contents_that_no_recorder_writes_are_refused(change, path):
    with pytest.raises(RecordingError, match=r"run\.h5|stored value"):
        read_all(edited(path, change))


def test_names_from_a_file_cannot_steer_the_terminal(tmp_path):
    path = written(tmp_path / "run.h5", {"a\x1b[31m": [1.0]}, note="x")
    with byname.open(path) as recording:
        assert "\x1b" not in str(recording) and "\x1b" not in recording._repr_html_()
        with pytest.raises(byname.errors.NoMatchError) as error:
            recording["b"]
        assert "\x1b" not in str(error.value)
