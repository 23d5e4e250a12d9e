import os
import random
import struct
import subprocess
import sys
import tempfile
import tracemalloc
import zlib
from pathlib import Path

import h5py
import journal_runs as runs
import processes
import pytest

from byname.errors import RecordingError
from byname.recording.stores.journal import frames
from byname.recording.stores.journal.committed import committed
from byname.recording.stores.journal.frames import Extents
from byname.recording.stores.writer import Hdf5Store

READER = """
import sys
sys.path[:0] = {paths!r}
import journal_runs as runs
seen, refused = [], 0
while not seen or seen[-1] < 200:
    try:
        seen.append(runs.read({path!r}, natively={natively}))
        if len(seen) == 1:
            print("ready", flush=True)
    except OSError as error:
        if not any(words in str(error) for words in ("unable to lock file", "truncated file")):
            raise
        refused += 1  # by HDF5, which does not wait for the writer's lock
print(seen == sorted(seen), len(set(seen)), flush=True)
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.h5"


@pytest.mark.parametrize("natively", [True, False])
def test_another_process_reads_while_200_commits_are_made(path, natively):
    program = READER.format(paths=sys.path, path=str(path), natively=natively)
    journaled, file = runs.write(path, 1)
    reader = processes.Fork(["-c", program], stdout=subprocess.PIPE, text=True)
    assert reader.stdout.readline() == "ready\n"
    for number in range(2, 201):
        runs.advance(file, number)
        file.flush()
        journaled.commit()
    runs.end(journaled, file)
    in_order, different = reader.communicate(timeout=60)[0].split()
    assert reader.returncode == 0
    assert in_order == "True"
    assert int(different) > 1


def test_what_a_reader_has_open_stays_as_it_is_and_the_next_one_sees_more(path):
    journaled, file = runs.write(path, 3)
    with h5py.File(path, "r") as native, committed(path) as source, h5py.File(source, "r") as ours:
        for number in range(4, 12):
            runs.advance(file, number)
            file.flush()
            journaled.commit()
            assert native.attrs["commit"] == ours.attrs["commit"] == 3
            assert runs.read(path) == number
            assert runs.read(path, natively=True) == 3
            with committed(path) as source, h5py.File(source, "r") as later:
                assert later.attrs["commit"] == number
        assert runs.checked(native) == runs.checked(ours) == 3
    runs.advance(file, 12)
    file.flush()
    journaled.commit()
    assert runs.read(path, natively=True) == 12
    runs.end(journaled, file)
    assert runs.read(path, natively=True) == 12


def test_a_reader_that_stays_keeps_its_file_and_others_find_the_whole_one(path, tmp_path):
    journaled, file = runs.write(path, 3)
    with h5py.File(path, "r") as native:
        runs.advance(file, 4)
        file.flush()
        journaled.commit()
        runs.end(journaled, file)
        assert runs.checked(native) == 3
        assert runs.read(path, natively=True) == runs.read(path) == 4
        assert [left.name for left in tmp_path.iterdir()] == ["run.h5"]


def test_a_large_file_of_which_a_reader_stays_keeps_its_journal(path, tmp_path, monkeypatch):
    monkeypatch.setattr("byname.recording.stores.journal.journaled_file.LARGEST_COPY", 1000)
    journaled, file = runs.write(path, 3)
    with h5py.File(path, "r") as native:
        runs.advance(file, 4)
        file.flush()
        journaled.commit()
        runs.advance(file, 5)
        file.close()
        journaled.close()
        assert runs.checked(native) == 3
    assert runs.read(path, natively=True) == 3
    assert runs.read(path) == 4
    runs.end(*runs.write(path, 2, overwrite=True))
    assert runs.read(path) == 2
    assert [left.name for left in tmp_path.iterdir()] == ["run.h5"]


def test_while_a_reader_stays_the_journal_does_not_grow_forever(path, monkeypatch):
    monkeypatch.setattr("byname.recording.stores.journal.journaled_file.LONG", 50_000)
    journal = path.with_name("run.h5.journal")
    journaled, file = runs.write(path, 3)
    sizes = []
    with h5py.File(path, "r") as native:
        for number in range(4, 150):
            runs.advance(file, number)
            file.flush()
            journaled.commit()
            sizes.append(journal.stat().st_size)
            if number % 10 == 0:
                assert runs.read(path) == number
        assert runs.checked(native) == 3
    assert any(after < before for before, after in zip(sizes, sizes[1:]))
    assert max(sizes) < sum(sizes) / 10
    runs.end(journaled, file)
    assert runs.read(path, natively=True) == 149


def test_killed_at_any_call_while_the_journal_is_shortened(path, monkeypatch):
    monkeypatch.setattr("byname.recording.stores.journal.journaled_file.LONG", 0)
    monkeypatch.setattr(Extents, "size", lambda extents: 0)
    outcomes = []
    while True:
        calls = runs.Calls(len(outcomes) + 1, runs.killed)

        def work():
            journaled, file = runs.write(path, 2)
            reader = h5py.File(path, "r")
            for number in (3, 4):
                runs.advance(file, number)
                file.flush()
                if number == 4:
                    calls.arm(journaled)
                journaled.commit()

        if runs.in_child(work) == 0:
            break
        outcomes.append(runs.read(path))
        assert runs.read(path, natively=True) == 2
        for left in path.parent.iterdir():
            left.unlink()
    assert outcomes == sorted(outcomes)
    assert set(outcomes) >= {3}
    assert runs.read(path) == 4


def left_with_a_journal(path):
    """The file and the journal of a run killed with three commits in the journal and none of them applied."""

    def work():
        journaled, file = runs.write(path, 2)
        reader = h5py.File(path, "r")
        for number in (3, 4, 5):
            runs.advance(file, number)
            file.flush()
            journaled.commit()
        os._exit(runs.KILLED)

    assert runs.in_child(work) == runs.KILLED
    return path.with_name("run.h5.journal")


def test_the_frames_of_a_killed_run_are_read_over_its_file_which_stays_as_it_is(path):
    journal = left_with_a_journal(path)
    before = path.read_bytes(), journal.read_bytes()
    assert runs.read(path) == 5
    assert runs.read(path, natively=True) == 2
    assert (path.read_bytes(), journal.read_bytes()) == before


def test_in_a_directory_that_may_not_be_written():
    with tempfile.TemporaryDirectory() as name:  # not below that of pytest, which only its owner may enter
        directory = Path(name)
        left_with_a_journal(directory / "run.h5")
        for file in directory.iterdir():
            file.chmod(0o444)
        directory.chmod(0o555)

        def work():
            if os.getuid() == 0:
                os.setuid(65534)
            with pytest.raises(PermissionError):
                (directory / "new").touch()
            assert runs.read(directory / "run.h5") == 5

        assert runs.in_child(work) == 0
        directory.chmod(0o755)


def test_a_journal_cut_off_anywhere_counts_up_to_its_last_whole_frame(path):
    journal = left_with_a_journal(path)
    whole = journal.read_bytes()
    found = []
    for size in sorted({0, 1, 50, 84, 85, *range(0, len(whole), 997), len(whole) - 1, len(whole)}):
        journal.write_bytes(whole[:size])
        found.append(runs.read(path))
    assert found == sorted(found)
    assert set(found) == {2, 3, 4, 5}


def test_a_journal_damaged_in_the_middle_is_refused_and_never_applied_in_part(path):
    journal = left_with_a_journal(path)
    whole = journal.read_bytes()
    rng = random.Random(0)
    for _ in range(60):
        damaged = bytearray(whole)
        damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        journal.write_bytes(damaged)
        assert runs.read_unless("journal is damaged at byte", path) in (None, 2, 3, 4)


def test_a_journal_of_random_bytes_is_ignored(path):
    runs.end(*runs.write(path, 2))
    journal = path.with_name("run.h5.journal")
    rng = random.Random(0)
    for size in (1, 7, 8, 83, 84, 85, 5000):
        for start in (b"", frames.MAGIC):
            journal.write_bytes(start + rng.randbytes(size))
            assert runs.read(path) == 2


def hostile(identity, marked_at, *, end=100, count=1, length=None, records=((0, 4),), body=b"evil"):
    """A frame with a right checksum and wrong sizes."""
    body = b"".join(struct.pack("<QQ", *record) for record in records) + body
    fields = (frames.MAGIC, identity, marked_at, 1, end, count, len(body) if length is None else length)
    crc = zlib.crc32(body, zlib.crc32(frames.HEADER.pack(*fields, 0)))
    return frames.HEADER.pack(*fields, crc) + body


@pytest.mark.parametrize(
    "wrong",
    [
        {"count": 2**60},
        {"length": 2**62},
        {"end": 2**63},
        {"records": ((2**64 - 2, 4),)},
        {"records": ((0, 2**63),)},
        {"records": ((98, 4),)},
        {"records": ((0, 3),)},
        {"count": 0},
        {"count": 3},
    ],
)
def test_sizes_that_a_journal_claims_are_not_believed(path, wrong):
    journaled, file = runs.write(path, 2)
    runs.end(journaled, file)
    identity, marked_at = runs.mark_of(path)
    path.with_name("run.h5.journal").write_bytes(hostile(identity, marked_at, **wrong))
    tracemalloc.start()
    assert runs.read_unless("cut off" if "end" in wrong else "damaged", path) in (None, 2)
    allocated = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert allocated < 1e7


def test_a_journal_of_holes_takes_no_memory(path):
    journaled, file = runs.write(path, 2)
    runs.end(journaled, file)
    identity, marked_at = runs.mark_of(path)
    for end in (path.stat().st_size, 2**62):
        fields = (frames.MAGIC, identity, marked_at, 1, end, 0, 4 << 30)
        with path.with_name("run.h5.journal").open("wb") as journal:
            journal.write(frames.HEADER.pack(*fields, 0))
            journal.truncate((4 << 30) + frames.HEADER.size)
        tracemalloc.start()
        assert runs.read_unless("the disk holds", path) is None
        allocated = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert allocated < 1e7


def test_a_frame_of_many_pieces_in_any_order_is_read_over_the_file(path):
    journaled, file = runs.write(path, 2)
    runs.end(journaled, file)
    identity, marked_at = runs.mark_of(path)
    whole = path.read_bytes()
    places = random.Random(0).sample(range(len(whole)), 5000)
    body = b"".join(struct.pack("<QQ", place, 1) for place in places) + bytes(whole[place] for place in places)
    fields = (frames.MAGIC, identity, marked_at, 1, len(whole), len(places), len(body))
    crc = zlib.crc32(body, zlib.crc32(frames.HEADER.pack(*fields, 0)))
    path.with_name("run.h5.journal").write_bytes(frames.HEADER.pack(*fields, crc) + body)
    path.write_bytes(bytes(marked_at) + whole[marked_at:])  # the journal has some of the bytes that are gone
    with committed(path) as source:
        read = source.read()
    assert [read[place] for place in places] == [whole[place] for place in places]
    assert len(read) == len(whole)


def test_a_pipe_in_the_place_of_a_journal_or_a_directory_in_that_of_a_file(path, tmp_path):
    runs.end(*runs.write(path, 2))
    os.mkfifo(path.with_name("run.h5.journal"))
    assert runs.read(path) == 2
    with pytest.raises(IsADirectoryError):
        runs.read(tmp_path)


@pytest.mark.parametrize("marked_at", [2**64 - 1, 2**63 - 16, 2**62])
def test_a_mark_outside_of_the_file_is_the_mark_of_another_file(path, marked_at):
    runs.end(*runs.write(path, 2))
    path.with_name("run.h5.journal").write_bytes(hostile(bytes(16), marked_at))
    assert runs.read(path) == 2


def test_the_journal_of_an_older_file_is_never_applied_to_a_newer_one(path, tmp_path):
    journal = left_with_a_journal(path)
    old = journal.read_bytes()
    path.unlink()
    journaled, file = runs.write(path, 1)
    assert not journal.exists()
    journal.write_bytes(old)
    assert runs.read(path) == 1
    for number in (2, 3):
        runs.advance(file, number)
        file.flush()
        journaled.commit()
        assert runs.read(path) == number
    runs.end(journaled, file)
    assert runs.read(path, natively=True) == 3


def test_a_killed_run_may_be_copied_with_its_journal(path, tmp_path):
    journal = left_with_a_journal(path)
    copy = tmp_path / "copy.h5"
    copy.write_bytes(path.read_bytes())
    copy.with_name("copy.h5.journal").write_bytes(journal.read_bytes())
    assert runs.read(copy) == 5


def test_a_file_that_was_cut_off_is_refused(path):
    left_with_a_journal(path)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 100)
    with pytest.raises(RecordingError, match="cut off: it should have"):
        runs.read(path)


def test_a_missing_file_and_one_without_a_commit(path):
    with pytest.raises(FileNotFoundError):
        runs.read(path)
    journaled, file = runs.write(path, 0)
    with pytest.raises(RecordingError, match="committed nothing yet"):
        runs.read(path)
    file.close()
    journaled.close()


def test_a_file_without_a_journal_is_read_as_it_is(path):
    runs.end(*runs.write(path, 2))
    with committed(path) as source:
        assert source.read() == path.read_bytes()


def test_a_writer_stopped_in_the_middle_is_said(path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setattr("byname.recording.stores.journal.descriptors.PATIENCE", 0.05)
    runs.end(*runs.write(path, 2))
    with path.open("rb") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(RecordingError, match="Is it stopped"):
            runs.read(path)
    assert runs.read(path) == 2


def test_without_locks_everything_else_works(path, tmp_path, monkeypatch):
    monkeypatch.setattr("byname.recording.stores.journal.descriptors.fcntl", None)
    runs.end(*runs.write(path, 5, pause=lambda number: runs.read(path)))
    assert runs.read(path) == 5
    assert [left.name for left in tmp_path.iterdir()] == ["run.h5"]


LEFT_OPEN = """
import ctypes, os, sys
import byname
recording = byname.open({path!r})
ctypes.pythonapi.Py_IncRef(ctypes.py_object(recording))  # alive when Python has gone
if not os.fork():
    sys.exit(3)
print(os.waitstatus_to_exitcode(os.wait()[1]), len(recording.paths))
"""


@pytest.mark.slow
def test_what_is_still_open_when_python_ends_is_no_crash(path):
    Hdf5Store(path, run={}).close()
    done = subprocess.run([sys.executable, "-c", LEFT_OPEN.format(path=str(path))], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "3 0\n"), done.stderr
