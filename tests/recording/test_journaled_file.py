import os
import random
import resource
import signal
import subprocess
import sys
import time

import h5py
import journal_runs as runs
import numpy
import processes
import pytest

from byname.recording.stores.journal.journaled_file import JournaledFile


def names(tmp_path):
    return sorted(path.name for path in tmp_path.iterdir())


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.h5"


@pytest.mark.parametrize("libver", runs.LIBVERS)
def test_every_commit_is_seen_at_once_and_nothing_is_left_beside_the_file(path, tmp_path, libver):
    def check(number):
        assert runs.read(path) == runs.read(path, natively=True) == number
        assert names(tmp_path) == ["run.h5"]

    runs.end(*runs.write(path, 12, libver=libver, pause=check))
    assert runs.read(path, natively=True) == 12
    assert names(tmp_path) == ["run.h5"]


def kill_at_every_call(path, number, act, libver):
    """Kills before, or within, each system call of one commit; returns how many there were."""
    outcomes = []
    while True:
        calls = runs.Calls(len(outcomes) + 1, act)

        def work():
            arm = lambda at, journaled: calls.arm(journaled) if at == number else None
            runs.write(path, number, libver=libver, before_commit=arm)

        code = runs.in_child(work)
        if code == 0:
            return outcomes
        assert code in (runs.KILLED, runs.KILLED_IN_PLACE)
        outcomes.append(opened_after(path, number, natively=code == runs.KILLED))
        for left in path.parent.iterdir():
            left.unlink()


def opened_after(path, number, *, natively):
    found = runs.read_unless("committed nothing yet", path) or 0
    if not found:
        return found
    assert found in (number - 1, number)
    if natively and number > 1:
        assert runs.read(path, natively=True) in (number - 1, number)
    return found


@pytest.mark.parametrize(
    ("libver", "number"),
    [
        pytest.param(libver, number, marks=[] if libver == "earliest" and number in (1, 4) else [pytest.mark.slow])
        for libver in runs.LIBVERS
        for number in (1, 2, 3, 4)
    ],
)
def test_killed_before_any_system_call_of_a_commit(path, libver, number):
    outcomes = kill_at_every_call(path, number, runs.killed, libver)
    assert len(outcomes) >= 5
    assert outcomes == sorted(outcomes)  # the commit before, then this one
    assert set(outcomes) == {number - 1, number}


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize(
    "part", [pytest.param(0.01, marks=pytest.mark.slow), 0.5, pytest.param(0.99, marks=pytest.mark.slow)]
)
def test_killed_within_any_write_of_a_commit(path, number, part):
    outcomes = kill_at_every_call(path, number, runs.torn(part), "earliest")
    assert set(outcomes) == {number - 1, number}


def test_killed_while_closing(path):
    outcomes = []
    while True:
        calls = runs.Calls(len(outcomes) + 1, runs.killed)

        def work():
            journaled, file = runs.write(path, 3)
            file["late/1"].attrs["number"] = 77
            calls.arm(journaled)
            file.attrs["commit"] = 3
            file["late/1"].attrs["number"] = 1
            runs.end(journaled, file)

        if runs.in_child(work) == 0:
            break
        outcomes.append(runs.read(path))
        for left in path.parent.iterdir():
            left.unlink()
    assert len(outcomes) >= 4
    assert set(outcomes) == {3}


@pytest.mark.slow
def test_killed_while_a_whole_file_takes_the_place_of_the_one_that_somebody_reads(path, tmp_path, monkeypatch):
    monkeypatch.setattr("byname.recording.stores.journal.journaled_file.PATIENCE", 0.0)
    outcomes = []
    while True:
        calls = runs.Calls(len(outcomes) + 1, runs.killed)

        def work():
            journaled, file = runs.write(path, 2)
            reader = h5py.File(path, "r")
            runs.advance(file, 3)
            file.flush()
            journaled.commit()
            file.close()
            calls.arm(journaled)
            journaled.close()
            os._exit(0)  # with the reader still there

        if runs.in_child(work) == 0:
            break
        outcomes.append(runs.read(path))
        for left in path.parent.iterdir():
            left.unlink()
    assert len(outcomes) >= 4
    assert set(outcomes) == {3}
    assert runs.read(path, natively=True) == 3
    assert names(tmp_path) == ["run.h5"]


