"""What a killed writer left is made a file: by `byname.repair`, `byname.finish` and both commands."""

import fcntl
import os
import signal

import h5py
import processes
import pytest

import byname
from byname.errors import (
    BadArgumentError,
    NoRecordingError,
    NotARecordingError,
    RecordingError,
    RecordingExistsError,
    RecordingWarning,
)


def log_of(path):
    return path.with_name(f"{path.name}.log")


WRITER = """
import os, signal, torch, byname
model = torch.nn.Linear(2, 2)
recorder = byname.record(model, "forward", to="run.h5", mode="both", overwrite=True)
for _ in range(7):
    model(torch.randn(1, 2))
recorder.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The bytes of the log of a writer that was killed."""
    folder = tmp_path_factory.mktemp("killed")
    done = processes.run(["-c", WRITER], cwd=folder)
    assert done.returncode == -signal.SIGKILL
    assert [one.name for one in folder.iterdir()] == ["run.h5.log"]
    return (folder / "run.h5.log").read_bytes()


@pytest.fixture
def run(killed, tmp_path):
    log_of(tmp_path / "run.h5").write_bytes(killed)
    return tmp_path / "run.h5"


def plainly(file):
    with h5py.File(file) as plain:
        return plain["forward/values"].shape[0]


@pytest.mark.parametrize("name", ["run.h5", "run.h5.log"])
@pytest.mark.parametrize("how", [byname.repair, byname.finish])
def test_it_makes_a_file_of_all_of_it_and_says_so(how, name, run, tmp_path):
    assert how(tmp_path / name) == (True if how is byname.repair else run)
    assert plainly(run) == 7 and [one.name for one in tmp_path.iterdir()] == ["run.h5"]
    content = run.read_bytes()
    assert byname.repair(str(tmp_path / name)) is False and byname.finish(tmp_path / name) == run
    assert run.read_bytes() == content
    with byname.open(run) as recording:
        assert len(recording["forward"]) == 7 and recording.ended is False and not recording.complete


@pytest.mark.parametrize("look", [[], ["--place", "forward"], ["--repair"], ["--no-ranges"]], ids=str)
def test_byname_show_reads_the_log_and_repairs_it_when_asked(look, run):
    shown = processes.run(["-m", "byname", "show", *look, run], capture_output=True, text=True, check=True)
    asked = "--repair" in look
    assert (run.exists(), log_of(run).exists(), "is repaired" in shown.stderr) == (asked, not asked, asked)
    assert "forward" in shown.stdout
    if asked:
        again = processes.run(["-m", "byname", "show", "--repair", run], capture_output=True, text=True, check=True)
        assert "nothing to repair" in again.stderr


def test_byname_finish_prints_the_file(run):
    done = processes.run(["-m", "byname", "finish", log_of(run)], capture_output=True, text=True, check=True)
    assert done.stdout == f"{run}\n" and plainly(run) == 7
    none = processes.run(["-m", "byname", "finish", "none.h5"], capture_output=True, text=True)
    assert none.returncode == 1 and "there is no file none.h5" in none.stderr


def test_opening_changes_nothing(run, killed):
    with byname.open(run) as recording:
        assert len(recording["forward"]) == 7 and "after iteration 6" in recording.missing[0]
    assert not run.exists() and log_of(run).read_bytes() == killed


def test_while_its_writer_lives_a_log_is_left_to_it(run, killed):
    writer = os.open(log_of(run), os.O_RDWR)
    fcntl.flock(writer, fcntl.LOCK_SH)
    for how in (byname.repair, byname.finish):
        with pytest.raises(RecordingError, match=r"run\.h5\.log is still being written"):
            how(run)
    assert log_of(run).read_bytes() == killed and not run.exists()
    os.close(writer)
    assert byname.repair(run)


def test_a_reader_is_in_nobodys_way(run):
    with byname.open(run) as recording:
        assert byname.repair(run)
        assert len([*recording["forward"]]) == 7


CALLS = ["open", "pwrite", "pwritev", "replace", "unlink"]


@pytest.mark.parametrize("name", CALLS)
def test_a_repair_that_fails_at_any_call_is_done_by_the_next_one(name, run, tmp_path, monkeypatch):
    real, done = getattr(os, name), []
    for at in range(20):
        done.clear()

        def failing(*given, at=at, **named):
            done.append(1)
            if len(done) == at + 1:
                raise OSError(5, "Input/output error")
            return real(*given, **named)

        monkeypatch.setattr(os, name, failing)
        try:
            byname.repair(run)
            failed = ""
        except RecordingError as error:
            failed = str(error)
        monkeypatch.setattr(os, name, real)
        assert byname.open(run)["forward"].iterations == [*range(7)]
        assert not failed or "run.h5" in failed
        if not failed and len(done) <= at:
            break
    byname.repair(run)
    assert plainly(run) == 7 and [one.name for one in tmp_path.iterdir()] == ["run.h5"]


