"""Wire: windows as tensors of bytes, never as a pickle, and the sending and receiving of a tensor.

A first tensor says how long the second is, which must be known in advance: gloo ends a process at once, whatever it was
doing, when more arrives than it has room for (PyTorch 2.13).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from byname.codec import bytes_of, decoded, encoded, size_of
from byname.errors import RecordingError
from byname.recording.distributed.dtensor import Shard
from byname.recording.sampling import Sampling
from byname.recording.series import Series

_FOREVER = timedelta(days=3650)
"""No timeout: one would end the connections to all ranks, and a step may take as long as it likes."""
_TAG, _NEVER_SENT = 1, 2

ACKNOWLEDGED = torch.Size((1,))
"""The shape of the tensor by which rank 0 says that a parcel is stored."""


def send(group: Any, tensor: Tensor, to: int) -> None:
    """Returns when the tensor is on its way; RuntimeError when that rank is gone."""
    group.send([tensor], to, _TAG).wait(_FOREVER)


def receive(group: Any, tensor: Tensor, source: int) -> Tensor:
    """Fills the tensor with what comes; RuntimeError when that rank is gone. It must have exactly the size of it."""
    group.recv([tensor], source, _TAG).wait(_FOREVER)
    return tensor


def break_off(group: Any, other: int) -> None:
    """Breaks all connections of this rank in the group, so that whatever thread waits for one of them waits no more.

    To wait in vain for anything is the only way to do so that gloo leaves to Python (2.13 gives `Work` no ``abort``).
    """
    with suppress(RuntimeError):  # which is what is wanted
        group.recv([torch.empty(1, dtype=torch.uint8)], other, _NEVER_SENT).wait(timedelta(milliseconds=1))


def first_line(error: BaseException) -> str:
    """What gloo has to say, without the line of its source and its advice."""
    line = str(error).partition("\n")[0].partition(". This is")[0]
    return re.sub(r"^\[[^]]*\] ", "", line)[:200]


Window = Mapping[str, Series]
Parcel = Sequence[tuple[int, Window]]
"""Windows with their numbers, in order; an empty one says that no more will come."""

HEADER = 3
"""Numbers in the first tensor."""
_MARK = 0x62796E616D6501
"""What a header begins with: who sends, and in which form."""
_LONGEST = 1 << 40
"""Bytes of one parcel that no sender comes near."""


def last_iteration(window: Window, before: int | None = None) -> int | None:
    """The last iteration of which a window has something; ``before`` where it has nothing."""
    return max((series.iterations[-1] for series in window.values() if len(series)), default=before)


def weight(window: Window) -> int:
    """About how many bytes a window holds."""
    return sum(size_of(series.values) + 64 * len(series) for series in window.values()) + 64


def packed(parcel: Parcel) -> tuple[Tensor, Tensor]:
    """The two tensors to send.

    Raises:
        NotStorableError: if a value in it has no form.
    """
    if not parcel:
        return header(0, 0), torch.empty(0, dtype=torch.uint8)
    text, tensors = encoded([[number, [_columns(series) for series in window.values()]] for number, window in parcel])
    words = text.encode()
    sizes = [one.numel() * one.element_size() for one in tensors]
    body = torch.empty(len(words) + sum(sizes), dtype=torch.uint8)
    into = body.numpy()
    into[: len(words)] = bytearray(words)
    start = len(words)
    for one, size in zip(tensors, sizes, strict=True):
        into[start : start + size] = bytes_of(one)
        start += size
    return header(len(words), len(body)), body


def header(words: int, length: int) -> Tensor:
    """The first tensor: the bytes of JSON at the beginning of the second, and its bytes in all."""
    return torch.tensor([_MARK, words, length], dtype=torch.int64)


def body_length(head: Tensor) -> tuple[int, int]:
    """What a header says: the bytes of JSON, and of the whole second tensor; (0, 0) is the end.

    Raises:
        RecordingError: if it is not one that this version writes.
    """
    mark, words, length = (int(number) for number in head)
    if mark != _MARK or not 0 <= words <= length <= _LONGEST:
        raise RecordingError("another process sent what this version of byname does not know: is it the same?")
    return words, length


def unpacked(words: int, body: Tensor) -> list[tuple[int, dict[str, Series]]]:
    """The parcel that these tensors carry; its tensors own their memory.

    Raises:
        RecordingError: if they carry none.
    """
    data = memoryview(body.numpy().data)
    try:
        return [
            (int(number), {columns[0]: _series(columns) for columns in window})
            for number, window in decoded(bytes(data[:words]), data[words:])
        ]
    except (TypeError, ValueError, IndexError) as wrong:
        raise RecordingError(f"another process sent values that cannot be read ({wrong})") from wrong


def _columns(series: Series) -> list[Any]:
    values = series.values if type(series.values) is Tensor else list(series.values)
    shards = [None if shard is None else astuple(shard) for shard in series.shards]
    shapes = [tuple(shape) for shape in series.shapes]
    moments = [[*column] for column in (series.iterations, series.ranks, series.calls, series.modes)]
    sampling = None if series.sampling is None else series.sampling.facts()
    return [series.path, values, *moments, shapes, shards, sampling]


def _series(columns: Sequence[Any]) -> Series:
    path, values, iterations, ranks, calls, modes, shapes, shards, asked = columns
    parts = [None if shard is None else Shard(*shard) for shard in shards]
    sampling = None if asked is None else Sampling.of(asked)
    return Series(path, values, iterations, ranks, calls, modes, shapes, parts, sampling)
