"""How are snapshots taken, and values recorded, while a Hugging Face `Trainer` trains? Callbacks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from byname.extras import needs
from byname.plug.due import OnSchedule
from byname.plug.records import RecordsTraining

if TYPE_CHECKING:
    TrainerCallback = object
else:
    with needs("byname.plug.transformers", "transformers"):
        from transformers import TrainerCallback


class EvaluationCallback(OnSchedule, TrainerCallback):
    """Has an `Evaluation` take snapshots during ``trainer.train()``, which goes on as if there were none.

    .. code-block:: python

        handle = byname.observe(model, "encoder.layers.*", analyser)
        evaluation = byname.analyse.Evaluation(analyser, loader)
        trainer = Trainer(model, args, train_dataset=data, callbacks=[EvaluationCallback(evaluation, every=100)])
        trainer.train()
        evaluation.records

    Args:
        evaluation: takes the snapshots.
        schedule: when; in place of the four keywords.
        start, every, at, end: see `byname.analyse.Schedule`. There is no snapshot at the end of a training that was
            interrupted or has raised.
        count: what the steps of the schedule are: ``"step"`` for steps of the optimizer (``state.global_step``),
            ``"batch"`` for batches; these differ where gradients are accumulated. Records hold the former in any case.
        model: the module that is run; that of the trainer by default.
    """

    _batches = _in_epoch = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **of_trainer: Any) -> None:
        """The training begins, or goes on from a checkpoint."""
        self._epoch = int(state.epoch or 0)
        self._batches = state.global_step * args.gradient_accumulation_steps  # an epoch's last step may have had fewer
        self._due.begin(step=state.global_step, batch=self._batches)
        if self._due.schedule.start:
            self._take(state, of_trainer, "start")

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **of_trainer: Any) -> None:
        """An epoch begins."""
        self._epoch = int(state.epoch or 0)  # at the end of an epoch it is the number of the next
        self._in_epoch = 0

    def on_substep_end(self, args: Any, state: Any, control: Any, **of_trainer: Any) -> None:
        """A batch is done, whose gradients are accumulated."""
        self._batch_done(state, of_trainer)

    def on_step_end(self, args: Any, state: Any, control: Any, **of_trainer: Any) -> None:
        """A batch is done, and with it a step."""
        self._batch_done(state, of_trainer)

    def on_train_end(self, args: Any, state: Any, control: Any, **of_trainer: Any) -> None:
        """The training has ended well."""
        if self._due.schedule.end:
            self._take(state, of_trainer, "end")

    def _batch_done(self, state: Any, of_trainer: dict[str, Any]) -> None:
        self._batches += 1
        self._in_epoch += 1
        event = self._due.event(step=state.global_step, batch=self._batches)
        if event is not None:
            self._take(state, of_trainer, event, self._in_epoch - 1)

    def _take(self, state: Any, of_trainer: dict[str, Any], event: str, batch: int | None = None) -> None:
        model = of_trainer["model"] if self._model is None else self._model
        self._snapshot(model, event, batch, state.global_step)


class RecordCallback(RecordsTraining, TrainerCallback):
    """Records values at places of the model during ``trainer.train()``; an iteration is a batch of the training.

    .. code-block:: python

        with RecordCallback(["encoder.layers.*", "**.weight.grad"], to="run.h5") as recording:
            trainer = Trainer(model, args, train_dataset=data, callbacks=[recording])
            trainer.train()
        byname.open("run.h5")

    The ``with`` block closes the recording also where the training fails, which the trainer does not tell.

    Args:
        where: the places, as in `byname.record`.
        model: the module that is recorded; that of the trainer by default.
        options: the other arguments of `byname.record`, such as ``to`` and ``every``; not ``count``.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **of_trainer: Any) -> None:
        """The training begins."""
        self._begin(of_trainer["model"])

    def on_substep_end(self, *_: Any, **of_trainer: Any) -> None:
        """A batch is done, whose gradients are accumulated."""
        self._batch_done()

    def on_step_end(self, *_: Any, **of_trainer: Any) -> None:
        """A batch is done, and with it a step."""
        self._batch_done()

    def on_train_end(self, *_: Any, **of_trainer: Any) -> None:
        """The training has ended well."""
        self.close()
