"""Sending: the numbers in byname's results, named and given to a tracker of experiments, afterwards or live.

The tools in which people keep the numbers of their experiments stand behind one small protocol.
"""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, Protocol, Self

import torch

from byname.analyse.evaluation import Evaluation
from byname.analyse.results import Results
from byname.analyse.snapshots import Records
from byname.diagnose.finding import Explanation, Finding
from byname.errors import BadArgumentError, RecordingWarning
from byname.extras import needs
from byname.memory.census import Census
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
        BadArgumentError: the thing or the tracker is none of these.

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
    sent, log = 0, _log_of(tracker)
    for at, values in _numbers(thing, step):
        if values:
            log(values, at)
            sent += len(values)
    note = getattr(tracker, "note", None)
    if note is not None:
        for finding in _findings(thing) or ():
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

    failed, log = False, _log_of(tracker)

    def on_value(path: str, value: Any, iteration: int) -> None:
        nonlocal failed
        values = {} if failed else _of_value(path, value)
        try:
            if values:
                log(values, iteration)
        except Exception as error:  # noqa: BLE001 - a training does not end because its tracker does
            failed = True
            words = printable(f"{type(error).__name__}: {error}")
            warnings.warn(f"the tracker failed, and gets nothing more: {words}", RecordingWarning, stacklevel=2)

    return on_value


def _log_of(tracker: Any) -> Any:
    if callable(log := getattr(tracker, "log", None)):
        return log
    needed = "has no method log(values, step), which a tracker needs; of a SummaryWriter"
    raise BadArgumentError(f"`{type(tracker).__name__}` {needed} byname.plug.tensorboard(writer=...) makes one")


def _numbers(thing: Any, step: int) -> _Named:
    if isinstance(thing, str | os.PathLike):
        with open_recording(thing) as recording:
            yield from _numbers(recording, step)
    elif isinstance(thing, Recorder | Recording):
        places: Mapping[str, Any] = thing if isinstance(thing, Recording) else thing.results
        for path in places:
            yield from _of_series(places[path])
    elif isinstance(thing, Series):
        yield from _of_series(thing)
    elif isinstance(thing, Evaluation):
        yield from _numbers(thing.records, step)
    elif isinstance(thing, Records):
        for record in thing:
            yield from _numbers(record.result, record.step or 0)
    elif isinstance(thing, Results):
        yield step, dict(_cells(thing.rows()))
    elif isinstance(thing, Census):
        kinds = {f"memory/{kind}": float(size) for kind, _, size in thing.by("kind")}
        yield step, {"memory/bytes": float(thing.bytes), **kinds}
    elif (findings := _findings(thing)) is not None:
        counts = Counter(finding.cause for finding in findings)
        yield step, {f"findings/{cause}": float(count) for cause, count in counts.items()}
    else:
        raise BadArgumentError(
            f"a {type(thing).__name__} cannot be sent: give a recording, a series, figures of an analyser, an "
            "evaluation, a census or findings"
        )


def _findings(thing: Any) -> list[Finding | Explanation] | None:
    several = list(thing) if isinstance(thing, list | tuple) else [thing]
    return several if all(isinstance(one, Finding | Explanation) for one in several) else None


def _of_series(series: Series) -> _Named:
    calls, ranks = len(set(series.calls)) > 1, len(set(series.ranks)) > 1
    moments = zip(series.iterations, series.ranks, series.calls, series.modes, strict=True)
    for (iteration, rank, call, mode), value in zip(moments, series.values, strict=True):
        name = f"eval/{series.path}" if mode == "eval" else series.path
        name += f"/call{call}" * calls + f"/rank{rank}" * ranks
        yield iteration, _of_value(name, value)


def _of_value(name: str, value: Any) -> dict[str, float]:
    if isinstance(value, bool | int | float):
        held = not isinstance(value, int) or value.bit_length() < 1024  # else no float is as large
        return {name: float(value)} if held else {}
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


