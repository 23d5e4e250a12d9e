"""Evaluation: snapshots of an analyser on a fixed loader, between two steps of a training."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from byname.analyse.analyser import Analyser, Switched, checked_analyser
from byname.analyse.batches import checked_choice
from byname.analyse.passes import BatchSource, Preserved, inputs_of, moved, prepared, preserved, preserving_gradients
from byname.analyse.results import Results
from byname.analyse.snapshots import Record, Records, Schedule, state_of
from byname.analyse.state import on_tensors
from byname.errors import BadArgumentError
from byname.model.module_tree import unwrap_module
from byname.model.where import unwrapped
from byname.reading.interrupts import defer_signals
from byname.text import with_progress
from byname.tracing.muted import mute_others


class Evaluation:
    """Snapshots of an analyser during a training, each over the whole of a loader. The training is as without them.

        >>> import torch, byname
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
        >>> units = byname.analyse.DeadUnits()
        >>> handle = byname.observe(model, "1", units)
        >>> evaluation = Evaluation(units, [torch.zeros(4, 2), torch.ones(4, 2)])
        >>> for step in range(3):
        ...     record = evaluation.take(model, step=step)
        >>> [record.step for record in evaluation.records]
        [0, 1, 2]

    From now on the analyser is off but for the passes of `take`, so that no batch of the training is in its figures.
    After a pass everything is as before it: the mode of each module, gradients, ``requires_grad``, buffers, attributes
    of modules, random states (also those of the loader), grad mode and autocast. Recorders and other analysers on the
    model do not observe it; interjections act as always. Each snapshot starts with an empty analyser; a `LinearProbe`
    in evaluation (``probe.eval()``) keeps its weights, and is scored.

    Args:
        analyser: is observed by `byname.observe` on the model, before or after this is made.
        loader: gives the same batches again each time it is iterated: a ``DataLoader`` or a list. It is this rank's
            own. A batch is a tensor, a pair ``(inputs, targets)``, or a dict of keyword arguments, in which class
            numbers ``"labels"``, ``"targets"`` or ``"label"`` are also the targets of the analyser. Each comes as a
            copy on the device of the model.
        prepare: makes of a batch what the model is called with: ``prepare(batch)`` returns the inputs or
            ``(inputs, targets)``; inputs are one argument, a tuple of them, or a dict of keyword arguments. A tuple of
            two is always a pair of inputs and targets. It may also set ``analyser.targets`` itself.
        backward: ``backward(output, batch)`` returns a loss, or has called ``loss.backward()`` itself. Gradients
            of parameters begin at none for each batch. Without it nothing has a gradient.
        mode: ``"eval"`` or ``"train"``, in which the model is put for a pass, or ``"keep"`` for that of each module.
        reduce: whether the figures are those of all ranks together; every rank then has to take the same snapshots.
        progress: whether a bar is shown; by default in a terminal when a pass takes longer than a second.

    Raises:
        BadArgumentError: if `analyser` is not an analyser, or the loader cannot be iterated again.
    """

    def __init__(
        self,
        analyser: Analyser,
        loader: Any,
        *,
        prepare: Callable[[Any], Any] | None = None,
        backward: Callable[[Any, Any], Any] | None = None,
        mode: str = "eval",
        reduce: bool = False,
        progress: bool | None = None,
    ) -> None:
        self.analyser = checked_analyser(analyser)
        if backward is None and (analyser.of_gradients or analyser.listens == {"gradient"}):
            raise BadArgumentError(
                f"{type(analyser).__name__} takes gradients, and a snapshot has none without backward=, a function "
                "such as lambda output, batch: F.cross_entropy(output, batch[1])"
            )
        self._source = BatchSource(loader)
        self._prepare = prepare
        self._backward = backward
        self._mode = checked_choice(mode, "mode", ("eval", "train", "keep"))
        self._reduce = reduce
        self._progress = progress
        self._taken: list[Record] = []
        self._running = False
        analyser.enabled = False

    @property
    def loader(self) -> Any:
        """What gives the batches."""
        return self._source.loader

    @property
    def records(self) -> Records:
        """The snapshots so far."""
        return Records(self._taken, name=f"Evaluation of {type(self.analyser).__name__}")

    def take(
        self,
        model: nn.Module,
        event: str | None = None,
        epoch: int | None = None,
        batch: int | None = None,
        step: int | None = None,
    ) -> Record:
        """Take a snapshot: run the model over the loader, and add a record of the figures.

        Args:
            model: the model that is run. Of a model wrapped for several processes the inner one runs, without any
                communication; compiled models run eagerly.
            event: what happened, in a word.
            epoch: when it is; only written down, as are the next two.
            batch: the number of the batch.
            step: the number of the training step.

        Raises:
            BadArgumentError: if the analyser is not observed on this model, the loader gives no batch, or the pass
                changes parameters.
        """
        sharded = "_fsdp_wrapped_module" in unwrap_module(model)[1]  # whose inside has no parameters of its own
        root = model if sharded else unwrapped(model)
        observations = observations_on(root, self.analyser)
        if self._running:
            raise BadArgumentError("this evaluation is already taking a snapshot")
        result = self._result(root, observations, "snapshot" if step is None else f"snapshot at step {step}")
        figures = on_tensors(result, lambda tensor: tensor.detach().cpu())  # where there is room for many snapshots
        record = Record(event, epoch, batch, step, Results(figures, name=result.name, notes=result.notes))
        self._taken.append(record)
        return record

    def during(
        self,
        model: nn.Module,
        schedule: Schedule | None = None,
        *,
        start: bool = True,
        every: int | None = None,
        at: tuple[int, ...] = (),
        end: bool = True,
        epoch: int | None = None,
    ) -> Snapshots:
        """Take snapshots while a loop trains a model and calls ``snapshots.step()`` after each step.

            >>> import torch, byname
            >>> model = torch.nn.Linear(2, 2)
            >>> features = byname.analyse.FeatureStatistics()
            >>> handle = byname.observe(model, "forward", features)
            >>> evaluation = byname.analyse.Evaluation(features, [torch.ones(4, 2)])
            >>> with evaluation.during(model, every=2) as snapshots:
            ...     for _ in range(5):  # here the model is trained
            ...         record = snapshots.step()
            >>> [(record.event, record.step) for record in evaluation.records]
            [('start', 0), ('batch', 2), ('batch', 4), ('end', 5)]

        Args:
            model: the model.
            schedule: when; in place of the four keywords.
            start: whether there is a snapshot before the first step; see `Schedule`, as for the next three.
            every: the number of steps between two.
            at: after these numbers of steps.
            end: whether there is one when the training ends.
            epoch: written into the records; ``snapshots.epoch`` can be set to another.
        """
        return Snapshots(self, model, schedule or Schedule(start, every, tuple(at), end), epoch)

    def _result(self, model: nn.Module, observations: tuple[Switched, ...], words: str) -> Results:
        """Return the figures of one pass. Signals wait during setup and cleanup."""
        stack = ExitStack()
        try:
            with defer_signals():
                self._running = True
                stack.callback(setattr, self, "_running", False)
                before = stack.enter_context(
                    preserved(model, self._source.generators(), backward=self._backward is not None)
                )
                stack.enter_context(self._switched_on())
                stack.enter_context(mute_others(*observations))
                stack.enter_context(torch.inference_mode(False))
                stack.enter_context(torch.set_grad_enabled(self._backward is not None))
                if self._mode != "keep":
                    model.train(self._mode == "train")
            self._pass(model, before, words)
            before.check()
            return (self.analyser.reduce() if self._reduce else self.analyser).result()
        finally:
            try:
                with defer_signals():
                    stack.close()
            finally:
                stack.close()  # for an interrupt that came before signals waited

    def _pass(self, model: nn.Module, before: Preserved, words: str) -> None:
        device = next((one.device for one in (*model.parameters(), *model.buffers())), None)
        count = 0
        for batch in with_progress(self._source, words, wanted=self._progress):
            self._run(model, moved(batch, device, copy=True), device, before)
            count += 1
        if not count and not self._reduce:
            raise BadArgumentError(
                f"the {type(self._source.loader).__name__} gave no batch, and a snapshot needs one. A loader must "
                "give its batches again each time it is iterated"
            )

    def _run(self, model: nn.Module, batch: Any, device: torch.device | None, before: Preserved) -> None:
        if not isinstance(self.analyser.targets, str):
            self.analyser.targets = None  # those of another batch would be wrong
        own = None if self._prepare is None else moved(self._prepare(batch), device, copy=False)
        inputs = inputs_of(batch) if self._prepare is None else prepared(own)
        if inputs.targets is not None and not isinstance(self.analyser.targets, str):
            self.analyser.targets = inputs.targets
        if self._backward is None:
            inputs.run(model)
            return
        before.clear_gradients()
        loss = self._backward(inputs.run(model), batch)
        if isinstance(loss, Tensor) and loss.requires_grad:
            with preserving_gradients(loss):
                loss.backward()  # type: ignore[no-untyped-call]

    @contextmanager
    def _switched_on(self) -> Iterator[None]:
        targets = self.analyser.targets
        try:
            self.analyser.restart()
            self.analyser.enabled = True
            yield
        finally:
            self.analyser.enabled = False
            if not isinstance(targets, str):
                self.analyser.targets = targets
            self.analyser.restart()  # its data may be large

    def __repr__(self) -> str:
        return str(self.records)


class Snapshots:
    """A training loop that snapshots are taken of; made by `Evaluation.during`.

    Attributes:
        schedule: when.
        epoch: written into the records.
        steps: how many steps are done.
    """

    def __init__(self, evaluation: Evaluation, model: nn.Module, schedule: Schedule, epoch: int | None = None) -> None:
        self.schedule = schedule
        self.epoch = epoch
        self.steps = 0
        self._evaluation = evaluation
        self._model = weakref.ref(model)  # not every trainer calls back when the training fails
        self._over = False
        self._latest: object = None

    def step(self, *, batch: int | None = None) -> Record | None:
        """Count a step, with the number of the batch in its epoch; return the record of a snapshot that was due."""
        self.steps += 1
        event = self.schedule.due(self.steps)
        return None if event is None else self.take(event, batch)

    def take(self, event: str, batch: int | None = None) -> Record:
        """Take a snapshot now, whether one is due or not."""
        model = self._model()
        if model is None:
            raise BadArgumentError("the model of these snapshots no longer exists")
        record = self._evaluation.take(model, event, self.epoch, batch, self.steps)
        if self.schedule.end:
            self._latest = state_of(model, self.steps)
        return record

    def __enter__(self) -> Self:
        self._over = False
        if self.schedule.start:
            self.take("start")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        model = self._model()
        seen = self._over or model is None or self._latest == state_of(model, self.steps)
        if kind is None and self.schedule.end and not seen:
            self.take("end")
        self._over = True


def observations_on(model: nn.Module, analyser: Analyser) -> tuple[Switched, ...]:
    """Return the observations of an analyser, all of them: a model may run another observed one."""
    modules = {id(one) for one in model.modules()}
    observed = [one.model for one in analyser.observations if one.model is not None]
    if any(id(one) in modules or any(part is model for part in one.modules()) for one in observed):
        return analyser.observations
    name = type(analyser).__name__
    kinds = " and another ".join(dict.fromkeys(type(one).__name__ for one in observed))
    where = f"it observes another {kinds}" if observed else "it observes no model, or was removed"
    raise BadArgumentError(
        f"there is nothing to take a snapshot of: the {name} does not observe this {type(model).__name__}, {where}. "
        "Call byname.observe(model, where, analyser) first, and keep it until the training is over"
    )
