"""How is something entered and left whole, whatever is raised on the way? By steps that are noted before they are due.

Two things stop Python anywhere: an error, and an interrupt, which the signals of the main thread raise. So what puts
something in place first notes how to take it off, each step can be done again, and none is forgotten before it has come
to its end: who was stopped calls the same function again, which does what is left.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from byname.reading.signals import interrupts_wait

__all__ = ["Blocks", "Undo", "raise_first"]

T = TypeVar("T")
Step = Callable[[], object]


class Undo:
    """The steps that undo what was done, the latest first. Signals wait while they are done.

    Each step is tried, also if another raises; the first error is raised when all were. Those that have raised are left
    for the next call; a call without any left does nothing.

        >>> def stubborn():
        ...     print("not yet")
        ...     raise OSError
        >>> undo = Undo()
        >>> undo.add(print, "first")
        >>> undo.add(stubborn)
        >>> undo.add(print, "last")
        >>> try:
        ...     undo()
        ... except OSError:
        ...     print(len(undo), "left")
        last
        not yet
        first
        1 left
    """

    def __init__(self) -> None:
        self._steps: list[Step] = []
        self._under_way: Callable[[], object] = _nothing

    def add(self, step: Callable[..., object], *args: Any) -> None:
        """Notes how to undo what is about to be done.

        Args:
            step: can be called also if it was not done, or in part, and again where it was stopped.
            args: what it is called with.
        """
        self._steps.append(_Step(step, args))

    def register(self, register: Callable[..., Any], *args: Any) -> None:
        """Registers something, such as a hook, which is taken off by the ``remove`` of the handle that is returned."""
        handles: list[Any] = []
        self.add(_remove_all, handles)
        handles.append(register(*args))

    def __len__(self) -> int:
        return len(self._steps)

    def __call__(self) -> None:
        """Does the steps that are left."""
        if self._under_way() is not None:  # one of the steps, or what it calls, asks for it
            return
        this_call, waiting = _Call(), self._steps[::-1]
        errors: list[BaseException] = []
        try:
            try:
                self._under_way = weakref.ref(this_call)  # weakly, for what may stop even the last line here
                with interrupts_wait():
                    self._do(waiting, errors)
                    raise_first(errors)
            finally:
                self._do(waiting, errors)  # those that an interrupt from elsewhere has kept from being tried
        finally:
            self._under_way = _nothing
            errors.clear()  # else they would hold this frame, and it them

    def _do(self, waiting: list[Step], errors: list[BaseException]) -> None:
        while waiting:
            step = waiting[0]
            try:
                step()
                self._forget(step)
            except BaseException as error:  # noqa: BLE001 - whatever it is; raised when the others are done
                errors.append(error)
            del waiting[:1]

    def _forget(self, step: Step) -> None:
        self._steps = [one for one in self._steps if one is not step]


class _Call:
    """A call of an `Undo` that has not come to its end."""

    __slots__ = ("__weakref__",)


def _nothing() -> None:
    """No call is under way."""


class _Step:
    """A step with what it is called with."""

    __slots__ = ("_args", "_function")

    def __init__(self, function: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._function = function
        self._args = args

    def __call__(self) -> object:
        return self._function(*self._args)


class _Block:
    """One block that was entered.

    Attributes:
        thread: the identifier of the thread that entered it.
        undo: leaves it.
        leaving: whether that has begun.
    """

    __slots__ = ("leaving", "thread", "undo")

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.undo = Undo()
        self.leaving = False


class Blocks:
    """The blocks of a context that can be entered several times, also by several threads."""

    def __init__(self) -> None:
        self._entered: list[_Block] = []

    def enter(self, begin: Callable[[Undo], T]) -> T:
        """Enters a block; nothing of it is left where this raises.

        Args:
            begin: does it, and notes each step that undoes it before the step is due.

        Returns:
            What `begin` has returned.
        """
        block = _Block()
        try:
            with interrupts_wait():
                self._entered.append(block)
                return begin(block.undo)
        except BaseException:
            self._leave(block)
            raise

    def leave(self) -> None:
        """Leaves the block that was entered last, in this thread if there is one: a generator can be closed by another.

        Blocks that could not be left to their end are so now. Without any block it does nothing.
        """
        here = threading.get_ident()
        with interrupts_wait():
            begun = [block for block in self._entered if block.leaving]
            entered = [block for block in self._entered if not block.leaving]
            mine = [block for block in entered if block.thread == here]
            errors: list[BaseException] = []
            for block in [*(mine or ([] if begun else entered))[-1:], *begun]:
                try:
                    self._leave(block)
                except BaseException as error:  # noqa: BLE001 - raised when all were left
                    errors.append(error)
            raise_first(errors)

    def _leave(self, block: _Block) -> None:
        block.leaving = True
        block.undo()
        self._entered = [one for one in self._entered if one is not block]


def _remove_all(handles: Sequence[Any]) -> None:
    for handle in handles:
        handle.remove()


def raise_first(errors: list[BaseException]) -> None:
    """Raises the first of some errors, if there are any, and keeps none."""
    try:
        if errors:
            raise errors[0]
    finally:
        errors.clear()