def _cells(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    for row in rows:
        place = "/".join(str(row[column]) for column in _KEYS if row.get(column) is not None)
        for column, cell in row.items():
            if column not in _KEYS and isinstance(cell, bool | int | float):
                yield f"{place}/{column}", float(cell)


_KEYS = ("path", "class", "group")


class ExperimentTracker(Protocol):
    """What `byname.plug.send` and `byname.plug.live` need; anything with this method will do."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Keep numbers under their names, for a step (an iteration)."""


class Closing:
    """A tracker or callback that can be closed, and is closed by a ``with`` block."""

    def close(self) -> None:
        """Write what is not written yet."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        self.close()


def tensorboard(log_dir: Any = None, *, writer: Any = None) -> TensorBoardTracker:
    """Return a tracker that writes event files for TensorBoard.

    Args:
        log_dir: the folder; ``runs/...`` if None, as `torch.utils.tensorboard.SummaryWriter` has it.
        writer: a ``SummaryWriter`` that there is; it stays open.

    Raises:
        NotInstalledError: if tensorboard is not installed; it is also an ImportError.
        BadArgumentError: both were given.
    """
    if writer is not None and log_dir is not None:
        raise BadArgumentError("tensorboard takes a log_dir or a writer, not both")
    if writer is not None:
        return TensorBoardTracker(writer, ours=False)
    return TensorBoardTracker(_needed("torch.utils.tensorboard", "tensorboard").SummaryWriter(log_dir), ours=True)


class TensorBoardTracker(Closing):
    """What `tensorboard` returns; ``with tensorboard(...) as tracker`` closes the files."""

    def __init__(self, writer: Any, *, ours: bool) -> None:
        self._writer, self._ours = writer, ours

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write each number as a scalar."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def note(self, title: str, text: str, step: int) -> None:
        """Write a text, such as a finding."""
        self._writer.add_text(title, text, step)

    def close(self) -> None:
        """Write what is not written yet; files that were opened here are closed."""
        self._writer.close() if self._ours else self._writer.flush()


def wandb(run: Any = None) -> WandbTracker:
    """Return a tracker for a run of Weights & Biases: the one given, or the one that ``wandb.init`` has begun.

    The steps are those of byname: ``byname/iteration`` is the x-axis of its numbers, and the steps of the run itself go
    on as they did.

    Raises:
        NotInstalledError: if wandb is not installed; it is also an ImportError.
        BadArgumentError: no run was given, and none has begun.
    """
    run = _needed("wandb", "wandb").run if run is None else run
    if run is None:
        raise BadArgumentError("no wandb run is active: call wandb.init(...) first, or give run=")
    return WandbTracker(run)


class WandbTracker(Closing):
    """What `wandb` returns. It does not end the run, which is the program's."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self._defined: set[str] = set()
        run.define_metric(_ITERATION, hidden=True)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log the numbers together with their iteration."""
        for name in values.keys() - self._defined:
            self._run.define_metric(name.replace("*", r"\*"), step_metric=_ITERATION)  # it takes globs
            self._defined.add(name)
        self._run.log({**values, _ITERATION: step})


_ITERATION = "byname/iteration"


def mlflow(run_id: str | None = None) -> RunTracker:
    """Return a tracker for a run of MLflow: the one of this id, or the active one, which ``log_metrics`` may begin.

    In names MLflow has no brackets and quotes: ``blocks[0]['x']`` becomes ``blocks_0___x__``.

    Raises:
        NotInstalledError: if mlflow is not installed; it is also an ImportError.
    """
    module = _needed("mlflow", "mlflow")

    def log(values: Mapping[str, float], step: int) -> None:
        named = {re.sub(r"[^\w\-. :/]", "_", name): value for name, value in values.items()}
        module.log_metrics(named, step=step, run_id=run_id)

    return RunTracker(log)


class RunTracker(Closing):
    """What `mlflow` and `trackio` return. It does not end the run, which is the program's."""

    def __init__(self, log: Callable[..., object]) -> None:
        self._log = log

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log the numbers."""
        self._log(dict(values), step=step)


def trackio(run: Any = None) -> RunTracker:
    """Return a tracker for a run of Trackio: the one given, or the one that ``trackio.init`` has begun.

    Raises:
        NotInstalledError: if trackio is not installed; it is also an ImportError.
    """
    return RunTracker((_needed("trackio", "trackio") if run is None else run).log)


def _needed(module: str, package: str) -> Any:
    with needs(f"byname.plug.{package}", package):
        found = import_module(module)
        if hasattr(found, "__path__") and found.__file__ is None:  # a folder here, in which a tracker keeps its runs
            raise ModuleNotFoundError(f"No module named {module!r}", name=package)
        return found
