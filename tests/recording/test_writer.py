"""What is put into an HDF5 file comes out bit by bit, by byname, by h5py alone and by xarray."""

import copy
import os
import pickle
import warnings
from pathlib import Path

import h5py
import numpy
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stored_runs import bits, series, written
from torch import nn

import byname
from byname.cli.tail import _written
from byname.errors import BadArgumentError, RecordingError, RecordingExistsError, RecordingWarning
from byname.recording.distributed.dtensor import Shard
from byname.recording.log_file import LogStore
from byname.recording.recording_file import is_log

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e8m0fnu,
]  # fmt: skip


def random_bits(dtype, shape):
    """Any bits: also NaN with payloads, infinities, denormal numbers."""
    if dtype is torch.bool:
        return torch.rand(shape) < 0.5
    if not shape:
        return random_bits(dtype, (1,))[0].clone()
    raw = torch.randint(0, 256, (*shape[:-1], shape[-1] * dtype.itemsize), dtype=torch.uint8)
    return raw.view(dtype) if raw.numel() else torch.empty(shape, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_comes_back_bit_by_bit(dtype, tmp_path):
    values = [random_bits(dtype, (3, 4)) for _ in range(5)]
    with byname.open(written(tmp_path / "run.h5", {"a": values, "scalar": [random_bits(dtype, ())]})) as recording:
        assert bits(list(recording["a"].values)) == bits(values)
        assert recording["scalar"].values[0].shape == ()
        assert recording["a"].values[2].dtype == dtype
        if not dtype.is_complex and dtype.itemsize > 1:
            wanted = torch.stack(values)
            wanted = wanted.float() if dtype is torch.bfloat16 else wanted
            numpy.testing.assert_array_equal(recording["a"][1:4].to_numpy(), wanted.numpy()[1:4])


def test_complex32_comes_back(tmp_path):
    warnings.filterwarnings("ignore", "ComplexHalf support")
    values = [random_bits(torch.complex32, (4,)) for _ in range(3)]
    recording = byname.open(written(tmp_path / "run.h5", {"a": values}))
    assert bits(list(recording["a"].values)) == bits(values)
    recording.close()


shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
tensors = st.tuples(st.sampled_from(DTYPES), shapes).map(lambda pair: random_bits(*pair))
plain = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=5), st.complex_numbers(),
    st.lists(st.integers() | tensors, max_size=3), st.dictionaries(st.text(max_size=2), tensors | st.none(), max_size=2),
)  # fmt: skip


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(tensors | plain, max_size=12), min_size=1, max_size=4))
def test_any_mixture_in_any_order_comes_back(tmp_path, windows):
    path = tmp_path / "mixed.h5"
    store = LogStore(path, run={}, overwrite=True)
    done = []
    for window in windows:
        store.append({"x": series("x", window, start=len(done))})
        done += window
        store.flush()
        if done:
            assert bits(list(store.results()["x"].values)) == bits(done)
    store.close()
    with byname.open(path) as recording:
        if done:
            found = recording["x"]
            assert bits(list(found.values)) == bits(done)
            assert list(found.iterations) == list(range(len(done)))
            assert [tuple(shape) for shape in found.shapes] == [getattr(one, "shape", ()) for one in done]
            assert bits(found.values[-1]) == bits(done[-1])


def test_many_shapes_lie_flat_and_come_back_in_order(tmp_path):
    values = [torch.randn(number % 30, 2) for number in range(90)]
    path = written(tmp_path / "run.h5", {"ragged": values})
    with byname.open(path) as recording:
        found = recording["ragged"]
        assert bits(list(found.values)) == bits(values)
        assert found.values[17].shape == (17, 2)
        assert len(found.values[10:20]) == 10
    with h5py.File(path) as file:
        assert file["ragged"].attrs["layout"] == "padded" and file["ragged/values"].shape == (90, 29, 2)
        assert file["ragged/shapes"][:].tolist() == [[number % 30, 2] for number in range(90)]
        numpy.testing.assert_array_equal(file["ragged/values"][17, :17], values[17].numpy())
        assert not file["ragged/values"][17, 17:].any()


