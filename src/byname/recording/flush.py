"""Flush: the values of each place since the last window, and the windows that are handed on to a store."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from byname.errors import RecordingError, RecordingWarning
from byname.reading.interrupts import defer_signals
from byname.recording.callbacks import Callbacks, applied
from byname.recording.clock import ValueNumbers
from byname.recording.distributed.dtensor import Shard
from byname.recording.distributed.gather import Gatherer
from byname.recording.memory import MemoryStore, SeriesOnDemand, Store
from byname.recording.sampling import Sampling, Time
from byname.recording.series import Series
from byname.recording.series_records import SERIES_RECORD, ValueKind
from byname.recording.values.change import NOTHING, ChangeDetector, same_bits
from byname.recording.values.copy import Copies, plain_copy
from byname.recording.values.plain import without_dispatch_modes
from byname.source.tracebacks import warn
from byname.table import listed

RecordedValue: TypeAlias = tuple[Time, Any, Any, Shard | None, Any]
"""One value: its iteration, the number of its call or what `ValueNumbers` needs, a copy, the shard, the copy before it.

The last is `NOTHING`, unless it is on a GPU, where only the content tells whether the value is another. It is no class,
since a plain tuple is made in a tenth of the time.
"""


@dataclass(slots=True, eq=False)
class PlaceValues:
    """The values of one place, in one listener.

    Attributes:
        path: the place.
        last: tells whether a value is another than the one stored last; None where each is stored.
        convert: a function of a value whose result is copied instead; None for the value itself.
        exact: whether it was asked for by this very path, not by a wildcard.
        gradient: whether the values are gradients.
        by_forward: whether a value belongs to the iteration of the forward that computed it, and not to the latest.
        numbers: numbers the values of an iteration, where its forwards do not.
        sampling: how values are taken.
        records: those of the open window that are not yet `settled`.
        settled: those of the open window whose numbers are settled.
        stored: whether anything ever was.
        refused: whether the place turned out to hold what cannot be stored.
        unreported: why, if no warning has reported it.
        version: of the distributed tensor that was seen last; the memory of its part does not count its changes.
    """

    path: str
    last: ChangeDetector | None
    convert: Callable[[Any], Any] | None
    sampling: Sampling
    exact: bool = False
    gradient: bool = False
    by_forward: bool = False
    numbers: ValueNumbers | None = None
    records: list[RecordedValue] = field(default_factory=list)
    settled: list[tuple[Time, Any, Any, Shard | None]] = field(default_factory=list)
    stored: bool = False
    refused: bool = False
    unreported: str = ""
    version: int | None = None

    def settle(self) -> None:
        """Leave out the values that are not another, and number those of iterations that are over."""
        came = [*self.records]
        del self.records[: len(came)]  # another thread may have added to it
        records = [
            (time, call, value, shard)
            for time, call, value, shard, before in came
            if before is NOTHING or not same_bits(value, before)
        ]
        if records and self.numbers is not None:
            calls = self.numbers.settled([one[:2] for one in records])
            records = [(time, call, *others) for (time, _, *others), call in zip(records, calls, strict=True)]
        self.settled += records

    def closed(self, rank: int) -> Series | None:
        """Return the window as a series, and begin a new one; None if nothing came. Its copies must be there."""
        self.settle()
        series, self.settled = self.series(rank), []
        return series

    def series(self, rank: int) -> Series | None:
        """Return the records that are settled."""
        records = self.settled
        if not records:
            return None
        if self.gradient and self.by_forward and len({time.mode for time, *_ in records}) == 1:
            # a backward reaches the last call first
            records = sorted(records, key=lambda one: (one[0].iteration, one[1]))
        kinds: dict[tuple[Any, Shard | None], int] = {}
        moments, values = [], []
        for (mode, iteration), call, value, shard in records:
            kind = kinds.setdefault((value.shape if type(value) is Tensor else (), shard), len(kinds))
            moments.append((iteration, rank, call, mode == "eval", kind))
            values.append(value)
        several = [ValueKind(tuple(shape), shard) for shape, shard in kinds]
        return Series.of(self.path, values, np.array(moments, SERIES_RECORD), several, self.sampling)


_SECONDS = 1.0
_URGENT_TIMEOUT = 5.0
_BYTES = 15 << 20
"""Of memory, objects included. One window fills while another is written: with a forward's values, less than 32 MiB."""
_REPORTED_WINDOWS = 8
"""Lost windows of one place that get a sentence each."""


