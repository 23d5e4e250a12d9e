"""Short ways to write recordings for the tests of files."""

import torch

from byname import Series
from byname.recording.log_file import LogStore


def series(path, values, *, start=0, rank=0, call=0, mode="train", shard=None):
    count = len(values)
    shapes = [tuple(one.shape) if isinstance(one, torch.Tensor) else () for one in values]
    shards = [shard] * count if shard else ()
    return Series(
        path, values, list(range(start, start + count)), [rank] * count, [call] * count, [mode] * count, shapes, shards
    )


def written(path, places, *, complete=True, **run):
    """A file with these values; `places` maps paths to lists of values."""
    store = LogStore(path, run=run)
    store.append({name: series(name, values) for name, values in places.items()})
    store.close(complete=complete)
    return path


def bits(value):
    """What has to be equal for two values to be the same, bit by bit and in type."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), bytes(value.contiguous().reshape(-1).view(torch.uint8).numpy())
    if isinstance(value, dict):
        return [(bits(key), bits(one)) for key, one in value.items()]
    if isinstance(value, list | tuple):
        return type(value).__name__, [bits(one) for one in value]
    return type(value).__name__, repr(value)
