"""What somebody else made takes no more than it holds: crafted recordings are refused, or what is left out is said."""

import json
import math
import os
import struct
import tracemalloc
import zlib

import h5py
import numpy
import pytest
import torch
from stored_runs import series, written

import byname
from byname.errors import BadArgumentError, NoRecordingError, NotARecordingError, RecordingError
from byname.recording.stores.writer import Hdf5Store

LONG = 1 << 20


@pytest.fixture
def path(tmp_path):
    return written(
        tmp_path / "run.h5",
        {
            "a": [torch.randn(4, 5) for _ in range(30)],
            "n": [{"k": one} for one in range(30)],
            "r": [torch.ones(one) for one in range(20)],
            "t": ["x"] * 30,
        },
    )


@pytest.fixture
def old(path):
    """The same as in format 1, which has no inventory: the attributes of the groups are read."""
    with h5py.File(path, "r+") as file:
        del file["byname/places"], file["byname/numbers"]
        file.attrs["version"] = numpy.int64(1)
    return path


def memory_of(function):
    """What a function gives, and the most bytes that Python and NumPy had at once meanwhile."""
    tracemalloc.start()
    try:
        return function(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# Texts and attributes that are the same bytes of the file


def references(raw, length):
    """Where in the bytes of a file a reference to a text of this length is."""
    key, at = struct.pack("<I", length), -1
    while (at := raw.find(key, at + 1)) >= 0:
        heap = int.from_bytes(raw[at + 4 : at + 12], "little")
        if 0 < heap < len(raw) and raw[heap : heap + 4] == b"GCOL":
            yield at


def shared(path, lengths):
    """Lets all texts of one length refer to the one of another length."""
    raw = bytearray(path.read_bytes())
    for old, new in lengths.items():
        (first, *_) = references(raw, new)
        for at in list(references(raw, old)):
            raw[at : at + 16] = raw[first : first + 16]
    path.write_bytes(raw)


@pytest.mark.parametrize("kind", ["str", "nested"])
def test_texts_that_are_all_the_same_bytes_are_refused_without_reading_them(tmp_path, kind):
    value = (lambda text: text) if kind == "str" else lambda text: {"k": text}
    places = {"t": [value("B" * LONG), *(value("x" * 77) for _ in range(50))]}
    path = written(tmp_path / "run.h5", places)
    with byname.open(path) as recording:
        assert list(recording["t"].values) == places["t"]
        frame = len(json.dumps({"dict": [["k", ""]]}, separators=(",", ":"))) if kind == "nested" else 0
    shared(path, {77 + frame: LONG + frame})

    def read():
        with byname.open(path) as recording:
            with pytest.raises(RecordingError, match="texts of 5.* bytes, which are more than there are"):
                next(iter(recording["t"].values))
            with pytest.raises(RecordingError, match=r"run\.h5.*more than there are"):
                recording["t"].values[3]

    assert min(memory_of(read)[1] for _ in range(2)) < LONG // 2  # the first time may fill a cache of Python's


def test_texts_are_read_some_at_a_time(tmp_path):
    texts = [chr(ord("a") + one) * LONG for one in range(20)]
    path = written(tmp_path / "run.h5", {"t": texts, "n": [{"k": text} for text in texts]})
    with byname.open(path) as recording:
        for name in ("t", "n"):
            for found in (recording[name], recording[name][::-1], recording[name][2:8]):
                values = iter(found.values)
                assert memory_of(lambda: next(values))[1] < 13 * LONG  # noqa: B023 - called at once
            assert list(recording["t"][::-1].values) == texts[::-1]
            assert list(recording["t"][2:8:3].values) == texts[2:8:3]


def test_attributes_that_are_all_the_same_bytes_are_refused(path, tmp_path):
    with h5py.File(path) as old, h5py.File(tmp_path / "more.h5", "w", libver="earliest") as file:
        for name, value in old.attrs.items():
            file.attrs[name] = value
        file.attrs["more"] = "Q" * LONG
        for number in range(40):
            file.attrs[f"more_{number}"] = "y" * 77
    shared(tmp_path / "more.h5", {77: LONG})
    with h5py.File(tmp_path / "more.h5") as file:
        assert len(file.attrs["more_7"]) == LONG

    def read():
        with pytest.raises(RecordingError, match=r"more\.h5.*attributes have more text"):
            byname.open(tmp_path / "more.h5")

    assert memory_of(read)[1] < 10 * LONG


def test_long_attributes_that_are_all_there_are_read(tmp_path):
    path = written(tmp_path / "run.h5", {"a": [1]}, **{f"note_{number}": "y" * LONG for number in range(4)})
    with byname.open(path) as recording:
        assert [len(recording.run[f"note_{number}"]) for number in range(4)] == [LONG] * 4


# Filters


def refiltered(path, name, *, filters, rows=30, chunk=30, data=None):
    """Puts an array in the place of another, with these filters one after another, and with this as its one chunk."""
    with h5py.File(path, "r+") as file:
        old = file[name]
        kind, columns = old.id.get_type(), old.shape[1:]
        values = old[:]
        del file[name]
        how = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        how.set_chunk((chunk, *columns))
        for one in filters:
            one(how)
        space = h5py.h5s.create_simple((rows, *columns), (h5py.h5s.UNLIMITED, *columns))
        made = h5py.h5d.create(file.id, name.encode(), kind, space, how)
        if data is None:
            h5py.Dataset(made)[:] = values
        else:
            for first in range(0, rows, chunk):
                made.write_direct_chunk((first, *(0 for _ in columns)), data)


def deflate(how):
    how.set_deflate(9)


def shuffle(how):
    how.set_shuffle()


def fletcher(how):
    how.set_fletcher32()


def lzf(how):
    how.set_filter(32000, h5py.h5z.FLAG_OPTIONAL)


def read_all(path):
    with byname.open(path) as recording:
        repr(recording)
        return {name: [repr(one) for one in recording[name].values] for name in recording.paths}


@pytest.mark.parametrize("filters", [[deflate], [shuffle, deflate], [shuffle, deflate, fletcher], [lzf], [fletcher]])
def test_arrays_that_were_packed_later_read_as_before(path, filters):
    before = read_all(path)
    for name in ("a/values", "a/iterations", "t/values", "n/values", "n/offsets"):
        text = name in ("t/values", "n/values")  # which HDF5 gives no checksum, and lzf no room
        refiltered(path, name, filters=[one for one in filters if not text or one in (shuffle, deflate)])
    assert read_all(path) == before


@pytest.mark.parametrize("name", ["a/values", "a/iterations", "n/offsets", "t/values"])
@pytest.mark.parametrize("filters", [[deflate, deflate], [shuffle, shuffle, deflate], [deflate, lzf], [deflate] * 9])
def test_filters_after_filters_are_refused(path, name, filters):
    refiltered(path, name, filters=filters)
    with pytest.raises(RecordingError, match="went through the filters"):
        read_all(path)


@pytest.mark.parametrize("name", ["a/values", "n/offsets", "a/iterations"])
def test_a_chunk_that_unpacks_to_more_than_it_says_is_refused_before_it_is_unpacked(path, name):
    refiltered(path, name, filters=[deflate], chunk=1 << 14, data=zlib.compress(bytes(80 << 20), 1))

    def read():
        with pytest.raises(
            RecordingError, match=r"chunk of \d+ bytes or more, unpacked|has a chunk of \d+ bytes, where"
        ):
            read_all(path)

    assert memory_of(read)[1] < 20 << 20


def test_more_rows_than_deflate_can_pack_are_refused(old):
    refiltered(old, "a/iterations", filters=[deflate], rows=1 << 24, chunk=1 << 20, data=zlib.compress(bytes(9)))
    with pytest.raises(RecordingError, match=r"run\.h5"):
        read_all(old)


# What is left out


def doubled(file):
    file["t"].attrs["path"] = "a"


def doubled_by_a_link(file):
    file["second"] = file["t"]


def external(file):
    del file["t"]
    file["t"] = h5py.ExternalLink("other.h5", "/values")


def soft(file):
    del file["t"]
    file["t"] = h5py.SoftLink("/a")


def deleted(file):
    del file["n"]


@pytest.mark.parametrize(
    ("change", "left", "said"),
    [
        (doubled, "anr", "`t`: it says that it is `a`"),
        (doubled_by_a_link, "anrt", "`second`: it says that it is `t`"),
        (external, "anr", "`t`: there is a link to another file"),
        (soft, "anr", "`t`: there is a link to another name"),
        (deleted, "art", "1 place that the file had"),
    ],
)
def test_a_place_that_is_left_out_is_said(old, change, left, said):
    with h5py.File(old, "r+") as file:
        change(file)
    with byname.open(old) as recording:
        assert sorted(recording.paths) == [*left]
        assert not recording.complete
        assert [said in sentence for sentence in recording.missing] == [True]
        assert len(recording["a"]) == 30
        assert recording["a"].values[0].shape == (4, 5)
        assert said in str(recording)


@pytest.mark.parametrize(
    ("change", "left", "said"),
    [
        (doubled, "anrt", None),  # of the attribute `path` only other readers know
        (doubled_by_a_link, "anrt", "`second`: the inventory does not have it"),
        (external, "anr", "`t`: there is a link to another file"),
        (soft, "anr", "`t`: there is a link to another name"),
        (deleted, "art", "1 place that the file had: n"),
    ],
)
def test_a_place_that_is_left_out_is_said_where_there_is_an_inventory(path, change, left, said):
    with h5py.File(path, "r+") as file:
        change(file)
    with byname.open(path) as recording:
        assert sorted(recording.paths) == [*left]
        assert recording.complete == (said is None)
        assert [said in sentence for sentence in recording.missing] == [True] * (said is not None)
        assert len(recording["a"]) == 30


def test_a_part_of_a_place_behind_a_link_is_refused(old):
    with h5py.File(old, "r+") as file:
        del file["r/more/3"]
        file["r/more/3"] = h5py.SoftLink("/a")
    with pytest.raises(RecordingError, match="link"):
        byname.open(old)


# Types, shapes and descriptions


NO_NUMBERS = ["qint8", "quint8", "qint32", "quint4x2", "bits8", "bits16", "uint1", "int4", "float4_e2m1fn_x2"]


@pytest.mark.parametrize("name", [name for name in NO_NUMBERS if hasattr(torch, name)])
def test_a_dtype_of_which_pytorch_reads_no_element_is_refused(old, name):
    with h5py.File(old, "r+") as file:
        file["n/values"][0] = json.dumps({"tensor": [name, [3], 0]})
        file["a"].attrs["dtype"] = name
    with pytest.raises(RecordingError, match="cannot read its elements"):
        byname.open(old)
    with h5py.File(old, "r+") as file:
        file["a"].attrs["dtype"] = "float32"
    with byname.open(old) as recording, pytest.raises(RecordingError, match="cannot read its elements"):
        recording["n"].values[0]


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", ["bits8", "float4_e2m1fn_x2", "uint1"])
def test_a_dtype_of_which_pytorch_reads_no_element_is_not_recorded(name, inside):
    model = torch.nn.Identity()
    value = torch.zeros(4, dtype=torch.uint8).view(getattr(torch, name))
    with byname.record(model, "forward") as recorder:
        with pytest.raises(byname.errors.NotStorableError, match=r"`forward`.*on_value"):
            model([value] if inside else value)
    assert not len(recorder.results)


def test_the_name_of_any_dtype_is_a_value():
    from byname.codec import decoded, encoded

    for dtype in (torch.qint8, torch.bits8, torch.float32):
        assert decoded(encoded({"dtype": dtype})[0]) == {"dtype": dtype}


def empty_rows(file):
    _replaced(file["a"], "values", (30, 2**40, 2**40, 0), "<f4", (1, 1, 1, 1))


def many_sizes(file):
    _replaced(file["r/more/8"], "shapes", (12, 2**24), "<i8", (1, 1))


def no_sizes(file):
    _replaced(file["r/more/8"], "shapes", (12,), "<i8", (1,))


def _replaced(group, name, shape, kind, chunks):
    del group[name]
    group.create_dataset(name, (0, *chunks[1:]), kind, chunks=chunks, maxshape=(None,) * len(shape)).resize(shape)


@pytest.mark.grid(fast=8)
@pytest.mark.parametrize(
    "change",
    [
        empty_rows,
        many_sizes,
        no_sizes,
        lambda file: file["a"].attrs.__setitem__("kind", "nested"),
        lambda file: file["a"].attrs.__setitem__("kind", "int"),
        lambda file: file["t"].attrs.__setitem__("dtype", "float32"),
        lambda file: file["n"].attrs.__setitem__("layout", "rows"),
        lambda file: file["n"].attrs.__setitem__("kind", "str"),
        lambda file: file["r/more/8"].attrs.__setitem__("layout", "rows"),
        lambda file: file["n/values"].__setitem__(0, '{"tensor":["float32",[0,4611686018427387904,9],0]}'),
        lambda file: file["n/values"].__setitem__(0, json.dumps({"tensor": ["float32", [1] * 100_000, 0]})),
        lambda file: file["n/values"].__setitem__(0, json.dumps({"tensor": ["float32", [2**70], 0]})),
        lambda file: file["n/values"].__setitem__(0, "[" * 100_000),
        lambda file: file["n/values"].__setitem__(0, '{"dict":' * 5000),
        lambda file: file["n/values"].__setitem__(0, "9" * 100_000),
        lambda file: file["n/values"].__setitem__(
            0, json.dumps({"dict": [[number * (2**61 - 1), 0] for number in range(50_000)]})
        ),
        lambda file: file.attrs.__setitem__("missing", "[" * 100_000),
        lambda file: file.attrs.__setitem__("json", '[["x"]]'),
    ],
)
def test_descriptions_that_no_recorder_writes_are_refused(old, change):
    with h5py.File(old, "r+") as file:
        change(file)
    with pytest.raises(RecordingError, match=r"run\.h5|stored value"):
        read_all(old)


SHARD = {"mesh": [2], "names": [], "coordinate": [0], "placements": ["Shard(0)"], "shape": [4], "offset": [0]}


@pytest.mark.grid(fast=8)
@pytest.mark.parametrize(
    "wrong",
    [
        {"mesh": "abc", "coordinate": "x", "placements": "P", "shape": "zz", "offset": "q"},
        {"mesh": [0]},
        {"mesh": [2.0]},
        {"mesh": [True]},
        {"mesh": [2**40]},
        {"mesh": [2, 2]},
        {"mesh": []},
        {"coordinate": [2]},
        {"coordinate": [-1]},
        {"coordinate": [0, 0]},
        {"placements": ["Shard(x)"]},
        {"placements": ["Shard(1)"]},
        {"placements": ["Shard(-1)"]},
        {"placements": ["StridedShard(0, 0)"]},
        {"placements": ["StridedShard(0, 99999999999)"]},
        {"placements": [3]},
        {"names": ["x", "y"]},
        {"shape": [2**63]},
        {"offset": [0, 0]},
        {"more": [1]},
    ],
)
def test_a_part_that_belongs_nowhere_is_refused(old, wrong):
    with h5py.File(old, "r+") as file:
        file["a"].attrs["shard"] = json.dumps(SHARD | wrong)
    with pytest.raises(RecordingError, match="part of a distributed tensor"):
        byname.open(old)
    with h5py.File(old, "r+") as file:
        file["a"].attrs["shard"] = json.dumps(SHARD)
    with byname.open(old) as recording:
        assert recording["a"].shards[0].mesh == (2,)


# The inventory


def rewritten(path, change):
    """The lines of the inventory and its numbers, as `change(lines, numbers)` leaves them; lines may be bytes."""
    with h5py.File(path, "r+") as file:
        own = file["byname"]
        lines = [json.loads(line) for line in own["places"][:].tobytes().splitlines()]
        table = own["numbers"][:].tolist()
        change(lines, table)
        raw = b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines)
        for name, new in (("places", numpy.frombuffer(raw, "u1")), ("numbers", numpy.array(table, "<i8"))):
            own[name].resize(len(new), 0)
            own[name][...] = new


