"""When does a trainer's callback take a snapshot? Trainers count steps and batches, and tell of each batch."""

from __future__ import annotations

from torch import nn

from byname.analyse.evaluation.evaluation import Evaluation
from byname.analyse.evaluation.snapshots import LatestState, Schedule
from byname.errors import BadArgumentError

COUNTS = ("step", "batch")


class Due:
    """Follows the numbers of a trainer.

        >>> due = Due(Schedule(every=2), "step")
        >>> due.begin(step=0, batch=0)
        >>> [due.event(step=batch // 2, batch=batch) for batch in (1, 2, 3, 4, 5)]  # two batches a step
        [None, None, None, 'batch', None]

    Args:
        schedule: when there is to be one.
        count: ``"step"`` or ``"batch"``.
    """

    def __init__(self, schedule: Schedule, count: str) -> None:
        if count not in COUNTS:
            raise BadArgumentError(f"count is one of {', '.join(map(repr, COUNTS))}, not {count!r:.60}")
        self.schedule = schedule
        self._count = count
        self._seen = 0

    def begin(self, *, step: int, batch: int) -> None:
        """The training begins with so many steps and batches done."""
        self._seen = step if self._count == "step" else batch

    def event(self, *, step: int, batch: int) -> str | None:
        """What a snapshot is called that is to be taken now."""
        before, self._seen = self._seen, step if self._count == "step" else batch
        return self.schedule.due(self._seen, before)


class OnSchedule:
    """What the callbacks of all trainers are made with; the trainer says when it is."""

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
        self.evaluation = evaluation
        self._due = Due(schedule or Schedule(start, every, tuple(at), end), count)
        self._model = model
        self._epoch = 0
        self._latest = LatestState()

    def _snapshot(self, model: nn.Module, event: str, batch: int | None, step: int) -> None:
        """Takes a snapshot, but at the end none of a state of which there is one already."""
        if event == "end" and self._latest.same(model, step):
            return
        self.evaluation.take(model, event, self._epoch, batch, step)
        if self._due.schedule.end:
            self._latest.taken(model, step)
