"""Validate: nothing is read from outside of a file that somebody else made, and nothing larger than it can hold.

HDF5 follows links to other files, and reads raw data from any file that a dataset names. A recording has none of
these, so they are refused. Sizes are compared with what the file really stores before memory is taken for them: a few
bytes may claim to be many, as a chunk that stands for several, a text that several refer to, or what was packed twice.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from byname.errors import RecordingError
from byname.text import printable

_LARGEST_CHUNK = 256 * 2**20
"""Bytes that HDF5 unpacks at once, where a filter was used."""
_LARGEST_ATTRIBUTE = 2**20
_MOST_DIMENSIONS = 64
"""Of a tensor; PyTorch's operations take no more."""
_DEFLATE, _SHUFFLE, _FLETCHER = 1, 2, 3
"""Filters by their numbers; the last two change no sizes, but for a checksum of four bytes."""
_RATIOS = {_DEFLATE: 1032, 32000: 88}
"""Bytes at most that a filter stores in one: that of deflate and of lzf."""
_LARGEST_RATIO = 2**17
"""For other filters: a chunk of recorders, all of it one value, in four bytes."""
_UNPACKED_UNSEEN = 64 * 2**20
"""Bytes that a chunk may have, unpacked, without that it was tried before."""
_left: ContextVar[list[int] | None] = ContextVar("_left", default=None)
"""How many bytes may still be read as attributes."""


def broken(what: str) -> RecordingError:
    """The error for a file that no recorder has written."""
    return RecordingError(f"this file is no whole recording: {printable(what)}")


def names_in(group: Any) -> tuple[list[str], dict[str, str]]:
    """The names in a group of what lies in this file itself, and those of links, each with what it is."""
    from h5py import h5l

    kinds = {h5l.TYPE_SOFT: "a link to another name", h5l.TYPE_EXTERNAL: "a link to another file"}
    own: list[str] = []
    links: dict[str, str] = {}

    def take(name: bytes, facts: Any) -> None:
        shown = name.decode("utf-8", "surrogateescape")
        if facts.type == h5l.TYPE_HARD:
            own.append(shown)
        else:
            links[shown] = kinds.get(facts.type, "a link of an unknown kind")

    group.id.links.iterate(take, info=True)
    return own, links


def group_in(group: Any, name: str) -> Any:
    """A group in a group."""
    import h5py

    found = _child(group, name)
    if not isinstance(found, h5py.Group):
        raise broken(f"{name} is not a group")
    return found


def dataset_in(group: Any, name: str, kind: Any, shape: tuple[int | None, ...]) -> Any:
    """An array in a group, of an expected type and shape, whose data lies in this file.

    Args:
        group: of the file.
        name: of the array.
        kind: its type, of HDF5.
        shape: of the array, None where any size is right.
    """
    import h5py

    found = _child(group, name)
    if not isinstance(found, h5py.Dataset):
        raise broken(f"{name} is not an array")
    how = found.id.get_create_plist()
    if how.get_layout() != h5py.h5d.CHUNKED:
        raise broken(f"{name} does not lie in chunks of this file")
    if math.prod(how.get_chunk()) * found.id.get_type().get_size() > _LARGEST_CHUNK:
        raise broken(f"{name} has chunks that are too large")
    if found.id.get_type() != kind:
        raise broken(f"{name} has elements of another type than it says")
    _filter_of(found)
    if len(found.shape) != len(shape) or any(
        want not in (None, has) for want, has in zip(shape, found.shape, strict=True)
    ):
        raise broken(f"{name} has the shape {found.shape}, and {shape} was expected")
    return found


def row_shape(group: Any, name: str) -> tuple[int, ...]:
    """The shape of a row of an array in a group."""
    import h5py

    found = _child(group, name)
    if not isinstance(found, h5py.Dataset) or not found.shape:
        raise broken(f"{name} is not an array of rows")
    shape = tuple(map(int, found.shape[1:]))
    check_shape(name, shape)
    return shape


def check_shape(name: str, shape: tuple[Any, ...]) -> None:
    """Refuses a shape that no tensor can have, also where one of its sizes is 0."""
    sizes = len(shape) <= _MOST_DIMENSIONS and all(type(size) is int and 0 <= size < 2**56 for size in shape)
    if not sizes or math.prod(filter(None, shape)) >= 2**56:
        raise broken(f"{name} has rows of the shape {shape!r:.200}")