def of(name, fact):
    return lambda lines, table: lines[0].__setitem__(name, fact)


def number(column, fact):
    return lambda lines, table: table[0].__setitem__(column, fact)


def line(raw):
    return lambda lines, table: lines.__setitem__(0, raw)


@pytest.mark.grid(fast=8)
@pytest.mark.parametrize(
    "change",
    [
        *(of(name, fact) for name in ("path", "layout", "kind", "dtype", "padded") for fact in (3, None, ["x"], {})),
        *(of("shape", fact) for fact in (3, [-1], [2.0], [True], ["4"], [2**70], [2**30, 2**30], [1] * 99, None)),
        *(of("ranks", fact) for fact in (3, [-2], [2**31], [0.5], [True], ["0"], None)),
        *(of("shard", fact) for fact in (3, [], "x", {"mesh": [2]}, {"mesh": 3}, {"more": [1]})),
        *(of("asked", fact) for fact in (3, [], {}, {"every": "2"}, {"more": 1}, {"where": "a"}, {"reduce": ["x"]})),
        of("dtype", "qint8"),
        of("dtype", "\x1b[31m"),
        of("layout", "nested"),
        of("layout", "flat"),
        of("kind", "int"),
        *(number(0, fact) for fact in (0, -1, -(2**63))),
        number(1, 2**62),
        number(2, -5),
        number(3, -1),
        line(b"[" * 100_000 + b"\n"),
        line(b'{"path": ' * 100_000 + b"\n"),
        line(b"9" * 100_000 + b"\n"),
        line(b"\xff\xfe\n"),
        line(b"[]\n"),
        line(b"\n"),
        line(b" " * (1 << 21) + b"\n"),
        lambda lines, table: lines.append(b"{}"),
        lambda lines, table: lines.pop(),
        lambda lines, table: table.pop(),
        *(lambda lines, table, at=at: lines.append({"line": at, "ranks": [0]}) for at in (99, -1, "0", True, None)),
        lambda lines, table: lines.append({"line": 0, "ranks": "0"}),
        lambda lines, table: lines.append({"line": 0}),
    ],
)
def test_an_inventory_that_no_recorder_writes_is_refused(path, change):
    rewritten(path, change)
    with pytest.raises(RecordingError, match=r"run\.h5"):
        byname.open(path)


