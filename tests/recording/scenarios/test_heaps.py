"""Heaps of texts that HDF5 would never return from, or that it reads without end, are refused before it sees them."""

import h5py
import numpy
import pytest

import byname
from byname.errors import RecordingError
from byname.recording.stores.journal.committed import Heaps, committed
from byname.recording.stores.writer import Hdf5Store


@pytest.fixture
def texts(tmp_path):
    """A file with 4,000 texts, and its bytes."""
    path = tmp_path / "texts.h5"
    with h5py.File(path, "w", libver=("v108", "v110")) as file:
        file["texts"] = [f"text {one}" for one in range(4000)]
        file["long"] = ["x" * 100_000, "y"]
    return path, bytearray(path.read_bytes())


def read(path):
    with committed(path) as source, h5py.File(source, "r") as file:
        return list(file["texts"].asstr()[:]), [len(one) for one in file["long"].asstr()[:]]


def heaps(whole):
    """Where heaps begin, and where the objects of each do."""
    found, at = {}, -1
    while (at := whole.find(b"GCOL\x01", at + 1)) >= 0:
        size, places, one = int.from_bytes(whole[at + 8 : at + 16], "little"), [], at + 16
        while one + 16 <= at + size:
            places.append(one)
            taken = int.from_bytes(whole[one + 8 : one + 16], "little")
            one += 16 + (taken + 7) // 8 * 8 if any(whole[one : one + 2]) else taken
        found[at] = places
    return found


def test_what_is_whole_is_read(texts):
    path, whole = texts
    assert len(heaps(whole)) == 3
    assert read(path) == ([f"text {one}" for one in range(4000)], [100_000, 1])


@pytest.mark.parametrize(
    ("index", "size"),
    [(0, 0), (0, 7), (1, 2**64 - 16), (1, 2**64 - 1), (0, 2**63), (1, 70_000)],
)
@pytest.mark.parametrize("which", [0, 7, -1])
def test_an_object_that_takes_no_bytes_or_too_many_is_refused(texts, index, size, which):
    path, whole = texts
    start, places = list(heaps(whole).items())[-2]
    one = places[which]
    whole[one : one + 2] = index.to_bytes(2, "little")
    whole[one + 8 : one + 16] = size.to_bytes(8, "little")
    path.write_bytes(whole)
    with pytest.raises(RecordingError, match=f"heap of texts at byte {start:,}"):
        read(path)


def test_a_heap_whose_beginning_was_read_in_two_parts_is_seen():
    heap = b"GCOL\x01\0\0\0" + (4096).to_bytes(8, "little") + bytes(4080)
    whole = b"\x89HDF\r\n\x1a\n\x02\x08\x08\0\0\0\0\0" + bytes(984) + heap
    for cut in range(1, 5):
        found = Heaps(lambda offset, size: bytearray(whole[offset : offset + size]), len(whole))
        found.check(0, 1000 + cut)
        with pytest.raises(RecordingError, match="at byte 1,000"):
            found.check(1000 + cut, 100)


@pytest.mark.parametrize("before", [0, 512, 1024, 4096])
def test_lengths_of_other_sizes_are_refused_wherever_the_file_begins(before):
    heap = b"GCOL\x01\0\0\0" + (4096).to_bytes(4, "little") + bytes(4084)
    whole = bytes(before) + b"\x89HDF\r\n\x1a\n\0\0\0\0\0\x04\x04\0" + heap
    found = Heaps(lambda offset, size: bytearray(whole[offset : offset + size]), len(whole))
    with pytest.raises(RecordingError, match="lengths are not of 8 bytes"):
        found.check(before, len(whole) - before)


def test_heaps_that_lie_over_each_other_are_not_walked_again_and_again():
    many = 2000
    whole = bytearray(b"\x89HDF\r\n\x1a\n\x02\x08\x08\0\0\0\0\0") + bytes(24 * many + 65536)
    for one in range(many):  # the rest of each heap is one object
        at = 16 + 24 * one
        whole[at : at + 24] = b"GCOL\x01\0\0\0" + (60_000).to_bytes(8, "little") + b"\1\0\0\0\0\0\0\0"
    asked = []
    found = Heaps(lambda offset, size: asked.append(size) or bytearray(whole[offset : offset + size]), len(whole))
    with pytest.raises(RecordingError):
        found.check(0, 24 * many)
    assert sum(asked) < 4 * len(whole)


def test_values_that_look_like_a_heap_are_values(tmp_path):
    heap = b"GCOL\x01\0\0\0" + (4096).to_bytes(8, "little") + bytes(4080)
    pixels = numpy.frombuffer(heap, "uint8")
    path = tmp_path / "run.h5"
    with h5py.File(path, "w") as file:
        file["pixels"] = numpy.tile(pixels, 40)  # more than HDF5 reads of a heap at once
    with committed(path) as source, h5py.File(source, "r") as file:
        assert numpy.array_equal(file["pixels"][:], numpy.tile(pixels, 40))


def test_a_recording_with_such_a_heap_is_an_error_that_names_the_file(tmp_path):
    path = tmp_path / "run.h5"
    Hdf5Store(path, run={"note": "x"}).close()
    whole = bytearray(path.read_bytes())
    (places,) = heaps(whole).values()
    whole[places[-1] + 8 : places[-1] + 16] = bytes(8)
    path.write_bytes(whole)
    with pytest.raises(RecordingError, match=r"run\.h5.*heap of texts at byte"):
        byname.open(path)