def flat_shape(group: Any) -> tuple[int, ...]:
    """The shape of values that lie one after another: as many zeros as each of their shapes has sizes."""
    shape = row_shape(group, "shapes")
    if len(shape) != 1 or shape[0] > _MOST_DIMENSIONS:
        raise broken(f"shapes has rows of the shape {shape}, where the sizes of a tensor were expected")
    return (0,) * shape[0]


def storage(group: Any, name: str) -> int:
    """How many bytes of the file the rows of an array take; room that was made for further ones does not count."""
    array = _child(group, name)
    return int(min(array.id.get_storage_size(), math.prod(array.shape) * array.id.get_type().get_size()))


def stored(dataset: Any) -> int:
    """How many bytes of an array the file can hold, unpacked; for an array that was written whole, all of them."""
    held = min(dataset.id.get_storage_size(), size_of_file(dataset))  # several chunks may be the same bytes
    packed = _filter_of(dataset)
    if packed is None:
        return int(held)
    chunks = dataset.id.get_num_chunks() * math.prod(dataset.chunks) * dataset.id.get_type().get_size()
    return int(min(chunks, held * _RATIOS.get(packed, _LARGEST_RATIO if packed else 1)))


def first_rows(dataset: Any, count: int, *, whole: bool = True) -> Any:
    """The first records of an array that has them; only `ranks`, `calls` and `modes` need not have been written."""
    if len(dataset) < count:
        raise broken(f"{dataset.name} has {len(dataset)} records of {count}")
    if whole and stored(dataset) < count * dataset.id.get_type().get_size() * math.prod(dataset.shape[1:]):
        raise broken(f"{dataset.name} says that it has {count} records, and the file does not hold them")
    check_packed(dataset, 0, count)
    return dataset[:count]


def size_of_file(thing: Any) -> int:
    """How many bytes the file has that something is in."""
    from h5py import h5i

    return int(h5i.get_file_id(thing.id).get_filesize())


def check_packed(dataset: Any, start: int, stop: int, tried: set[int] | None = None) -> None:
    """Whether chunks unpack to what they say; HDF5 would take any memory for them.

    Args:
        dataset: whose rows are to be read, and of which the file holds as many as it says.
        start: the first of them.
        stop: the one after the last.
        tried: rows whose chunks need not be tried again; those that are tried are added.
    """
    packed = _filter_of(dataset)
    if packed is None or stop <= start:
        return
    rows, *columns = dataset.chunks
    size = math.prod(dataset.chunks) * dataset.id.get_type().get_size()
    tried = set() if tried is None else tried
    tails = [range(0, whole, step) for whole, step in zip(dataset.shape[1:], columns, strict=True)]
    for first in range(start - start % rows, min(stop, len(dataset)), rows):
        if first in tried:
            continue
        for tail in itertools.product(*tails):
            chunk = dataset.id.get_chunk_info_by_coord((first, *tail))
            _check_chunk(dataset, chunk.size, size)
            if packed == _DEFLATE and chunk.size * _RATIOS[_DEFLATE] > _UNPACKED_UNSEEN:
                _unpacked(dataset, (first, *tail), size)
        tried.add(first)


def _check_chunk(dataset: Any, packed: int, size: int) -> None:
    """Whether a chunk is no larger in the file than its elements are; where a filter fails, it stays as it is."""
    if packed > size + size // 8 + 2**12:
        raise broken(f"{dataset.name} has a chunk of {packed} bytes, where {size} are the most")


def text_lengths(dataset: Any, count: int) -> Any:
    """How many bytes each of the first texts of an array has. None of them is read: what refers to a text knows it.

    Args:
        dataset: of texts, of one dimension.
        count: how many.
    """
    import numpy

    rows, address = dataset.chunks[0], _bytes_of_an_address(dataset)
    reference = numpy.dtype({"names": ["length"], "formats": ["<u4"], "offsets": [0], "itemsize": 8 + address})
    lengths = numpy.zeros(count, numpy.int64)
    for first in range(0, count, rows):
        chunk = dataset.id.get_chunk_info_by_coord((first,))
        if chunk.byte_offset is None:
            continue  # none of them was written: they are empty
        _check_chunk(dataset, chunk.size, rows * reference.itemsize)
        raw = _unpacked(dataset, (first,), rows * reference.itemsize)
        read = numpy.frombuffer(raw, reference)["length"]
        lengths[first : first + rows] = read[: count - first]
    if int(lengths.sum()) > size_of_file(dataset):
        raise broken(f"{dataset.name} has texts of {int(lengths.sum())} bytes, which are more than there are in it")
    return lengths


