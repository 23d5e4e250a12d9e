"""Recordings with changed bytes, attributes, arrays and journals, each opened, read and printed.

Run by `test_fuzz.py` in a process of its own: ``python fuzzing.py DIRECTORY FIRST COUNT`` takes one seed after another,
says which on standard output before it is tried, and ends at the first answer that is neither values nor a BynameError.
"""

import os
import random
import resource
import shutil
import signal
import sys
import traceback
import warnings
from pathlib import Path

import h5py
import numpy
import torch
from stored_runs import series

import byname
from byname.errors import BynameError
from byname.recording.distributed.dtensor import Shard
from byname.recording.stores.writer import Hdf5Store

ROOM, PATIENCE = 2 << 30, 20
"""Bytes of addresses, and seconds of the processor, that one file may take."""


def make(directory):
    """The recordings that are changed: plain, packed, and one whose writer was killed with a journal."""
    torch.manual_seed(0)
    for name, compression in (("plain", None), ("gzip", "gzip"), ("lzf", "lzf")):
        store = Hdf5Store(directory / f"{name}.h5", run={"note": {"k": [1, "x"]}}, compression=compression)
        fill(store)
        store.close()
    killed = directory / "killed.h5"
    store = Hdf5Store(killed, run={})
    fill(store)
    store.flush()
    with h5py.File(killed, "r"):  # while somebody reads, what is committed stays in the journal
        for number in range(3):
            fill(store, start=100 + 100 * number)
            store.flush()
        for one in (killed, killed.with_name("killed.h5.journal")):
            shutil.copy(one, one.with_name(one.name.replace("killed", "left")))
    store.close()
    killed.unlink()


def fill(store, start=0):
    shard = Shard((1,), ("x",), (0,), ("Shard(0)",), (3,), (0,))
    store.append(
        {
            "a": series("a", [torch.randn(4, 5) for _ in range(5)], start=start),
            "n": series("n", [{"k": [torch.ones(3), (one, None, 2.5j)]} for one in range(3)], start=start),
            "r": series("r", [torch.ones(one) for one in range(11)], start=start),
            "t": series("t", ["x" * one for one in range(4)], start=start),
            "s": series("s", [torch.ones(3)] * 4, shard=shard, start=start),
            "b": series("b", [torch.ones(2, dtype=torch.bfloat16)] * 4, start=start),
            "i": series("i", [1, 2, 3, None], start=start),
        }
    )


def changed(directory, chance):
    """A copy of one of the recordings with something else in it."""
    original = directory / f"{chance.choice(['plain', 'plain', 'gzip', 'lzf', 'left'])}.h5"
    path = directory / "changed.h5"
    shutil.copy(original, path)
    journal = original.with_name(original.name + ".journal")
    beside = path.with_name("changed.h5.journal")
    beside.unlink(missing_ok=True)
    if journal.exists():
        shutil.copy(journal, beside)
    if journal.exists() and chance.random() < 0.5:
        change_bytes(beside, chance)
    elif chance.random() < 0.5:
        change_bytes(path, chance)
    else:
        for _ in range(chance.randrange(1, 4)):
            change_contents(path, chance)
    return path


def change_bytes(path, chance):
    whole = bytearray(path.read_bytes())
    end = len(whole) if chance.random() < 0.5 else min(len(whole), 30_000)  # where most of what HDF5 notes lies
    for _ in range(chance.choice([1, 1, 2, 5, 20])):
        at = chance.randrange(max(end, 1))
        kind = chance.randrange(5)
        if kind == 0:
            whole[at : at + 1] = bytes([chance.randrange(256)])
        elif kind == 1:
            whole[at : at + 8] = chance.choice([0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1, at]).to_bytes(8, "little")
        elif kind == 2:
            other = chance.randrange(max(end, 1))
            whole[at : at + 16] = whole[other : other + 16]
        elif kind == 3:
            whole[at : at + 1] = bytes([whole[at] ^ 1 << chance.randrange(8)]) if at < len(whole) else b""
        elif chance.random() < 0.1:
            del whole[at:]
    path.write_bytes(whole)


TEXTS = [
    "",
    "x",
    "a",
    "tensor",
    "int",
    "str",
    "nested",
    "rows",
    "flat",
    "qint8",
    "float64",
    "bfloat16",
    "bits8",
    "[[]]",
]
TEXTS += ["{}", '{"mesh": 1}', '["x"]', "\x1b[31m", "ä" * 99, "9" * 5000, "[" * 5000, '{"tensor":["quint8",[1],0]}']
TEXTS += [
    '{"tensor":["float32",[0,4611686018427387904,4],0]}',
    '{"dict":[[[],1]]}',
    '{"int":"0xzz"}',
    '{"device":"cuda:9"}',
]
NUMBERS = [0, 1, -1, 2, 2**31 - 1, -(2**31), 2**40, 2**62, -(2**63), 2**63 - 1]


def change_contents(path, chance):
    try:
        with h5py.File(path, "r+") as file:
            things = [file]
            file.visititems(lambda name, thing: things.append(thing))
            change(file, chance.choice(things), chance)
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError):
        pass  # what was changed before is in the way


def change(file, thing, chance):
    kind = chance.randrange(6)
    if isinstance(thing, h5py.Dataset) and kind < 3 and len(thing.shape) and thing.size:
        place = tuple(chance.randrange(size) for size in thing.shape)
        text = h5py.check_string_dtype(thing.dtype)
        thing[place] = chance.choice(TEXTS) if text else numpy.array(chance.choice(NUMBERS)).astype(thing.dtype)
    elif isinstance(thing, h5py.Dataset) and kind == 3 and thing.maxshape and None in thing.maxshape:
        thing.resize(chance.choice([0, 1, 3, 1000, 5000]), 0)
    elif kind == 4 and isinstance(thing, h5py.Group) and len(thing):
        name, other = chance.choice(list(thing)), chance.choice(list(thing))
        del thing[name]
        if chance.random() < 0.7 and other != name:
            links = [thing[other], h5py.SoftLink(f"/{other}"), h5py.ExternalLink("x.h5", "/"), numpy.zeros(3)]
            thing[name] = chance.choice(links)
    else:
        names = list(thing.attrs) or ["path"]
        value = chance.choice([chance.choice(TEXTS), chance.choice(NUMBERS), chance.random(), True, numpy.zeros(3)])
        thing.attrs[chance.choice(names)] = value


def read(path):
    """Everything that a user may ask of it."""
    with byname.open(path) as recording:
        assert recording.complete <= (not recording.missing)
        recording.head(ranges=True), repr(recording.run)
        for name in recording.paths:
            found = recording[name]
            found.head(4), found.to_numpy(), repr(list(found.values))
            if any(found.shards):
                byname.assembled(found)


def one(directory, seed):
    """Tries the recording of one seed; says what it was."""
    path = changed(directory, random.Random(seed))
    signal.setitimer(signal.ITIMER_PROF, PATIENCE)
    try:
        read(path)
        return "read"
    except BynameError as error:
        words = str(error)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    assert words.isprintable(), repr(words)
    return "refused"


def main(directory, first, count):
    signal.signal(signal.SIGPROF, lambda *_: (_ for _ in ()).throw(AssertionError(f"not done after {PATIENCE} s")))
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + ROOM, now + ROOM))
    warnings.simplefilter("ignore")
    for seed in range(first, first + count):
        print(seed, end=" ", flush=True)
        try:
            print(one(directory, seed), flush=True)
        except BaseException:
            traceback.print_exc()
            return 1
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
