"""What is put into an HDF5 file comes out bit by bit, by byname, by h5py alone and by xarray."""

import copy
import os
import pickle
import time
import warnings
from pathlib import Path

import h5py
import numpy
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stored_runs import Places, Writer, bits, written
from torch._subclasses import FakeTensorMode

import byname
from byname import Series, cli
from byname.errors import BadArgumentError, RecordingError, RecordingExistsError, RecordingWarning

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
@given(st.lists(st.lists(tensors | plain, max_size=12), min_size=1, max_size=4).filter(any))
def test_any_mixture_in_any_order_comes_back(tmp_path, windows):
    path, done = tmp_path / "mixed.h5", []
    writer = Writer(path, ["x"], overwrite=True)
    for window in windows:
        writer.window({"x": window})
        done += window
        if done:
            assert bits(list(writer.recorder.results["x"].values)) == bits(done)
    writer.close()
    with byname.open(path) as recording:
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
    writer, done = Writer(tmp_path / "run.h5", "an", compression=compression), []
    for length in (1, 200, 3, 77, 129, 1):
        window = [torch.full((1024,), float(len(done) + one)) for one in range(length)]
        writer.window({"a": window, "n": [float(one[0]) for one in window]})
        done += window
    writer.close()
    with byname.open(tmp_path / "run.h5") as recording:
        assert torch.equal(torch.stack(list(recording["a"].values)), torch.stack(done))
        assert list(recording["n"].values) == [float(one) for one in range(len(done))]
        assert recording["a"][::-50].to_numpy()[:, 5].tolist() == [float(one) for one in range(len(done))][::-50]


def test_iterations_ranks_calls_and_modes_come_back(tmp_path):
    moments = (
        ([0, 1, 2], [3, 3, 3], [0, 0, 0], ["train"] * 3),
        ([3, 4], [1, 1], [2, 2], ["eval"] * 2),
        ([9, 10], [3, 3], [0, 0], ["train"] * 2),
    )
    windows = [Series("a", [0.5] * len(one[0]), *one, [()] * len(one[0])) for one in moments]
    how = {"gather_every": 1, "before_gather": lambda path, series: windows[series.iterations[0]]}
    found = byname.open(written(tmp_path / "run.h5", {"a": [0.5] * 3}, **how))["a"]
    for name, columns in zip(("iterations", "ranks", "calls", "modes"), zip(*moments), strict=True):
        assert list(getattr(found, name)) == sum(columns, [])


def test_stacked_and_padded_values_keep_the_shapes_from_before(tmp_path):
    stacked, padded = torch.randn(2, 4), [torch.zeros(3), torch.zeros(5)]
    made = {"a": byname.stack, "p": byname.stack_padded}
    places = {"a": list(stacked), "p": padded}
    how = {"gather_every": 9, "before_gather": lambda path, series: made[path](path, series)}
    path = written(tmp_path / "run.h5", places, **how)
    with byname.open(path) as recording:
        assert torch.equal(torch.stack(list(recording["a"].values)), stacked)
        assert list(recording["p"].shapes) == [(3,), (5,)]
        assert recording["p"].values[0].shape == (5,)


@pytest.mark.parametrize("path", ["a/b", "x['a/b%2F']", "x['..']", "byname", "%", "naïve.π", "a b", r"\*\*"])
def test_any_path_can_be_the_name_of_a_place(path, tmp_path):
    module, _, key = path.replace("\\", "").partition("[")
    model = Places([module])
    with byname.record(model, path, to=tmp_path / "run.h5"):
        model([(module, {key[1:-2]: 1.0} if key else 1.0)])
    with byname.open(tmp_path / "run.h5") as recording:
        assert recording.paths == (path,)
        assert list(recording[path].values) == [1.0]


