"""When is a snapshot taken during training?"""

from __future__ import annotations

from dataclasses import dataclass

from byname.errors import BadArgumentError

__all__ = ["Schedule"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """At which moments of a training snapshots are taken. Steps are counted from 1: step 1 is over when one is done.

        >>> schedule = Schedule(every=100, at=(10, 50))
        >>> [(step, schedule.due(step)) for step in (10, 20, 50, 100)]
        [(10, 'scheduled'), (20, None), (50, 'scheduled'), (100, 'batch')]

    Attributes:
        start: whether one is taken before the first step.
        every: one after every so many steps; None for none.
        at: after these steps.
        end: whether one is taken when the training has ended without an exception. There is none where the latest was
            taken after the last step, and nothing has changed since.

    Raises:
        BadArgumentError: for steps that there cannot be.
    """

    start: bool = True
    every: int | None = None
    at: tuple[int, ...] = ()
    end: bool = True

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "at", tuple(sorted(set(self.at))))
        except TypeError:
            raise BadArgumentError(f"at is a sequence of steps, such as (10, 100), not {self.at!r:.60}") from None
        if self.every is not None:
            _checked("every", self.every)
        for step in self.at:
            _checked("a step of at", step)

    def due(self, step: int, since: int | None = None) -> str | None:
        """What a snapshot after this step is called: ``"scheduled"``, ``"batch"``, or None if there is to be none.

        Args:
            step: how many steps are done.
            since: how many were done when this was asked last, if more than one has been done meanwhile.
        """
        before = step - 1 if since is None else since
        if any(before < one <= step for one in self.at):
            return "scheduled"
        if self.every is not None and step // self.every > before // self.every:
            return "batch"
        return None


def _checked(name: str, step: object) -> None:
    if type(step) is not int or step < 1:
        raise BadArgumentError(f"{name} is a whole number from 1 on, not {step!r:.60}; start=True is before the first")
