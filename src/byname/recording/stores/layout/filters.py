"""Which filter of HDF5 is meant by `compression=`?"""

from __future__ import annotations

from typing import Any

from byname.errors import BadArgumentError
from byname.recording.stores.layout.arrays import Filters

__all__ = ["filters_of"]


def filters_of(compression: Any) -> Filters:
    """What HDF5 is to do with the values.

    Args:
        compression: None, ``"gzip"``, ``"lzf"``, a level with its name such as ``("gzip", 9)``, the number of a filter
            that is installed, alone or with its options, or an object of hdf5plugin.

    Raises:
        BadArgumentError: if there is no such filter here; the message has the names.
    """
    name, options = compression if type(compression) is tuple and len(compression) == 2 else (compression, None)
    if name is None:
        return Filters()
    if name == "gzip":
        return Filters(1, (_level(4 if options is None else options),))
    if name == "lzf" and options is None:
        return Filters(32000)
    if hasattr(type(name), "filter_id"):  # h5py.filters.FilterRefBase, of which hdf5plugin's filters are
        return _installed(name.filter_id, tuple(name.filter_options), compression)
    if type(name) is int:
        return _installed(name, (options,) if type(options) is int else tuple(options or ()), compression)
    raise _unknown(compression)


def _level(level: Any) -> int:
    if type(level) is not int or not 0 <= level <= 9:
        raise BadArgumentError(f"gzip has the levels 0 (fast) to 9 (small), not {level!r:.60}")
    return level


def _installed(code: int, options: tuple[int, ...], asked: Any) -> Filters:
    from h5py import h5z

    can_write = (
        0 < code < 2**16 and h5z.filter_avail(code) and h5z.get_filter_info(code) & h5z.FILTER_CONFIG_ENCODE_ENABLED
    )
    if not can_write or not all(type(one) is int for one in options):
        raise _unknown(asked)
    return Filters(code, options)


def _unknown(asked: Any) -> BadArgumentError:
    return BadArgumentError(
        f"compression={asked!r:.60} is no filter here; there are None, 'gzip', 'lzf', ('gzip', 0 to 9), "
        "and the numbers or objects of filters that are installed (hdf5plugin has many)"
    )
