"""Undo: entering and leaving a block completely, whatever error or interrupt comes in between.

An error, or an interrupt that a signal raises in the main thread, can stop Python at any place. So code first notes the
step that undoes an action, and then acts. Each step can be repeated, and none is dropped before it has finished: a
caller that was stopped calls the function again, which does the steps that are left.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import NoneType
from typing import Any, TypeVar

from byname.reading.interrupts import defer_signals, raise_first

T = TypeVar("T")
Step = Callable[[], object]


class Undo:
    """Steps that undo actions, run latest first. Signals wait while the steps run.

    Each step is tried, even if another one raises; the first error is raised after all were tried. Steps that raised
    are left for the next call. A call with no steps left does nothing.

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
        self._running_call: Callable[[], object] = NoneType  # which returns None: no call is under way

    def add(self, step: Callable[..., object], *args: Any) -> None:
        """Note the step ``step(*args)`` that undoes the next action.

        It must also work if the action was not done, or only in part, and again if it was stopped.
        """
        self._steps.append(partial(step, *args) if args else step)

    def register(self, register: Callable[..., Any], *args: Any) -> None:
        """Call ``register(*args)``, which adds a hook, and note the ``remove()`` of its handle as a step."""
        handles: list[Any] = []
        self.add(lambda: [handle.remove() for handle in handles])
        handles.append(register(*args))

    def __len__(self) -> int:
        return len(self._steps)

    def __call__(self) -> None:
        if not self._steps or self._running_call() is not None:  # called again by one of its steps
            return
        this_call, waiting = _CallToken(), self._steps[::-1]
        errors: list[BaseException] = []
        try:
            try:
                self._running_call = weakref.ref(this_call)  # weak, since an interrupt may stop even the last line here
                with defer_signals():
                    self._do(waiting, errors)
                    raise_first(errors)
            finally:
                self._do(waiting, errors)  # the steps that an interrupt has left untried
        finally:
            self._running_call = NoneType
            errors.clear()  # otherwise the errors and this frame keep each other alive

    def _do(self, waiting: list[Step], errors: list[BaseException]) -> None:
        while waiting:
            step = waiting[0]
            try:
                step()
                self._forget(step)
            except BaseException as error:  # noqa: BLE001 - of any kind; raised after the other steps
                errors.append(error)
            del waiting[:1]

    def _forget(self, step: Step) -> None:
        if self._steps and self._steps[-1] is step:
            self._steps.pop()
        else:  # steps after it have raised, or were added meanwhile
            self._steps = [one for one in self._steps if one is not step]


class _CallToken:
    """A call of an `Undo` that has not finished."""

    __slots__ = ("__weakref__",)


def weak_callback(method: Callable[..., T]) -> Callable[..., T | None]:
    """Return a function that calls a method, or does nothing once its object was freed.

    PyTorch keeps some hooks where the garbage collector cannot see them, and others for the whole process.
    """
    held = weakref.WeakMethod(method)

    def call(*args: Any) -> T | None:
        method = held()
        return None if method is None else method(*args)

    return call


class Shared:
    """A change of the whole process, in place while anything holds it.

    Its lock is reentrant, since the collector may free a holder at any moment.

    Args:
        install: puts it in place. Called for the first holder, also after a removal that was stopped half-way.
        remove: takes it off. Called after the last holder, also if it is in place only in part, or not at all.

    >>> light = Shared(lambda: print("on"), lambda: print("off"))
    >>> light.hold("kitchen")
    on
    >>> light.hold("hall")
    >>> light.release("kitchen")
    >>> light.release("hall")
    off
    """

    def __init__(self, install: Callable[[], object], remove: Callable[[], object]) -> None:
        self.lock = threading.RLock()
        self._install, self._remove = install, remove
        self._holders: dict[int, Any] = {}

    @property
    def holders(self) -> list[Any]:
        """The tokens of the holders, the oldest first."""
        return [*self._holders.copy().values()]  # another thread may add one at any moment

    def hold(self, token: object) -> None:
        """Keep it in place until `release` is called with this very object; if this raises, the token holds nothing."""
        with self.lock:
            try:
                self._holders[id(token)] = token
                if len(self._holders) == 1:
                    self._install()
            except BaseException:
                self.release(token)
                raise

    def release(self, token: object) -> None:
        """End a `hold`. A second call does nothing, unless the first was stopped."""
        with self.lock:
            self._holders.pop(id(token), None)
            if not self._holders:
                self._remove()


class Patch:
    """A wrapper, made by `make` from the present value, in the place of an attribute of a module or a class."""

    def __init__(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        self._owner, self._name, self._make = owner, name, make
        self._original: Any = None
        self._ours: Any = None

    def install(self) -> None:
        """Put the wrapper in place, unless it is there."""
        original = vars(self._owner).get(self._name)
        if original is not self._ours:
            self._original, self._ours = original, self._make(original)
            setattr(self._owner, self._name, self._ours)

    def remove(self) -> None:
        """Restore the original, unless other code has replaced the wrapper since, and forget both."""
        self.hide()
        self._original = self._ours = None

    def hide(self) -> None:
        """Restore the original until `show`, unless other code has replaced the wrapper since."""
        self._replace(self._ours, self._original)

    def show(self) -> None:
        """Put the wrapper back, unless it was removed or other code has replaced the original since."""
        self._replace(self._original, self._ours)

    def _replace(self, there: Any, wanted: Any) -> None:
        if wanted is not None and vars(self._owner).get(self._name) is there:
            setattr(self._owner, self._name, wanted)


@dataclass(eq=False, slots=True)
class _Block:
    thread: int = field(default_factory=threading.get_ident)
    undo: Undo = field(default_factory=Undo)
    leaving: bool = False


class Blocks:
    """The entered blocks of a context that can be entered several times, also by several threads."""

    def __init__(self) -> None:
        self._entered: list[_Block] = []

    def enter(self, begin: Callable[[Undo], T]) -> T:
        """Enter a block by ``begin(undo)`` and return its result; if this raises, the block is left again.

        `begin` notes the step that undoes each action before the action.
        """
        block = _Block()
        try:
            with defer_signals():
                self._entered.append(block)
                return begin(block.undo)
        except BaseException:
            self._leave(block)
            raise

    def last(self) -> tuple[_Block, ...]:
        """Return the block that this thread entered last, or else any thread, and the blocks that are half left.

        A thread that closes a generator leaves a block that another thread may have entered.
        """
        here = threading.get_ident()
        begun = [block for block in self._entered if block.leaving]
        entered = [block for block in self._entered if not block.leaving]
        mine = [block for block in entered if block.thread == here]
        return (*(mine or ([] if begun else entered))[-1:], *begun)

    def leave(self, blocks: tuple[_Block, ...] | None = None) -> None:
        """Leave some blocks, or `last`, completely; blocks that were left already are skipped.

        A caller that an interrupt stops calls this again with the same blocks, since a signal may arrive before this
        function has begun.
        """
        errors: list[BaseException] = []
        for block in self.last() if blocks is None else blocks:
            try:
                self._leave(block)
            except BaseException as error:  # noqa: BLE001 - raised after all blocks were left
                errors.append(error)
        raise_first(errors)

    def _leave(self, block: _Block) -> None:
        block.leaving = True
        block.undo()
        self._entered = [one for one in self._entered if one is not block]
