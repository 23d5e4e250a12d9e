"""AnalyserListener: how the figures of an analyser come into a recording, once for each iteration that is due."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn

from byname.errors import BadArgumentError, NotStorableError
from byname.recording.clock import Clock, InOrder
from byname.recording.flush import PlaceValues, Windows
from byname.recording.listener import Storing
from byname.recording.options import Analysed, Options, form_of, is_analyser
from byname.recording.sampling import Time
from byname.recording.silence import why
from byname.recording.values.change import Last
from byname.text import note_on
from byname.tracing.muted import unheard
from byname.watch.forwards import follow_forwards
from byname.watch.handle import Handle

Asked: TypeAlias = "list[tuple[Options, Any]]"


class Reports(Storing):
    """The figures of one analyser.

    What an analyser sees in a forward it has seen when this is told of the forward's end: hooks are kept in the order
    in which things were attached to the model, and the analyser was there before.

    Args:
        model: whose forwards are counted.
        analyser: is asked for its result.
        name: what stands in the paths for it.
        options: what is asked.
        clock: knows the iteration.
        windows: where the copies go.

    Attributes:
        asked: it in words.
        handle: of what is attached to the model.
    """

    def __init__(
        self, model: nn.Module, analyser: Analysed, name: str, options: Options, clock: Clock, windows: Windows
    ) -> None:
        if not analyser.watching:
            raise BadArgumentError(
                f"{name} is at no place of a model, and has nothing to tell: byname.observe(model, where, analyser) "
                "before it is recorded"
            )
        super().__init__(options, windows)
        self.asked = f"the analyser {name}"
        self._analyser = analyser
        self._name = name
        self._model_name = type(model).__name__
        self._clock = clock
        self._columns: dict[str, PlaceValues] = {}
        self._calls: dict[str, InOrder] = {}
        self.handle: Handle = follow_forwards(model, _nothing, _nothing, enabled=False, well=self._ended)

    @property
    def paths(self) -> tuple[str, ...]:
        """The figures that there have been."""
        return tuple(self._columns)

    def unrecorded(self, clock: Clock) -> list[tuple[str, str]]:
        """The analyser, if none of its figures was recorded, with the reason."""
        if sum(clock.forwards.values()):
            reason = "it was told nothing" if self._analyser.enabled else "it was disabled"
        else:
            reason = f"figures are taken when a forward has ended, and none of {self._model_name} did"
        found = why([*self._columns.values()], reason, self._schedule, clock)
        return [(self.asked, found)] if found else []

    def dropped(self) -> list[str]:
        """Figures are taken in forwards."""
        return []

    def prepare(self) -> None:
        """A forward has ended: is in place in the next."""
        if not self.handle.enabled:
            self.handle.enabled = True

    def rest(self) -> None:
        """A forward begins, of which nothing is needed but its end."""

    def _ended(self) -> None:
        time = self._clock.now()
        if not (self._is_due(time) and self._analyser.enabled and self._analyser.watching):
            return
        try:
            with unheard(), torch.inference_mode(False), torch.no_grad():
                self._take_all(time)
        except Exception as error:  # an analyser may be the user's own
            note_on(error, f"byname: in the result of {self._name}, which is recorded")
            if self._windows.tell is None:
                raise
            self._windows.tell(error)

    def _take_all(self, time: Time) -> None:
        for path, value in self._analyser.result().by_path(self._name).items():
            column = self._columns.get(path) or self._column(path)
            if column.refused:
                continue
            try:
                self._record(column, time, self._calls[path].next(time), value)
            except NotStorableError as error:
                self._refuse(column, error, value)

    def _column(self, path: str) -> PlaceValues:
        if path in self._windows.columns:
            raise BadArgumentError(f"`{path}` is a place that is recorded, and a figure of {self.asked}")
        form = form_of(self._options, path, self._windows.warn)
        column = PlaceValues(
            path,
            # each result is new memory: what has changed is told by the numbers
            last=Last(form, by_content=True) if self._options.on_change else None,
            form=form,
            exact=False,
            gradient=False,
            by_forward=False,
            numbers=self._calls.setdefault(path, InOrder()),
            sampling=self._options.sampling(self._name, self._clock.counted),
        )
        self._columns[path] = self._windows.columns[path] = column
        return column


def apart(asked: Asked) -> tuple[Asked, list[tuple[Options, Analysed]]]:
    """The places that are asked for, and the analysers."""
    places: Asked = []
    analysers: list[tuple[Options, Analysed]] = []
    for options, where in asked:
        each = where if isinstance(where, Sequence | set | frozenset) and not isinstance(where, str) else (where,)
        found = [one for one in each if is_analyser(one)]
        analysers += [(options, one) for one in dict.fromkeys(found)]
        if not found:
            places.append((options, where))
        elif len(found) < len(each):
            places.append((options, [one for one in each if not is_analyser(one)]))
    return places, analysers


def reports_of(
    model: nn.Module, asked: Iterable[tuple[Options, Analysed]], clock: Clock, windows: Windows
) -> list[Reports]:
    """One for each analyser; a second of the same class has a number, ``DeadUnits_2``."""
    often: Counter[str] = Counter()
    reports = []
    for options, analyser in asked:
        name = type(analyser).__name__
        often[name] += 1
        numbered = name if often[name] == 1 else f"{name}_{often[name]}"
        reports.append(Reports(model, analyser, numbered, options, clock, windows))
    return reports


def _nothing(*_: Any) -> None:
    """Only forwards that end well are of interest."""
