"""Logs and finished recordings with changed bytes, indexes and frames, each opened, read and printed.

Run by `test_fuzz.py` in a process of its own: ``python fuzzing.py DIRECTORY FIRST COUNT`` takes one seed after another,
says which on standard output before it is tried, and ends at the first answer that is neither values nor a BynameError.
"""

import json
import os
import random
import resource
import shutil
import signal
import struct
import sys
import traceback
import warnings
import zlib
from pathlib import Path

import numpy
import torch
from stored_runs import Writer, written

import byname
from byname import Series
from byname.errors import BynameError

# as docs/hdf5.md has it
LOG_MAGIC, MAGIC, MARK = b"byname log 3".ljust(16, b"\0"), b"byname HDF5 3.1\n", b"bnF1"
FILE_MARK, HEADER = struct.Struct("<16s16sQQI"), struct.Struct("<4sIIIQ")
NUMBERS_OF_AN_ENTRY = {
    "place": 4,
    "type": 4,
    "count": 4,
    "rank": 4,
    "records": 8,
    "values": 8,
    "size": 8,
    "first": 8,
    "last": 8,
}
ENTRY = numpy.dtype([(name, f"<i{size}") for name, size in NUMBERS_OF_AN_ENTRY.items()])
PART = {"mesh": [1], "names": ["x"], "coordinate": [0], "placements": ["Shard(0)"], "shape": [3], "offset": [0]}

ROOM, PATIENCE = 2 << 30, 20
"""Bytes of addresses, and seconds of the processor, that one file may take."""


def log_of(path):
    return path.with_name(f"{path.name}.log")


def make(directory):
    """The recordings that are changed: plain, packed, and the log of a writer that was killed."""
    torch.manual_seed(0)
    part = written(directory / "part.h5", {"s": [torch.ones(3)]})
    change_index(part, lambda index: index["types"][0].__setitem__(4, PART))
    with byname.open(part) as recording:
        (shard,) = recording["s"].shards
    part.unlink()

    def sharded(path, series):
        if path == "s":
            columns = series.iterations, series.ranks, series.calls, series.modes, series.shapes
            return Series(path, list(series.values), *columns, [shard] * len(series))

    for name, compression in (("plain", None), ("gzip", "gzip")):
        written(directory / f"{name}.h5", PLACES, compression=compression, gather_every=100, before_gather=sharded)
    killed = directory / "killed.h5"
    writer = Writer(killed, PLACES, gather_every=11, before_gather=sharded)
    for _ in range(5):  # a window is written when the next one begins
        writer.window(PLACES)
    shutil.copy(log_of(killed), log_of(directory / "left.h5"))
    writer.close()
    killed.unlink()


PLACES = {
    "a": [torch.arange(20.0).view(4, 5) * one for one in range(5)],
    "n": [{"k": [torch.ones(3), (one, None, 2.5j)]} for one in range(3)],
    "r": [torch.ones(one) for one in range(11)],
    "t": ["x" * one for one in range(4)],
    "s": [torch.ones(3)] * 4,
    "b": [torch.ones(2, dtype=torch.bfloat16)] * 4,
    "i": [1, 2, 3, None],
}


def changed(directory, chance):
    """A copy of one of the recordings with something else in it."""
    name = chance.choice(["plain", "gzip", "left"])
    path = directory / "changed.h5"
    for one in (path, log_of(path)):
        one.unlink(missing_ok=True)
    if name == "left":
        shutil.copy(log_of(directory / "left.h5"), log_of(path))
        change = change_bytes if chance.random() < 0.4 else change_frame
        change(log_of(path), chance)
    else:
        shutil.copy(directory / f"{name}.h5", path)
        if chance.random() < 0.4:
            change_bytes(path, chance)
        else:
            change_index(path, lambda index: mutated(index, chance))
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


NUMBERS = [0, 1, -1, 2, 8, 2**31 - 1, 2**31, -(2**31), 2**40, 2**62, -(2**63), 2**63 - 1, 2**64, 0.5, 1e300]
TEXTS = ["", "x", "a", "tensor", "int", "str", "nested", "rows", "flat", "padded", "bytes", "qint8", "float64", "bits8"]
OTHERS = [
    None,
    True,
    [],
    {},
    [[]],
    {"a": 1},
    "\x1b[31m",
    "9" * 5000,
    [[0, 0]] * 3,
    {"chunk": 1, "each": 1, "chunks": []},
]


