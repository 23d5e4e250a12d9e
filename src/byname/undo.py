"""Undo: entering and leaving something completely, whatever is raised on the way.

Two things stop Python anywhere: an error, and an interrupt, which a signal raises in the main thread. So code that puts
something in place first notes the step that takes it off. Each step can be repeated, and none is forgotten before it
has finished: a caller that was stopped calls the function again, which does the steps that are left.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from byname.reading.interrupts import defer_signals, raise_first

T = TypeVar("T")
Step = Callable[[], object]


class Undo:
    """Steps that undo what was done, run latest first. Signals wait while the steps run.

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
        self._under_way: Callable[[], object] = _nothing

    def add(self, step: Callable[..., object], *args: Any) -> None:
        """Note how to undo an action that is about to be done.

        Args:
            step: a function that can be called even if the action was not done, or only in part, and again if it was
                stopped.
            args: its arguments.
        """
        self._steps.append(partial(step, *args))

    def register(self, register: Callable[..., Any], *args: Any) -> None:
        """Call ``register(*args)``, such as a function that adds a hook, and note how to undo it.

        The function returns a handle; its ``remove`` method is the step that undoes it.
        """
        handles: list[Any] = []
        self.add(_remove_all, handles)
        handles.append(register(*args))

    def __len__(self) -> int:
        return len(self._steps)

    def __call__(self) -> None:
        """Run the steps that are left."""
        if not self._steps or self._under_way() is not None:  # a step, or a function that it calls, called this again
            return
        this_call, waiting = _Call(), self._steps[::-1]
        errors: list[BaseException] = []
        try:
            try:
                self._under_way = weakref.ref(this_call)  # weak, since an interrupt may stop even the last line here
                with defer_signals():
                    self._do(waiting, errors)
                    raise_first(errors)
            finally:
                self._do(waiting, errors)  # the steps that an interrupt kept from being tried
        finally:
            self._under_way = _nothing
            errors.clear()  # otherwise the errors and this frame would keep each other alive

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
        self._steps = [one for one in self._steps if one is not step]


class _Call:
    """A call of an `Undo` that has not finished."""

    __slots__ = ("__weakref__",)


def _nothing() -> None:
    """Return None: no call is under way."""


class Shared:
    """Something of the whole process, in place for as long as anything holds it.

    Args:
        install: puts it in place. Called for the first holder, also if a removal was stopped half-way before.
        remove: takes it off. Called after the last holder, also if it is in place only in part, or not at all.

    Attributes:
        lock: held meanwhile. It can be entered again, since the collector may free a holder at any moment.

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
        """The tokens of those that hold it, in the order in which they came."""
        return [*self._holders.copy().values()]  # another thread may add one at any moment

    def hold(self, token: object) -> None:
        """Keep it in place until `release` is called with this very object; if this raises, nothing is held."""
        with self.lock:
            try:
                self._holders[id(token)] = token
                if len(self._holders) == 1:
                    self._install()
            except BaseException:
                self.release(token)
                raise

    def release(self, token: object) -> None:
        """Hold it no longer. A second call does nothing, unless the first was stopped."""
        with self.lock:
            self._holders.pop(id(token), None)
            if not self._holders:
                self._remove()


class Patch:
    """A wrapper in the place of an attribute of a module or a class.

    Args:
        owner, name: the object and its attribute; where it has none of this name, nothing is replaced.
        make: given what stands there, returns what is to stand there instead.
    """

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
    """A block that was entered.

    Attributes:
        thread: the identifier of the thread that entered it.
        undo: the steps that leave it.
        leaving: whether leaving it has begun.
    """

    thread: int = field(default_factory=threading.get_ident)
    undo: Undo = field(default_factory=Undo)
    leaving: bool = False


class Blocks:
    """The entered blocks of a context that can be entered several times, also by several threads."""

    def __init__(self) -> None:
        self._entered: list[_Block] = []

    def enter(self, begin: Callable[[Undo], T]) -> T:
        """Enter a block; if this raises, nothing of the block is left.

        Args:
            begin: enters the block, and notes the undo step of each action before the action.

        Returns:
            The value that `begin` returned.
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
        """Return the block that was entered last, if possible one that this thread entered, and those half left.

        Another thread may close a generator, and so leave a block that it did not enter.
        """
        here = threading.get_ident()
        begun = [block for block in self._entered if block.leaving]
        entered = [block for block in self._entered if not block.leaving]
        mine = [block for block in entered if block.thread == here]
        return (*(mine or ([] if begun else entered))[-1:], *begun)

    def leave(self, blocks: tuple[_Block, ...] | None = None) -> None:
        """Leave some blocks, or `last`, completely; a block that was left before is left alone.

        A caller that an interrupt stops calls this again with the same blocks, as a signal may arrive before this
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


def _remove_all(handles: Sequence[Any]) -> None:
    for handle in handles:
        handle.remove()
