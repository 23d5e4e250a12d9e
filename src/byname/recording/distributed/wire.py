"""Wire: windows as tensors of bytes, as frames and never as a pickle, and the sending and receiving of a tensor.

A first tensor says how long the second is, which must be known in advance: gloo ends a process at once, whatever it was
doing, when more arrives than it has room for (PyTorch 2.13).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from byname.codec import size_of
from byname.errors import RecordingError
from byname.recording.frame import FrameIndex, FrameWriter, frame_at
from byname.recording.series import Series
from byname.recording.stored import Source

_FOREVER = timedelta(days=3650)
"""No timeout: one would end the connections to all ranks, and a step may take as long as it likes."""
_TAG, _NEVER_SENT = 1, 2

ACKNOWLEDGED = torch.Size((1,))
"""The shape of the tensor by which rank 0 says that a parcel is stored."""


def send_tensor(group: Any, tensor: Tensor, to: int) -> None:
    """Send a tensor, and return when it is on its way; RuntimeError when that rank is gone."""
    group.send([tensor], to, _TAG).wait(_FOREVER)


def receive_tensor(group: Any, tensor: Tensor, source: int) -> Tensor:
    """Fill the tensor with what comes; RuntimeError when that rank is gone. It must have exactly the size of it."""
    group.recv([tensor], source, _TAG).wait(_FOREVER)
    return tensor


def abort_connections(group: Any, other: int) -> None:
    """Break all connections of this rank in the group, so that whatever thread waits for one of them waits no more.

    To wait in vain for anything is the only way to do so that gloo leaves to Python (2.13 gives `Work` no ``abort``).
    """
    with suppress(RuntimeError):  # which is what is wanted
        group.recv([torch.empty(1, dtype=torch.uint8, device="cpu")], other, _NEVER_SENT).wait(
            timedelta(milliseconds=1)
        )


def first_line(error: BaseException) -> str:
    """Return what gloo has to say, without the line of its source and its advice."""
    line = str(error).partition("\n")[0].partition(". This is")[0]
    return re.sub(r"^\[[^]]*\] ", "", line)[:200]


Window = Mapping[str, Series]
Parcel = Sequence[tuple[int, Window]]
"""Windows with their numbers, in order; an empty one says that no more will come, and what is missing."""

HEADER = 3
"""Numbers in the first tensor."""
_MARK = 0x62796E616D6503
"""What a header begins with: who sends, and in which form."""
_LONGEST = 1 << 40
"""Bytes of one parcel that no sender comes near."""


def last_iteration(window: Window, before: int | None = None) -> int | None:
    """Return the last iteration that a window has a value of; ``before`` if it is empty."""
    return max((int(series.records["iteration"][-1]) for series in window.values() if len(series)), default=before)


def approximate_bytes(window: Window) -> int:
    """Return about how many bytes a window holds."""
    return sum(size_of(series.values) + 64 * len(series) for series in window.values()) + 64


def packed(parcel: Parcel, missing: Sequence[str] = ()) -> tuple[Tensor, Tensor]:
    """Return the two tensors to send: a header, and the windows as bytes; or if there is none, what is missing."""
    frames, pieces = FrameWriter(), []
    for number, window in parcel:
        stacked = [series.path for series in window.values() if type(series.values) is Tensor]
        pieces += frames.packed(window.values(), {"number": number, "stacked": stacked})
    if not parcel:
        pieces = [json.dumps([*missing]).encode()]
    body = torch.frombuffer(bytearray().join(pieces), dtype=torch.uint8)
    return header(len(parcel), len(body)), body


def header(windows: int, length: int) -> Tensor:
    """Return the first tensor: the number of windows, and the bytes of the second one."""
    return torch.tensor([_MARK, windows, length], dtype=torch.int64, device="cpu")


def body_length(head: Tensor) -> tuple[int, int]:
    """Return what a header says: the number of windows, 0 at the end, and the bytes of the second tensor."""
    mark, windows, length = (int(number) for number in head)
    if mark != _MARK or not 0 <= windows <= length <= _LONGEST:
        raise RecordingError("another process sent data in an unknown format: use the same byname on every rank")
    return windows, length


def unpacked(windows: int, body: Tensor) -> list[tuple[int, dict[str, Series]]]:
    """Return the windows in a tensor of bytes, with their numbers; their tensors own their memory."""
    source = _Message(body)
    index, found, at = FrameIndex(source), [], 0
    for _ in range(windows):
        frame = frame_at(source, at)
        if frame is None or type(frame.facts.get("number")) is not int:
            raise source.damaged("it is cut off")
        index.add(frame)
        stacked = frame.facts.get("stacked", ())
        window = {path: _kept(place.series(), path in stacked) for path, place in index.places().items()}
        found.append((frame.facts["number"], window))
        index.clear()
        at = frame.end
    return found


def _kept(series: Series, stacked: bool) -> Series:
    values = [*series.values]
    return series.replace(values=torch.stack(values) if stacked else values)


class _Message(Source):
    """The bytes that another process sent."""

    def __init__(self, body: Tensor) -> None:
        self._bytes = memoryview(body.numpy().data)
        self.size = len(self._bytes)

    def read_into(self, view: memoryview, at: int) -> None:
        view[:] = self._bytes[at : at + len(view)]

    def damaged(self, words: str) -> RecordingError:
        return RecordingError(f"another process sent values that cannot be read ({words})")