def _bytes_of_an_address(dataset: Any) -> int:
    from h5py import h5i

    return int(h5i.get_file_id(dataset.id).get_create_plist().get_sizes()[0])


def _unpacked(dataset: Any, offset: tuple[int, ...], size: int) -> Any:
    """The bytes of a chunk as they were before the filters, and no more of them than it has."""
    import numpy

    how = dataset.id.get_create_plist()
    mask, raw = dataset.id.read_direct_chunk(offset)
    for number in reversed(range(how.get_nfilters())):
        code, _, options, _ = how.get_filter(number)
        if mask >> number & 1:
            continue  # HDF5 notes where a filter was left out
        if code == _DEFLATE:
            stream = zlib.decompressobj()
            try:
                raw = stream.decompress(raw, size + 4)
            except zlib.error as reason:
                raise broken(f"{dataset.name} has a chunk that cannot be unpacked: {reason}") from None
        elif code == _FLETCHER:
            raw = raw[:-4]
        elif code == _SHUFFLE and options and 1 < options[0] <= len(raw):
            each = len(raw) // options[0]
            whole = numpy.frombuffer(raw, numpy.uint8, each * options[0]).reshape(options[0], each)
            raw = whole.T.tobytes() + raw[each * options[0] :]
        elif code != _SHUFFLE:
            raise broken(f"{dataset.name} has texts that went through the filter {code}, and recorders use none")
    if len(raw) != size:
        raise broken(f"{dataset.name} has a chunk of {len(raw)} bytes or more, unpacked, where {size} were expected")
    return raw


def _filter_of(dataset: Any) -> int | None:
    """The number of the filter that an array is packed by, 0 if its chunks keep their sizes; None if it has none.

    Recorders use one. Where several follow one another, each unpacks what the last one has unpacked.
    """
    how = dataset.id.get_create_plist()
    codes = [how.get_filter(number)[0] for number in range(how.get_nfilters())]
    packing = [code for code in codes if code not in (_SHUFFLE, _FLETCHER)]
    if len(packing) > 1 or len(codes) != len({*codes}):
        raise broken(f"{dataset.name} went through the filters {', '.join(map(str, codes))}, and one is the most")
    return None if not codes else packing[0] if packing else 0


@contextmanager
def within_size(file: Any) -> Iterator[None]:
    """Context in which all attributes that are read may together have no more bytes than the file.

    Each attribute that is text may refer to the same one in the file, and HDF5 reads it to say how long it is.
    """
    before = _left.set([size_of_file(file)])
    try:
        yield
    finally:
        _left.reset(before)


def attribute(thing: Any, name: str, kind: type, default: Any = None) -> Any:
    """A text, number or truth value that a group or file has as an attribute.

    Args:
        thing: a file or a group.
        name: of the attribute.
        kind: ``str``, ``int``, ``float``, ``bool``, or ``object`` for any of these.
        default: where there is none; None makes that an error.
    """
    import h5py
    import numpy

    raw_name = name.encode()
    if not h5py.h5a.exists(thing.id, raw_name):
        if default is None:
            raise broken(f"it has no attribute {name}")
        return default
    one = h5py.h5a.open(thing.id, raw_name)
    if one.get_storage_size() > _LARGEST_ATTRIBUTE or one.get_space().get_simple_extent_ndims() != 0:
        raise broken(f"the attribute {name} is no single value")
    if one.get_type().get_class() not in (h5py.h5t.STRING, h5py.h5t.INTEGER, h5py.h5t.FLOAT, h5py.h5t.ENUM):
        raise broken(f"the attribute {name} is neither text nor number")
    value = thing.attrs[name]
    value = value.item() if isinstance(value, numpy.generic) else value
    value = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    _count(value)
    if kind is not object and type(value) is not kind:
        raise broken(f"the attribute {name} is no {kind.__name__}")
    return value


def _count(value: Any) -> None:
    left = _left.get()
    if left is not None and isinstance(value, str):
        left[0] -= len(value)
        if left[0] < 0:
            raise broken("its attributes have more text than there is in it: several are the same bytes")


def _child(group: Any, name: str) -> Any:
    from h5py import h5l

    key = name.encode("utf-8", "surrogateescape")
    if key not in group.id:
        raise broken(f"there is no {name} in {group.name}")
    if group.id.links.get_info(key).type != h5l.TYPE_HARD:
        raise broken(f"{name} in {group.name} is a link, which is not followed")
    return group[name]