@pytest.mark.parametrize(
    "change", [number(0, 31), number(0, 2**62), of("shape", [4, 6]), of("shape", [2**50]), of("dtype", "float64")]
)
def test_values_that_the_inventory_has_and_the_file_has_not_are_refused(path, change):
    rewritten(path, change)
    with byname.open(path) as recording:
        repr(recording)

        def read():
            with pytest.raises(RecordingError, match=r"run\.h5"):
                list(recording["a"].values)

        assert memory_of(read)[1] < 1 << 20
        assert list(recording["t"].values) == ["x"] * 30


@pytest.mark.parametrize("name", ["byname/places", "byname/numbers"])
def test_an_inventory_elsewhere_is_refused(path, name):
    with h5py.File(path, "r+") as file:
        del file[name]
        file[name] = h5py.SoftLink("/a/values")
    with pytest.raises(RecordingError, match="link"):
        byname.open(path)


def test_places_that_the_inventory_has_without_groups_are_counted_and_not_kept(path):
    rewritten(path, lambda lines, table: (lines.extend({**lines[0], "path": f"x{one}"} for one in range(2000)),
                                          table.extend([table[0]] * 2000)))  # fmt: skip
    with byname.open(path) as recording:
        assert sorted(recording.paths) == [*"anrt"]
        assert len(recording.missing) == 1 and "2000 places that the file had: x0" in recording.missing[0].replace(
            ",", ""
        )


