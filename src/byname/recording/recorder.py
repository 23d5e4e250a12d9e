"""Recorder: a recording that runs: its clock, its listeners and its windows."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any

from byname.errors import RecordingError, RecordingWarning
from byname.reading.interrupts import defer_signals, raise_first
from byname.recording.callbacks import Callbacks, applied
from byname.recording.chosen import IterationFilter
from byname.recording.clock import Clock
from byname.recording.flush import Windows
from byname.recording.listener import AnalyserListener, Listener
from byname.recording.memory import Store
from byname.recording.series import Series
from byname.recording.series_by_path import RecordedSeries
from byname.source.tracebacks import warn
from byname.table import listed
from byname.text import note_on, printable
from byname.undo import Undo, weak_callback
from byname.watch.requested import WARNED, sentences_by_reason


class Recorder:
    """A running recording, and a context manager that closes it; `byname.record` returns one.

    Attributes:
        paths: the observed places, without wildcards; those of operations and figures once they were reached.
        notes: sentences about values that could not be recorded, and about side effects of observing.
    """

    def __init__(
        self,
        clock: Clock,
        windows: Windows,
        listeners: list[Listener | AnalyserListener],
        at_end: Callbacks,
        chosen: IterationFilter,
    ) -> None:
        self._clock = clock
        self._windows = windows
        self._listeners = listeners
        self._at_end = at_end
        self._ended: dict[str, Series] = {}
        self._paths: tuple[str, ...] = ()
        self._notes: tuple[str, ...] = ()
        self._begun = self._closed = False
        self._whole = True
        self._chosen = chosen
        self._stopped = False
        self._end = Undo()
        self._storing: list[Callable[[], object]] = []
        self._process = os.getpid()
        self._exit = weak_callback(self._at_exit)  # which keeps no recorder that everybody else has let go of

    def begin(self, make: Callable[[], Store]) -> Recorder:
        """Begin to record into the store that `make` returns. An error or interrupt leaves nothing on the model."""
        try:
            with defer_signals():
                self._windows.store = make()
                atexit.register(self._exit)  # after h5py was imported, whose own exit would come first else
                self._clock.start(self._iteration_begins, self._forward_ended)
                self._prepare()
                self._begun = True
            return self
        except BaseException:
            self._begun = False
            try:
                self.close()
            finally:
                self._windows.store.withdraw()
            raise

    @property
    def iteration(self) -> int:
        """The iteration that values belong to now, in the mode of the latest forward."""
        return self._clock.latest.iteration

    @property
    def paths(self) -> tuple[str, ...]:
        return self._paths or tuple(dict.fromkeys(path for one in self._listeners for path in one.paths))

    @property
    def notes(self) -> tuple[str, ...]:
        noted = (note for listener in self._listeners for note in listener.handle.notes)
        return tuple(dict.fromkeys(map(printable, [*self._notes, *noted, *self._windows.lost])))

    @property
    def results(self) -> RecordedSeries:
        """The series so far, by path: ``recorder.results["fc1"]`` is a `Series`; a wildcard gives several."""
        found = self._windows.results(early=not self._closed)
        return RecordedSeries(self._ended or found, self.paths)  # at the end, of all places

    def __getitem__(self, path: str) -> Any:
        """Return ``results[path]``, as an opened recording does."""
        return self.results[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self.results)

    def report_errors_to(self, report: Callable[[Exception], None]) -> None:
        """Report errors of places from now on instead of raising them from the forward; the other places go on."""
        self._windows.report_error = report

    def warn(self, sentence: str) -> None:
        """Add a sentence to the notes, and warn of it."""
        self._notes = (*self._notes, sentence)
        warn(sentence, RecordingWarning)

    def step(self) -> None:
        """Count a step, with ``count="step"``: the next values belong to the next iteration.

        Raises:
            BadArgumentError: if forwards or an optimizer's steps are counted.
        """
        if not self._closed:
            self._clock.step()

    def flush(self) -> None:
        """Make all that was recorded so far survive a kill of this process; gathered windows only when they are full.

        Raises:
            RecordingError: if the file cannot be written.
        """
        self._windows.flush()

    def close(self) -> None:
        """End the recording: store everything, and leave the model as it was. A second call does nothing.

        Ctrl-C waits until that is done; pressed again it stops it, and `close` goes on from there when it is called
        once more. If it stops the making of the HDF5 file, the log stays, and `byname.finish` makes the file of it.

        Raises:
            RecordingError: if the file could not be written to its end; the part that was written can be read.
        """
        self._close(None)

    def _close(self, error: BaseException | None) -> None:
        with defer_signals():
            if not self._closed:
                self._begin_closing(error)
            self._end()

    def _begin_closing(self, error: BaseException | None) -> None:
        if error is not None:
            left = f"the recorded program was left in iteration {self.iteration}"
            self._windows.note_missing(f"{left} by a {type(error).__name__}")
        silent: list[str] = []
        if error is None and self._begun:
            self._windows.confirm_losses()
            silent = self._note_silence()
        self._whole = error is None
        self._storing = [
            lambda: self._stopped or self._note_end(self._chosen.end(urgent=not self._whole)),
            lambda: self._windows.end(urgent=not self._whole),
            lambda: self._windows.close_store(complete=self._whole),
            self._finish,
            lambda: self._windows.warn_all(silent),
            lambda: atexit.unregister(self._exit),
        ]
        # done from the last to the first, each also if one before it raises
        self._end.add(self._store)
        self._end.add(self._release_model)
        for listener in self._listeners:
            self._end.add(listener.handle.remove)
        self._end.add(self._clock.stop)
        self._closed = True

    def _store(self) -> None:
        """Store all that came. Errors are raised after the last step; an interrupt stops it before the next step.

        Otherwise the file would be closed before all is in it.
        """
        errors: list[BaseException] = []
        while self._storing:
            try:
                self._storing[0]()
            except Exception as error:  # noqa: BLE001 - of the store or a callback
                errors.append(error)
            del self._storing[:1]
        raise_first(errors)

    def _note_end(self, why: str) -> bool:
        """Note why the recording ends before the program does, and return whether it does."""
        if why:
            self._stopped = True
            self._notes = (*self._notes, f"the recording ended: {why}")
            self._windows.store.note("stopped", why)
        return self._stopped

    def _note_silence(self) -> list[str]:
        """Note where nothing was recorded, and why; return the sentences to warn of."""
        if self._windows.store.failed:
            return []  # which has said that nothing is recorded any more
        silent = [found for one in self._listeners for found in one.unrecorded()]
        lost = [sentence for one in self._listeners for sentence in one.dropped()]
        for sentence in (*sentences_by_reason("recorded", silent), *lost):
            self._windows.note_missing(sentence)
        return [*sentences_by_reason("recorded", silent, WARNED), *lost[:WARNED]]

    def _release_model(self) -> None:
        """Let go of the model: its recording does not keep it alive."""
        self._paths, self._notes = self.paths, self.notes
        self._listeners = []
        for column in self._windows.columns.values():
            if column.last is not None:
                column.last.forget()

    def _finish(self) -> None:
        if self._at_end:
            found = self._windows.results(early=False)
            self._ended = {path: applied(self._at_end, path, series, "at_end") for path, series in found.items()}

    def _at_exit(self) -> None:
        """Close the recording when the program ends; in a forked process only let go of the log."""
        if os.getpid() == self._process:
            self._close(getattr(sys, "last_value", None))
        else:
            self._windows.store.close()

    def _iteration_begins(self) -> None:
        if self._windows.note is not None and not self._stopped:
            with defer_signals():  # an iteration whose judgement Ctrl-C stopped would be in no file
                if self._note_end(self._chosen.judge()):
                    self._stop()
        self._windows.iteration_begins()
        if self._stopped:
            return
        for listener in self._listeners:
            listener.pause_if_idle()
        if self._clock.by_steps:
            self._prepare()

    def _stop(self) -> None:
        """Record nothing more; the program goes on, as if nothing were attached."""
        for listener in self._listeners:
            listener.handle.enabled = False
        if self._windows.gatherer is None:  # else the windows of the other processes wait for those of this one
            self._clock.stop()
            with suppress(RecordingError):  # the store has warned; closing raises it
                self._windows.flush()

    def _forward_ended(self) -> None:
        if self._stopped:
            return
        if self._clock.by_steps:
            self._windows.close_if_full()
        self._prepare()

    def _prepare(self) -> None:
        if self._windows.store.failed:
            for listener in self._listeners:
                listener.handle.enabled = False
            return
        for listener in self._listeners:
            listener.prepare()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._close(error)
        except RecordingError as lost:
            if error is None:
                raise
            note_on(error, f"byname: {lost}")  # what ended the program is the error to be seen
        except BaseException:
            if not self._closed:  # an interrupt came before the signals waited
                self._close(error)
            raise

    def __repr__(self) -> str:
        shown = listed(self.paths, 3)
        state = "closed" if self._closed else f"at iteration {self.iteration}"
        return printable(f"<Recorder {state}: {shown or 'no place yet'}>")
