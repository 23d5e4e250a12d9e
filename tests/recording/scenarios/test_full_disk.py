"""What happens to the training and to the file when the disk is full or the file is lost?"""

import contextlib
import errno
import json
import os
import sys

import pytest
from processes import run_forked

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="limits of files are those of POSIX")

PROGRAM = """
    import json, os, resource, shutil, signal, sys, warnings
    from pathlib import Path
    import torch
    import byname
    from byname.errors import RecordingError

    torch.set_num_threads(1)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    class Accidents:
        def __init__(self, directory):
            self.directory, self.file = directory, directory / "run.h5.log"

        def full_disk(self): resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
        def file_deleted(self): self.file.unlink()
        def file_moved(self): self.file.rename(self.directory / "moved.h5.log")
        def directory_deleted(self): shutil.rmtree(self.directory)
        def directory_moved(self): self.directory.rename(self.directory.with_name("elsewhere"))
        def file_replaced(self): self.file.unlink(), self.file.write_bytes(b"mine")

    def tried(action):
        try:
            action()
        except Exception as error:
            return [isinstance(error, RecordingError), str(error)]

    def story(what):
        directory = Path({directory!r}) / what / "runs"
        directory.mkdir(parents=True)
        file = directory / "run.h5"
        torch.manual_seed(0)
        model = torch.nn.Linear(30, 100)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        outputs = []
        told = dict(steps=0)

        def train(steps):
            for _ in range(steps):
                optimizer.zero_grad()
                outputs.append(model(torch.randn(4, 30)))
                outputs[-1].square().sum().backward()
                optimizer.step()
                told["steps"] += 1

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            recorder = byname.record(model, ["forward", "weight.grad"], to=file)
            train(20)
            recorder.flush()
            getattr(Accidents(directory), what)()
            train(20)
            told["flush"] = tried(recorder.flush)
            told["at once"] = len(caught)
            train(200)
            told["again"] = tried(recorder.flush)
            told["close"] = tried(recorder.close)
            told["later"] = tried(recorder.close)
            train(10)
            told["warned"] = [(issubclass(one.category, UserWarning), str(one.message)) for one in caught]
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        told["hooks"] = len(model._forward_hooks) + len(model._forward_pre_hooks)
        told["left"] = sorted(one.name for one in directory.parent.rglob("*"))
        for name in ("runs/run.h5.log", "runs/moved.h5.log", "elsewhere/run.h5.log"):
            path = directory.parent / name
            if path.exists() and path.read_bytes() != b"mine":
                with byname.open(path) as recording:
                    series = recording["forward"]
                    told["read"] = [recording.complete, list(recording.missing), list(map(int, series.iterations))]
                    told["right"] = all(map(torch.equal, series.values, outputs))
        return told

    print(json.dumps({{what: story(what) for what in {accidents}}}).replace(" ", chr(127)))
"""