def test_h5py_alone_reads_numbers_of_every_kind(tmp_path):
    bf16 = torch.randn(4, 3).bfloat16()
    path = written(tmp_path / "run.h5", {
        "low": list(bf16), "flag": [True, False], "text": ["a", "ä"], "z": [torch.tensor([1 + 2j])], "big": [2**40],
    })  # fmt: skip
    with h5py.File(path) as file:
        numpy.testing.assert_array_equal(file["low/values"][:], bf16.float().numpy())
        assert file["flag/values"][:].tolist() == [True, False]
        assert file["text/values"].asstr()[:].tolist() == ["a", "ä"]
        assert file["z/values"][0, 0] == 1 + 2j
        assert file["big/values"][0] == 2**40
        assert h5py.check_enum_dtype(file["low/modes"].dtype) == {"train": 0, "eval": 1}
        assert dict(file["low"].attrs)["dtype"] == "bfloat16"
        assert file["low/values"].dims[0][0].name.endswith("iterations")


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
        Writer(path, "a")
    with pytest.raises(FileExistsError):
        Writer(path, "a")
    assert path.read_bytes() == b"precious"
    assert byname.open(written(path, {"a": [1.0]}, overwrite=True)).complete


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with names")
def test_a_pipe_or_a_device_such_as_dev_null_is_never_replaced(tmp_path):
    os.mkfifo(tmp_path / "run.h5")
    for overwrite in (False, True):
        with pytest.raises(RecordingExistsError, match="a device or a pipe, not a file"):
            Writer(tmp_path / "run.h5", "a", overwrite=overwrite)
    with pytest.raises(FileExistsError, match="a device or a pipe"):
        byname.analyse.Mean().add([1.0]).save(tmp_path / "run.h5")
    assert cli.main(["run", "--record", "x", "--to", str(tmp_path / "run.h5"), "--overwrite", __file__]) == 2
    assert (tmp_path / "run.h5").is_fifo() and len([*tmp_path.iterdir()]) == 1


def test_what_is_in_the_way_of_a_file_is_named(tmp_path):
    (tmp_path / "runs").mkdir()
    with pytest.raises(
        RecordingError, match=r"no directory .*/rums/deep to write to; the closest that exists: .*; in it: runs"
    ):
        Writer(tmp_path / "rums" / "deep" / "run.h5", "a")
    with pytest.raises(RecordingError, match="is a directory"):
        Writer(tmp_path / "runs", "a")
    assert not (tmp_path / "rums").exists()


@pytest.mark.parametrize("compression", ["zip", "lzf", ("gzip", 10), ("lzf", 3), 99_999, ("gzip", "high"), [], True])
def test_a_compression_that_is_none_is_refused_before_anything_is_written(compression, tmp_path):
    with pytest.raises(BadArgumentError, match="gzip"):
        Writer(tmp_path / "run.h5", "a", compression=compression)
    assert not list(tmp_path.iterdir())


def test_text_and_containers_can_be_in_a_compressed_file(tmp_path):
    values = ["a", {"k": torch.zeros(2000)}, None, torch.zeros(0, 2), torch.tensor(True), torch.ones(3).bfloat16()]
    with byname.open(written(tmp_path / "run.h5", {"a": values}, compression=("gzip", 1))) as recording:
        assert bits(list(recording["a"].values)) == bits(values)


def test_compression_makes_the_file_smaller(tmp_path):
    places = {"a": [torch.zeros(64, 1024)] * 8}
    plain, packed = (
        written(tmp_path / f"{compression}.h5", places, compression=compression).stat().st_size
        for compression in (None, "gzip")
    )
    assert packed * 10 < plain


def test_a_file_that_is_lost_is_warned_of_once_and_said_at_flush_and_close(tmp_path):
    writer = Writer(tmp_path / "run.h5", "a")
    writer.window({"a": [1.0, 2.0]})
    (tmp_path / "run.h5.log").unlink()
    with pytest.warns(RecordingWarning, match="can no longer be written") as seen:
        with pytest.raises(RecordingError, match="2 records up to iteration 1"):
            writer.window({"a": [3.0]})
    assert len(seen) == 1
    with pytest.raises(RecordingError):
        writer.window({"a": [4.0]})
    with pytest.raises(RecordingError):
        writer.close()
    writer.close()


