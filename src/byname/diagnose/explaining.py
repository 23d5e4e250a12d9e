"""Explaining: a context that watches every backward within it and adds explanations to autograd's errors."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import TracebackType
from typing import Any, TypeVar

from byname.diagnose.engine import ENGINE, BackwardCall, EndCallback, safely, stamp
from byname.diagnose.explain import explain
from byname.diagnose.finding import Explanation, Finding, Note, explained
from byname.diagnose.nonfinite.watch import FiniteWatch
from byname.diagnose.running_check import RunningCheck
from byname.errors import BadArgumentError
from byname.memory.oom import RESERVE
from byname.reading.modules import models_of, optimizers_of
from byname.reading.objects import attributes_of
from byname.source.tracebacks import error_chain, strip_byname_frames
from byname.tracking.patches import NEW_THREADS
from byname.tracking.tracker import track
from byname.undo import Blocks, Undo

F = TypeVar("F", bound=Callable[..., Any])
_Report = Callable[[Finding], None]


def explaining(*, model: Any = None, optimizer: Any = None) -> Explaining:
    """Explain the errors that autograd raises, as notes on the exceptions themselves.

    The result is a context manager, and a decorator of functions, generators and coroutines. Within it byname records
    source lines as `track` does, also in threads started there, and every backward marks the nodes that it freed. An
    error of autograd gets one note (PEP 678), which a traceback, a notebook and a log show below it; the exception is
    otherwise unchanged. Training computes bit for bit the same results as without it.

    Args:
        model: the model concerned, or a list of them; names are searched there first. May be left out.
        optimizer: the optimizer concerned, or a list of them. May be left out.

    Raises:
        NotAModuleError, NotAnOptimizerError: `model` or `optimizer` is something else.
        BadArgumentError: used as a decorator of an async generator.

    >>> import byname, torch
    >>> weight = torch.ones(3, requires_grad=True)
    >>> try:
    ...     with byname.explaining():
    ...         h = weight.tanh()
    ...         h.sum().backward()
    ...         h.mean().backward()
    ... except RuntimeError as error:
    ...     note = error.__notes__[0]
    >>> print(note.splitlines()[0])  # doctest: +ELLIPSIS
    byname: backward-twice: this backward ... goes through `h`...
    """
    return Explaining(model, optimizer)


class Explaining:
    """The context of `explaining`. An error gets one note, also when contexts are nested or entered more than once."""

    def __init__(
        self,
        model: Any = None,
        optimizer: Any = None,
        *,
        checked: _Report | None = None,  # is given each finding of the checks at the lines that call backward
        non_finite: _Report | None = None,  # and one for each operation that first turns finite numbers into others
    ) -> None:
        self._models, self._optimizers = models_of(model), optimizers_of(optimizer)
        self._checked, self._non_finite = checked, non_finite
        self._finite = None if non_finite is None else FiniteWatch(non_finite)
        given = self._models, self._optimizers, self._finite is not None
        self._check = None if checked is None else RunningCheck(checked, *given)
        self._tracker = track()
        self._tracker.listener = self._check
        self._predicted: list[tuple[Finding, Explanation]] = []
        self._blocks = Blocks()

    def __enter__(self) -> Explaining:
        return self._blocks.enter(self._begin)

    def _begin(self, block: Undo) -> Explaining:
        self._tracker.begin(block)
        block.add(self._tracker.leave_threads)
        thread = self._thread
        block.add(NEW_THREADS.release, thread)
        NEW_THREADS.hold(thread)
        before_backward = self._before_backward
        block.add(ENGINE.release, before_backward)
        ENGINE.hold(before_backward)
        block.add(RESERVE.release, block)
        RESERVE.hold(block)
        if self._finite is not None:
            self._finite.begin(block)
        if self._check is not None:
            self._check.begin(block)
        return self

    def __exit__(
        self, kind: Any, error: BaseException | None, traceback: TracebackType | None, left: Any = None
    ) -> None:
        try:
            left = self._blocks.last()
            if error is not None:
                safely(self._note, error)
            self._blocks.leave(left)
        except BaseException:
            self._blocks.leave(left)  # an interrupt may have come on the way
            raise
        safely(self._report_swallowed, error)
        if error is not None:
            safely(strip_byname_frames, error)

    @contextmanager
    def _thread(self) -> Iterator[None]:
        """Run a thread that was started within this context under the same tracker and watch."""
        with self._tracker.in_thread(), nullcontext() if self._finite is None else self._finite.forward():
            yield

    def _before_backward(self, run: BackwardCall, roots: Sequence[Any], inputs: Sequence[Any]) -> EndCallback:
        """Check a backward call before it runs; return a function that explains its error and marks nodes after it."""
        RESERVE.reserve()
        predicted = None if self._check is None else safely(self._check.before, run, roots)
        done = Undo()
        try:
            if self._finite is not None:
                done.add(safely, self._finite.after_backward)
                safely(self._finite.before_backward, roots)
            self._tracker.resume(done)
        except BaseException:
            done()
            raise

        def ended(error: BaseException | None) -> None:
            try:
                done()
            finally:
                if error is not None:
                    safely(self._note, error)
                for finding in predicted or ():
                    self._report_unless_noted(finding, error)
                stamp(run, roots, inputs, error is not None)

        return ended

    def _report_unless_noted(self, finding: Finding, error: BaseException | None) -> None:
        """Report a finding that predicted an error, or keep it while the note on the error may be shown instead."""
        why = None if error is None else explained(error)
        if why is not None and why.cause == finding.cause:
            self._predicted.append((finding, why))
        elif self._check is not None:
            safely(self._check.report_once, finding)

    def _report_swallowed(self, error: BaseException | None) -> None:
        """Report findings that predicted errors which the program has caught, so that nobody may have seen a note."""
        shown = [explained(one) for one in error_chain(error)] if error is not None else []
        predicted, self._predicted = self._predicted, []
        for finding, why in predicted:
            if self._check is not None and not any(why is one for one in shown):
                self._check.report_once(finding)

    def _note(self, error: BaseException) -> None:
        """Add the explanation to an error that has none yet."""
        if not issubclass(type(error), Exception) or explained(error) is not None:
            return
        if type(attributes_of(error).get("__notes__", [])) is not list:  # the program has put something else there
            return
        try:
            why = explain(error, model=self._models, optimizer=self._optimizers)
        except MemoryError:  # the program has used up what there was
            RESERVE.give_back()
            why = explain(error, model=self._models, optimizer=self._optimizers)
        if why.cause != "unknown":
            BaseException.add_note(error, Note.of(why))

    def __call__(self, function: F) -> F:
        """Return the function with a context like this one around each of its calls.

        Raises:
            BadArgumentError: the function is an async generator.
        """
        options = {"checked": self._checked, "non_finite": self._non_finite}
        return _decorated(functools.partial(Explaining, self._models, self._optimizers, **options), function)


def _resumed_in(context: Explaining, running: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Run each step of a generator in a context, but not the caller's code between two steps."""
    step: Callable[[], Any] = functools.partial(next, running)
    while True:
        try:
            with context:
                item = step()
        except StopIteration as end:
            return end.value
        try:
            step = functools.partial(running.send, (yield item))
        except GeneratorExit:
            with context:
                running.close()
            raise
        except BaseException as thrown:  # noqa: BLE001 - whatever the caller throws in is for the generator
            step = functools.partial(running.throw, thrown)


def _decorated(context: Callable[[], Explaining], function: F) -> F:
    """Return a function, generator or coroutine that runs within a new context on each call."""
    if inspect.isasyncgenfunction(function):
        raise BadArgumentError("explaining() cannot decorate an async generator; use `with byname.explaining():` in it")

    def called(*args: Any, **kwargs: Any) -> Any:
        with context():
            return function(*args, **kwargs)

    def generated(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        return (yield from _resumed_in(context(), function(*args, **kwargs)))

    async def awaited(*args: Any, **kwargs: Any) -> Any:
        with context():
            return await function(*args, **kwargs)

    if inspect.isgeneratorfunction(function):
        return functools.wraps(function)(generated)  # type: ignore[return-value]
    return functools.wraps(function)(awaited if inspect.iscoroutinefunction(function) else called)  # type: ignore[return-value]
