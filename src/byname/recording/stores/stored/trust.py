"""What may be read of a file that somebody else made? Nothing outside of it, and nothing larger than it can hold.

HDF5 follows links to other files, and reads raw data from any file that a dataset names. A recording has none of
these, so they are refused. Sizes are compared with what the file really stores before memory is taken for them.
"""

from __future__ import annotations

import math
from typing import Any

from byname.errors import RecordingError
from byname.table import printable

__all__ = ["attribute", "broken", "dataset_in", "group_in", "names_in", "row_shape", "storage", "stored"]

_LARGEST_CHUNK = 256 * 2**20
"""Bytes that HDF5 unpacks at once, where a filter was used."""
_LARGEST_ATTRIBUTE = 2**20


def broken(what: str) -> RecordingError:
    """The error for a file that no recorder has written."""
    return RecordingError(f"this file is no whole recording: {printable(what)}")


def names_in(group: Any) -> list[str]:
    """The names in a group of what lies in this file itself."""
    return [name for name in group if _is_hard(group, name)]


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
    return tuple(map(int, found.shape[1:]))


def storage(group: Any, name: str) -> int:
    """How many bytes of the file the rows of an array take; room that was made for further ones does not count."""
    array = _child(group, name)
    return int(min(array.id.get_storage_size(), math.prod(array.shape) * array.id.get_type().get_size()))


def stored(dataset: Any) -> int:
    """How many bytes of an array the file really holds, unpacked; for an array that was written whole, all of them."""
    if dataset.id.get_create_plist().get_nfilters():
        size = dataset.id.get_num_chunks() * math.prod(dataset.chunks) * dataset.id.get_type().get_size()
    else:
        size = dataset.id.get_storage_size()
    return int(size)


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
    if kind is not object and type(value) is not kind:
        raise broken(f"the attribute {name} is no {kind.__name__}")
    return value


def _is_hard(group: Any, name: str) -> bool:
    from h5py import h5l

    return bool(group.id.links.get_info(name.encode()).type == h5l.TYPE_HARD)


def _child(group: Any, name: str) -> Any:
    if name.encode() not in group.id:
        raise broken(f"there is no {name} in {group.name}")
    if not _is_hard(group, name):
        raise broken(f"{name} in {group.name} is a link, which is not followed")
    return group[name]
