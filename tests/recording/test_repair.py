"""What a killed writer left beside a file, put back: by `byname.repair`, `byname show --repair` and opening."""

import fcntl
import os
import signal
import subprocess

import h5py
import processes
import pytest
import torch

import byname
from byname.errors import NoRecordingError, NotARecordingError, RecordingError
from byname.recording.stores.journal import journal as leftovers
from byname.recording.stores.journal.descriptors import beside
from byname.recording.stores.journal.journaled_file import JournaledFile

WRITER = """
import fcntl, os, signal, sys, torch, byname
model = torch.nn.Linear(2, 2)
recorder = byname.record(model, "forward", to="run.h5", mode="both", overwrite=True)
for _ in range(3):
    model(torch.randn(1, 2))
recorder.flush()
reader = os.open("run.h5", os.O_RDONLY)
fcntl.flock(reader, fcntl.LOCK_SH)
for _ in range(4):
    model(torch.randn(1, 2))
recorder.flush()
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The bytes of a file and its journal, of a writer that was killed while somebody read."""
    folder = tmp_path_factory.mktemp("killed")
    done = processes.run(["-c", WRITER + "os.kill(os.getpid(), signal.SIGKILL)"], cwd=folder)
    assert done.returncode == -signal.SIGKILL
    return (folder / "run.h5").read_bytes(), (folder / "run.h5.journal").read_bytes()


@pytest.fixture
def run(killed, tmp_path):
    file = tmp_path / "run.h5"
    file.write_bytes(killed[0])
    beside(file).write_bytes(killed[1])
    assert plainly(file) == 3
    return file


def plainly(file):
    with h5py.File(file) as plain:
        return plain["forward/values"].shape[0]


def test_repair_puts_all_of_it_into_the_file_and_says_so(run, tmp_path):
    assert byname.repair(run) is True
    assert plainly(run) == 7 and [one.name for one in tmp_path.iterdir()] == ["run.h5"]
    content = run.read_bytes()
    assert byname.repair(str(run)) is False and run.read_bytes() == content
    with byname.open(run) as recording:
        assert len(recording["forward"]) == 7 and not recording.complete


@pytest.mark.grid(fast=2)
@pytest.mark.parametrize("look", [[], ["--place", "forward"], ["--repair"], ["--no-ranges"]], ids=str)
def test_byname_show_puts_it_back(look, run):
    shown = processes.run(["-m", "byname", "show", *look, run], capture_output=True, text=True, check=True)
    assert plainly(run) == 7 and not beside(run).exists()
    assert ("is repaired" in shown.stderr) == ("--repair" in look)
    again = processes.run(["-m", "byname", "show", "--repair", run], capture_output=True, text=True, check=True)
    assert "nothing to put back" in again.stderr


def test_opening_puts_it_back_and_reads_the_same(run):
    with byname.open(run) as recording:
        assert len(recording["forward"]) == 7 and not beside(run).exists()
    assert plainly(run) == 7