def test_a_file_that_was_there_already_when_its_process_was_killed_only_loses_its_log(run, killed):
    byname.repair(run)
    content = run.read_bytes()
    log_of(run).write_bytes(killed)
    with byname.open(run) as recording:
        assert len(recording["forward"]) == 7
    assert byname.repair(run) and not log_of(run).exists() and run.read_bytes() == content


def test_a_file_of_another_recording_is_not_replaced(run, killed):
    byname.repair(run)
    changed = killed[:20] + bytes([killed[20] ^ 1]) + killed[21:]  # another identity
    content = run.read_bytes()
    log_of(run).write_bytes(changed)
    with pytest.raises(RecordingExistsError, match=r"run\.h5 exists, and is not from .*run\.h5\.log"):
        byname.repair(run)
    assert (run.read_bytes(), log_of(run).read_bytes()) == (content, changed)


def test_a_damaged_log_is_refused_or_read_up_to_the_damage(run, killed, tmp_path):
    log_of(run).write_bytes(killed[:60] + b"x" + killed[61:])
    for how in (byname.repair, byname.open):
        with pytest.raises(RecordingError, match=r"run\.h5\.log"):
            how(run)
    log_of(run).write_bytes(killed + b"x" * 100)
    with byname.open(run) as recording:
        assert len(recording["forward"]) == 7 and "the part after byte" in recording.missing[0]
    with pytest.warns(RecordingWarning, match=r"lacks a part of .*\.log, .*after byte \d+ \(100 bytes\)"):
        assert byname.repair(run)
    assert not byname.open(run).complete


@pytest.mark.parametrize("function", [byname.open, byname.finish, byname.repair])
def test_what_can_be_no_name_of_a_file_is_refused(function):
    for name in ("x" * 5000, "a\0b"):
        with pytest.raises(NoRecordingError, match="there is no file"):
            function(name)
    for name in (3, None, ""):
        with pytest.raises(BadArgumentError, match="takes the path of a recording's file"):
            function(name)


def test_the_files_of_all_ranks_are_repaired(killed, tmp_path):
    for rank in range(2):
        log_of(tmp_path / f"run.rank{rank}.h5").write_bytes(killed)
    assert byname.repair(tmp_path / "run.h5")
    assert [plainly(tmp_path / f"run.rank{rank}.h5") for rank in range(2)] == [7, 7]
    assert not byname.repair(tmp_path / "run.h5")


def test_half_made_files_of_killed_processes_are_removed_and_what_others_made_is_not(run, tmp_path):
    mine, half = tmp_path / "run.h5.mine.new", tmp_path / f"run.h5.{'a' * 12}.new"
    for one in (mine, half):
        one.write_bytes(b"")
    assert byname.repair(run) and not half.exists()
    half.write_bytes(b"")
    assert byname.repair(run) and not byname.repair(run)
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(["run.h5", mine.name])


def test_what_is_not_there_or_no_recording_is_said(tmp_path):
    with pytest.raises(NoRecordingError, match=r"there is no file .*none\.h5") as error:
        byname.repair(tmp_path / "none.h5")
    assert isinstance(error.value, FileNotFoundError)
    with pytest.raises(NotARecordingError, match="is a directory"):
        byname.repair(tmp_path)
    (tmp_path / "text.h5").write_text("hello")
    with pytest.raises(NotARecordingError, match=r"text\.h5 is not a recording"):
        byname.repair(tmp_path / "text.h5")
    done = processes.run(["-m", "byname", "show", "--repair", tmp_path / "none.h5"], capture_output=True, text=True)
    assert done.returncode == 1 and "there is no file" in done.stderr


def test_what_may_not_be_written_is_a_permission_error(run, killed, monkeypatch):
    def refused(*given, **named):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(h5py, "File", refused)
    with pytest.raises(RecordingError, match=r"run\.h5 cannot be repaired: .*Permission denied") as error:
        byname.repair(run)
    assert isinstance(error.value, PermissionError) and error.value.errno == 13
    assert log_of(run).read_bytes() == killed
