"""Receiving: the windows of all ranks at rank 0 while its training goes on, by one thread for each other rank."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch

from byname.recording.distributed.wire import (
    ACKNOWLEDGED,
    HEADER,
    Window,
    body_length,
    break_off,
    first_line,
    last_iteration,
    receive,
    send,
    unpacked,
    weight,
)
from byname.recording.series import Series, joined


class _Arrived(NamedTuple):
    """A window of one rank, its size and when it came."""

    rank: int
    window: Window
    size: int
    when: float


def combined(windows: Iterable[Window]) -> dict[str, Series]:
    """One window from those of several ranks, which may have other places each, and more or fewer records."""
    parts: dict[str, list[Series]] = {}
    for window in windows:
        for path, series in window.items():
            parts.setdefault(path, []).append(series)
    return {path: joined(some) for path, some in parts.items()}


class Receiving:
    """The part of rank 0: holds the windows of each number until no rank is waited for."""

    def __init__(self, group: Any, world: int, timeout: float, limit: int) -> None:
        self._group = group
        self._patience = timeout
        self._limit = limit
        self._changed = threading.Condition()
        self._held: dict[int, list[_Arrived]] = {}
        self._reached: dict[int, float] = dict.fromkeys(range(world), -math.inf)
        self._last: dict[int, int | None] = dict.fromkeys(range(world))
        self._late: set[int] = set()
        self._unstored: Counter[int] = Counter()
        self._handed: Counter[int] = Counter()
        self._moves = 0
        self._sentences: list[str] = []
        self._deaf = self._stopping = False
        self._threads = {
            peer: threading.Thread(target=self._run, args=(peer,), name=f"byname hears rank {peer}", daemon=True)
            for peer in range(1, world)
        }
        for thread in self._threads.values():
            thread.start()

    def offer(self, number: int, window: Window) -> None:
        """Takes a window of rank 0 itself."""
        with self._changed:
            self._take(0, number, window)

    def ready(self) -> list[dict[str, Series]]:
        """The windows for which no rank is waited any more, each put together from those of all ranks."""
        if not self._held:
            return []
        with self._changed:
            complete = self._complete()
        return [combined([one.window for one in sorted(some, key=lambda one: one.rank)]) for some in complete]

    def stored(self) -> None:
        """What was handed on is safe: the ranks that wait for that are told."""
        with self._changed:
            self._unstored -= self._handed
            self._handed.clear()
            self._changed.notify_all()

    def undelivered(self) -> list[Window]:
        """Nothing: rank 0 is where all goes."""
        return []

    def lost(self) -> list[str]:
        """What is missing, in sentences, each given once."""
        with self._changed:
            sentences, self._sentences = self._sentences, []
            return sentences

    def closing(self, timeout: float) -> Iterator[dict[str, Series]]:
        """Gives what is left, and what comes until all ranks have closed or the timeout is over."""
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

    def close(self) -> None:
        """Ends the threads, if need be by breaking the connections."""
        with self._changed:
            self._deaf = self._stopping = True
            self._changed.notify_all()
        give_up = time.monotonic() + 5
        for peer, thread in self._threads.items():
            thread.join(0.5)
            while thread.is_alive() and time.monotonic() < give_up:
                break_off(self._group, peer)
                thread.join(0.5)

    def _moved(self, moves: int) -> Callable[[], bool]:
        return lambda: self._moves != moves

    def _open(self) -> list[int]:
        """The ranks of which more may come."""
        return [one for one, reached in self._reached.items() if reached < math.inf]

    def _run(self, peer: int) -> None:
        try:
            while self._receive(peer):
                send(self._group, torch.zeros(ACKNOWLEDGED, dtype=torch.uint8), peer)
            reason = ""
        except Exception as error:  # noqa: BLE001 - whatever it was, it ends what this rank sends and nothing else
            reason = first_line(error)
        with self._changed:
            if reason and not self._deaf:
                self._sentences.append(
                    f"rank {peer} ended without closing its recording ({reason}): {self._after(peer)}"
                )
            self._move(peer, math.inf)

    def _receive(self, peer: int) -> bool:
        """Takes one parcel, until it is stored; whether more may come."""
        words, length = body_length(receive(self._group, torch.empty(HEADER, dtype=torch.int64), peer))
        if not length:
            send(self._group, torch.zeros(ACKNOWLEDGED, dtype=torch.uint8), peer)
            return False
        parcel = unpacked(words, receive(self._group, torch.empty(length, dtype=torch.uint8), peer))
        with self._changed:
            if self._deaf:
                return False
            for number, window in parcel:
                self._take(peer, number, window)
                self._unstored[peer] += 1
            self._changed.wait_for(lambda: self._stopping or not self._unstored[peer])
            return not self._unstored[peer]

    def _take(self, rank: int, number: int, window: Window) -> None:
        self._held.setdefault(number, []).append(_Arrived(rank, window, weight(window), time.monotonic()))
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
        """Ranks that others have waited for too long, or with too much in hand, are not waited for until they come."""
        first = min(self._held)
        waited = time.monotonic() - min(one.when for one in self._held[first])
        if waited > self._patience or sum(one.size for some in self._held.values() for one in some) > self._limit:
            self._late |= {rank for rank, reached in self._reached.items() if reached < first}

    def _give_up(self, timeout: float) -> None:
        self._deaf = True
        for peer in self._open():
            self._sentences.append(
                f"rank {peer} had not closed its recording, {timeout:g} s after rank 0 had: {self._after(peer)} "
                "here, and in a file of its own if it runs on"
            )
            self._move(peer, math.inf)

    def _after(self, peer: int) -> str:
        last = self._last[peer]
        return "none of its values came" if last is None else f"its values after iteration {last} are missing"
