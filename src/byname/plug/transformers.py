"""Transformers: callbacks for a Hugging Face `Trainer`, which take snapshots and record values while it trains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from byname.extras import needs
from byname.plug.trainer_callbacks import Progress, RecordsTraining, TakesSnapshots, TrainingListener

if TYPE_CHECKING:
    TrainerCallback = object
else:
    with needs("byname.plug.transformers", "transformers"):
        from transformers import TrainerCallback


class _TransformersHooks(TrainingListener, TrainerCallback):
    _batches = _in_epoch = _number = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **of_trainer: Any) -> None:
        self._batches = state.global_step * args.gradient_accumulation_steps  # an epoch's last step may have had fewer
        self._number = int(state.epoch or 0)
        self.begins(of_trainer["model"], self._progress(state))

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **of_trainer: Any) -> None:
        self._number = int(state.epoch or 0)  # at the end of an epoch it is the number of the next
        self._in_epoch = 0

    def on_substep_end(self, args: Any, state: Any, control: Any, **of_trainer: Any) -> None:
        self._batches += 1
        self._in_epoch += 1
        self.batch_done(self._progress(state, self._in_epoch - 1))

    on_step_end = on_substep_end  # of the last batch of a step, instead

    def on_train_end(self, args: Any, state: Any, control: Any, **of_trainer: Any) -> None:
        self.ends(self._progress(state))

    def _progress(self, state: Any, batch: int | None = None) -> Progress:
        return Progress(state.global_step, self._batches, self._number, batch)


class TransformersEvaluation(TakesSnapshots, _TransformersHooks):
    """Has an `Evaluation` take snapshots during ``trainer.train()``, which goes on as if there were none.

    .. code-block:: python

        handle = byname.observe(model, "encoder.layers.*", analyser)
        evaluation = byname.analyse.Evaluation(analyser, loader)
        trainer = Trainer(model, args, train_dataset=data, callbacks=[EvaluationCallback(evaluation, every=100)])
        trainer.train()
        evaluation.records

    A step is ``state.global_step``. For the arguments see `TakesSnapshots`.
    """


class TransformersRecord(RecordsTraining, _TransformersHooks):
    """Records values at places of the model during ``trainer.train()``; an iteration is a batch of the training.

    .. code-block:: python

        with RecordCallback(["encoder.layers.*", "**.weight.grad"], to="run.h5") as recording:
            trainer = Trainer(model, args, train_dataset=data, callbacks=[recording])
            trainer.train()
        byname.open("run.h5")

    The ``with`` block closes the recording also where the training fails, which the trainer does not tell. For the
    arguments see `RecordsTraining`.
    """


EvaluationCallback = TransformersEvaluation
RecordCallback = TransformersRecord
