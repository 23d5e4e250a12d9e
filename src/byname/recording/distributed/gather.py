"""Gather: how the values of all ranks come to rank 0 while nobody waits, sent by threads over a group of their own.

No step waits for another rank, and no rank for one that died, stopped or is slow:

- Each rank but 0 has a thread that sends what has come together, and keeps it until rank 0 says that it is stored.
- Rank 0 has a thread for each other rank. Its training thread asks from time to time what is `ready()`: the windows of
  one number are handed on as one when every rank has sent its own, or is past it, closed, gone or late.
- What could not be sent stays with its rank, which puts it into a file of its own.

What gloo does, and what therefore is done here (PyTorch 2.13): waiting for a message longer than the timeout breaks the
connections to *all* ranks, so threads wait without one (the group's own is for setting it up), and that same break is
what ends threads that still wait when the recording closes. A peer that dies is noticed at once, and by the thread that
waits for it alone.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from byname.errors import BadArgumentError, BynameError, RecordingError
from byname.recording.distributed.ranks import rank, world
from byname.recording.distributed.receiving import Receiving
from byname.recording.distributed.wire import (
    ACKNOWLEDGED,
    Parcel,
    Window,
    break_off,
    first_line,
    packed,
    receive,
    send,
    weight,
)
from byname.recording.series import Series


class Gatherer:
    """Brings the windows of all ranks together at rank 0. Made by all ranks at the same time, for they form a group.

    On rank 0, in the course of training, and at the end::

        for window in gatherer.ready(): store.append(window)
        store.flush(); gatherer.stored()
        ...
        for window in gatherer.closing(): store.append(window); store.flush()
        gatherer.close()

    The same lines do on the other ranks, where `ready` and `closing` give nothing, and what `undelivered` gives (at any
    time, and the last of it after `close`) is to be stored there.

    Args:
        timeout: in seconds: how long the ranks wait for each other when the group is set up, how long rank 0 waits for
            a window that others have sent already, and how long closing waits for the others.
        limit: bytes of windows that a rank keeps for sending; what comes beyond that is undelivered.

    Raises:
        RecordingError: if not all ranks came to set up the group.
    """

    def __init__(self, *, timeout: float = 60.0, limit: int = 256 << 20) -> None:
        if not timeout > 0 or not limit > 0:
            raise BadArgumentError(f"timeout and limit must be above 0, and are {timeout} and {limit}")
        self.rank, self.world = rank(), world()
        self._timeout = timeout
        self._process = os.getpid()
        self._group = None if self.world == 1 else _private_group(timeout, self.world)
        self._end: Sending | Receiving = (
            Sending(self._group, limit) if self.rank else Receiving(self._group, self.world, timeout, limit)
        )
        # A thread that is still inside of gloo when Python ends takes the process with it (SIGABRT; CPython < 3.14).
        atexit.register(self.close)

    def offer(self, number: int, window: Window) -> None:
        """Takes a window of this rank; never waits.

        Args:
            number: of the window, larger than that of the one before; windows of one number belong together.
            window: copies that nothing else changes, by path; may be empty.
        """
        self._end.offer(number, window)

    def ready(self) -> list[dict[str, Series]]:
        """The windows of all ranks that are complete by now, in order; never waits, and costs little when there is
        none."""
        return self._end.ready()

    def stored(self) -> None:
        """Says that all that `ready` gave is safe, so that the ranks it came from let go of it."""
        self._end.stored()

    def closing(self, timeout: float | None = None) -> Iterator[dict[str, Series]]:
        """Nothing is offered any more: waits for what the ranks still have to send, and gives it, window by window.

        A window counts as stored when the next one is asked for. It takes as long as the slowest rank needs to close
        too, and at most the timeout (that of the whole, where none is given): then that rank is given up.
        """
        return self._end.closing(self._timeout if timeout is None else timeout)

    def undelivered(self) -> list[Window]:
        """The windows of this rank that will not come to rank 0, each given once."""
        return self._end.undelivered()

    def lost(self) -> list[str]:
        """What went wrong since this was asked last, in sentences. On rank 0: what is missing; else, why the values
        from now on are in a file of this rank's own."""
        return self._end.lost()

    def close(self) -> None:
        """Ends threads and group, also when `closing` was not gone through. Once more does nothing."""
        atexit.unregister(self.close)
        if os.getpid() != self._process:
            return  # a fork, which has neither the threads nor the connections
        self._end.close()
        group, self._group = self._group, None
        if group is not None:
            _destroy(group)


def _private_group(timeout: float, world: int) -> Any:
    import torch.distributed

    try:
        return torch.distributed.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
    except RuntimeError as error:  # DistError and what gloo itself raises
        raise RecordingError(
            f"gather_every= needs all {world} ranks to call byname.record, and {timeout:g} s after this one not all "
            f"had, or they cannot reach each other ({str(error).splitlines()[0]:.200}). Call it on every rank, also "
            "where nothing is to be recorded, or leave gather_every away: then each rank writes a file of its own"
        ) from error


def _destroy(group: Any) -> None:
    import torch.distributed

    known = torch.distributed.is_initialized() and group in torch.distributed.distributed_c10d._world.pg_map
    if known:  # else the program has ended all groups before
        torch.distributed.destroy_process_group(group)


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