def test_a_full_disk_leaves_what_was_flushed(tmp_path):
    """A limit on the size of files stands for the disk: writes fail with the same kind of error."""
    import resource
    import signal

    writer = Writer(tmp_path / "run.h5", "a")
    writer.window({"a": [torch.ones(1000)] * 4})
    limits, before = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
    try:
        with pytest.warns(RecordingWarning), pytest.raises(RecordingError):
            writer.window({"a": [torch.ones(1000)] * 400})
        with pytest.raises(RecordingError):
            writer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    with byname.open(tmp_path / "run.h5") as recording:
        assert len(recording["a"]) == 4 and not recording.complete
        assert torch.equal(recording["a"].values[3], torch.ones(1000))


def test_a_forked_child_writes_nothing(tmp_path):
    writer = Writer(tmp_path / "run.h5", "a")
    writer.forward(a=1.0)
    child = os.fork()
    if not child:
        writer.window({"a": [2.0]})
        writer.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    writer.forward(a=3.0)
    writer.close()
    assert list(byname.open(tmp_path / "run.h5")["a"].values) == [1.0, 3.0]


def test_results_show_what_is_only_buffered(tmp_path):
    writer = Writer(tmp_path / "run.h5", "a")
    for done in ([1.0], [1.0, 2.0]):
        writer.forward(a=done[-1])
        assert list(writer.recorder.results["a"].values) == done
    writer.close()
    assert list(writer.recorder.results["a"].values) == [1.0, 2.0]


def test_places_recorded_together_share_their_index_until_one_goes_its_own_way(tmp_path):
    path, ones, zeros = tmp_path / "run.h5", torch.ones(2), torch.zeros(2)
    writer = Writer(path, "abcd")
    writer.window(dict.fromkeys("abcd", [ones] * 3))
    with byname.open(path) as recording:
        assert [list(recording[name].iterations) for name in "ad"] == [[0, 1, 2]] * 2
    for values in (dict.fromkeys("ab", ones), {}, {"c": torch.ones(3)}, {}, dict.fromkeys("abcd", zeros)):
        writer.forward(**values)
    writer.model.eval()
    writer.model([(name, zeros) for name in "aabbc"])
    writer.close()
    with h5py.File(path) as file:
        assert file["a/iterations"] == file["b/iterations"] != file["d/iterations"]
    with byname.open(path) as recording:
        found = {name: list(recording[name].iterations) for name in "abcd"}
        assert found == {
            "a": [0, 1, 2, 3, 7, 0, 0],
            "b": [0, 1, 2, 3, 7, 0, 0],
            "c": [0, 1, 2, 5, 7, 0],
            "d": [0, 1, 2, 7],
        }
        assert list(recording["a"].calls) == [0] * 6 + [1] and list(recording["c"].modes)[-1] == "eval"
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
    wanted = {f"p{number}": [] for number in range(8)}
    writer = Writer(tmp_path / "run.h5", wanted, compression=compression)
    for window in range(60):
        there = [torch.rand((), generator=chance) < 0.7 or window < 20 for _ in wanted]
        for iteration in range(window * 5, window * 5 + 5):
            odd = window % 7 == 0 and iteration % 5 == 4  # when every second place has no value
            now = [path for number, path in enumerate(wanted) if there[number] and not (odd and number % 2)]
            writer.forward(**dict.fromkeys(now, float(iteration)))
            for path in now:
                wanted[path].append(iteration)
        writer.recorder.flush()
        if window % 9 == 0:  # what is read meanwhile must not stand in the way of what is written
            found = {path: list(one.values) for path, one in writer.recorder.results.items()}
            assert found == {path: list(map(float, its)) for path, its in wanted.items()}
    writer.close()
    with byname.open(tmp_path / "run.h5") as recording:
        assert {path: list(recording[path].iterations) for path in wanted} == wanted
        assert {path: list(recording[path].values) for path in wanted} == wanted


