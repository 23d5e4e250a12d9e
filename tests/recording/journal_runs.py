"""A run that writes a journaled file in commits whose content is known, and what can befall it."""

import errno
import os
import sys
import traceback
import warnings

import h5py
import numpy

from byname.errors import RecordingError
from byname.recording.stores.journal.committed import committed
from byname.recording.stores.journal.journal import beside
from byname.recording.stores.journal.journaled_file import JournaledFile

LIBVERS = ["earliest", ("v108", "v110"), "latest"]
CALLS = ["open", "pwrite", "ftruncate", "unlink", "replace"]
KILLED, KILLED_IN_PLACE, FAILED = 3, 4, 99


def rows_after(number):
    return number * 5  # of chunks of 4: the last one is part-filled at most commits


def values(number):
    return numpy.arange(rows_after(number) * 50, dtype="f4").reshape(-1, 50) + 0.5


def write(path, commits, *, libver="earliest", overwrite=False, before_commit=None, pause=None):
    """The whole run; ``before_commit(number, journaled)`` is called before each commit, from 1."""
    journaled = JournaledFile(path, overwrite=overwrite)
    file = h5py.File(journaled, "w", libver=libver)
    journaled.sign(file)
    file.create_dataset("values", (0, 50), maxshape=(None, 50), chunks=(4, 50), dtype="f4")
    for number in range(1, commits + 1):
        advance(file, number)
        file.flush()
        if before_commit is not None:
            before_commit(number, journaled)
        journaled.commit()
        if pause is not None:
            pause(number)
    return journaled, file


def advance(file, number):
    file.attrs["commit"] = number
    whole = values(number)
    file["values"].resize(len(whole), 0)
    file["values"][rows_after(number - 1) :] = whole[rows_after(number - 1) :]
    if number % 2:
        late = file.create_group(f"late/{number}")
        late.attrs["number"] = number
        late["text"] = "x" * number


def end(journaled, file):
    file.close()
    journaled.commit()
    journaled.close()


def read(path, *, natively=False):
    """The number of the commit that the file holds; everything in it must be that of this commit."""
    if natively:
        with h5py.File(path, "r") as file:
            return checked(file)
    with committed(path) as source, h5py.File(source, "r") as file:
        return checked(file)


def read_unless(words, path):
    """The same, or None for a file that is refused in these words."""
    try:
        return read(path)
    except RecordingError as error:
        if words not in str(error):
            raise
        return None


def checked(file):
    number = int(file.attrs["commit"])
    numpy.testing.assert_array_equal(file["values"][:], values(number))
    late = {f"{odd}" for odd in range(1, number + 1, 2)}
    assert set(file["late"]) == late
    for name in late:
        assert file["late"][name].attrs["number"] == int(name)
        assert file["late"][name]["text"][()] == b"x" * int(name)
    return number


def in_child(work):
    """The exit code of a forked process that does ``work`` and nothing else."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 on: a fork of a process with threads; the child starts none
        child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
            os._exit(FAILED)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Calls:
    """Counts the system calls that change something, from `arm` on, and acts at one of them."""

    def __init__(self, at, act):
        self.at, self.act, self.count, self.journaled, self.in_place = at, act, 0, None, False

    def arm(self, journaled):
        self.journaled = journaled
        for name in CALLS:
            setattr(os, name, self._around(name, getattr(os, name)))

    def _around(self, name, call):
        def counted(*args, **kwargs):
            self.count += 1
            if self.count == self.at:
                self.act(self, name, call, args)
            done = call(*args, **kwargs)
            self._note(name, args)
            return done

        return counted

    def _note(self, name, args):
        if name == "pwrite" and is_in_place(args[0], self.journaled.path):
            self.in_place = True
        if name == "unlink":
            self.in_place = False


def is_in_place(descriptor, path):
    """Whether what is written there changes a file whose journal says the same already."""
    return beside(path).exists() and path.exists() and os.path.samestat(os.fstat(descriptor), path.stat())


def mark_of(path):
    """The mark by which a file and its journal know each other, and where it is in the file."""
    with h5py.File(path, "r") as file:
        mark = file["byname/identity"]
        return bytes(mark[:]), mark.id.get_offset()


def killed(calls, name, call, args):
    os._exit(KILLED_IN_PLACE if calls.in_place else KILLED)


def torn(part):
    """Only a part of the bytes is written before the kill."""

    def killed_within(calls, name, call, args):
        if name == "pwrite":
            size = len(args[1])
            call(args[0], memoryview(args[1])[: min(size - 1, int(size * part))], *args[2:])
            calls._note(name, args)
        killed(calls, name, call, args)

    return killed_within


def full(calls, name, call, args):
    calls.at += 1  # and so all that follow
    if name in ("pwrite", "open"):
        raise OSError(errno.ENOSPC, "No space left on device")
