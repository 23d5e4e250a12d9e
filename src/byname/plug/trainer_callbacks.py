"""Trainer callbacks: snapshots and recordings, the parts that the callbacks of all trainers share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from torch import nn

from byname.analyse.batches import checked_choice
from byname.analyse.evaluation import Evaluation, Snapshots
from byname.analyse.snapshots import Schedule
from byname.errors import BadArgumentError, RecordingWarning
from byname.plug.sending import Closing
from byname.recording.record import record
from byname.recording.recorder import Recorder
from byname.source.tracebacks import warn


class Progress(NamedTuple):
    """How many steps of the optimizer and batches of all epochs are done, the epoch, and the latest batch in it.

    The model runs within `around`, such as autocast.
    """

    step: int
    batches: int
    epoch: int
    batch: int | None = None
    around: Callable[[], AbstractContextManager[object]] = nullcontext


class TrainingListener:
    """What the hooks of a trainer tell."""

    def begins(self, model: nn.Module, at: Progress) -> None:
        """Called when the training of a model begins, or goes on from a checkpoint."""

    def batch_done(self, at: Progress) -> None:
        """Called when a batch is done, and with it a step, if gradients are not accumulated."""

    def ends(self, at: Progress) -> None:
        """Called when the training has ended without an error."""

    def fails(self, error: BaseException) -> None:
        """Called when the training has failed, or was interrupted; not all trainers report it."""


class TakesSnapshots(TrainingListener):
    """What the callbacks with an `Evaluation` are made with.

    Args:
        evaluation: takes the snapshots.
        schedule: when; in place of the four keywords.
        start, every, at, end: see `byname.analyse.Schedule`. There is no snapshot at the end of a training that was
            interrupted or has raised.
        count: what the steps of the schedule are: ``"step"`` for steps of the optimizers, ``"batch"`` for batches;
            these differ where gradients are accumulated. Records hold the former in any case.
        model: the module that is run; that of the trainer by default, or the network in it.
    """

    def __init__(
        self,
        evaluation: Evaluation,
        schedule: Schedule | None = None,
        *,
        start: bool = True,
        every: int | None = None,
        at: tuple[int, ...] = (),
        end: bool = True,
        count: str = "step",
        model: nn.Module | None = None,
    ) -> None:
        super().__init__()  # that of the trainer's own class of callbacks
        self._count = checked_choice(count, "count", ("step", "batch"))
        self.evaluation = evaluation
        self.schedule = schedule or Schedule(start, every, tuple(at), end)
        self._model = model

    def begins(self, model: nn.Module, at: Progress) -> None:
        model = model if self._model is None else self._model
        self._snapshots = Snapshots(self.evaluation, model, self.schedule, at.epoch)
        self._snapshots.steps, self._seen = at.step, self._counted(at)
        with at.around():
            self._snapshots.__enter__()

    def batch_done(self, at: Progress) -> None:
        before, self._seen = self._seen, self._counted(at)
        self._snapshots.steps, self._snapshots.epoch = at.step, at.epoch
        event = self.schedule.due(self._seen, before)
        if event is not None:
            with at.around():
                self._snapshots.take(event, at.batch)

    def ends(self, at: Progress) -> None:
        """Take the last snapshot, unless there is one of this state already."""
        self._snapshots.steps = at.step
        with at.around():
            self._snapshots.__exit__(None, None, None)

    def _counted(self, at: Progress) -> int:
        return at.step if self._count == "step" else at.batches


class RecordsTraining(Closing, TrainingListener):
    """What the recording callbacks are made with: a recorder from the first batch to the end.

    Args:
        where: the places, as in `byname.record`.
        model: the module that is recorded; that of the trainer by default, or the network in it.
        options: the other arguments of `byname.record`, such as ``to`` and ``every``; not ``count``.
    """

    def __init__(self, where: Any, *, model: nn.Module | None = None, **options: Any) -> None:
        super().__init__()  # that of the trainer's own class of callbacks
        if "count" in options:
            raise BadArgumentError("this callback counts training batches as iterations: leave out count=")
        self._where, self._model, self._options = where, model, options
        self.recorder: Recorder | None = None

    def close(self) -> None:
        """End the recording. It ends by itself when the training does, and in Lightning also when that fails."""
        self._end(None)

    def _end(self, error: BaseException | None) -> None:
        if self.recorder is not None:
            self.recorder.__exit__(type(error) if error else None, error, None)

    def begins(self, model: nn.Module, at: Progress) -> None:
        self.close()
        model = model if self._model is None else self._model
        self.recorder = record(model, self._where, count="step", **self._options)

    def batch_done(self, at: Progress) -> None:
        if self.recorder is not None:
            self.recorder.step()

    def ends(self, at: Progress) -> None:
        self.close()

    fails = _end

    def untrained(self) -> None:
        """Warn if no training ran: then there is no recording, and no file."""
        if self.recorder is None:
            warn("nothing was recorded: no training ran; `with byname.record(...)` records the rest", RecordingWarning)

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        if error is None:
            self.untrained()
        self._end(error)
