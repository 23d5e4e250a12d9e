"""Diff: `diff` of two recordings, or of two models on one batch, and its result."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from torch import nn

from byname.comparing.both_models import ModelRun, drop_unequal_operations, path_in_b, reason, renamed
from byname.comparing.difference import DIFFERENT, EQUAL, ONLY, UNCOMPARED, WITHIN, PlaceDiff, Tolerance, earliest
from byname.comparing.records import Comparison, RecordedRun
from byname.errors import BadArgumentError
from byname.recording.recorder import Recorder
from byname.recording.recording import Recording
from byname.recording.recording import open as opened
from byname.recording.series import Series
from byname.table import Row, Rows, counted, listed
from byname.text import with_progress


@dataclass(frozen=True, slots=True, repr=False)
class Diff(Rows[PlaceDiff]):
    """How two recordings, or two models on one batch, differ; a row a place, in the order in which the places ran.

    Parameters and buffers of models come first. ``bool(diff)`` is whether the two differ.

    Attributes:
        items: the places.
        first: the place that differs first: ``path``, ``iteration``, ``call``, ``error`` and more; with a tolerance, by
            more than that. None where there is none.
        first_value: the first that is not in a parameter or buffer of a model.
        before: up to three places that ran before `first_value` and were equal then, the nearest first: in a recording
            those of the same iteration, or the last ones of the iteration before.
        only: in sentences, places and iterations of one of the two alone, and places without a moment of both.
        names: what a and b are called.
        exact: whether every difference counts, since no tolerance was given.
        notes: other sentences, such as names that were matched.
    """

    items: tuple[PlaceDiff, ...]
    first: PlaceDiff | None
    first_value: PlaceDiff | None
    before: tuple[str, ...]
    only: tuple[str, ...]
    names: tuple[str, str]
    exact: bool
    notes: tuple[str, ...] = ()
    _row = PlaceDiff

    @property
    def equal(self) -> bool:
        """Whether nothing differs, and neither has something alone."""
        return self.first is None and not self.only

    def __bool__(self) -> bool:
        return not self.equal

    def _title(self) -> str:
        a, b = self.names
        if self.first is not None:
            what = f"{self.first.kind} " if self.first.kind != "value" else ""
            return f"{a} (a) and {b} (b) differ first in {what}{self.first.where()}: {self.first.describe_error()}"
        both = [one for one in self.items if one.state in (EQUAL, WITHIN)]
        values = f"{counted(sum(one.records for one in both), 'value')} of {counted(len(both), 'place')}"
        what = f"are {_alike(both) if self.exact else 'equal'}{'' if self.equal else ' where both have values'}"
        return f"{a} (a) and {b} (b) {what}{'' if self.exact else ', within the tolerance'}: {values}"

    def _notes(self) -> Sequence[str]:
        return [*self._told(), *self.only, *self.notes]

    def _told(self) -> Iterator[str]:
        first = self.first_value
        state = [one for one in self.items if one.kind != "value" and one.state not in ONLY]
        if state and not any(one.counts for one in state):
            yield f"all {counted(len(state), 'parameter or buffer', 'parameters and buffers')} are {_alike(state)}"
        if first is not None and first is not self.first:
            yield f"the first output that differs is {first.where()}: {first.describe_error()}"
        if first is not None and not first.what:
            around = (one for one in self.items if one.elements and one.what and first.path.startswith(f"{one.path}."))
            yield from (f"it runs in `{one.path}`, where {one.what}" for one in islice(around, 1))
        if self.before:
            near = [one for one in self.items if one.path in self.before and one.kind == "value"]
            names = ", ".join(f"`{one}`" for one in self.before)
            yield f"before it, {_alike(near)}: {names}"
        if self.first is not None and all(one.state != DIFFERENT for one in self.items):
            yield "all differences are within the tolerances of their dtypes (those of torch.testing.assert_close)"

    def _shown(self) -> list[Row]:
        """Return what differs, and the places just before the first difference."""
        near = {*self.before}
        kept = [one for one in self.items if one.path in near or one.counts or one.state in ONLY]
        columns = [one for one in PlaceDiff.columns if one.printed]
        if all(one.records < 2 for one in kept):
            columns = [one for one in columns if one.key not in ("differ", "largest")]
        rows = [{one.heading: one.shown(row) for one in columns} for row in kept]
        boring = ("", None, 0, "train")
        empty = {key for key in rows[0] if all(row[key] in boring for row in rows)} if rows else set()
        return [{key: value for key, value in row.items() if key not in empty} for row in rows]


def _alike(places: Sequence[PlaceDiff]) -> str:
    """Return how equal places without a difference that counts are, in words."""
    equal = all(one.counts or one.state == EQUAL for one in places)
    return "equal" if equal else "equal within the tolerances of their dtypes"


def diff(a: Any, b: Any, *, example: Any = None, tolerance: Any = None) -> Diff:
    """Return where two recordings, or two models on one batch, differ first, and how much.

    >>> import copy, torch, byname
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    >>> port = copy.deepcopy(model)
    >>> with torch.no_grad():
    ...     _ = port[2].bias.add_(1.0)
    >>> found = byname.diff(model, port, example=torch.ones(3, 4))
    >>> found.first.path, round(found.first.error, 4), found.first_value.path, found.before[0]
    ('2.bias', 1.0, '2', '1')

    Of recordings values of one moment are compared: mode, iteration, call and rank. Where only changes were recorded
    the value in force is taken. Values are equal if their numbers are; NaN is equal to NaN. Models run once each, in
    their modes and from the same random state, and stay as they are, as does the random state. If their parameters
    differ in dtype or device, each gets the batch in its own.

    Args:
        a, b: two recordings: paths, what `byname.open` gives, recorders or their results; or two models.
        example: the batch for models: a tensor; a tuple of positional arguments; a dict of keyword arguments; or
            ``(args, kwargs)``.
        tolerance: the largest absolute error that is no difference, or a dict ``{torch.float32: (rtol, atol)}``, in
            which other dtypes have the tolerances of `torch.testing.assert_close`; ``{}`` is these for all dtypes. By
            default every difference counts.

    Raises:
        BadArgumentError: a and b are not two recordings or two models, models are given without an example, or
            recordings with one.
        NoRecordingError, NotARecordingError, RecordingError: a file cannot be read.
    """
    allowed = Tolerance(tolerance)
    models = [one for one in (a, b) if issubclass(type(one), nn.Module)]
    if len(models) == 1 or (models and example is None) or (not models and example is not None):
        raise BadArgumentError(
            "diff() compares two models on a batch: diff(a, b, example=batch); or two recordings, without an example"
        )
    if models:
        return _of_models((a, b), example, allowed)
    with ExitStack() as stack:
        sides = _run(a, "a", stack), _run(b, "b", stack)
        return _of(Comparison(*sides, allowed), {}, lambda *_: "")


def _run(given: Any, name: str, stack: ExitStack) -> RecordedRun:
    """Return the recording that an argument means; one that is opened here is closed with the stack."""
    if isinstance(given, str | os.PathLike):
        name, given = Path(given).name, stack.enter_context(opened(given))
    elif isinstance(given, Recording):
        name = given._title().rpartition(": ")[0]
    found = given.results if isinstance(given, Recorder) else given
    found = {found.path: found} if isinstance(found, Series) else found
    if isinstance(found, Mapping) and all(isinstance(one, Series) for one in found.values()):
        cut = isinstance(given, Recorder) or (isinstance(given, Recording) and not given.complete)
        return RecordedRun(name, found, cut=cut)
    raise BadArgumentError(f"diff() takes recordings (paths, recorders, results) or models, not {type(given).__name__}")


def _longer(a: RecordedRun, b: RecordedRun) -> Iterator[str]:
    """Yield which of the two runs goes further."""
    for mode, rank in sorted({*a.last, *b.last}):
        last = [run.last.get((mode, rank), -1) for run in (a, b)]
        every = (a, b)[last[1] < last[0]].every if min(last) >= 0 else 1
        if max(last) >= min(last) + every:  # else the shorter one may have run as far, with nothing asked for
            of = " in evaluation" * mode + f" of rank {rank}" * bool(rank)
            after = f" after iteration {min(last)}, up to {max(last)}" if min(last) >= 0 else ""
            yield f"only {'ab'[last[1] > last[0]]} has values{of}{after}"


def _of_models(models: Sequence[nn.Module], example: Any, tolerance: Tolerance) -> Diff:
    a, b = runs = [ModelRun(one) for one in models]
    for run in runs:
        run.run(example, bring=a.home != b.home)
    same = renamed(a, b)
    others = listed([*map(_named, drop_unequal_operations(a, b, same))], 6)
    notes = [f"operations differ in a and b and are not compared: those of {others}"] if others else []
    notes += [*_matched(same), *dict.fromkeys([*a.notes, *b.notes])]
    why = partial(reason, a, b, tolerance)
    return _of(Comparison(a.recorded(), b.recorded(), tolerance), same, why, notes)


def _matched(same: Mapping[str, str]) -> Iterator[str]:
    """Yield which modules were taken for the same under two names, the outermost ones."""
    pairs = ((one, other) for one, other in same.items() if one.rpartition(".")[0] not in same or not one)
    found = [f"{_named(one)} is {_named(other)}" for one, other in pairs]
    if found:
        yield f"modules of a and b, matched by their parameters and the order of the run: {listed(found, 6)}"


def _named(module: str) -> str:
    return f"`{module}`" if module else "the model itself"


def _of(comparison: Comparison, same: Mapping[str, str], why: Callable[..., str], notes: Sequence[str] = ()) -> Diff:
    """Return the result: how each place differs, and the differences that came first.

    `same` has the modules of b by those of a with other paths. `why` says why a place, given by both names, may differ.
    """
    a, b = comparison.a, comparison.b
    a.modes = b.modes if a.modes is None else a.modes
    names = {path: path if path in b.places else path_in_b(path, same) for path in a.order}
    items, taken = [], set()
    for path, other in with_progress(names.items(), "diff"):
        row = PlaceDiff(path, a.kinds.get(path, "value"), ONLY[0])
        if other in b.places and (other == path or other not in a.places):
            row = comparison.place(path, other)
            reason = why(path, other) if row.counts else ""
            row = replace(row, what="; ".join(filter(None, (row.what, reason))))
            taken.add(other)
        items.append(row)
    items += [PlaceDiff(path, b.kinds.get(path, "value"), ONLY[1]) for path in b.order if path not in taken]
    values = [one for one in items if one.kind == "value"]
    first_value = earliest(values)
    ran = {one.path for one in values if one.state not in (*ONLY, UNCOMPARED)}
    before = [path for path in a.before(first_value) if path in ran] if first_value else []
    return Diff(
        tuple(items),
        earliest(items),
        first_value,
        tuple(dict.fromkeys(before[::-1]))[:_NEAR],
        (*_longer(a, b), *_listed(items)),
        (a.name, b.name),
        comparison.tolerance.exact,
        tuple(notes),
    )


_NEAR = 3
"""Places before the first difference that are named."""


def _listed(items: Sequence[PlaceDiff]) -> Iterator[str]:
    for state in (*ONLY, UNCOMPARED):
        found = [f"`{one.path}`" for one in items if one.state == state]
        if found:
            yield f"{counted(len(found), 'place')} {state}: {listed(found, 6)}"
