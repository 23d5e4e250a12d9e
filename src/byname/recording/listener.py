"""Listener: the callbacks of a recording, at its places and of its analysers, which store the values that are due."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from byname.codec import TENSOR_BYTES, size_of
from byname.errors import BadArgumentError, NoMatchError, NotStorableError
from byname.model.methods import Namespace
from byname.place import Place, as_place
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import PLAIN, version_of
from byname.recording.callbacks import callables, values_called
from byname.recording.clock import BackwardNumbers, Clock, NumbersInOrder, StepNumbers, ValueNumbers
from byname.recording.distributed.dtensor import is_distributed, local_part
from byname.recording.flush import PlaceValues, Windows
from byname.recording.options import Analysed, Options, conversion_of, is_analyser, several
from byname.recording.sampling import Time
from byname.recording.unrecorded import Unrecorded, unrecorded_reason
from byname.recording.values.change import NOTHING, ChangeDetector
from byname.recording.values.plain import quick_copy
from byname.recording.values.reduce import quick_figure
from byname.table import counted, listed
from byname.text import note_on, numbered, printable
from byname.tracing.eager import RUN_EAGERLY
from byname.tracing.muted import muting
from byname.watch.attach import attach
from byname.watch.attachment import Event
from byname.watch.forwards import do_nothing, watch_forwards
from byname.watch.handle import Handle


class PlaceRecorder:
    """Stores the values of places, which `asked` has in words, as they are asked for."""

    asked: str
    handle: Handle

    def __init__(self, options: Options, clock: Clock, windows: Windows) -> None:
        self._options = options
        self._clock = clock
        self._windows = windows
        self._columns: dict[str, PlaceValues] = {}
        self._called = bool(callables(options.on_value, "on_value"))
        self._quick = quick_figure(options.reduce if options.dtype is None else None)
        self._always = options.always

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(self._columns)

    def dropped(self) -> list[str]:
        """Return sentences about places with values that belonged to no iteration."""
        return []

    def prepare(self) -> None:
        """Enable the listener for the next forward."""
        if not self.handle.enabled:
            self.handle.enabled = True

    def pause_if_idle(self) -> None:
        """Pause the listener for the forward that begins if nothing is due in it."""

    def _add(
        self, path: str, asked: str, *, compared: bool = True, by_content: bool = False, state: str = "", **known: Any
    ) -> PlaceValues:
        convert = conversion_of(self._options, path, self._windows.warn)
        last = ChangeDetector(convert, by_content=by_content) if self._options.on_change and compared else None
        sampling = self._options.sampling(asked, self._clock.counted, state)
        column = PlaceValues(path, last=last, convert=convert, sampling=sampling, **known)
        self._columns[path] = self._windows.columns[path] = column
        return column

    def _record(self, column: PlaceValues, time: Time, event: Any, value: Any) -> None:
        call = event.call if column.numbers is None else column.numbers.next(time, event)
        last, convert, windows, before = column.last, column.convert, self._windows, NOTHING
        shard = None
        if type(value) not in PLAIN and is_distributed(value):
            if last is not None and column.version != (version := version_of(value)):
                last.forget()  # another process's part may differ, and the whole needs all of them
                column.version = version
            value, shard = local_part(value)
        given = values_called(self._options.on_value, column.path, value, time.iteration) if self._called else value
        if last is not None and last.copies:
            if not last.changed(value, given):
                return
            if last.doubtful:
                before = last.copy
        copy = quick_copy(given) if convert is None else self._quick(given)
        if copy is None:
            copy = windows.copies.take(given if convert is None else convert(given), column.path)
        if last is not None:
            last.stored(value, copy)
        column.stored = True
        column.records.append((time, call, copy, shard if given is value and convert is None else None, before))
        if windows.note is not None:
            windows.note(column, time, copy)
        with DisableTorchFunction():
            windows.bytes += _TENSOR_RECORD + copy.nbytes if type(copy) is Tensor else _RECORD + size_of(copy)

    def _refuse(self, column: PlaceValues, error: NotStorableError, value: Any) -> None:
        """Raise the error once where the user asked for this very place and nothing of it was stored; else warn."""
        column.refused = not column.stored
        if column.refused and not column.exact and isinstance(value, nn.Module):
            column.unreported = f"{error}".partition(": ")[2]
            return  # a wildcard over variables meets `self`
        sentence = f"{error}; it is not recorded" if column.refused else f"{error}; this value is missing"
        if column.exact and column.refused and self._windows.report_error is None:
            self._windows.note_missing(sentence)
            raise error
        self._windows.warn(sentence)


_RECORD = 128
"""Bytes that a recorded value takes, with its place in a list."""
_TENSOR_RECORD = _RECORD + TENSOR_BYTES


class Listener(PlaceRecorder):
    """Listens at all places that have the same options."""

    def __init__(
        self,
        model: nn.Module,
        where: Any,
        options: Options,
        clock: Clock,
        windows: Windows,
        *,
        attention: str | None = None,
    ) -> None:
        super().__init__(options, clock, windows)
        self.asked = listed([f"`{printable(str(one)[:60])}`" for one in several(where)], 4)
        self._where = _entries(where)
        self._exact = frozenset(str(place) for place, _ in self._where if place is not None)
        self._times: dict[int, Time] = {}
        self._failed: set[str] = set()
        self._functions = isinstance(model, Namespace)
        self._unrecorded = Unrecorded(type(model).__name__)
        self._held = weakref.ref(model)
        self.handle: Handle = attach(
            model,
            where,
            self._receive,
            begun=self._begun,
            stamp=self._time_of_value,
            reads=True,
            enabled=False,
            attention=attention,
            unmatched=self._unmatched,
            ended=self._ended,
        )
        self.handle.requested.says = False  # the recorder does

    def unrecorded(self) -> list[tuple[str, str]]:
        """Return the places where nothing was recorded, in words, each with the reason."""
        found = []
        for entry in self.handle.requested.entries():
            columns = [self._columns[path] for path in entry.paths if path in self._columns]
            reason = unrecorded_reason(columns, entry.reason, self._options, self._clock, self._unrecorded)
            if reason and self._functions:
                reason = _NOT_ASSIGNED
            if reason:
                found.append((entry.asked, reason))
        return found

    def dropped(self) -> list[str]:
        """Return sentences about places where values were recorded, and others belonged to no iteration."""
        return [
            f"`{path}`: {counted(number, 'value')} passed outside of the forwards of {self._unrecorded.name}, in no "
            f"iteration; {self._unrecorded.remedy}"
            for path, number in self._unrecorded.outside.items()
            if self._columns[path].stored
        ]

    def may_have(self, path: str) -> bool:
        """Return whether a path may be one of the places, as far as that is known."""
        return any(place is None or place.matches(path) for place, _ in self._where)

    @property
    def paths(self) -> tuple[str, ...]:
        return self.handle.paths

    def prepare(self) -> None:
        """Enable or resume the listener for the next forward if something may be due in it, in either mode."""
        if not (self.handle.enabled or self.handle.removed):
            self.handle.enabled = True
        elif self.handle.paused and self._wanted():
            self.handle.paused = False

    def pause_if_idle(self) -> None:
        """Pause for this forward if nothing can be due in it; gradients of earlier ones are still reported.

        If functions were compiled, it pauses only for good: they then run compiled again, and report no forward to the
        clock.
        """
        if not self._always and self._times and not self.handle.paused and not self._wanted():
            over = self._options.over(*self._clock.coming())
            self.handle.paused = over or RUN_EAGERLY not in self.handle.notes

    def _wanted(self) -> bool:
        return any(map(self._options.due, self._clock.coming()))

    def _unmatched(self, error: NoMatchError) -> None:
        """Raise or report the error of a first forward that reached none of the places."""
        if self._windows.report_error is None:
            self.handle.remove()
            sentence = f"{error}. Nothing more is recorded at {self.asked}"
            self._windows.pending_losses[sentence] = None
            raise NoMatchError(sentence)
        self._windows.report_error(error)

    def _ended(self, paths: Collection[str], why: str) -> None:
        """End the series of these places: from the running forward on the model has nothing there."""
        now = self._clock.now()
        recorded = [path for path in paths if path in self._columns]
        for last in [last for path in recorded if (last := self._columns[path].last) is not None]:
            last.forget()  # a value that comes there again is recorded even if it is as before
        if recorded:
            self._windows.end_places(
                recorded, why, [now, *(one for one in self._clock.coming() if one.mode != now.mode)]
            )

    def _begun(self, iteration: int) -> None:
        self._times[iteration] = self._clock.now()
        self._times.pop(iteration - _REMEMBERED, None)

    def _receive(self, event: Event) -> None:
        column = self._columns.get(event.path) or self._column(event)
        if event.recomputed and not column.gradient:
            return
        time = self._time_of_gradient(event, column) if column.gradient else self._time_of_value(event.iteration)
        if time is None or column.refused or not (self._always or self._options.due(time)):
            if not (column.stored or column.refused) or time is None:
                self._unrecorded.note(event.path, time, self._held())
            return
        try:
            self._record(column, time, event, event.value)
        except NotStorableError as error:
            self._refuse(column, error, event.value)
        except Exception as error:  # of a function of the user's: `on_value` or `reduce`
            self._note_failed(column.path, time, error)
            raise
        if self._functions:  # one call may be the whole training
            self._windows.close_if_full()

    def _note_failed(self, path: str, time: Time, error: Exception) -> None:
        """Note that a value is missing, once for each place."""
        if path not in self._failed:
            self._failed.add(path)
            which = f"that of {time.mode} iteration {time.iteration} and perhaps later ones"
            why = f"since processing them raised {type(error).__name__}"
            self._windows.pending_losses[f"`{path}`: values are missing, {which}, {why}"] = None

    def _time_of_gradient(self, event: Event, column: PlaceValues) -> Time | None:
        """Return the iteration that the value of a gradient belongs to; None where there is none."""
        clock = self._clock
        if isinstance(column.numbers, NumbersInOrder) or event.recomputed:  # its forward is not known
            return clock.of_backward()
        time: Time | None = event.before
        return Time(time.mode, clock.latest.iteration) if time is not None and clock.by_steps else time

    def _time_of_value(self, forward: int) -> Time | None:
        """Return the iteration of a value that passes now, in a forward or after it.

        None where forwards are counted and it belongs to none: before the first that was observed, and outside of
        forwards when the model is in another mode than in the latest.
        """
        clock = self._clock
        if clock.by_steps:
            return clock.passing()
        if self._functions:
            return clock.latest
        time = self._times.get(forward)
        return time if time is None or clock.thread.inside or time.mode == clock.mode else None

    def _column(self, event: Event) -> PlaceValues:
        path = event.path
        if path in self._windows.columns:
            raise BadArgumentError(
                f"two entries match `{path}` and ask for different things, one of them {self.asked}; "
                "leave it out of one"
            )
        gradient, by_steps = path.endswith(".grad"), self._clock.by_steps or self._functions
        of_parameter = gradient and _is_parameters(event)
        return self._add(
            path,
            _entry(self._where, path),
            compared=not of_parameter,  # a gradient that was accumulated is in other memory, or was written to
            by_content=path.rpartition(".")[2] in event.module.__dict__["_buffers"],
            state="parameter" if event.kind == "parameter" and not gradient else "",
            exact=path in self._exact,
            gradient=gradient,
            by_forward=not (by_steps or of_parameter),
            numbers=_numbers(by_steps, gradient, of_parameter),
        )


_REMEMBERED = 4096
"""Forwards whose iterations are known: a value passes in one of the latest, or after it. Gradients bring their own."""
_NOT_ASSIGNED = "it was not assigned while recording: the function was not called, or did not reach it"


def _entries(where: Any) -> list[tuple[Place | None, str]]:
    """Return each entry of ``where``: its place if it is a path, and its words."""
    return [
        (as_place(one) if isinstance(one, str | Place) else None, printable(_worded(one))) for one in several(where)
    ]


def _worded(one: Any) -> str:
    """Return an entry in a few words; what prints as a page of its own by its class."""
    if isinstance(one, nn.Module):
        return type(one).__qualname__
    return one.__qualname__ if isinstance(one, type) else str(one)[:200]


def _entry(entries: list[tuple[Place | None, str]], path: str) -> str:
    """Return the entry by which a place was matched: the path that fits; else what else was asked for."""
    names = {path, path.removesuffix(".forward")}
    fitting = [words for place, words in entries if words in names or (place is not None and place.matches(path))]
    others = [words for place, words in entries if place is None]
    return fitting[0] if fitting else ", ".join(others or [words for _, words in entries])


def _numbers(by_steps: bool, gradient: bool, of_parameter: bool) -> ValueNumbers | None:
    """Return what numbers the values of a place; None where the calls of a forward do."""
    if of_parameter or (by_steps and not gradient):
        return NumbersInOrder()
    return StepNumbers() if by_steps else BackwardNumbers() if gradient else None


def _is_parameters(event: Event) -> bool:
    """Return whether a gradient is a parameter's: it belongs to no forward, but to when it is accumulated."""
    owner, name, _ = f".{event.path}".rsplit(".", 2)
    return name in event.module.__dict__["_parameters"] and not owner.endswith(".forward")


