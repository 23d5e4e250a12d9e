"""Unrecorded: the places where nothing was recorded, and why; a recorder warns of them when it is closed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from types import CodeType, FrameType

from torch import nn

from byname.model.methods import function_of, other_entry_points
from byname.reading.frames import MODULE_CALL_CODE
from byname.reading.objects import attributes_of, found_in
from byname.recording.clock import Clock
from byname.recording.flush import PlaceValues
from byname.recording.sampling import IterationSchedule, Time
from byname.table import counted
from byname.text import printable

_MODE = {"train": "training", "eval": "evaluation"}


class Unrecorded:
    """Values of one listener that came and were not recorded, with the name of the model's class.

    Attributes:
        outside: how many values of each place belonged to no iteration.
        not_due: how many of each place came when nothing was due, by mode.
        ran: what ran where values belonged to no iteration, in words.
        part: the part of the model in which the first of these lay, as it may be written; empty where there is none.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.outside: Counter[str] = Counter()
        self.not_due: dict[str, Counter[str]] = {}
        self.ran = ""
        self.part = ""

    @property
    def remedy(self) -> str:
        """What to do where values belong to no iteration."""
        part = f", record({self.part}, ...)," if self.part else ""
        return f'record the part that runs{part} or give count="step" and call `step()`'

    def note(self, path: str, time: Time | None, model: nn.Module | None) -> None:
        """Note a value that was not recorded: that of no iteration, or of one that is not due."""
        if time is not None:
            self.not_due.setdefault(path, Counter())[time.mode] += 1
            return
        self.outside[path] += 1
        if not self.ran and model is not None:
            self.ran, self.part = _running(model), _part(path, model)


def unrecorded_reason(
    columns: Sequence[PlaceValues],
    reason: str,
    schedule: IterationSchedule,
    clock: Clock,
    values: Unrecorded | None = None,
) -> str:
    """Return why nothing was recorded at places; empty where something was, or where it was said before.

    `columns` are the places that have reported something, `reason` says why none has, `values` were not recorded.
    """
    if any(column.stored or (column.refused and not column.unreported) for column in columns):
        return ""
    for column in columns:
        if column.unreported:
            return f"it cannot be recorded, {column.unreported}"
    not_due = _not_due(schedule, clock)
    if not_due or values is None:
        return not_due or reason
    paths = [column.path for column in columns]
    came = sum((values.not_due.get(path, Counter()) for path in paths), Counter[str]())
    if came:
        return _came_when_not_due(came, schedule)
    if any(values.outside[path] for path in paths):
        return _outside(values, clock)
    return reason


def _outside(values: Unrecorded, clock: Clock) -> str:
    if sum(clock.forwards.values()):
        return f"it ran outside of the forwards of {values.name}; {values.remedy}"
    ran = f" ({values.ran} did)" if values.ran else " (parts of it did)"
    return f"the forward of {values.name} never ran{ran}; {values.remedy}"


def _not_due(schedule: IterationSchedule, clock: Clock) -> str:
    iterations = clock.iterations()
    mine = {mode: number for mode, number in iterations.items() if schedule.mode in (mode, "both")}
    if not any(iterations.values()):
        return ""
    if not any(mine.values()):
        other = next(mode for mode, number in iterations.items() if number)
        its = f"its {counted(iterations[other], 'forward')} {'was' if iterations[other] == 1 else 'were'}"
        were = "all that passed was" if clock.by_steps else its
        return f'{were} in {_MODE[other]}, and mode="{schedule.mode}"; mode="both" records both'
    if max(mine.values()) <= schedule.start:
        in_mode = "" if schedule.mode == "both" else f" in {_MODE[schedule.mode]}"
        return f"start={schedule.start}, but there were only {counted(max(mine.values()), 'iteration')}{in_mode}"
    return ""


def _came_when_not_due(came: Mapping[str, int], schedule: IterationSchedule) -> str:
    modes = [mode for mode, number in came.items() if number]
    if schedule.mode != "both" and schedule.mode not in modes:
        came_in = f"its {counted(sum(came.values()), 'value')} occurred in {_MODE[modes[0]]}"
        return f'{came_in}, and mode="{schedule.mode}"; mode="both" records both'
    stop = "" if schedule.stop is None else f", stop={schedule.stop}"
    return f"it had values only in iterations left out by every={schedule.every}, start={schedule.start}{stop}"


def _running(model: nn.Module) -> str:
    """Return what runs now instead of the model's forward: the outermost of its methods, or of its parts."""
    methods, found = _methods(model), ""
    parts = {id(part): path for path, part in model.named_modules() if path}
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code in methods:
            found = f"its `{printable(methods[frame.f_code])}`"
        elif frame.f_code is MODULE_CALL_CODE and (path := parts.get(id(frame.f_locals.get("self")))):
            found = f"its part `{printable(path)}`"
        frame = frame.f_back
    return found


def _part(path: str, model: nn.Module) -> str:
    """Return the outermost part with a forward of its own in which a place lies."""
    here, words = model, "model"
    for name in path.split("."):
        found = attributes_of(here)["_modules"].get(name)
        if found is None:
            return ""
        here, words = found, f"{words}[{name}]" if name.isdecimal() else f"{words}.{name}"
        if found_in(type(here), "forward") is not found_in(nn.Module, "forward"):
            return printable(words)
    return ""


def _methods(model: nn.Module) -> dict[CodeType, str]:
    """Return the methods of a model's own classes by their present code, without those that share one code."""
    found = [(function.__code__, name) for name in other_entry_points(model) if (function := function_of(model, name))]
    shared = Counter(code for code, _ in found)
    return {code: name for code, name in found if shared[code] == 1 and name != "forward"}