class Windows:
    """Gathers what the listeners record, and hands it on.

    Args:
        rank: of this process.
        gather_every: the iterations of a window; None has it end when it holds 15 MiB or is a second old, or, if there
            are callbacks for windows, with the run.
        before, after: the callbacks for a window, as recorded and as gathered.

    Attributes:
        store: where it goes.
        own: makes a store for what did not reach rank 0.
        gatherer: brings it to rank 0 first, where it is asked to.
        columns: the places, each with its values since the last window.
        copies: makes the copies.
        bytes: about how much memory the open window holds.
        lost: sentences about missing values.
        note: is given the place, iteration and copy of each value; None where nothing is made of them.
        keeps: whether only some iterations stay, so that the window is open to the end.
        pending_losses: values lost to an error that the program may still catch; they become missing at the next
            iteration.
        report_error: is given errors that else come out of a forward of the program, where that knows nothing of the
            recording.
    """

    def __init__(self, rank: int, gather_every: int | None, before: Callbacks = (), after: Callbacks = ()) -> None:
        self.store: Store = MemoryStore()
        self.columns: dict[str, PlaceValues] = {}
        self.copies = Copies()
        self.bytes = 0
        self.lost: dict[str, None] = {}
        self.pending_losses: dict[str, None] = {}
        self.report_error: Callable[[Exception], None] | None = None
        self.note: Callable[[PlaceValues, Time, Any], object] | None = None
        self.keeps = self._changed = False
        self._rank = rank
        self._every = gather_every
        self._before = before
        self._after = after
        self.own: Callable[[], Store] | None = None
        self.gatherer: Gatherer | None = None
        self._raised: list[BaseException] = []
        self._failed: dict[str, int] = {}
        self._number = 0
        self._begun = 0
        self._opened = time.monotonic()
        self._lock: AbstractContextManager[object] = threading.RLock()
        self._process = os.getpid()

    def iteration_begins(self) -> None:
        """Close the window of the iterations before, if it is due."""
        self._begun += 1
        if self.pending_losses:
            self.confirm_losses()
        if self._every is not None:
            if self._begun > 1 and not (self._begun - 1) % self._every:
                self.close()
        elif self._is_full():
            self.close_early()

    def close_if_full(self) -> None:
        """Close a full window within an iteration; not with gradients, which are numbered together at its end."""
        if self._is_full() and not any(one.gradient and one.records for one in [*self.columns.values()]):
            self.close_early()

    def drop(self, times: Collection[Time]) -> None:
        """Forget the values of iterations, in the open window."""
        with self._locked():
            for column in [*self.columns.values()]:
                column.settle()
                column.settled = [one for one in column.settled if one[0] not in times]
            self._changed = True

    def _store_open_window(self) -> None:
        """Hand on the kept values so far, in place of those handed on before; the window stays open."""
        with self._locked(), defer_signals():
            if self._changed:
                columns = [*self.columns.items()]
                self._store_window({path: series for path, one in columns if (series := one.series(self._rank))})
                self._changed = False

    def _is_full(self) -> bool:
        return not self.keeps and (self.bytes > _BYTES or time.monotonic() - self._opened > _SECONDS)

    def confirm_losses(self) -> None:
        """Note `pending_losses` as missing: the program has caught the error of its callback and goes on."""
        for sentence in [*self.pending_losses]:
            self.note_missing(sentence)
        self.pending_losses.clear()

    def close_early(self) -> None:
        """Close the window, unless callbacks or other processes wait for whole windows."""
        if self._every is None and not (self._before or self._after):
            if self.keeps:
                self._store_open_window()
            else:
                self.close()

    def close(self) -> None:
        """Hand on the values since the last window; then raise the error of a callback, if there was one."""
        with self._locked(), defer_signals():
            self._close()
            self._raise()

    def flush(self) -> None:
        """Store the values so far, so that they outlive the process, as far as windows may be closed."""
        self.close_early()
        with self._locked():
            self.store.flush()

    def results(self, *, early: bool) -> Mapping[str, Series]:
        """Return the series so far, with the open window if it is still filled and may be closed.

        The series of a place is made when it is asked for: one costs the same however many there are.
        """
        with self._locked(), defer_signals():
            if early:
                self.close_early()
            found = self.store.results()

        def made(path: str) -> Series:
            with self._locked(), defer_signals():
                return found[path]

        return SeriesOnDemand(found, made)

    def close_store(self, *, complete: bool) -> None:
        with self._locked(), defer_signals(), without_dispatch_modes():
            self.store.close(complete=complete)

    def _locked(self) -> AbstractContextManager[object]:
        """Return a lock: a program may flush and read results in another thread than the one that trains."""
        if os.getpid() != self._process:  # a fork does not take along the thread that may hold the lock
            self._process, self._lock = os.getpid(), threading.RLock()
        return self._lock

    def _close(self) -> None:
        self.copies.settle()
        with without_dispatch_modes():
            window = {path: series for path, column in [*self.columns.items()] if (series := column.closed(self._rank))}
        self.bytes = 0
        self._opened = time.monotonic()
        window = self._through(self._before, window, "before_gather")
        if self.gatherer is None:
            self._store_window(window)
        else:
            self.gatherer.offer(self._number, window)
            self._number += 1
            self._collect(self.gatherer.ready())

    def end(self, *, urgent: bool = False) -> None:
        """Hand on the last window, which may be a short one, and what other processes still have to send.

        `urgent` waits for them for a few seconds only, for somebody waits to see an error.
        """
        with self._locked(), ExitStack() as steps:
            steps.callback(self._raise)
            if self.gatherer is not None:
                steps.callback(self._store_undelivered)
                steps.callback(self.gatherer.close)
            self.close()
            if self.gatherer is not None:
                self._collect(self.gatherer.closing(timeout=_URGENT_TIMEOUT if urgent else None, missing=[*self.lost]))

    def _collect(self, windows: Iterable[dict[str, Series]]) -> None:
        """Hand on the windows of all processes that have come together."""
        assert self.gatherer is not None
        for window in windows:
            self._store_window(window)
            if self.store.failed:
                self.gatherer.close()  # so that the other processes keep theirs in files of their own
                break
        else:
            self.gatherer.stored()
        self._store_undelivered()

    def _store_undelivered(self) -> None:
        """Store here what did not reach rank 0, and warn of what went wrong."""
        assert self.gatherer is not None
        for kept in self.gatherer.undelivered():
            if self.own is not None:
                self.store, self.own = self.own(), None
            self._store_window({**kept})
        for sentence in self.gatherer.lost():
            self.warn(sentence)

    def _store_window(self, window: dict[str, Series]) -> None:
        gathered = self._through(self._after, window, "after_gather")
        if self.keeps:
            self.store.forget()
        if gathered or self.keeps:
            # the store has warned; the program goes on, and closing raises it
            with without_dispatch_modes(), suppress(RecordingError):
                self.store.append(gathered)
                self.store.flush()

    def _through(self, callbacks: Callbacks, window: dict[str, Series], moment: str) -> dict[str, Series]:
        """Return what callbacks make of a window. A place whose callback raises is missing in it; the others go on."""
        if not callbacks:
            return window
        made = {}
        for path, series in window.items():
            try:
                made[path] = _kept(series, applied(callbacks, path, series, moment))
            except BaseException as error:  # noqa: BLE001 - the user's own code; raised when the others are stored
                self._raised.append(error)
                self._note_missing_window(series, moment, error)
        return made

    def _note_missing_window(self, series: Series, moment: str, error: BaseException) -> None:
        """Say which records are missing; of a callback that raises again and again the first windows only."""
        first, last = series.records["iteration"].min(), series.records["iteration"].max()
        often = self._failed[series.path] = self._failed.get(series.path, 0) + 1
        which = f"iteration {first} is" if first == last else f"iterations {first} to {last} are"
        if often > _REPORTED_WINDOWS:
            which = f"more windows, from iteration {first} on, are"
        if often <= _REPORTED_WINDOWS + 1:
            self.note_missing(
                f"`{series.path}`: {which} missing, since its {moment} callback raised {type(error).__name__}"
            )

    def _raise(self) -> None:
        """Raise the first of what callbacks have raised; of the others there are sentences."""
        raised, self._raised = self._raised, []
        if not raised:
            return
        if self.report_error is None or not isinstance(raised[0], Exception):
            raise raised[0]
        self.report_error(raised[0])

    def warn(self, sentence: str) -> None:
        """Note that something is missing, and warn of it at once if that is new."""
        if self.note_missing(sentence):
            self.warn_all([sentence])

    def end_places(self, paths: Iterable[str], why: str, times: Sequence[Time]) -> None:
        """Note and warn that from these iterations on, one of each mode, nothing stands at places."""
        for path in paths:
            self.store.end(path, times)
        since = f"from {times[0].mode} iteration {times[0].iteration} on, since {why}"
        self.warn(f"{listed([f'`{path}`' for path in paths], 8)}: nothing is recorded {since}")

    def warn_all(self, sentences: Sequence[str]) -> None:
        """Warn of these, if there are any, at once."""
        if sentences and self.report_error is None:
            warn("; ".join(sentences), RecordingWarning)
        elif self.report_error is not None:
            for sentence in sentences:
                self.report_error(RecordingWarning(sentence))

    def note_missing(self, sentence: str) -> bool:
        """Note that something is missing; return whether that is new."""
        if sentence in self.lost:
            return False
        self.lost[sentence] = None
        self.store.note_missing(sentence)
        return True


def _kept(given: Series, returned: Series) -> Series:
    """Return a copy of what a callback returned: it may be anything, and the program may go on changing it."""
    if returned is given:
        return given
    values, path = returned.values, returned.path
    copies = plain_copy(values, path=path) if type(values) is Tensor else [plain_copy(one, path=path) for one in values]
    return returned.replace(values=copies, sampling=given.sampling)