def test_a_place_of_few_large_and_many_small_values_lies_flat(tmp_path):
    values = [torch.randn(1000 if number == 7 else 2 + number % 3) for number in range(50)]
    path = written(tmp_path / "run.h5", {"ragged": values})
    with byname.open(path) as recording:
        assert bits(list(recording["ragged"].values)) == bits(values)
        assert list(recording["ragged"].shapes) == [tuple(one.shape) for one in values]
    with h5py.File(path) as file:
        group = file["ragged"]
        assert group.attrs["layout"] == "flat" and group["values"].shape == (sum(map(len, values)),)
        start, end = group["ends"][6:8]
        numpy.testing.assert_array_equal(group["values"][start:end], values[7].numpy())


def test_rows_larger_than_a_chunk_and_chunks_that_divide_no_row(tmp_path):
    values = [torch.randn(3, 700, 331) for _ in range(2)] + [torch.randn(3, 700, 331)]
    values64 = [torch.arange(300_001, dtype=torch.float64) for _ in range(3)]
    path = written(tmp_path / "run.h5", {"a": values, "b": values64})
    with byname.open(path) as recording:
        assert bits(list(recording["a"].values)) == bits(values)
        assert bits(list(recording["b"].values)) == bits(values64)
    with h5py.File(path) as file:
        numpy.testing.assert_array_equal(file["a/values"][1], values[1].numpy())


@pytest.mark.parametrize("compression", ["gzip", ("gzip", 0), ("gzip", 9), None])
def test_windows_of_changing_length_fill_chunks_from_both_sides(compression, tmp_path):
    store = LogStore(tmp_path / "run.h5", run={}, compression=compression)
    done = []
    for length in (1, 200, 3, 77, 129, 1):
        window = [torch.full((1024,), float(len(done) + one)) for one in range(length)]
        store.append(
            {
                "a": series("a", window, start=len(done)),
                "n": series("n", [float(v[0]) for v in window], start=len(done)),
            }
        )
        store.flush()
        done += window
    store.close()
    with byname.open(tmp_path / "run.h5") as recording:
        assert torch.equal(torch.stack(list(recording["a"].values)), torch.stack(done))
        assert list(recording["n"].values) == [float(one) for one in range(len(done))]
        assert recording["a"][::-50].to_numpy()[:, 5].tolist() == [float(one) for one in range(len(done))][::-50]


def test_iterations_ranks_calls_and_modes_come_back(tmp_path):
    store = LogStore(tmp_path / "run.h5", run={"rank": 3})
    store.append({"a": series("a", [0.5] * 3, rank=3)})
    store.append({"a": series("a", [1.5] * 2, start=3, rank=1, call=2, mode="eval")})
    store.append({"a": series("a", [2.5] * 2, start=9, rank=3)})
    store.close()
    found = byname.open(tmp_path / "run.h5")["a"]
    assert (list(found.iterations), list(found.ranks)) == ([0, 1, 2, 3, 4, 9, 10], [3, 3, 3, 1, 1, 3, 3])
    assert (list(found.calls), list(found.modes)) == (
        [0, 0, 0, 2, 2, 0, 0],
        ["train"] * 3 + ["eval"] * 2 + ["train"] * 2,
    )


def test_stacked_and_padded_values_keep_the_shapes_from_before(tmp_path):
    stacked = torch.randn(3, 4)
    one = series("a", list(stacked))
    padded = type(one)("p", torch.zeros(2, 5), [0, 1], [0, 0], [0, 0], ["train"] * 2, [(3,), (5,)])
    store = LogStore(tmp_path / "run.h5", run={})
    store.append(
        {"a": type(one)("a", stacked, one.iterations, one.ranks, one.calls, one.modes, one.shapes), "p": padded}
    )
    store.close()
    with byname.open(tmp_path / "run.h5") as recording:
        assert torch.equal(torch.stack(list(recording["a"].values)), stacked)
        assert list(recording["p"].shapes) == [(3,), (5,)]
        assert recording["p"].values[0].shape == (5,)