def mutated(thing, chance, depth=0):
    """Change something in nested lists and dicts, in place."""
    keys = [*thing] if isinstance(thing, dict) else [*range(len(thing))]
    if not keys:
        return
    key = chance.choice(keys)
    inner = thing[key]
    if isinstance(inner, list | dict) and inner and chance.random() < (0.95 if depth < 2 else 0.7):
        mutated(inner, chance, depth + 1)
    elif chance.random() < 0.1:
        del thing[key]
    elif isinstance(inner, int) and chance.random() < 0.5:
        thing[key] = inner + chance.choice([-8, -1, 1, 2, 4, 8, 64, 4096])
    else:
        thing[key] = chance.choice([*NUMBERS, *TEXTS, *OTHERS])


def change_index(path, change):
    """Write another index behind the others of a finished recording, with its checksums."""
    whole = bytearray(path.read_bytes())
    at = whole.index(MAGIC)
    _, identity, _, begin, _ = FILE_MARK.unpack(whole[at : at + FILE_MARK.size])
    _, _, words, table, _ = HEADER.unpack(whole[begin : begin + HEADER.size])
    begin += HEADER.size
    index = json.loads(whole[begin : begin + words])
    rows = numpy.frombuffer(bytes(whole[begin + words : begin + words + table]), ENTRY)
    index["entries"] = [dict(zip(ENTRY.names, row.tolist(), strict=True)) for row in rows]
    change(index)
    entries = entries_of(index.pop("entries", [])).tobytes()
    text = json.dumps(index).encode()
    frame = HEADER.pack(MARK, zlib.crc32(text + entries), len(text), len(entries), 0) + text + entries
    mark = FILE_MARK.pack(MAGIC, identity, len(whole), len(whole), 0)[:-4]
    whole[at : at + FILE_MARK.size] = mark + zlib.crc32(mark).to_bytes(4, "little")
    path.write_bytes(whole + frame)


def entries_of(rows):
    """Entries of what may be anything, as far as they can be written."""
    rows = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    entries = numpy.zeros(len(rows), ENTRY)
    for entry, row in zip(entries, rows, strict=True):
        for name in ENTRY.names:
            number = row.get(name, 0)
            entry[name] = fitting(number if type(number) is int else 0, ENTRY[name].itemsize)
    return entries


def fitting(number, size):
    """The number as an integer of so many bytes has it."""
    return (number + 2 ** (8 * size - 1)) % 2 ** (8 * size) - 2 ** (8 * size - 1)


def change_frame(path, chance):
    """Change the header, the JSON or the entries of a frame of a log, with its checksum."""
    whole = path.read_bytes()
    at, frames = len(LOG_MAGIC) + 16, []
    while at < len(whole):
        mark, _, words, table, size = HEADER.unpack(whole[at : at + HEADER.size])
        frames.append((at, words, table, size))
        at += HEADER.size + words + table + size
    at, words, table, size = chance.choice(frames)
    begin = at + HEADER.size
    text, entries = whole[begin : begin + words], bytearray(whole[begin + words : begin + words + table])
    body = bytearray(whole[begin + words + table : begin + words + table + size])
    kind = chance.randrange(4)
    if kind == 0 and text:
        facts = json.loads(text)
        mutated(facts, chance)
        text = json.dumps(facts).encode()
    elif kind == 1 and entries:
        rows = numpy.frombuffer(entries, ENTRY)
        name = chance.choice(ENTRY.names)
        number = chance.choice([0, 1, -1, 2, 3, 8, 17, 2**31 - 1, 2**40, 2**62, 2**63 - 1, len(whole)])
        rows[name][chance.randrange(len(rows))] = fitting(number, ENTRY[name].itemsize)
        del rows  # which lies in the entries
        if chance.random() < 0.3:
            entries += entries * chance.randrange(1, 2000)
    elif kind == 2 and body:
        place = chance.randrange(len(body))
        body[place : place + 8] = chance.choice([0, 1, 2**31, 2**63 - 1, 2**64 - 1, 16]).to_bytes(8, "little")
    else:
        text = chance.choice(
            [b"", b"{", b"[]", b"3", b"[" * 5000, b'{"run":{}}', b'{"places":[["a",null]]}', text + b" "]
        )
    header = HEADER.pack(MARK, zlib.crc32(text + entries), len(text), len(entries), len(body))
    path.write_bytes(whole[:at] + header + text + entries + body + whole[begin + words + table + size :])


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
    if path.exists() or log_of(path).exists():
        byname.repair(path)


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
