"""Active steps: the steps of ``generate``, or the iterations, that an edit holds for."""

from __future__ import annotations

import inspect
import itertools
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import nn

from byname.errors import BadArgumentError, InterjectionError
from byname.reading.frames import runs
from byname.reading.modules import modules_in
from byname.source.tracebacks import walk_frames
from byname.text import printable
from byname.undo import Undo
from byname.watch.forwards import watch_forwards
from byname.watch.hooks import MethodOverride
from byname.watch.requested import Entry


class ActiveSteps:
    """The steps that an edit holds for, as in `byname.patch`, also in `words`, and the one that runs.

    In a call of ``generate`` what runs before the first forward of the model, such as an encoder, belongs to step 0.

    Raises:
        BadArgumentError: `steps` is invalid; or it is ``"prompt"``, and the model has no ``generate``.
    """

    def __init__(self, root: nn.Module, steps: Any) -> None:
        self._wanted = _checked(steps)
        self.words = f"steps={printable(getattr(steps, '__name__', repr(steps))[:60])}"
        self._prompt = type(steps) is str
        self._root = root
        generating = [one for one in modules_in(root) if _generates(one)]
        if self._prompt and not generating:
            raise BadArgumentError(
                f"steps='prompt' is the first forward in a call of generate, but this {type(root).__name__} has no "
                "generate; attach the edit to the model that generates"
            )
        self._generates = [_Generate(one, self) for one in generating]
        # made before the edit is attached, so that they are called before it is
        self._forwards = [
            watch_forwards(one, partial(self._begun, one), partial(self._ended, one))
            for one in (root, *(one for one in generating if one is not root))
        ]
        self._iterations = {True: itertools.count(), False: itertools.count()}
        self._recent: set[bool] = set()
        self._backward = False
        self.thread = _StepOfThread()

    @classmethod
    def of(cls, root: nn.Module, steps: Any) -> ActiveSteps | None:
        """Return the steps that an argument stands for; None for all of them."""
        return cls(root, steps) if steps is not None and not isinstance(steps, ActiveSteps) else steps

    def install(self) -> None:
        for forwards in self._forwards:
            forwards.enabled = True
        for one in self._generates:
            one.install()

    def remove(self) -> None:
        undo = Undo()
        for forwards in self._forwards:
            undo.add(partial(setattr, forwards, "enabled", False))
        for one in self._generates:
            undo.add(one.remove)
        undo()

    def is_active(self, path: str, stamp: object = None) -> bool:
        """Return whether the edit holds for a value that passes now; for a gradient its stamp says so."""
        if type(stamp) is bool:
            return stamp
        if torch._C._current_graph_task_id() != -1:
            return self._in_backward(path)
        thread = self.thread
        holds = thread.calls[-1].holds if thread.calls else thread.holds
        if holds is None and not runs(self._root):
            raise InterjectionError(
                f"`{path}` ran outside of a forward of {type(self._root).__name__}, which steps= counts; attach the "
                "edit to the module that is called, or leave out steps="
            )
        return bool(holds)

    def stamp(self, _: int) -> bool:
        """Return whether the edit holds for the gradient of a value that passes now."""
        return self.is_active("a value whose gradient is edited")

    def _in_backward(self, path: str) -> bool:
        """Return whether the edit holds in a backward: in a checkpoint's second run, for a parameter's gradient."""
        self._backward = True
        if len(self._recent) == 1:
            return next(iter(self._recent))
        raise InterjectionError(
            f"`{path}` is in a backward of several forwards, and steps= applies to some of them: byname cannot tell "
            "which one this is. Run a backward after each forward, or leave out steps="
        )

    def _begun(self, module: nn.Module, _: int) -> None:
        call = self.thread.calls[-1] if self.thread.calls else None
        if call is not None and call.module is module and (number := next(call.forwards)):
            call.holds = self.decide(number, generating=True)
        if module is self._root:
            number = next(self._iterations[module.training])
            if call is None:
                self._refuse_unseen()
                self.thread.holds = self.decide(number)

    def _ended(self, module: nn.Module) -> None:
        if module is self._root:
            self.thread.holds = None

    def decide(self, step: int, *, generating: bool = False) -> bool:
        holds = bool(self._wanted(step)) and (generating or not self._prompt)
        if torch.is_grad_enabled():
            if self._backward:
                self._recent.clear()
            self._recent.add(holds)
            self._backward = False
        return holds

    def _refuse_unseen(self) -> None:
        """Refuse a forward in a call of ``generate`` that is not followed: its steps are not known."""
        for frame in walk_frames(sys._getframe(1)):
            owner = frame.f_locals.get("self") if frame.f_code.co_name == "generate" else None
            if isinstance(owner, nn.Module) and any(one is self._root for one in modules_in(owner)):
                raise InterjectionError(
                    f"steps= does not know which step of generate of {type(owner).__name__} this is: the edit was "
                    f"attached while it ran, or to a part of it, or generate yields. Attach it to the "
                    f"{type(owner).__name__} first; a generate that yields is not supported"
                )


@dataclass(slots=True)
class _Call:
    """A call of ``generate`` of a module: whether the edit holds for its latest step, and the numbers of the next."""

    module: nn.Module | None
    holds: bool
    forwards: Iterator[int] = field(default_factory=itertools.count)


class _StepOfThread(threading.local):
    """The calls of ``generate`` that run in one thread; whether the edit holds for its iteration, None if none runs."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []
        self.holds: bool | None = None


class _Generate(MethodOverride):
    """A replacement for the ``generate`` of one module, which notes each call while it runs."""

    method = "generate"

    def __init__(self, module: nn.Module, steps: ActiveSteps) -> None:
        super().__init__(module)
        self._steps = steps

    def call_replacement(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        calls = self._steps.thread.calls
        depth = len(calls)
        try:
            calls.append(_Call(self._module(), self._steps.decide(0, generating=True)))
            return self.call_original(args, kwargs)
        finally:
            del calls[depth:]


def _checked(steps: Any) -> Callable[[int], Any]:
    """Return the function of a step that an argument stands for."""
    if type(steps) is str and steps == "prompt":
        steps = 0
    numbers = (steps,) if type(steps) is int else steps
    if isinstance(numbers, Sequence) and numbers and all(type(one) is int and one >= 0 for one in numbers):
        return numbers.__contains__
    if callable(steps):
        function: Callable[[int], Any] = steps
        return function
    raise BadArgumentError(
        "steps= takes the number of a step from 0, a range or another sequence of such ints, 'prompt', or a function "
        f"f(step) -> bool, not {steps!r:.60}"
    )


def why_unused(used: Collection[str], limits: str, entry: Entry) -> str:
    """Return why an edit of some calls or steps has changed nothing at places that ran; empty if it has."""
    return "" if any(path in used for path in entry.paths) else f"no value passed there with {limits}"


def _generates(module: nn.Module) -> bool:
    return isinstance(inspect.getattr_static(type(module), "generate", None), FunctionType)