ACCIDENTS = ["full_disk", "file_deleted", "file_moved", "directory_deleted", "directory_moved", "file_replaced"]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What each accident came to."""
    program = PROGRAM.format(directory=str(tmp_path_factory.mktemp("accidents")), accidents=ACCIDENTS)
    known = json.loads("".join(run_forked(program, "-W", "default")).replace("\x7f", " "))
    return known.__getitem__


@pytest.mark.parametrize("what", ACCIDENTS)
def test_the_training_goes_on_to_its_end(told, what):
    assert told(what)["steps"] == 250
    assert told(what)["hooks"] == 0


@pytest.mark.parametrize("what", ACCIDENTS)
def test_there_is_one_warning_at_once(told, what):
    warned = told(what)["warned"]
    assert len(warned) == 1, warned
    assert warned[0][0]
    assert "run.h5" in warned[0][1]
    assert told(what)["at once"] == 1


@pytest.mark.parametrize("what", ACCIDENTS)
def test_flush_and_close_raise(told, what):
    for moment in ("flush", "again", "close"):
        assert told(what)[moment] is not None, moment
        is_recording_error, message = told(what)[moment]
        assert is_recording_error, message
        assert "run.h5" in message
    assert told(what)["later"] is None


@pytest.mark.parametrize("what", ["full_disk", "file_moved", "directory_moved"])
def test_what_was_flushed_stays_readable_and_the_file_says_that_more_is_missing(told, what):
    complete, missing, iterations = told(what)["read"]
    assert not complete
    assert missing
    assert iterations == list(range(len(iterations)))
    assert len(iterations) >= 20
    assert told(what)["right"]


def test_a_file_put_in_its_place_is_not_touched(told):
    assert "read" not in told("file_replaced")
    assert told("file_replaced")["left"] == ["run.h5.log", "runs"]


@pytest.mark.parametrize("what", ["file_deleted", "directory_deleted"])
def test_what_was_deleted_does_not_come_back(told, what):
    assert told(what)["left"] == (["runs"] if what == "file_deleted" else [])


def test_the_training_goes_on_and_the_end_of_the_block_raises(tmp_path):
    import resource
    import signal

    import torch

    import byname
    from byname.errors import RecordingError

    assert signal.getsignal(signal.SIGXFSZ) is signal.SIG_IGN  # Python sets it so
    model, steps = torch.nn.Linear(30, 3000), 0
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.raises(RecordingError), pytest.warns(UserWarning, match=r"run\.h5"):
        with byname.record(model, "forward", to=tmp_path / "run.h5"):
            resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, hard))
            try:
                for _ in range(300):  # more than a window holds
                    model(torch.ones(10, 30))
                    steps += 1
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert steps == 300


def test_an_error_of_the_program_is_not_hidden_by_that_of_the_recording(tmp_path):
    import torch

    import byname

    model = torch.nn.Linear(2, 2)
    with pytest.raises(ZeroDivisionError), pytest.warns(UserWarning, match=r"run\.h5"):
        with byname.record(model, "forward", to=tmp_path / "run.h5"):
            model(torch.ones(1, 2))
            (tmp_path / "run.h5.log").unlink()
            1 / 0


class Full:
    """A disk that has room for so many calls that write; of the next it takes a part, and of later ones nothing."""

    def __init__(self, monkeypatch, calls):
        self.left = calls
        for name in ("pwrite", "pwritev", "copy_file_range"):
            monkeypatch.setattr(os, name, self._around(name, getattr(os, name)))

    def _around(self, name, call):
        def limited(descriptor, data, *given):
            self.left -= 1
            if self.left >= 0:
                return call(descriptor, data, *given)
            if self.left == -1 and name == "pwrite" and len(data) > 1:
                return call(descriptor, data[: len(data) // 2], *given)
            raise OSError(errno.ENOSPC, "No space left on device")

        return limited


@pytest.mark.filterwarnings("ignore::byname.errors.RecordingWarning")
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_a_disk_that_is_full_at_any_write_costs_nothing_that_was_flushed(step, tmp_path, monkeypatch):
    import torch
    from stored_runs import Writer

    import byname
    from byname.errors import RecordingError

    ends = set()
    for calls in range(0, 60, step):
        path, flushed, raised = tmp_path / f"{calls}.h5", 0, False
        writer = Writer(path, "at")
        with monkeypatch.context() as patched:
            disk = Full(patched, calls)
            try:
                for start in range(0, 40, 4):
                    values = [torch.full((40_000,), float(start + one)) for one in range(4)]
                    writer.window({"a": values, "t": ["x"] * 4})
                    flushed = start + 4
                writer.close()
            except RecordingError:
                raised = True
                with contextlib.suppress(RecordingError):
                    writer.close()
        with byname.open(path) as recording:
            found = recording["a"] if flushed else ()
            assert [float(one[-1]) for one in found][:flushed] == [*map(float, range(flushed))], calls
            assert recording.complete == (not raised) and (recording.complete or recording.missing), calls
        left = {one.name for one in tmp_path.iterdir() if one.name.startswith(f"{calls}.")}
        assert left in ({path.name}, {f"{path.name}.log"}), calls
        ends |= {(raised, *(name.rpartition(".")[2] for name in left))}
        if disk.left > 0:
            break
    assert ends == {(True, "log"), (False, "log"), (False, "h5")}