def test_where_it_may_not_write_opening_reads_the_journal_and_changes_nothing(run, killed, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with byname.open(run) as recording:
        assert len(recording["forward"]) == 7
    assert (run.read_bytes(), beside(run).read_bytes()) == killed


def test_without_locks_only_who_asks_for_it_changes_a_file(run, killed, monkeypatch):
    monkeypatch.setattr(leftovers, "taken_over", lambda descriptor: None)
    byname.open(run).close()
    assert (run.read_bytes(), beside(run).read_bytes()) == killed
    assert byname.repair(run) and plainly(run) == 7


def test_while_somebody_reads_the_file_stays_as_it_is(run, killed):
    with run.open("rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        with pytest.raises(RecordingError, match=r"run.h5 is in use: another process, or this one, writes or reads it"):
            byname.repair(run)
        with byname.open(run) as recording:
            assert len(recording["forward"]) == 7
        assert (run.read_bytes(), beside(run).read_bytes()) == killed
    assert byname.repair(run)


def test_while_its_writer_lives_a_journal_is_left_to_it(tmp_path):
    goes_on = WRITER + "print('ready', flush=True)\nsys.stdin.readline()\nos.close(reader)\nrecorder.close()\n"
    writer = processes.Fork(["-c", goes_on], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert writer.stdout.readline() == "ready\n"
    file = tmp_path / "run.h5"
    before = beside(file).read_bytes()
    with byname.open(file) as recording:
        assert len(recording["forward"]) == 7
    with pytest.raises(RecordingError, match="is in use"):
        byname.repair(file)
    assert beside(file).read_bytes() == before and plainly(file) == 3
    writer.communicate("go on\n", timeout=60)
    assert writer.returncode == 0 and plainly(file) == 7 and not beside(file).exists()
    assert byname.repair(file) is False


def test_a_writer_whose_journal_was_put_back_by_others_goes_on(tmp_path, monkeypatch):
    """Where there are no locks, somebody may be wrong about whether it is gone."""
    file, model = tmp_path / "run.h5", torch.nn.Linear(2, 2)
    monkeypatch.setattr(leftovers, "taken_over", lambda descriptor: None)
    with byname.record(model, "forward", to=file, mode="both") as recorder:
        model(torch.randn(1, 2))
        recorder.flush()
        with file.open("rb") as reader:
            fcntl.flock(reader, fcntl.LOCK_SH)
            for _ in range(3):
                model(torch.randn(1, 2))
                recorder.flush()
                assert byname.repair(file)
            model(torch.randn(1, 2))
            recorder.flush()
            with byname.open(file) as recording:
                assert len(recording["forward"]) == 5
        model(torch.randn(1, 2))
    assert plainly(file) == 6 and not beside(file).exists()


@pytest.mark.parametrize("number", range(12))
def test_a_repair_that_is_ended_at_any_call_is_done_by_the_next_one(number, run, monkeypatch):
    calls = []

    class End(Exception):
        pass

    def ending(function):
        def called(*given, **options):
            calls.append(function)
            if len(calls) > number:
                raise End
            return function(*given, **options)

        return called

    with monkeypatch.context() as patched:
        for where, name in ((leftovers, "write_at"), (os, "ftruncate")):
            patched.setattr(where, name, ending(getattr(where, name)))
        patched.setattr("pathlib.Path.unlink", ending(type(run).unlink))
        try:
            byname.repair(run)
        except End:
            pass
        else:
            assert len(calls) <= number
    with byname.open(run) as recording:
        assert len(recording["forward"]) == 7
    assert plainly(run) == 7 and not beside(run).exists()


def test_a_damaged_journal_is_refused_and_the_file_stays(run, killed):
    journal = bytearray(killed[1])
    journal[90] ^= 1
    beside(run).write_bytes(bytes(journal) + bytes(journal))
    with pytest.raises(RecordingError, match="journal is damaged at byte 0"):
        byname.repair(run)
    assert run.read_bytes() == killed[0]


def test_the_journal_of_another_file_is_no_longer_in_the_way(run, tmp_path):
    model = torch.nn.Linear(2, 2)
    with byname.record(model, "forward", to=tmp_path / "other.h5", mode="both"):
        model(torch.randn(1, 2))
    content = (tmp_path / "other.h5").read_bytes()
    beside(run).rename(beside(tmp_path / "other.h5"))
    assert byname.repair(tmp_path / "other.h5")
    assert (tmp_path / "other.h5").read_bytes() == content and not beside(tmp_path / "other.h5").exists()


def test_no_journal_changes_a_file_that_is_no_recording(tmp_path):
    """Its mark may lie anywhere: one who writes the journal can choose it to be right."""
    from byname.recording.stores.journal.frames import Extents, Frame, packed

    file = tmp_path / "mine.h5"
    with h5py.File(file, "w") as plain:
        plain["numbers"] = list(range(100))
    content, changes = file.read_bytes(), Extents()
    changes.write(1000, b"evil")
    beside(file).write_bytes(packed(Frame(content[:16], 0, 1, len(content), changes)))
    with pytest.raises(NotARecordingError, match="no recording of byname"):
        byname.repair(file)
    with pytest.raises(NotARecordingError, match="no recording of byname"):
        byname.open(file)
    assert file.read_bytes() == content


def test_a_mark_that_is_elsewhere_than_in_the_file_is_not_believed(run, killed):
    from byname.recording.stores.journal.frames import Extents, Frame, packed

    beside(run).write_bytes(packed(Frame(killed[0][:16], 0, 1, len(killed[0]), Extents())))
    with pytest.raises(RecordingError, match="its journal is that of another file"):
        byname.repair(run)
    assert run.read_bytes() == killed[0]


def test_the_files_of_all_ranks_are_repaired(killed, tmp_path):
    for rank in range(2):
        (tmp_path / f"run.rank{rank}.h5").write_bytes(killed[0])
        beside(tmp_path / f"run.rank{rank}.h5").write_bytes(killed[1])
    assert byname.repair(tmp_path / "run.h5")
    assert [plainly(tmp_path / f"run.rank{rank}.h5") for rank in range(2)] == [7, 7]
    assert not byname.repair(tmp_path / "run.h5")


def test_what_a_killed_overwriting_left_is_removed_and_that_of_a_living_one_is_not(run, tmp_path):
    byname.repair(run)
    begun = JournaledFile(run, overwrite=True)
    living = [one.name for one in tmp_path.iterdir() if one != run]
    mine = tmp_path / "run.h5.mine.new"
    for one in (mine, tmp_path / f"run.h5.{'a' * 12}.new"):
        one.write_bytes(b"")
    assert byname.repair(run)
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(["run.h5", *living, mine.name])
    begun.close()
    assert plainly(run) == 7 and not byname.repair(run) and mine.exists()


def test_what_is_not_there_or_no_recording_is_said(tmp_path):
    with pytest.raises(NoRecordingError, match=r"there is no file .*none\.h5") as error:
        byname.repair(tmp_path / "none.h5")
    assert isinstance(error.value, FileNotFoundError)
    with pytest.raises(NotARecordingError, match="is a directory"):
        byname.repair(tmp_path)
    done = processes.run(["-m", "byname", "show", "--repair", tmp_path / "none.h5"], capture_output=True, text=True)
    assert done.returncode == 1 and "there is no file" in done.stderr


def test_what_may_not_be_written_is_a_permission_error(run, killed, monkeypatch):
    def refused(path, flags):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(leftovers, "opened", refused)
    with pytest.raises(RecordingError, match=r"run\.h5 cannot be repaired: .*Permission denied") as error:
        byname.repair(run)
    assert isinstance(error.value, PermissionError) and error.value.errno == 13
    assert (run.read_bytes(), beside(run).read_bytes()) == killed