@pytest.mark.parametrize("version", [3, 2**40, 0, -1])
def test_a_format_that_is_not_known_is_said(path, version):
    with h5py.File(path, "r+") as file:
        file.attrs["version"] = version
    with pytest.raises(RecordingError, match=rf"version {version} of the format, and this byname reads 1 to 2"):
        byname.open(path)


# Names of files


def test_a_pipe_is_no_file_and_nobody_waits_for_it(tmp_path):
    os.mkfifo(tmp_path / "run.h5")
    with pytest.raises(NotARecordingError, match=r"run\.h5 is a pipe"):
        byname.open(tmp_path / "run.h5")
    with pytest.raises(NotARecordingError, match="is a device"):
        byname.open("/dev/null")


@pytest.mark.parametrize("name", ["x" * 5000, "x/" * 5000, "a\0b", "\x1b[31m" * 1000])
def test_a_name_that_no_file_can_have_is_one_that_is_not_there(name):
    with pytest.raises(NoRecordingError) as error:
        byname.open(name)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 2000


@pytest.mark.parametrize("name", [3, None, b"run.h5", ["run.h5"]])
def test_what_names_no_file_is_refused(name):
    with pytest.raises(BadArgumentError, match=type(name).__name__):
        byname.open(name)


def test_a_file_of_the_user_that_has_the_name_of_the_journal_stays(tmp_path):
    mine = tmp_path / "run.h5.journal"
    mine.write_text("precious")
    model = torch.nn.Identity()
    for overwrite in (False, True):
        with pytest.raises(byname.errors.RecordingExistsError, match=r"run\.h5\.journal.*move the file away"):
            byname.record(model, "forward", to=tmp_path / "run.h5", overwrite=overwrite)
    assert mine.read_text() == "precious"
    assert not model._forward_hooks