def test_shards_come_back(tmp_path):
    shard = Shard((2, 2), ("dp", "tp"), (1, 0), ("Replicate()", "Shard(0)"), (8, 4), (4, 0))
    store = LogStore(tmp_path / "run.h5", run={})
    store.append({"w": series("w", [torch.ones(4, 4)] * 2, shard=shard)})
    store.append({"w": series("w", [torch.ones(8, 4)], start=2)})
    store.close()
    assert list(byname.open(tmp_path / "run.h5")["w"].shards) == [shard, shard, None]


@pytest.mark.parametrize("path", ["a/b", "forward.x['a/b%2F']", ".", "..", "byname", "%", "naïve.π", "a b", "**"])
def test_any_path_can_be_the_name_of_a_place(path, tmp_path):
    with byname.open(written(tmp_path / "run.h5", {path: [1.0]})) as recording:
        assert recording.paths == (path,)
        assert list(recording[path].values) == [1.0]


def test_h5py_alone_reads_numbers_of_every_kind(tmp_path):
    bf16 = torch.randn(4, 3).bfloat16()
    path = written(tmp_path / "run.h5", {
        "half": list(bf16), "flag": [True, False], "text": ["a", "ä"], "z": [torch.tensor([1 + 2j])], "big": [2**40],
    })  # fmt: skip
    with h5py.File(path) as file:
        numpy.testing.assert_array_equal(file["half/values"][:], bf16.float().numpy())
        assert file["flag/values"][:].tolist() == [True, False]
        assert file["text/values"].asstr()[:].tolist() == ["a", "ä"]
        assert file["z/values"][0, 0] == 1 + 2j
        assert file["big/values"][0] == 2**40
        assert h5py.check_enum_dtype(file["half/modes"].dtype) == {"train": 0, "eval": 1}
        assert dict(file["half"].attrs)["dtype"] == "bfloat16"
        assert file["half/values"].dims[0][0].name.endswith("iterations")


def test_xarray_opens_a_place_with_named_dimensions(tmp_path):
    xarray = pytest.importorskip("xarray")
    values = [torch.randn(3, 4) for _ in range(5)]
    ragged = [torch.randn(number % 20) for number in range(40)]
    path = written(tmp_path / "run.h5", {"a": values, "loss": [0.5, 0.25], "r": ragged, "n": [{"k": torch.ones(3)}]})
    with xarray.open_dataset(path, group="a", engine="h5netcdf") as found:
        assert found["values"].dims == ("iterations", "dim_0", "dim_1")
        assert set(found["values"].coords) == {"iterations", "ranks", "calls", "modes"}
        numpy.testing.assert_array_equal(found["values"].sel(iterations=3), values[3].numpy())
    for group in ("loss", "r", "n"):
        with xarray.open_dataset(path, group=group, engine="h5netcdf") as found:
            assert not [name for name in found.dims if str(name).startswith("phony")]


def test_an_existing_file_is_left_alone(tmp_path):
    path = tmp_path / "run.h5"
    path.write_bytes(b"precious")
    with pytest.raises(RecordingExistsError, match="overwrite=True"):
        LogStore(path, run={})
    with pytest.raises(FileExistsError):
        LogStore(path, run={})
    assert path.read_bytes() == b"precious"
    LogStore(path, run={}, overwrite=True).close()
    assert byname.open(path).complete


def test_what_is_in_the_way_of_a_file_is_named(tmp_path):
    (tmp_path / "runs").mkdir()
    with pytest.raises(
        RecordingError, match=r"no directory .*/rums/deep to write to; the closest there is: .*; in it: runs"
    ):
        LogStore(tmp_path / "rums" / "deep" / "run.h5", run={})
    with pytest.raises(RecordingError, match="is a directory"):
        LogStore(tmp_path / "runs", run={})
    assert not (tmp_path / "rums").exists()