def test_a_disk_that_is_full_at_the_very_end_is_said_and_the_log_stays(tmp_path, monkeypatch):
    writer = Writer(tmp_path / "run.h5", "a")
    writer.window({"a": [1.0]})
    before, write = len([*Path("/proc/self/fd").iterdir()]), os.pwrite

    def full_for_the_file(descriptor, *given):
        if Path(f"/proc/self/fd/{descriptor}").readlink().suffix == ".new":
            raise OSError(28, "No space left on device")
        return write(descriptor, *given)

    monkeypatch.setattr(os, "pwrite", full_for_the_file)
    with pytest.warns(
        RecordingWarning, match=r"run\.h5\.log is complete, .*No space left.*byname\.finish makes the file"
    ):
        writer.close()
    writer.close()
    monkeypatch.undo()
    assert len([*Path("/proc/self/fd").iterdir()]) < before
    assert [one.name for one in tmp_path.iterdir()] == ["run.h5.log"]
    with byname.open(tmp_path / "run.h5") as recording:
        assert list(recording["a"].values) == [1.0] and recording.complete and recording.ended
    assert byname.finish(tmp_path / "run.h5") == tmp_path / "run.h5"
    assert [one.name for one in tmp_path.iterdir()] == ["run.h5"]
    assert list(byname.open(tmp_path / "run.h5")["a"].values) == [1.0]


def test_thousands_of_shapes_take_a_few_arrays(tmp_path):
    writer = Writer(tmp_path / "run.h5", "a")
    values = [torch.full((number,), float(number)) for number in range(2000)]
    for start in range(0, 2000, 100):
        writer.window({"a": values[start : start + 100]})
    writer.close()
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
    assert path.stat().st_size < 200 * (4096 + 5000)
    with byname.open(path) as recording:
        assert all(torch.equal(recording[name].values[0], only) for name, (only,) in values.items())


def test_another_program_opens_what_a_killed_writer_left_once_it_is_repaired(tmp_path):
    writer = Writer(tmp_path / "run.h5", "a")
    writer.window({"a": [1.0, 2.0]})
    (tmp_path / "killed.h5.log").write_bytes((tmp_path / "run.h5.log").read_bytes())
    writer.close()
    assert byname.repair(tmp_path / "killed.h5")
    with h5py.File(tmp_path / "killed.h5") as file:
        assert file["a/values"][:].tolist() == [1.0, 2.0] and not file.attrs["complete"]


def test_a_log_that_is_to_stay_is_read_like_a_file_and_finished_later(tmp_path):
    values = [torch.randn(3), {"k": torch.ones(2)}, "text"]
    written(tmp_path / "run.h5", {"a": values}, finish=False)
    assert [one.name for one in tmp_path.iterdir()] == ["run.h5.log"]
    for name in ("run.h5", "run.h5.log"):
        with byname.open(tmp_path / name) as recording:
            assert recording.complete and bits(list(recording["a"].values)) == bits(values)
    assert byname.finish(tmp_path / "run.h5.log") == tmp_path / "run.h5"
    for name in ("run.h5", "run.h5.log"):
        with byname.open(tmp_path / name) as recording:
            assert recording.complete and bits(list(recording["a"].values)) == bits(values)


@pytest.mark.parametrize("name", ["x.log", "x.log.log"])
def test_a_file_may_itself_end_in_log(name, tmp_path, monkeypatch, capsys):
    writer, path = Writer(tmp_path / "x.log", "a"), tmp_path / name
    writer.window({"a": [1.0, 2.0]})
    with byname.open(path) as recording:
        assert list(recording["a"].values) == [1.0, 2.0] and not recording.ended
    monkeypatch.setattr(time, "sleep", lambda seconds: writer.close())  # while the command waits for more
    assert cli.main(["show", "--tail", str(path)]) == 0
    assert "2 in all" in capsys.readouterr().out
    with byname.open(path) as recording:
        assert list(recording["a"].values) == [1.0, 2.0] and recording.complete
    assert byname.finish(tmp_path / "x.log") == tmp_path / "x.log" and not byname.repair(tmp_path / "x.log")
    assert cli.main(["show", "--tail", str(path)]) == 0 and "2 in all" in capsys.readouterr().out


