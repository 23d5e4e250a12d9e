"""AnalyserListener: records the figures of an analyser, once for each iteration that is due."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import nn

from byname.errors import BadArgumentError, NotStorableError
from byname.recording.clock import Clock, NumbersInOrder
from byname.recording.flush import PlaceValues, Windows
from byname.recording.listener import PlaceRecorder
from byname.recording.options import Analysed, Options, is_analyser, several
from byname.recording.sampling import Time
from byname.recording.unrecorded import unrecorded_reason
from byname.text import note_on, numbered
from byname.tracing.muted import muting
from byname.watch.forwards import do_nothing, watch_forwards
from byname.watch.handle import Handle

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
