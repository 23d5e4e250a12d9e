"""Gather: sends the values of all ranks to rank 0 while nobody waits, by threads over a group of their own.

The steps, and the behaviour of gloo that they follow from, are in the README of this folder.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch import Tensor

from byname.errors import BynameError, RecordingError
from byname.recording.distributed.ranks import rank, world
from byname.recording.distributed.wire import (
    ACKNOWLEDGED,
    HEADER,
    Parcel,
    Window,
    abort_connections,
    approximate_bytes,
    body_length,
    first_line,
    last_iteration,
    packed,
    receive_tensor,
    send_tensor,
    unpacked,
)
from byname.recording.series import Series, joined


def gatherer(*, timeout: float = 60.0, limit: int = 256 << 20) -> Gatherer:
    """Return what brings the windows of all ranks together at rank 0.

    All ranks call it at the same time, for they form a group.

    Args:
        timeout: in seconds: how long the ranks wait for each other when the group is set up, how long rank 0 waits for
            a window that others have sent already, and how long closing waits for the others.
        limit: bytes of windows that a rank keeps for sending; what comes beyond that is undelivered.
    """
    group = None if world() == 1 else _private_group(timeout, world())
    return (Sending if rank() else Receiving)(group, timeout, limit)


def _private_group(timeout: float, world: int) -> Any:
    import torch.distributed

    try:
        return torch.distributed.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
    except RuntimeError as error:  # DistError and what gloo itself raises
        raise RecordingError(
            f"gather_every= needs all {world} ranks to call byname.record; {timeout:g} s after this one, some had not, "
            f"or they cannot reach each other ({str(error).splitlines()[0]:.200}). Call it on every rank, also on "
            "those that record nothing, or leave out gather_every=: then each rank writes its own file"
        ) from error


def _destroy(group: Any) -> None:
    import torch.distributed

    known = torch.distributed.is_initialized() and group in torch.distributed.distributed_c10d._world.pg_map
    if known:  # else the program has ended all groups before
        torch.distributed.destroy_process_group(group)


class Gatherer:
    """Brings the windows of all ranks together at rank 0, in the course of training and at the end.

    The same lines do on all ranks::

        for window in gatherer.ready(): store.append(window)
        store.flush(); gatherer.stored()
        ...
        for window in gatherer.closing(): store.append(window); store.flush()
        gatherer.close()

    What `undelivered` gives, at any time, and the last of it after `close`, is to be stored in the rank's own file.
    """

    def __init__(self, group: Any, timeout: float, limit: int, threads: Mapping[int, threading.Thread]) -> None:
        self._group, self._timeout, self._limit = group, timeout, limit
        self._changed = threading.Condition()
        self._sentences: list[str] = []
        self._process = os.getpid()
        self._threads = threads
        for thread in threads.values():
            thread.start()
        # A thread that is still inside of gloo when Python ends takes the process with it (SIGABRT; CPython < 3.14).
        atexit.register(self.close)

    def offer(self, number: int, window: Window) -> None:
        """Take a window of this rank: copies that nothing else changes, by path; never waits.

        Windows of one number belong together, and the numbers grow.
        """
        raise NotImplementedError

    def ready(self) -> list[dict[str, Series]]:
        """Return the windows of all ranks that are complete by now, in order; none but at rank 0. Never waits."""
        return []

    def stored(self) -> None:
        """Say that all that `ready` gave is safe, so that the ranks it came from let go of it."""

    def closing(self, timeout: float | None = None, missing: Sequence[str] = ()) -> Iterator[dict[str, Series]]:
        """Wait for what the ranks still have to send, and give it, window by window. Nothing is offered any more.

        A window counts as stored when the next one is asked for. It takes as long as the slowest rank needs to close
        too, and at most the timeout (that of the whole, where none is given): then that rank is given up. Rank 0
        learns what is missing of the values of the others.
        """
        raise NotImplementedError

    def undelivered(self) -> list[Window]:
        """Return the windows of this rank that will not reach rank 0, each given once."""
        return []

    def lost(self) -> list[str]:
        """Return what went wrong since this was asked last, in sentences.

        On rank 0: what is missing; else, why the values from now on are in a file of this rank's own.
        """
        with self._changed:
            sentences, self._sentences = self._sentences, []
            return sentences

    def close(self) -> None:
        """End threads and group, also when `closing` was not gone through. Once more does nothing."""
        atexit.unregister(self.close)
        if os.getpid() != self._process:
            return  # a fork, which has neither the threads nor the connections
        with self._changed:
            self._stop()
            self._changed.notify_all()
        give_up = time.monotonic() + 5
        for peer, thread in self._threads.items():
            thread.join(0.5)
            while thread.is_alive() and time.monotonic() < give_up:
                abort_connections(self._group, peer)
                thread.join(0.5)
        group, self._group = self._group, None
        if group is not None:
            _destroy(group)

    def _stop(self) -> None:
        raise NotImplementedError


_PARCEL = 32 << 20
"""Bytes that are sent at once: small windows together, so that each does not wait for an answer."""


class Sending(Gatherer):
    """The part of every rank but 0: keeps each window until rank 0 has stored it, or for a file of this rank's own."""

    def __init__(self, group: Any, timeout: float, limit: int) -> None:
        self._waiting: deque[tuple[int, Window, int]] = deque()
        self._sent: list[tuple[int, Window, int]] = []
        self._bytes = 0
        self._kept: list[Window] = []
        self._missing: Sequence[str] = ()
        self._ending = self._ended = self._full = False
        thread = threading.Thread(target=self._run, name="byname sends to rank 0", daemon=True)
        super().__init__(group, timeout, limit, {0: thread})

    def offer(self, number: int, window: Window) -> None:
        size = approximate_bytes(window)
        with self._changed:
            if self._ended or self._ending:
                self._kept.append(window)
            elif self._bytes and self._bytes + size > self._limit:
                self._kept.append(window)
                self._note_full(number)
            else:
                self._waiting.append((number, window, size))
                self._bytes += size
                self._changed.notify_all()

    def undelivered(self) -> list[Window]:
        with self._changed:
            kept, self._kept = self._kept, []
            return kept

    def closing(self, timeout: float | None = None, missing: Sequence[str] = ()) -> Iterator[dict[str, Series]]:
        timeout = self._timeout if timeout is None else timeout
        with self._changed:
            self._ending, self._missing = True, missing
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._ended, timeout):
                self._end(f"rank 0 had not stored everything {timeout:g} s after this rank had closed")
        return iter(())

    def _stop(self) -> None:
        self._ending = True
        self._end("the recording was broken off")

    def _run(self) -> None:
        try:
            while parcel := self._next():
                self._deliver(parcel)
            if not self._ended:
                self._send(*packed([], self._missing))
            reason = ""
        except Exception as error:  # noqa: BLE001 - whatever it was, the windows are kept, and the training goes on
            reason = f"rank 0 cannot be reached ({first_line(error)})"
        with self._changed:
            self._end(reason)

    def _next(self) -> Parcel:
        """Return the windows that are sent next; none when all are sent and no more will come."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ending or self._ended)
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
                self._sentences.append(f"window {parcel[0][0]} cannot be sent ({error}): its rank's own file has it")
        else:
            self._send(*tensors)
        with self._changed:
            self._bytes -= sum(size for _, _, size in self._sent)
            self._sent = []
            self._full = False
            self._changed.notify_all()

    def _send(self, head: Tensor, body: Tensor) -> None:
        send_tensor(self._group, head, 0)
        send_tensor(self._group, body, 0)
        receive_tensor(self._group, torch.empty(ACKNOWLEDGED, dtype=torch.uint8, device="cpu"), 0)

    def _end(self, reason: str) -> None:
        """Send nothing more, and keep what is left here. Callers hold the lock."""
        if not self._ended:
            self._ended = True
            left = [*self._sent, *self._waiting]
            self._sent, self._bytes = [], 0
            self._waiting.clear()
            self._kept += [window for _, window, _ in left]
            if reason:
                many = f"{len(left)} windows that it has not stored" if left else "all later windows"
                self._sentences.append(f"{reason}: {many} are kept in this rank's own file")
        self._changed.notify_all()

    def _note_full(self, number: int) -> None:
        if not self._full:
            self._full = True
            self._sentences.append(
                f"rank 0 has not yet stored {self._limit >> 20} MiB that this rank sent: window {number} and those "
                "after it, until there is room again, are in this rank's own file"
            )


class _Arrived(NamedTuple):
    """A window of one rank, its size and when it came."""

    rank: int
    window: Window
    size: int
    when: float


def combined(windows: Iterable[Window]) -> dict[str, Series]:
    """Return one window from those of several ranks, which may have other places each, and more or fewer records."""
    parts: dict[str, list[Series]] = {}
    for window in windows:
        for path, series in window.items():
            parts.setdefault(path, []).append(series)
    return {path: joined(some) for path, some in parts.items()}


class Receiving(Gatherer):
    """The part of rank 0: holds the windows of each number until no rank is waited for."""

    def __init__(self, group: Any, timeout: float, limit: int) -> None:
        ranks = range(world())
        self._patience = timeout
        self._held: dict[int, list[_Arrived]] = {}
        self._reached: dict[int, float] = dict.fromkeys(ranks, -math.inf)
        self._last: dict[int, int | None] = dict.fromkeys(ranks)
        self._late: set[int] = set()
        self._unstored: Counter[int] = Counter()
        self._handed: Counter[int] = Counter()
        self._moves = 0
        self._given_up = self._stopping = False
        threads = {
            peer: threading.Thread(
                target=self._run, args=(peer,), name=f"byname receives from rank {peer}", daemon=True
            )
            for peer in ranks[1:]
        }
        super().__init__(group, timeout, limit, threads)

    def offer(self, number: int, window: Window) -> None:
        with self._changed:
            self._take(0, number, window)

    def ready(self) -> list[dict[str, Series]]:
        if not self._held:
            return []
        with self._changed:
            complete = self._complete()
        return [combined([one.window for one in sorted(some, key=lambda one: one.rank)]) for some in complete]

    def stored(self) -> None:
        with self._changed:
            self._unstored -= self._handed
            self._handed.clear()
            self._changed.notify_all()

    def closing(self, timeout: float | None = None, missing: Sequence[str] = ()) -> Iterator[dict[str, Series]]:
        timeout = self._timeout if timeout is None else timeout
        give_up = time.monotonic() + timeout
        with self._changed:
            self._reached[0] = math.inf
            self._patience = min(self._patience, timeout / 2)  # so that the others' windows still get through
        done = False
        while not done:
            moves = self._moves
            yield from self.ready()
            self.stored()
            with self._changed:
                done = not self._held and not self._open()
                left = give_up - time.monotonic()
                if not done and left <= 0:
                    self._give_up(timeout)
                elif not done:
                    self._changed.wait_for(self._moved(moves), min(left, self._patience / 4))

    def _stop(self) -> None:
        self._given_up = self._stopping = True

    def _moved(self, moves: int) -> Callable[[], bool]:
        return lambda: self._moves != moves

    def _open(self) -> list[int]:
        return [one for one, reached in self._reached.items() if reached < math.inf]

    def _run(self, peer: int) -> None:
        try:
            while self._receive(peer):
                send_tensor(self._group, torch.zeros(ACKNOWLEDGED, dtype=torch.uint8, device="cpu"), peer)
            reason = ""
        except Exception as error:  # noqa: BLE001 - whatever it was, it ends what this rank sends and nothing else
            reason = first_line(error)
        with self._changed:
            if reason and not self._given_up:
                self._sentences.append(
                    f"rank {peer} ended without closing its recording ({reason}): {self._after(peer)}"
                )
            self._move(peer, math.inf)

    def _receive(self, peer: int) -> bool:
        """Take one parcel, until it is stored; return whether more may come."""
        words, length = body_length(
            receive_tensor(self._group, torch.empty(HEADER, dtype=torch.int64, device="cpu"), peer)
        )
        body = receive_tensor(self._group, torch.empty(length, dtype=torch.uint8, device="cpu"), peer)
        if not words:
            send_tensor(self._group, torch.zeros(ACKNOWLEDGED, dtype=torch.uint8, device="cpu"), peer)
            with self._changed:
                self._sentences += [f"rank {peer}: {one}" for one in json.loads(bytes(body.numpy()))]
            return False
        parcel = unpacked(words, body)
        with self._changed:
            if self._given_up:
                return False
            for number, window in parcel:
                self._take(peer, number, window)
                self._unstored[peer] += 1
            self._changed.wait_for(lambda: self._stopping or not self._unstored[peer])
            return not self._unstored[peer]

    def _take(self, rank: int, number: int, window: Window) -> None:
        self._held.setdefault(number, []).append(_Arrived(rank, window, approximate_bytes(window), time.monotonic()))
        self._last[rank] = last_iteration(window, self._last[rank])
        self._late.discard(rank)
        self._move(rank, number)

    def _move(self, rank: int, number: float) -> None:
        self._reached[rank] = max(self._reached[rank], number)
        self._moves += 1
        self._changed.notify_all()

    def _complete(self) -> list[list[_Arrived]]:
        self._find_late()
        complete = []
        for number in sorted(self._held):
            if any(reached < number for rank, reached in self._reached.items() if rank not in self._late):
                break
            complete.append(self._held.pop(number))
            self._handed.update(one.rank for one in complete[-1])
        return complete

    def _find_late(self) -> None:
        """Wait no more for ranks that others have waited for too long, or with too much in hand, until they come."""
        first = min(self._held)
        waited = time.monotonic() - min(one.when for one in self._held[first])
        if waited > self._patience or sum(one.size for some in self._held.values() for one in some) > self._limit:
            self._late |= {rank for rank, reached in self._reached.items() if reached < first}

    def _give_up(self, timeout: float) -> None:
        self._given_up = True
        for peer in self._open():
            self._sentences.append(
                f"rank {peer} had not closed its recording {timeout:g} s after rank 0 closed: {self._after(peer)} "
                "here, and in its own file if it still runs"
            )
            self._move(peer, math.inf)

    def _after(self, peer: int) -> str:
        last = self._last[peer]
        return "all its values are missing" if last is None else f"its values after iteration {last} are missing"
