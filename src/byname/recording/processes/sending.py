"""How does a rank send its windows to rank 0 while its training goes on? By one thread, and a queue with a limit."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from byname.errors import BynameError
from byname.recording.processes.messages import ACKNOWLEDGED, break_off, first_line, receive, send
from byname.recording.processes.wire import Parcel, Window, packed, weight
from byname.recording.series import Series

__all__ = ["Sending"]

_PARCEL = 32 << 20
"""Bytes that are sent at once: small windows together, so that each does not wait for an answer."""


class Sending:
    """The part of every rank but 0: keeps each window until rank 0 has stored it, or for a file of this rank's own."""

    def __init__(self, group: Any, limit: int) -> None:
        self._group = group
        self._limit = limit
        self._changed = threading.Condition()
        self._waiting: deque[tuple[int, Window, int]] = deque()
        self._sent: list[tuple[int, Window, int]] = []
        self._bytes = 0
        self._kept: list[Window] = []
        self._sentences: list[str] = []
        self._closing = self._ended = self._full = False
        self._thread = threading.Thread(target=self._run, name="byname sends to rank 0", daemon=True)
        self._thread.start()

    def offer(self, number: int, window: Window) -> None:
        """Puts a window behind the others, or with those kept here."""
        size = weight(window)
        with self._changed:
            if self._ended or self._closing:
                self._kept.append(window)
            elif self._bytes and self._bytes + size > self._limit:
                self._kept.append(window)
                self._note_full(number)
            else:
                self._waiting.append((number, window, size))
                self._bytes += size
                self._changed.notify_all()

    def ready(self) -> list[dict[str, Series]]:
        """Nothing: all goes to rank 0."""
        return []

    def stored(self) -> None:
        """Rank 0 alone has anything to say here."""

    def undelivered(self) -> list[Window]:
        """The windows kept here, each given once."""
        with self._changed:
            kept, self._kept = self._kept, []
            return kept

    def lost(self) -> list[str]:
        """Why windows are kept here, in sentences, each given once."""
        with self._changed:
            sentences, self._sentences = self._sentences, []
            return sentences

    def closing(self, timeout: float) -> Iterator[dict[str, Series]]:
        """Waits until all is sent and stored, or the timeout is over."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._ended, timeout):
                self._end(f"rank 0 had not stored everything {timeout:g} s after this rank had closed")
        return iter(())

    def close(self) -> None:
        """Ends the thread, if need be by breaking the connections; what is left is kept here."""
        with self._changed:
            self._closing = True
            self._end("the recording was broken off")
        self._thread.join(1)
        give_up = time.monotonic() + 5
        while self._thread.is_alive() and time.monotonic() < give_up:
            break_off(self._group, 0)
            self._thread.join(0.5)

    def _run(self) -> None:
        try:
            while parcel := self._next():
                self._deliver(parcel)
            if not self._ended:
                self._send(*packed([]))
            reason = ""
        except Exception as error:  # noqa: BLE001 - whatever it was, the windows are kept, and the training goes on
            reason = f"rank 0 cannot be reached ({first_line(error)})"
        with self._changed:
            self._end(reason)

    def _next(self) -> Parcel:
        """The windows that are sent next; none when all are sent and no more will come."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing or self._ended)
            size = 0
            while self._waiting and (not size or size + self._waiting[0][2] <= _PARCEL) and not self._ended:
                self._sent.append(self._waiting.popleft())
                size += self._sent[-1][2]
            return [(number, window) for number, window, _ in self._sent]

    def _deliver(self, parcel: Parcel) -> None:
        try:
            tensors = packed(parcel)
        except BynameError as error:
            with self._changed:
                self._kept += [window for _, window in parcel]
                self._sentences.append(
                    f"window {parcel[0][0]} cannot be sent ({error}): it is in a file of its rank's own"
                )
        else:
            self._send(*tensors)
        self._let_go()

    def _send(self, head: Tensor, body: Tensor) -> None:
        send(self._group, head, 0)
        if len(body):
            send(self._group, body, 0)
        receive(self._group, torch.empty(ACKNOWLEDGED, dtype=torch.uint8), 0)

    def _let_go(self) -> None:
        with self._changed:
            self._bytes -= sum(size for _, _, size in self._sent)
            self._sent = []
            self._full = False
            self._changed.notify_all()

    def _end(self, reason: str) -> None:
        """Nothing more will be sent. Whoever calls this holds the lock."""
        if not self._ended:
            self._ended = True
            left = [*self._sent, *self._waiting]
            self._sent, self._bytes = [], 0
            self._waiting.clear()
            self._kept += [window for _, window, _ in left]
            if reason:
                many = f"{len(left)} windows that it has not stored" if left else "what comes from now on"
                self._sentences.append(f"{reason}: {many} are kept in a file of this rank's own")
        self._changed.notify_all()

    def _note_full(self, number: int) -> None:
        if not self._full:
            self._full = True
            self._sentences.append(
                f"rank 0 has not stored what this rank sent, and {self._limit >> 20} MiB are waiting: window {number} "
                "and those after it, until there is room again, are in a file of this rank's own"
            )