Asked: TypeAlias = "list[tuple[Options, Any]]"


class AnalyserListener(PlaceRecorder):
    """The figures of one analyser, which stands in their paths under a name.

    The analyser has seen a forward when its end is reported here: hooks are kept in the order in which things were
    attached to the model, and the analyser was there before.
    """

    def __init__(
        self, model: nn.Module, analyser: Analysed, name: str, options: Options, clock: Clock, windows: Windows
    ) -> None:
        if not analyser.watching:
            raise BadArgumentError(
                f"{name} observes no place of a model yet: call byname.observe(model, where, analyser) before "
                "recording it"
            )
        super().__init__(options, clock, windows)
        self.asked = f"the analyser {name}"
        self._analyser = analyser
        self._name = name
        self._model_name = type(model).__name__
        self.handle: Handle = watch_forwards(model, do_nothing, do_nothing, well=self._ended)

    def unrecorded(self) -> list[tuple[str, str]]:
        """Return the analyser, if none of its figures was recorded, with the reason."""
        if sum(self._clock.forwards.values()):
            reason = "it observed nothing" if self._analyser.enabled else "it was disabled"
        else:
            reason = f"no forward of {self._model_name} ended, and its figures are taken when one ends"
        found = unrecorded_reason([*self._columns.values()], reason, self._options, self._clock)
        return [(self.asked, found)] if found else []

    def _ended(self) -> None:
        time = self._clock.now()
        if not (self._options.due(time) and self._analyser.enabled and self._analyser.watching):
            return
        try:
            with muting(), torch.inference_mode(False), torch.no_grad():
                self._take_all(time)
        except Exception as error:  # an analyser may be the user's own
            note_on(error, f"byname: while recording the result of {self._name}")
            if self._windows.report_error is None:
                raise
            self._windows.report_error(error)

    def _take_all(self, time: Time) -> None:
        for path, value in self._analyser.result().by_path(self._name).items():
            column = self._columns.get(path) or self._column(path)
            if column.refused:
                continue
            try:
                self._record(column, time, None, value)
            except NotStorableError as error:
                self._refuse(column, error, value)

    def _column(self, path: str) -> PlaceValues:
        if path in self._windows.columns:
            raise BadArgumentError(f"`{path}` names both a recorded place and a figure of {self.asked}")
        # each result is new memory: its content tells whether it has changed
        return self._add(path, self._name, by_content=True, numbers=NumbersInOrder())


def without_analysers(asked: Asked) -> tuple[Asked, list[tuple[Options, Analysed]]]:
    """Return the places that are asked for, and the analysers."""
    places: Asked = []
    analysers: list[tuple[Options, Analysed]] = []
    for options, where in asked:
        each = several(where)
        found = [one for one in each if is_analyser(one)]
        analysers += [(options, one) for one in dict.fromkeys(found)]
        if not found:
            places.append((options, where))
        elif len(found) < len(each):
            places.append((options, [one for one in each if not is_analyser(one)]))
    return places, analysers


def analyser_listeners(
    model: nn.Module, asked: Sequence[tuple[Options, Analysed]], clock: Clock, windows: Windows
) -> list[AnalyserListener]:
    """Return one for each analyser; a second of the same class has a number, ``DeadUnits_2``."""
    names = numbered(type(analyser).__name__ for _, analyser in asked)
    return [
        AnalyserListener(model, analyser, name, options, clock, windows)
        for name, (options, analyser) in zip(names, asked, strict=True)
    ]