@pytest.mark.parametrize("compression", ["zip", "lzf", ("gzip", 10), ("lzf", 3), 99_999, ("gzip", "high"), [], True])
def test_a_compression_that_is_none_is_refused_before_anything_is_written(compression, tmp_path):
    with pytest.raises(BadArgumentError, match="gzip"):
        LogStore(tmp_path / "run.h5", run={}, compression=compression)
    assert not list(tmp_path.iterdir())


def test_text_and_containers_can_be_in_a_compressed_file(tmp_path):
    values = ["a", {"k": torch.zeros(2000)}, None, torch.zeros(0, 2), torch.tensor(True), torch.ones(3).bfloat16()]
    store = LogStore(tmp_path / "run.h5", run={}, compression=("gzip", 1))
    store.append({"a": series("a", values)})
    store.close()
    with byname.open(tmp_path / "run.h5") as recording:
        assert bits(list(recording["a"].values)) == bits(values)


def test_compression_makes_the_file_smaller(tmp_path):
    sizes = []
    for compression in (None, "gzip"):
        store = LogStore(tmp_path / f"{compression}.h5", run={}, compression=compression)
        store.append({"a": series("a", [torch.zeros(64, 1024)] * 8)})
        store.close()
        sizes.append((tmp_path / f"{compression}.h5").stat().st_size)
    assert sizes[1] * 10 < sizes[0]


def test_a_file_that_is_lost_is_warned_of_once_and_said_at_flush_and_close(tmp_path):
    store = LogStore(tmp_path / "run.h5", run={})
    store.append({"a": series("a", [1.0, 2.0])})
    store.flush()
    (tmp_path / "run.h5.log").unlink()
    store.append({"a": series("a", [3.0], start=2)})
    with pytest.warns(RecordingWarning, match="can no longer be written") as seen:
        with pytest.raises(RecordingError, match="2 records up to iteration 1"):
            store.flush()
    assert len(seen) == 1
    store.append({"a": series("a", [4.0], start=3)})
    with pytest.raises(RecordingError):
        store.flush()
    with pytest.raises(RecordingError):
        store.close()
    store.close()


def test_a_full_disk_leaves_what_was_flushed(tmp_path, monkeypatch):
    """A limit on the size of files stands for the disk: writes fail with the same kind of error."""
    import resource
    import signal

    store = LogStore(tmp_path / "run.h5", run={})
    store.append({"a": series("a", [torch.ones(1000)] * 4)})
    store.flush()
    limits, before = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
    try:
        store.append({"a": series("a", [torch.ones(1000)] * 400, start=4)})
        with pytest.warns(RecordingWarning), pytest.raises(RecordingError):
            store.flush()
        with pytest.raises(RecordingError):
            store.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    with byname.open(tmp_path / "run.h5") as recording:
        assert len(recording["a"]) == 4 and not recording.complete
        assert torch.equal(recording["a"].values[3], torch.ones(1000))


def test_a_forked_child_writes_nothing(tmp_path):
    store = LogStore(tmp_path / "run.h5", run={})
    store.append({"a": series("a", [1.0])})
    child = os.fork()
    if not child:
        store.append({"a": series("a", [2.0])})
        store.flush()
        store.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    store.append({"a": series("a", [3.0], start=1)})
    store.close()
    assert list(byname.open(tmp_path / "run.h5")["a"].values) == [1.0, 3.0]


def test_results_show_what_is_only_buffered(tmp_path):
    store = LogStore(tmp_path / "run.h5", run={})
    store.append({"a": series("a", [1.0])})
    assert list(store.results()["a"].values) == [1.0]
    store.append({"a": series("a", [2.0], start=1)})
    assert list(store.results()["a"].values) == [1.0, 2.0]
    store.close()
    assert list(store.results()["a"].values) == [1.0, 2.0]