RUN = """
import sys
sys.path[:0] = {paths!r}
import journal_runs as runs
print("ready", flush=True)
sys.stdin.readline()
runs.write({path!r}, 100000, libver={libver!r}, pause=lambda number: print(number, flush=True))
"""


def kill_at_random(path, libver, moment):
    """Commits that the run reported before it was killed, and the one that is in the file."""
    program = RUN.format(paths=sys.path, path=str(path), libver=libver)
    run = processes.Fork(["-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert run.stdout.readline() == "ready\n"
    run.stdin.write("\n")
    run.stdin.flush()
    time.sleep(moment)
    run.send_signal(signal.SIGKILL)
    reported = run.communicate()[0].split()
    return int(reported[-1]) if reported else 0


def survive(path, libver, moment):
    reported = kill_at_random(path, libver, moment)
    found = (runs.read_unless("committed nothing yet", path) or 0) if path.exists() else 0
    assert found in (reported, reported + 1)
    for left in path.parent.iterdir():
        left.unlink()
    return reported


def test_killed_at_random_moments_the_file_holds_the_last_commit(path):
    moments = random.Random(1)
    reported = [survive(path, runs.LIBVERS[at % 3], moments.uniform(0.0, 0.1)) for at in range(10)]
    assert len(reported) == 10


@pytest.mark.slow
def test_killed_at_120_random_moments_the_file_holds_the_last_commit(path):
    moments = random.Random(2)
    reported = [survive(path, runs.LIBVERS[at % 3], moments.uniform(0.0, 0.5)) for at in range(120)]
    assert max(reported) > 20


def failed_from(path, number, at, libver="earliest"):
    """A run whose disk is full from the ``at``-th call on while commit ``number`` is prepared and made, in a child."""
    calls = runs.Calls(at, runs.full)

    def work():
        journaled, file = runs.write(path, number - 1, libver=libver)
        calls.arm(journaled)
        runs.advance(file, number)
        file.flush()
        try:
            journaled.commit()
            code = runs.KILLED_IN_PLACE  # the journal has it all
        except OSError:
            code = runs.KILLED
            with pytest.raises(OSError, match="No space left"):  # and again
                journaled.commit()
        runs.advance(file, number + 1)  # HDF5 notices nothing
        numpy.testing.assert_array_equal(file["values"][:], runs.values(number + 1))
        file.close()
        journaled.close()
        journaled.close()
        os._exit(code if calls.count >= at else 0)

    return runs.in_child(work)


@pytest.mark.parametrize(
    "libver", ["earliest", *(pytest.param(other, marks=pytest.mark.slow) for other in runs.LIBVERS[1:])]
)
def test_disk_full_at_any_call_leaves_the_file_as_after_the_last_commit(path, tmp_path, libver):
    at = 1
    while (code := failed_from(path, 3, at, libver)) != 0:
        found = runs.read(path)
        assert found == {runs.KILLED: 2, runs.KILLED_IN_PLACE: 3}[code]
        if code == runs.KILLED:
            assert runs.read(path, natively=True) == found
            assert names(tmp_path) == ["run.h5"]
        for left in path.parent.iterdir():
            left.unlink()
        at += 1
    assert at > 5


def test_disk_really_full(path, tmp_path):
    def work():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        journaled, file = runs.write(path, 3)
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
        file["big"] = numpy.ones(100_000)
        file.flush()
        with pytest.raises(OSError, match="File too large"):
            journaled.commit()
        assert file["big"][:].sum() == 100_000  # HDF5 still has it all
        file.close()
        journaled.close()

    assert runs.in_child(work) == 0
    assert runs.read(path, natively=True) == 3
    assert names(tmp_path) == ["run.h5"]
    assert path.stat().st_size < 60_000


def test_what_was_not_committed_is_dropped_by_close(path, tmp_path):
    journaled, file = runs.write(path, 4)
    size = path.stat().st_size
    runs.advance(file, 5)
    file.close()
    assert path.stat().st_size > size
    journaled.close()
    assert runs.read(path, natively=True) == 4
    assert path.stat().st_size == size
    assert names(tmp_path) == ["run.h5"]


def test_a_file_without_any_commit_is_removed(path, tmp_path):
    journaled, file = runs.write(path, 0)
    file.close()
    journaled.close()
    assert names(tmp_path) == []


def test_a_deleted_file_is_an_error_of_the_commit_and_does_not_come_back(path, tmp_path):
    journaled, file = runs.write(path, 2)
    path.unlink()
    runs.advance(file, 3)
    file.flush()
    with pytest.raises(FileNotFoundError, match="deleted or replaced"):
        journaled.commit()
    file.close()
    journaled.close()
    assert names(tmp_path) == []


def test_a_file_that_was_moved_away_holds_what_was_committed(path, tmp_path):
    journaled, file = runs.write(path, 2)
    with h5py.File(path, "r"):
        runs.advance(file, 3)
        file.flush()
        journaled.commit()  # to the journal
    path.rename(tmp_path / "moved.h5")
    runs.advance(file, 4)
    file.flush()
    with pytest.raises(FileNotFoundError):
        journaled.commit()
    file.close()
    journaled.close()
    assert runs.read(tmp_path / "moved.h5", natively=True) == 3
    assert names(tmp_path) == ["moved.h5"]


def test_a_replaced_file_is_left_alone(path, tmp_path):
    journaled, file = runs.write(path, 2)
    path.unlink()
    path.write_text("of somebody else")
    runs.advance(file, 3)
    file.flush()
    with pytest.raises(FileNotFoundError):
        journaled.commit()
    file.close()
    journaled.close()
    assert path.read_text() == "of somebody else"
    assert names(tmp_path) == ["run.h5"]


def test_a_deleted_directory_is_an_error_of_the_commit(tmp_path):
    directory = tmp_path / "runs"
    directory.mkdir()
    journaled, file = runs.write(directory / "run.h5", 2)
    (directory / "run.h5").unlink()
    directory.rmdir()
    runs.advance(file, 3)
    file.flush()
    with pytest.raises(FileNotFoundError):
        journaled.commit()
    file.close()
    journaled.close()
    assert names(tmp_path) == []


def test_an_existing_file_is_refused_and_untouched(path):
    path.write_text("precious")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        JournaledFile(path, overwrite=False)
    assert path.read_text() == "precious"


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("there", ["file", "directory", "pipe", "dead link"])
def test_what_has_the_name_of_the_journal_and_is_none_is_refused_and_untouched(path, tmp_path, there, overwrite):
    if overwrite:
        runs.end(*runs.write(path, 2))
    journal = path.with_name("run.h5.journal")
    make = {
        "file": lambda: journal.write_text("precious"),
        "directory": journal.mkdir,
        "pipe": lambda: os.mkfifo(journal),
        "dead link": lambda: journal.symlink_to(tmp_path / "nowhere"),
    }
    make[there]()
    before = journal.lstat()
    with pytest.raises(FileExistsError, match="no journal"):
        JournaledFile(path, overwrite=overwrite)
    assert (journal.lstat().st_ino, journal.lstat().st_size) == (before.st_ino, before.st_size)
    assert names(tmp_path) == [*(["run.h5"] if overwrite else []), "run.h5.journal"]
    assert not overwrite or runs.read(path, natively=True) == 2


def test_a_file_that_comes_to_have_the_name_of_the_journal_is_not_replaced(path):
    journaled, file = runs.write(path, 2)
    journal = path.with_name("run.h5.journal")
    journal.write_text("precious")
    runs.advance(file, 3)
    file.flush()
    with pytest.raises(FileExistsError, match="no journal"):
        journaled.commit()
    file.close()
    journaled.close()
    assert journal.read_text() == "precious"
    assert runs.read(path) == 2


@pytest.mark.parametrize("begun", [b"", b"byname"])
def test_a_journal_that_a_kill_left_without_a_whole_frame_is_replaced(path, tmp_path, begun):
    path.with_name("run.h5.journal").write_bytes(begun)
    path.with_name("run.h5.journal.new").write_bytes(begun)
    runs.end(*runs.write(path, 2))
    assert names(tmp_path) == ["run.h5"]


def emptied(path):
    with path.open("w"):
        pass


def halved(path):
    os.truncate(path, path.stat().st_size // 2)


def overwritten(path):
    size = path.stat().st_size
    with path.open("wb") as file:
        file.write(b"mine " * size)


@pytest.mark.parametrize("read", [False, True], ids=["", "while somebody reads"])
@pytest.mark.parametrize("harm", [emptied, halved, overwritten])
def test_a_file_that_another_program_empties_is_an_error_of_the_commit(path, tmp_path, harm, read):
    journaled, file = runs.write(path, 3)
    with path.open("rb") as reader:
        if read:
            fcntl = pytest.importorskip("fcntl")
            fcntl.flock(reader, fcntl.LOCK_SH)
            runs.advance(file, 4)
            file.flush()
            journaled.commit()
        harm(path)
        left = path.read_bytes()
        runs.advance(file, 5)
        file.flush()
        with pytest.raises(OSError, match="another program"):
            journaled.commit()
        assert "another program" in str(journaled.cut_off())
        file.close()
        journaled.close()
    assert path.read_bytes() == left
    assert names(tmp_path) == ["run.h5"]


def killed_before_it_takes_the_name(path):
    def work():
        os.replace = lambda *args, **kwargs: os._exit(runs.KILLED)
        type(path).replace = os.replace
        runs.write(path, 1, overwrite=True)

    assert runs.in_child(work) == runs.KILLED


def test_what_killed_writers_left_is_removed_by_the_next_one_and_nothing_else(path, tmp_path):
    runs.end(*runs.write(path, 2))
    for _ in range(3):
        killed_before_it_takes_the_name(path)
        assert len(names(tmp_path)) == 2
    others = {"run.h5.0123456789ab.new": b"of a user", "run.h5.new": b"", "arun.h5.0123456789ab.new": b""}
    for name, content in others.items():
        (tmp_path / name).write_bytes(content)
    runs.end(*runs.write(path, 1, overwrite=True))
    assert names(tmp_path) == sorted(["run.h5", *others])
    assert {name: (tmp_path / name).read_bytes() for name in others} == others
    assert runs.read(path, natively=True) == 1


def test_a_writer_that_still_runs_keeps_its_file(path, tmp_path):
    pytest.importorskip("fcntl")
    runs.end(*runs.write(path, 3))
    waiting, waiting_file = runs.write(path, 0, overwrite=True)
    assert len(names(tmp_path)) == 2
    runs.end(*runs.write(path, 2, overwrite=True))
    assert len(names(tmp_path)) == 2
    runs.advance(waiting_file, 1)
    waiting_file.flush()
    waiting.commit()
    assert runs.read(path) == 1
    runs.end(waiting, waiting_file)
    assert names(tmp_path) == ["run.h5"]


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        JournaledFile(tmp_path / "nowhere" / "run.h5", overwrite=False)
    with pytest.raises(FileExistsError, match="not a file"):
        JournaledFile(tmp_path, overwrite=True)


def test_an_older_file_stays_until_the_first_commit_of_the_one_that_replaces_it(path, tmp_path):
    runs.end(*runs.write(path, 2))
    journaled, file = runs.write(path, 0, overwrite=True)
    assert runs.read(path, natively=True) == 2
    file.close()
    journaled.close()
    assert names(tmp_path) == ["run.h5"]
    journaled, file = runs.write(path, 1, overwrite=True)
    assert runs.read(path, natively=True) == 1
    runs.end(journaled, file)
    assert names(tmp_path) == ["run.h5"]


@pytest.mark.slow
def test_an_older_file_stays_when_the_one_that_replaces_it_cannot_be_written(path, tmp_path):
    runs.end(*runs.write(path, 2))
    failures = []
    for at in range(1, 30):
        calls = runs.Calls(at, runs.full)

        def work():
            journaled, file = runs.write(path, 0, overwrite=True)
            calls.arm(journaled)
            runs.advance(file, 1)
            file.flush()
            with pytest.raises(OSError, match="No space left"):
                journaled.commit()
            file.close()
            journaled.close()

        failures.append(runs.in_child(work))
        if failures[-1]:
            break
        assert runs.read(path, natively=True) == 2
        assert names(tmp_path) == ["run.h5"]
    assert len(failures) > 5
    assert runs.read(path, natively=True) == 1  # where nothing failed


def test_killed_at_any_call_of_the_first_commit_the_old_file_or_the_new_one_is_there(path, tmp_path):
    """The old one was killed itself, and needs its journal."""
    outcomes = []
    while True:

        def leave_a_journal():
            stop = lambda at, journaled: calls_until_in_place(journaled) if at == 3 else None
            runs.write(path, 3, before_commit=stop)

        assert runs.in_child(leave_a_journal) == runs.KILLED
        assert names(tmp_path) == ["run.h5", "run.h5.journal"]
        assert runs.read(path) == 3
        calls = runs.Calls(len(outcomes) + 1, runs.killed)
        code = runs.in_child(
            lambda: runs.write(path, 1, overwrite=True, before_commit=lambda at, journaled: calls.arm(journaled))
        )
        if code == 0:
            break
        outcomes.append(runs.read(path))
        for left in path.parent.iterdir():
            left.unlink()
    assert outcomes == sorted(outcomes, reverse=True)
    assert set(outcomes) == {3, 1}
    assert runs.read(path) == runs.read(path, natively=True) == 1
    assert names(tmp_path) == ["run.h5"]


def calls_until_in_place(journaled):
    """Kills the process when it begins to apply the journal."""
    write = os.pwrite

    def pwrite(descriptor, data, offset):
        if runs.is_in_place(descriptor, journaled.path):
            os._exit(runs.KILLED)
        return write(descriptor, data, offset)

    os.pwrite = pwrite


def test_a_forked_process_writes_nothing(path):
    journaled, file = runs.write(path, 2)
    before = path.read_bytes()

    def work():
        runs.advance(file, 3)
        runs.end(journaled, file)

    assert runs.in_child(work) == 0
    assert path.read_bytes() == before
    runs.advance(file, 3)
    runs.end(journaled, file)
    assert runs.read(path, natively=True) == 3


def test_a_symbolic_link_is_followed(tmp_path):
    (tmp_path / "disk").mkdir()
    link = tmp_path / "run.h5"
    runs.end(*runs.write(tmp_path / "disk" / "run.h5", 1))
    link.symlink_to(tmp_path / "disk" / "run.h5")
    runs.end(*runs.write(link, 2, overwrite=True))
    assert link.is_symlink()
    assert runs.read(link) == runs.read(tmp_path / "disk" / "run.h5") == 2


def test_without_a_mark_nothing_is_committed(path):
    journaled = JournaledFile(path, overwrite=False)
    file = h5py.File(journaled, "w")
    file.flush()
    with pytest.raises(ValueError, match="sign"):
        journaled.commit()
    file.close()
    journaled.close()
    assert not path.exists()
