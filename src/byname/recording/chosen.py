"""Chosen: which iterations of a recording stay, and after which it ends, by the values that they had."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

import torch

from byname.errors import BadArgumentError
from byname.place import Place
from byname.recording.flush import PlaceValues, Windows
from byname.recording.listener import Listener
from byname.recording.sampling import Time
from byname.recording.values.reduce import reduction_name
from byname.table import closest, counted
from byname.text import note_on, printable
from byname.tracing.muted import muting

ByValues: TypeAlias = "Callable[[Mapping[str, Any]], Any]"


class IterationFilter:
    """Judges an iteration when the next one begins, by the values that it had: `keep=`, `by=` and `stop_when=`."""

    def __init__(
        self, windows: Windows, keep: int | None, by: str | Place | ByValues | None, stop_when: ByValues | None
    ) -> None:
        if keep is not None and (type(keep) is not int or keep < 1):
            raise BadArgumentError(f"keep= takes an integer of at least 1, not {keep!r:.60}")
        if (keep is None) != (by is None):
            raise BadArgumentError("keep= and by= go together: keep=10, by='forward.loss' keeps those of largest loss")
        for name, given in (("by", by), ("stop_when", stop_when)):
            if not (given is None or callable(given) or (name == "by" and isinstance(given, str | Place))):
                path = ", or a path" * (name == "by")
                raise BadArgumentError(f"{name}= takes a function of a dict of values{path}, not {given!r:.60}")
        self._windows = windows
        self._keep = keep
        self._path = str(by) if isinstance(by, str | Place) else ""
        self._by: ByValues = itemgetter(self._path) if isinstance(by, str | Place) or by is None else by
        self._stop_when = stop_when
        self._coming: dict[Time, dict[str, Any]] = {}
        self._latest: dict[str, Any] = {}
        self._judged: dict[str, int] = {}
        self._kept: list[tuple[float, int, Time]] = []
        self._without = 0
        self._order = itertools.count()
        windows.keeps = keep is not None
        windows.note = None if keep is None and stop_when is None else self.note

    def facts(self) -> dict[str, Any]:
        return {} if self._keep is None else {"keep": self._keep, "by": self._path or reduction_name(self._by)}

    def check(self, listeners: Sequence[Listener], reports: Sequence[object]) -> None:
        """Refuse a path in `by` that is not recorded; the paths of reports are known once they have come."""
        paths = [path for one in listeners for path in one.paths]
        if not self._path or self._path in paths or reports:
            return
        if not any(one.may_have(self._path) for one in listeners):
            there = printable(closest(self._path, paths))
            raise BadArgumentError(f"by={self._path!r} names a place that is not recorded; recorded: {there}")

    def note(self, column: PlaceValues, time: Time, value: Any) -> None:
        """Note a recorded value of a place; of several in an iteration the last counts."""
        self._coming.setdefault(time, {})[column.path] = value
        if column.last is not None:  # an unchanged value is not recorded again
            self._latest[column.path] = value

    def judge(self, *, urgent: bool = False) -> str:
        """Judge the iterations that are over: drop what does not stay; return why the recording ends, or nothing.

        `urgent` says that an error has ended the program: then errors of the functions are only noted.
        """
        coming, self._coming = self._coming, {}
        if coming:
            self._windows.copies.settle()
        gone, why = set[Time](), ""
        try:
            for time, values in coming.items():
                if time.iteration <= self._judged.get(time.mode, -1):  # a gradient that came late
                    gone |= {time} - {one for _, _, one in self._kept}
                    continue
                self._judged[time.mode] = time.iteration
                gone.add(time)  # unless it is found to stay
                values = {**self._latest, **values}
                gone = gone - {time} | self._displaced(time, values, urgent)
                stop = None if why or urgent else self._stop_when
                if stop is not None and self._asked(stop, "stop_when", time, values):
                    why = f"stop_when ({reduction_name(stop)}) was true after {time.mode} iteration {time.iteration}"
        finally:
            if self._keep is not None:
                self._windows.drop(gone)
        return why

    def end(self, *, urgent: bool) -> str:
        """Judge the last iteration; return why the recording would end."""
        why = self.judge(urgent=urgent)
        if self._without:
            self._windows.note_missing(
                f"{counted(self._without, 'iteration')} without a value of `{self._path}` not kept"
            )
        return why

    def _displaced(self, time: Time, values: dict[str, Any], urgent: bool) -> set[Time]:
        """Return which iteration does not stay, now that there is this one."""
        if self._keep is None:
            return set()
        if self._path and self._path not in values:
            self._without += 1
            return {time}
        number = self._asked(lambda of: _number(self._by(of)), "by", time, values, urgent=urgent)
        if number is None:
            return {time}
        heapq.heappush(self._kept, (math.inf if math.isnan(number) else number, -next(self._order), time))
        return {heapq.heappop(self._kept)[2]} if len(self._kept) > self._keep else set()

    def _asked(
        self, function: Callable[[Any], Any], name: str, time: Time, values: dict[str, Any], *, urgent: bool = False
    ) -> Any:
        """Call a function of the user's; its error says where it was called. None if its error was reported."""
        try:
            with muting(), torch.inference_mode(False), torch.no_grad():
                return function(values) if name == "by" else bool(function(values))
        except Exception as error:
            when = f"{time.mode} iteration {time.iteration}"
            note_on(error, f"byname: in {name}, at {when}")
            if name == "by":
                self._windows.note_missing(f"{when} was not kept, since `by` raised {type(error).__name__}")
            if urgent:
                return None
            if self._windows.report_error is None:
                raise
            self._windows.report_error(error)
            return None


def _number(found: Any) -> float:
    try:
        return float(found)
    except (TypeError, ValueError, RuntimeError) as reason:
        kind = f"of shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
        sentence = f"by= needs a number, not a value {kind}; give a function, or record with reduce="
        raise BadArgumentError(sentence) from reason