def test_places_recorded_together_share_their_index_until_one_goes_its_own_way(tmp_path):
    path = tmp_path / "run.h5"
    store = LogStore(path, run={})
    store.append({name: series(name, [torch.ones(2)] * 3) for name in "abcd"})
    store.flush()
    with byname.open(path) as recording:
        assert [list(recording[name].iterations) for name in "ad"] == [[0, 1, 2]] * 2
    store.append(
        {
            "a": series("a", [torch.ones(2)], start=3),
            "b": series("b", [torch.ones(2)], start=3),
            "c": series("c", [torch.ones(3)], start=7, call=1),
        }
    )
    store.flush()
    store.append({name: series(name, [torch.zeros(2)], start=9) for name in "abcd"})
    store.append({name: series(name, [torch.zeros(2)], start=10, mode="eval") for name in "abc"})
    store.close()
    with h5py.File(path) as file:
        assert file["a/iterations"] == file["b/iterations"] != file["d/iterations"]
    with byname.open(path) as recording:
        found = {name: list(recording[name].iterations) for name in "abcd"}
        assert found == {
            "a": [0, 1, 2, 3, 9, 10],
            "b": [0, 1, 2, 3, 9, 10],
            "c": [0, 1, 2, 7, 9, 10],
            "d": [0, 1, 2, 9],
        }
        assert list(recording["c"].calls) == [0, 0, 0, 1, 0, 0] and list(recording["c"].modes)[-1] == "eval"
        assert [tuple(value.shape) for value in recording["c"].values] == [(2,)] * 3 + [(3,)] + [(2,)] * 2
    xarray = pytest.importorskip("xarray")
    for name in "abcd":
        with xarray.open_dataset(path, group=name, engine="h5netcdf") as opened:
            assert opened["values"].dims == ("iterations", "dim_0")
            assert set(opened["values"].coords) == {"iterations", "ranks", "calls", "modes"}


@pytest.mark.grid(fast=1)
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_a_long_recording_of_places_that_come_and_go_is_exact(compression, tmp_path):
    chance = torch.Generator().manual_seed(0)
    store = LogStore(tmp_path / "run.h5", run={}, compression=compression)
    wanted = {f"p{number}": [] for number in range(8)}
    for window in range(60):
        for number, path in enumerate(wanted):
            if torch.rand((), generator=chance) < 0.7 or window < 20:
                wanted[path] += range(window * 5, window * 5 + 5 - (number % 2 and window % 7 == 0))
        store.append(
            {
                path: series(path, [float(i) for i in its if i >= window * 5], start=window * 5)
                for path, its in wanted.items()
                if its[-1] >= window * 5
            }
        )
        store.flush()
        if window % 9 == 0:  # what is read meanwhile must not stand in the way of what is written
            found = {path: list(one.values) for path, one in store.results().items()}
            assert found == {path: list(map(float, its)) for path, its in wanted.items()}
    store.close()
    with byname.open(tmp_path / "run.h5") as recording:
        assert {path: list(recording[path].iterations) for path in wanted} == wanted
        assert {path: list(recording[path].values) for path in wanted} == wanted


def test_a_disk_that_is_full_at_the_very_end_is_said_and_the_log_stays(tmp_path, monkeypatch):
    store = LogStore(tmp_path / "run.h5", run={})
    store.append({"a": series("a", [1.0])})
    store.flush()
    before, write = len([*Path("/proc/self/fd").iterdir()]), os.pwrite

    def full_for_the_file(descriptor, *given):
        if Path(f"/proc/self/fd/{descriptor}").readlink().suffix == ".new":
            raise OSError(28, "No space left on device")
        return write(descriptor, *given)

    monkeypatch.setattr(os, "pwrite", full_for_the_file)
    with pytest.warns(RecordingWarning, match=r"run\.h5\.log is whole, .*No space left.*byname\.finish makes the file"):
        store.close()
    store.close()
    monkeypatch.undo()
    assert len([*Path("/proc/self/fd").iterdir()]) < before
    assert [one.name for one in tmp_path.iterdir()] == ["run.h5.log"]
    with byname.open(tmp_path / "run.h5") as recording:
        assert list(recording["a"].values) == [1.0] and recording.complete and recording.ended
    assert byname.finish(tmp_path / "run.h5") == tmp_path / "run.h5"
    assert [one.name for one in tmp_path.iterdir()] == ["run.h5"]
    assert list(byname.open(tmp_path / "run.h5")["a"].values) == [1.0]


