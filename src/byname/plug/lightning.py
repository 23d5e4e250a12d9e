"""How are snapshots taken, and values recorded, while Lightning trains? Callbacks for the `Trainer`."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from torch import nn

from byname.extras import needs
from byname.plug.due import OnSchedule
from byname.plug.records import RecordsTraining

if TYPE_CHECKING:
    Callback = object
else:

    def _callback() -> type:
        """The class of the package that the program uses: both may be installed, and are two."""
        packages = ("lightning.pytorch", "pytorch_lightning")
        for name in sorted(packages, key=lambda name: name not in sys.modules):
            with suppress(ImportError):
                return import_module(name).Callback
        return import_module(packages[0]).Callback

    with needs("byname.plug.lightning", "lightning"):
        Callback = _callback()


class EvaluationCallback(OnSchedule, Callback):
    """Has an `Evaluation` take snapshots during ``trainer.fit``, which goes on as if there were none.

    .. code-block:: python

        handle = byname.observe(module, "net.*", analyser)
        evaluation = byname.analyse.Evaluation(analyser, loader)
        trainer = Trainer(callbacks=[EvaluationCallback(evaluation, every=100)])
        trainer.fit(module, batches)
        evaluation.records

    The model runs as in the training: in its precision, and without any communication between ranks.

    Args:
        evaluation: takes the snapshots.
        schedule: when; in place of the four keywords.
        start, every, at, end: see `byname.analyse.Schedule`. There is no snapshot at the end of a training that was
            interrupted or has raised.
        count: what the steps of the schedule are: ``"step"`` for steps of the optimizers (``trainer.global_step``),
            ``"batch"`` for batches; these differ where gradients are accumulated. Records hold the former in any case.
        model: the module that is run: the ``LightningModule`` by default, or the network in it.
    """

    def on_train_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """The training begins, or goes on from a checkpoint."""
        self._epoch = trainer.current_epoch
        self._due.begin(step=trainer.global_step, batch=_batches(trainer))
        if self._due.schedule.start:
            self._take(trainer, pl_module, "start")

    def on_train_batch_end(
        self, trainer: Any, pl_module: nn.Module, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        """A batch is done, and with it a step, if gradients are not accumulated."""
        self._epoch = trainer.current_epoch  # at the end of the training it is the number of the next
        event = self._due.event(step=trainer.global_step, batch=_batches(trainer))
        if event is not None:
            self._take(trainer, pl_module, event, batch_idx)

    def on_train_end(self, trainer: Any, pl_module: nn.Module) -> None:
        """The training has ended well."""
        if self._due.schedule.end:
            self._take(trainer, pl_module, "end")

    def _take(self, trainer: Any, module: nn.Module, event: str, batch: int | None = None) -> None:
        model = module if self._model is None else self._model
        with trainer.precision_plugin.forward_context():
            self._snapshot(model, event, batch, trainer.global_step)


class RecordCallback(RecordsTraining, Callback):
    """Records values at places of the module during ``trainer.fit``; an iteration is a batch of the training.

    .. code-block:: python

        recording = RecordCallback(["net.0", "**.weight.grad"], to="run.h5")
        trainer = Trainer(callbacks=[recording])
        trainer.fit(module, batches)
        byname.open("run.h5")

    Args:
        where: the places, as in `byname.record`.
        model: the module that is recorded: the ``LightningModule`` by default, or the network in it.
        options: the other arguments of `byname.record`, such as ``to`` and ``every``; not ``count``.
    """

    def on_train_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """The training begins."""
        self._begin(pl_module)

    def on_train_batch_end(self, *_: Any) -> None:
        """A batch is done."""
        self._batch_done()

    def on_train_end(self, *_: Any) -> None:
        """The training has ended well."""
        self.close()

    def on_exception(self, *_: Any) -> None:
        """The training failed, or was interrupted."""
        self.close()


def _batches(trainer: Any) -> int:
    """How many batches are done, over all epochs."""
    return int(trainer.fit_loop.epoch_loop.total_batch_idx) + 1
