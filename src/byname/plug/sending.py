"""Sending: the numbers in byname's results, named and given to a tracker of experiments, afterwards or live."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from byname.analyse.evaluation.evaluation import Evaluation
from byname.analyse.evaluation.snapshots import Records
from byname.analyse.results.results import Results
from byname.diagnose.finding import Explanation, Finding
from byname.errors import BadArgumentError, RecordingWarning
from byname.memory.census import Census
from byname.plug.trackers import ExperimentTracker
from byname.reading.quiet import DisableTorchFunction
from byname.recording.recorder import Recorder
from byname.recording.recording import Recording
from byname.recording.recording import open as open_recording
from byname.recording.series import Series
from byname.text import printable

_Named = Iterator[tuple[int, dict[str, float]]]
"""Steps, and the numbers of each by their names."""


def send(thing: Any, tracker: ExperimentTracker, *, step: int = 0) -> int:
    """Send the numbers of a result to a tracker, and return how many there were.

    A number is sent under the path of its place, at its iteration. Of a tensor of several elements four are sent,
    ``path/mean``, ``path/std``, ``path/min`` and ``path/max``. Values of evaluations are under ``eval/path``; where an
    iteration has several calls or ranks, ``path/call1`` and ``path/rank1`` keep them apart.

    Args:
        thing: a recording, the file of one, a recorder, a series; the result of an analyser, an evaluation or its
            records; a census (bytes by kind); findings, each as a number under ``findings/cause``, and with its text
            where the tracker has a method ``note(title, text, step)``.
        tracker: from `tensorboard`, `wandb`, `mlflow`, `trackio`, or anything with a method ``log(values, step)``.
        step: of what has no iteration of its own.

    Raises:
        BadArgumentError: the thing is none of these.

    >>> import byname, torch
    >>> class Printed:
    ...     def log(self, values, step):
    ...         print(step, values)
    >>> loss = byname.Series("loss", [0.5, 0.25], [0, 1], [0, 0], [0, 0], ["train"] * 2, [()] * 2)
    >>> byname.plug.send(loss, Printed())
    0 {'loss': 0.5}
    1 {'loss': 0.25}
    2
    """
    sent = 0
    for at, values in _numbers(thing, step):
        if values:
            tracker.log(values, at)
            sent += len(values)
    note = getattr(tracker, "note", None)
    if note is not None:
        for finding in _findings(thing):
            note(f"findings/{finding.cause}", str(finding), step)
    return sent


def live(tracker: ExperimentTracker) -> Callable[[str, Any, int], None]:
    """Return a callback that sends each recorded value to a tracker when it comes: ``on_value=live(tracker)``.

    The numbers are those of `send`. On a GPU each one waits for the computation of its value; ``every=`` makes them
    few. Values of training and evaluation come under one name; ``mode="train"`` records the former alone. Where the
    tracker raises an error, a `RecordingWarning` tells it once, and the training goes on.

    >>> import byname, torch
    >>> class Printed:
    ...     def log(self, values, step):
    ...         print(step, values)
    >>> model = torch.nn.Identity()
    >>> with byname.record(model, "forward.input", on_value=byname.plug.live(Printed())):
    ...     output = model(torch.tensor(2.0))
    0 {'forward.input': 2.0}
    """

    failed = False

    def on_value(path: str, value: Any, iteration: int) -> None:
        nonlocal failed
        values = {} if failed else _of_value(path, value)
        try:
            if values:
                tracker.log(values, iteration)
        except Exception as error:  # noqa: BLE001 - a training does not end because its tracker does
            failed = True
            words = printable(f"{type(error).__name__}: {error}")
            warnings.warn(f"the tracker failed, and is sent nothing more: {words}", RecordingWarning, stacklevel=2)

    return on_value


def _numbers(thing: Any, step: int) -> _Named:
    if isinstance(thing, str | os.PathLike):
        with open_recording(thing) as recording:
            yield from _numbers(recording, step)
    elif isinstance(thing, Recorder):
        yield from _of_places(thing.results)
    elif isinstance(thing, Recording):
        yield from _of_places(thing)
    elif isinstance(thing, Series):
        yield from _of_series(thing)
    elif isinstance(thing, Evaluation):
        yield from _numbers(thing.records, step)
    elif isinstance(thing, Records):
        for record in thing:
            yield record.step or 0, _of_rows(record.result)
    elif isinstance(thing, Results):
        yield step, _of_rows(thing)
    elif isinstance(thing, Census):
        yield (
            step,
            {"memory/bytes": float(thing.bytes)}
            | {f"memory/{kind}": float(size) for kind, _, size in thing.by("kind")},
        )
    else:
        counts = Counter(finding.cause for finding in _findings(thing, sure=True))
        yield step, {f"findings/{cause}": float(count) for cause, count in counts.items()}


def _findings(thing: Any, *, sure: bool = False) -> list[Finding | Explanation]:
    if isinstance(thing, Finding | Explanation):
        return [thing]
    several = list(thing) if isinstance(thing, list | tuple) else None
    if several is not None and all(isinstance(one, Finding | Explanation) for one in several):
        return several
    if sure:
        raise BadArgumentError(
            f"a {type(thing).__name__} cannot be sent: give a recording, a series, figures of an analyser, an "
            "evaluation, a census or findings"
        )
    return []


def _of_places(places: Mapping[str, Any]) -> _Named:
    for path in places:
        yield from _of_series(places[path])


def _of_series(series: Series) -> _Named:
    calls, ranks = len(set(series.calls)) > 1, len(set(series.ranks)) > 1
    moments = zip(series.iterations, series.ranks, series.calls, series.modes, strict=True)
    for (iteration, rank, call, mode), value in zip(moments, series.values, strict=True):
        name = f"eval/{series.path}" if mode == "eval" else series.path
        name += f"/call{call}" * calls + f"/rank{rank}" * ranks
        yield iteration, _of_value(name, value)


def _of_value(name: str, value: Any) -> dict[str, float]:
    if isinstance(value, bool | int | float):
        return {name: float(value)}
    if not isinstance(value, torch.Tensor) or value.is_complex() or value.layout is not torch.strided:
        return {}
    with torch.no_grad(), DisableTorchFunction():
        numbers = value.detach().double().flatten()
        if numbers.numel() <= 1:
            return dict.fromkeys([name] * numbers.numel(), float(numbers.sum()))
        std, mean = torch.std_mean(numbers, correction=0)
        figures = torch.stack([mean, std, numbers.min(), numbers.max()]).tolist()
    return {f"{name}/{figure}": number for figure, number in zip(_FIGURES, figures, strict=True)}


_FIGURES = ("mean", "std", "min", "max")


def _of_rows(results: Results) -> dict[str, float]:
    return dict(_cells(results.rows()))


def _cells(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    for row in rows:
        place = "/".join(str(row[column]) for column in _KEYS if row.get(column) is not None)
        for column, cell in row.items():
            if column not in _KEYS and isinstance(cell, bool | int | float):
                yield f"{place}/{column}", float(cell)


_KEYS = ("path", "class", "group")