def test_thousands_of_shapes_take_a_few_arrays(tmp_path):
    store = LogStore(tmp_path / "run.h5", run={})
    values = [torch.full((number,), float(number)) for number in range(2000)]
    for start in range(0, 2000, 100):
        store.append({"a": series("a", values[start : start + 100], start=start)})
        store.flush()
    store.close()
    with h5py.File(tmp_path / "run.h5") as file:
        parts = []
        file["a"].visit(lambda name: parts.append(name) if name.endswith("values") else None)
    assert parts == ["values"]
    with byname.open(tmp_path / "run.h5") as recording:
        assert all(torch.equal(one, value) for one, value in zip(recording["a"].values, values, strict=True))


@pytest.mark.slow
def test_many_places_with_one_value_take_little_more_than_their_values(tmp_path):
    values = {f"layers.{number}": [torch.randn(1024)] for number in range(200)}
    path = written(tmp_path / "run.h5", values)
    assert path.stat().st_size < 2 * 200 * 4096
    with byname.open(path) as recording:
        assert all(torch.equal(recording[name].values[0], only) for name, (only,) in values.items())


def test_another_program_opens_what_a_killed_writer_left_once_it_is_repaired(tmp_path):
    store = LogStore(tmp_path / "run.h5", run={})
    store.append({"a": series("a", [1.0, 2.0])})
    store.flush()
    (tmp_path / "killed.h5.log").write_bytes((tmp_path / "run.h5.log").read_bytes())
    store.close()
    assert byname.repair(tmp_path / "killed.h5")
    with h5py.File(tmp_path / "killed.h5") as file:
        assert file["a/values"][:].tolist() == [1.0, 2.0] and not file.attrs["complete"]


def test_a_log_that_is_to_stay_is_read_like_a_file_and_finished_later(tmp_path):
    values = [torch.randn(3), {"k": torch.ones(2)}, "text"]
    store = LogStore(tmp_path / "run.h5", run={}, finish=False)
    store.append({"a": series("a", values)})
    store.close()
    assert [one.name for one in tmp_path.iterdir()] == ["run.h5.log"]
    for name in ("run.h5", "run.h5.log"):
        with byname.open(tmp_path / name) as recording:
            assert recording.complete and bits(list(recording["a"].values)) == bits(values)
    assert byname.finish(tmp_path / "run.h5.log") == tmp_path / "run.h5"
    for name in ("run.h5", "run.h5.log"):
        with byname.open(tmp_path / name) as recording:
            assert recording.complete and bits(list(recording["a"].values)) == bits(values)


def test_a_file_may_itself_end_in_log(tmp_path):
    store = LogStore(tmp_path / "x.log", run={})
    store.append({"a": series("a", [1.0, 2.0])})
    store.flush()
    for name in ("x.log", "x.log.log"):
        with byname.open(tmp_path / name) as recording:
            assert list(recording["a"].values) == [1.0, 2.0] and not recording.ended
    assert _written(str(tmp_path / "x.log")) == _written(str(tmp_path / "x.log.log")) != []
    store.close()
    for name in ("x.log", "x.log.log"):
        with byname.open(tmp_path / name) as recording:
            assert list(recording["a"].values) == [1.0, 2.0] and recording.complete
    assert byname.finish(tmp_path / "x.log") == tmp_path / "x.log" and not byname.repair(tmp_path / "x.log")
    assert _written(str(tmp_path / "x.log")) != []