def test_the_log_of_another_recording_is_never_replaced(tmp_path):
    written(tmp_path / "run.h5", {"a": [1.0]}, finish=False)
    log = (tmp_path / "run.h5.log").read_bytes()
    for overwrite in (False, True):
        with pytest.raises(RecordingExistsError, match=r"run\.h5\.log .*not changed"):
            Writer(tmp_path / "run.h5.log", "a", overwrite=overwrite)
    assert (tmp_path / "run.h5.log").read_bytes() == log
    writer = Writer(tmp_path / "x.log", "a")
    writer.forward(a=1.0)
    other = Writer(tmp_path / "x", "b")  # whose log has the name of the first one's file
    with pytest.warns(RecordingWarning, match=r"another file x\.log exists now"):
        writer.close()
    other.forward(b=2.0)
    other.close()
    with byname.open(tmp_path / "x") as recording:
        assert recording.paths == ("b",)
    with byname.open(tmp_path / "x.log.log") as recording:
        assert recording.paths == ("a",) and recording.complete


def test_a_window_that_ends_under_a_mode_of_the_program_has_its_values(tmp_path):
    writer, third = Writer(tmp_path / "run.h5", "a"), torch.tensor([1 / 3])
    writer.forward(a=third)
    writer.forward(a=third)
    with FakeTensorMode():  # in which PyTorch stacks no tensors but its own
        writer.recorder.flush()
    writer.close()
    assert list(byname.open(tmp_path / "run.h5")["a"]) == [third, third]


def test_a_file_that_came_meanwhile_is_not_replaced(tmp_path):
    path = tmp_path / "run.h5"
    writer = Writer(path, "a")
    writer.forward(a=1.0)
    path.write_text("notes")
    with pytest.warns(RecordingWarning, match=r"another file run\.h5 exists now; it was not changed"):
        writer.close()
    assert path.read_text() == "notes" and list(byname.open(path)["a"].values) == [1.0]


def test_a_recording_that_is_replaced_while_it_is_opened_is_found(tmp_path, monkeypatch):
    file, looks, looked = written(tmp_path / "run.h5", {"a": [1.0]}), [], os.stat

    def replaced(path, **named):
        try:
            return looked(path, **named)
        except FileNotFoundError:  # between the look for a log and the look for a file
            monkeypatch.undo()
            looks.append(Writer(file, "a", overwrite=True))
            raise

    monkeypatch.setattr(os, "stat", replaced)
    with byname.open(file) as recording:
        assert not recording.ended
    looks[0].forward(a=1.0)
    looks[0].close()


def test_what_is_open_stays_readable_while_the_file_is_finished_replaced_and_removed(tmp_path):
    path = tmp_path / "run.h5"
    writer = Writer(path, "a")
    writer.window({"a": [torch.full((4,), float(one)) for one in range(5)]})
    live = byname.open(path)
    writer.close()
    closed = byname.open(path)
    written_anew = Writer(path, "b", overwrite=True)
    written_anew.window({"b": [1.0]})
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
    written(path, {"a": [1.0, 2.0]}, overwrite=True)
    with pytest.raises(RecordingError, match="has changed since"):
        pickle.loads(pickled)  # noqa: S301
    assert list(copy.deepcopy(recorded).values) == [1.0, 2.0]  # which is open still


def test_a_recorder_that_is_still_open_does_not_write_into_the_recording_that_replaced_its_own(tmp_path):
    path = tmp_path / "run.h5"
    old = Writer(path, "a")
    old.forward(a=1.0)
    new = Writer(path, "b", overwrite=True)
    with pytest.warns(RecordingWarning, match="removed or replaced"), pytest.raises(RecordingError):
        old.close()
    with pytest.raises(RecordingError, match="another recording has replaced it"):
        len(old.recorder.results)
    new.forward(b=2.0)
    new.close()
    with pytest.raises(RecordingError, match="another recording has replaced it"):
        len(old.recorder.results)
    assert byname.open(path).paths == ("b",)
    path.unlink()
    with pytest.raises(RecordingError, match="is gone"):
        len(new.recorder.results)
