"""Lightning: callbacks for the `Trainer`, which take snapshots and record values while it trains."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from torch import nn

from byname.extras import needs
from byname.plug.trainer_callbacks import Progress, RecordsTraining, TakesSnapshots, TrainingListener

if TYPE_CHECKING:
    Callback = object
else:

    def _callback() -> type:
        """Return the class of the package that the program uses: both may be installed, and are two."""
        packages = ("lightning.pytorch", "pytorch_lightning")
        for name in sorted(packages, key=lambda name: name not in sys.modules):
            with suppress(ImportError):
                return import_module(name).Callback
        return import_module(packages[0]).Callback

    with needs("byname.plug.lightning", "lightning"):
        Callback = _callback()


class _LightningHooks(TrainingListener, Callback):
    def on_train_start(self, trainer: Any, pl_module: nn.Module) -> None:
        self.begins(pl_module, _progress(trainer))

    def on_train_batch_end(
        self, trainer: Any, pl_module: nn.Module, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        self.batch_done(_progress(trainer, batch_idx))

    def on_train_end(self, trainer: Any, pl_module: nn.Module) -> None:
        self.ends(_progress(trainer))

    def on_exception(self, trainer: Any, pl_module: nn.Module, exception: BaseException) -> None:
        self.fails(exception)


def _progress(trainer: Any, batch: int | None = None) -> Progress:
    batches = int(trainer.fit_loop.epoch_loop.total_batch_idx) + 1
    around = trainer.precision_plugin.forward_context
    return Progress(trainer.global_step, batches, trainer.current_epoch, batch, around)


class LightningEvaluation(TakesSnapshots, _LightningHooks):
    """Has an `Evaluation` take snapshots during ``trainer.fit``, which goes on as if there were none.

    .. code-block:: python

        handle = byname.observe(module, "net.*", analyser)
        evaluation = byname.analyse.Evaluation(analyser, loader)
        trainer = Trainer(callbacks=[EvaluationCallback(evaluation, every=100)])
        trainer.fit(module, batches)
        evaluation.records

    The model, by default the ``LightningModule``, runs as in the training: in its precision, and without any
    communication between ranks. A step is ``trainer.global_step``. For the arguments see `TakesSnapshots`.
    """


class LightningRecord(RecordsTraining, _LightningHooks):
    """Records values at places of the module during ``trainer.fit``; an iteration is a batch of the training.

    .. code-block:: python

        recording = RecordCallback(["net.0", "**.weight.grad"], to="run.h5")
        trainer = Trainer(callbacks=[recording])
        trainer.fit(module, batches)
        byname.open("run.h5")

    For the arguments see `RecordsTraining`; the model is by default the ``LightningModule``.
    """

    def teardown(self, trainer: Any, pl_module: nn.Module, stage: str) -> None:
        self.untrained()


EvaluationCallback = LightningEvaluation
RecordCallback = LightningRecord