def test_the_log_of_another_recording_is_never_replaced(tmp_path):
    LogStore(tmp_path / "run.h5", run={}, finish=False).close()
    log = (tmp_path / "run.h5.log").read_bytes()
    for overwrite in (False, True):
        with pytest.raises(RecordingExistsError, match=r"run\.h5\.log is .*not touched"):
            byname.record(nn.Linear(2, 2), "forward.input", to=tmp_path / "run.h5.log", overwrite=overwrite)
    assert (tmp_path / "run.h5.log").read_bytes() == log
    store = LogStore(tmp_path / "x.log", run={})
    store.append({"a": series("a", [1.0])})
    other = LogStore(tmp_path / "x", run={})  # whose log has the name of the first one's file
    with pytest.warns(RecordingWarning, match=r"there is another file x\.log now"):
        store.close()
    other.append({"b": series("b", [2.0])})
    other.close()
    with byname.open(tmp_path / "x") as recording:
        assert recording.paths == ("b",)
    with byname.open(tmp_path / "x.log.log") as recording:
        assert recording.paths == ("a",) and recording.complete


def test_a_file_that_came_meanwhile_is_not_replaced(tmp_path):
    path = tmp_path / "run.h5"
    store = LogStore(path, run={})
    store.append({"a": series("a", [1.0])})
    path.write_text("notes")
    with pytest.warns(RecordingWarning, match=r"there is another file run\.h5 now, which was not touched"):
        store.close()
    assert path.read_text() == "notes" and list(byname.open(path)["a"].values) == [1.0]


def test_a_recording_that_is_replaced_while_it_is_opened_is_found(tmp_path, monkeypatch):
    file, looks = tmp_path / "run.h5", []
    written(file, {"a": [1.0]})

    def replaced(path):
        if not looks:  # between the look for a log and the look for a file
            looks.append(LogStore(file, run={}, overwrite=True))
            return False
        return is_log(path)

    monkeypatch.setattr("byname.recording.recording.is_log", replaced)
    with byname.open(file) as recording:
        assert not recording.ended
    looks[0].close()


def test_what_is_open_stays_readable_while_the_file_is_finished_replaced_and_removed(tmp_path):
    path = tmp_path / "run.h5"
    store = LogStore(path, run={})
    store.append({"a": series("a", [torch.full((4,), float(one)) for one in range(5)])})
    store.flush()
    live = byname.open(path)
    store.close()
    closed = byname.open(path)
    written_anew = LogStore(path, run={}, overwrite=True)
    written_anew.append({"b": series("b", [1.0])})
    written_anew.flush()
    assert not path.exists() and byname.open(path).paths == ("b",)
    written_anew.close()
    path.unlink()
    for recording in (live, closed):
        assert [float(one[0]) for one in recording["a"]] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_pickled_series_is_read_again_and_never_from_another_recording(tmp_path):
    path = written(tmp_path / "run.h5", {"a": [1.0, 2.0]})
    recorded = byname.open(path)["a"]
    pickled = pickle.dumps(recorded)
    assert list(pickle.loads(pickled).values) == [1.0, 2.0]  # noqa: S301
    LogStore(path, run={}, overwrite=True).close()
    with pytest.raises(RecordingError, match="has changed since"):
        pickle.loads(pickled)  # noqa: S301
    assert list(copy.deepcopy(recorded).values) == [1.0, 2.0]  # which is open still


def test_a_recorder_that_is_still_open_does_not_write_into_the_recording_that_replaced_its_own(tmp_path):
    path = tmp_path / "run.h5"
    old = LogStore(path, run={})
    old.append({"a": series("a", [1.0])})
    new = LogStore(path, run={}, overwrite=True)
    with pytest.warns(RecordingWarning, match="removed or replaced"), pytest.raises(RecordingError):
        old.close()
    with pytest.raises(RecordingError, match="another recording has replaced it"):
        old.results()
    new.append({"b": series("b", [2.0])})
    new.close()
    with pytest.raises(RecordingError, match="another recording has replaced it"):
        old.results()
    assert byname.open(path).paths == ("b",)
    path.unlink()
    with pytest.raises(RecordingError, match="is gone"):
        new.results()
