"""What have the recording callbacks of all trainers in common? A recorder from the first batch to the end."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from torch import nn

from byname.errors import BadArgumentError
from byname.recording.record import record
from byname.recording.recorder import Recorder


class RecordsTraining:
    """What the recording callbacks are made with; the trainer says when a batch is done.

    Args:
        where: the places, as in `byname.record`.
        model: the module that is recorded; that of the trainer by default.
        options: the other arguments of `byname.record`, without ``count``: an iteration is a batch of the training.
    """

    def __init__(self, where: Any, *, model: nn.Module | None = None, **options: Any) -> None:
        super().__init__()  # that of the trainer's own class of callbacks
        if "count" in options:
            raise BadArgumentError("an iteration of a callback is a batch of the training; count= is not taken")
        self._where, self._model, self._options = where, model, options
        self.recorder: Recorder | None = None

    def close(self) -> None:
        """End the recording. It ends by itself when the training does, and in Lightning also when that fails."""
        if self.recorder is not None:
            self.recorder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self, model: nn.Module) -> None:
        self.close()
        self.recorder = record(
            model if self._model is None else self._model, self._where, count="step", **self._options
        )

    def _batch_done(self) -> None:
        if self.recorder is not None:
            self.recorder.step()