def test_a_file_that_is_emptied_while_it_is_recorded_is_said(tmp_path):
    path, model = tmp_path / "run.h5", torch.nn.Identity()
    recorder = byname.record(model, "forward", to=path)
    model(torch.ones(2))
    recorder.flush()
    path.write_bytes(b"")
    model(torch.ones(2))
    with pytest.warns(byname.errors.RecordingWarning, match="another program.*nothing that can be read"):
        with pytest.raises(RecordingError, match="another program"):
            recorder.flush()
    with pytest.raises(RecordingError, match="another program"):
        recorder.close()
    assert path.read_bytes() == b""


def test_sizes_are_counted_where_the_writer_reads_its_own_file(tmp_path):
    store = Hdf5Store(tmp_path / "run.h5", run={}, compression="gzip")
    places = {"t": ["x" * 5000, "y"], "a": [torch.ones(70_000)] * 3, "n": [{"k": torch.ones(3)}] * 2}
    store.append({name: series(name, values) for name, values in places.items()})
    for _ in range(2):
        found = store.results()
        assert list(found["t"].values) == places["t"]
        assert math.isclose(float(found["a"].values[2].sum()), 70_000)
        assert numpy.array_equal(found["n"].values[1]["k"], torch.ones(3))
        store.flush()
    store.close()
