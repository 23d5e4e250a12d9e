"""Handle: an object that keeps an attachment to a model, and removes it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from types import TracebackType
from typing import Any, Protocol

from byname.errors import NothingSeenWarning
from byname.reading.interrupts import defer_signals
from byname.source.tracebacks import warn
from byname.table import listed
from byname.text import printable
from byname.undo import Undo
from byname.watch.requested import Notes, PlaceNote, Requested

HOOK_LOCK = threading.RLock()
"""Process-wide: PyTorch numbers hooks by a counter that two threads may read at once. Then one hook would overwrite the
other (PyTorch 2.13)."""


class HookSet(Protocol):
    """A hook set: one way to observe values, such as hooks on modules, rewritten source or a function mode."""

    def install(self) -> None: ...

    def remove(self) -> None:
        """Remove everything, so that the model is as before. It may be partly installed, or removed already."""


class Handle:
    """The handle of an attachment; also a context manager that removes the attachment at the end.

        >>> import torch
        >>> from byname.watch.attach import attach
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
        >>> with attach(model, "0", lambda event: print(event.path, tuple(event.value.shape))):
        ...     _ = model(torch.ones(1, 2))
        0 (1, 3)

    Attributes:
        requested: which of the requested places have reported something.
    """

    def __init__(
        self,
        hook_sets: list[HookSet],
        paths: dict[str, None],
        notes: Notes,
        requested: Requested | None = None,
        kept_when_paused: Collection[HookSet] = (),
        late_notes: Callable[[], Iterable[str]] = tuple,
        forget: Callable[[], object] = tuple,
    ) -> None:
        self._late_notes: Callable[[], Iterable[str]] | None = late_notes
        self._hook_sets = hook_sets
        self._kept_when_paused = kept_when_paused
        self._forget = forget
        self._off = Undo()
        self._paused = False
        self._paths = paths
        self._notes = notes
        self._installed = False
        self._removed = False
        self._failed = False
        self.requested = requested or Requested(None, notes)

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the places, without wildcards. The path of an operation is known once it has run."""
        return tuple(self._paths)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about side effects of observing, and about places that could not be reached.

        A side effect is, for example, a fast path of PyTorch that is not taken meanwhile. The first call searches the
        whole model for some of them.
        """
        if self._late_notes is not None:
            late_notes, self._late_notes = self._late_notes, None
            known = [*self._notes]
            self._notes.clear()  # the dict is kept, since others add to it
            self._notes.update(dict.fromkeys([*late_notes(), *known]))
        return tuple(printable(str(note)) for note in self._notes)

    def note(self, note: str | PlaceNote) -> None:
        """Add a fact or a sentence to the notes, once."""
        self._notes.setdefault(note)

    def add(self, hook_set: HookSet) -> None:
        """Add a hook set that is installed and removed together with the others."""
        with defer_signals(), HOOK_LOCK:
            self._hook_sets.append(hook_set)
            if self._installed:
                self._off.add(hook_set.remove)
                _put_on([hook_set])

    def switched(self, enabled: bool) -> Handle:
        """Set `enabled` and return this handle. An error or interrupt meanwhile removes everything from the model."""
        try:
            self.enabled = enabled
            return self
        except BaseException:
            self.remove()
            raise

    @property
    def removed(self) -> bool:
        """Whether the attachment was removed."""
        return self._removed

    @property
    def enabled(self) -> bool:
        """Whether the attachment is installed. Set to False to uninstall it, so that it costs nothing.

        Set to True to install it again; after `remove` this raises a ``RuntimeError``.
        """
        return self._installed

    @enabled.setter
    def enabled(self, wanted: bool) -> None:
        with defer_signals(), HOOK_LOCK:
            if self._removed and wanted:
                raise RuntimeError("this handle was removed; attach again instead")
            if not (wanted and self._installed):
                self._take_off()  # an interrupt may have left something installed
            if wanted and not self._installed:
                for hook_set in self._hook_sets:
                    self._off.add(hook_set.remove)
                _put_on(self._hook_sets)
                self._installed = True

    @property
    def paused(self) -> bool:
        """Whether new values are not reported, while gradients of reported values still are."""
        return self._paused

    @paused.setter
    def paused(self, wanted: bool) -> None:
        with defer_signals(), HOOK_LOCK:
            if self._installed and wanted != self._paused:
                passing = [hook_set for hook_set in self._hook_sets if hook_set not in self._kept_when_paused]
                self._paused = True
                remove_all(passing)
                if not wanted:
                    _put_on(passing)
                    self._paused = False

    def remove(self) -> None:
        """Remove everything, so that the model is as it was. A second call removes what an error has left.

        Every hook set is removed, even if another one raises or is interrupted. The first error is raised at the end.
        """
        with defer_signals(), HOOK_LOCK:
            enabled = self._installed
            self._removed = True
            try:
                self._take_off()
                self._forget()
            finally:
                self._hook_sets, self._kept_when_paused, self._forget = [], (), tuple  # they hold the model
        if silent := self.requested.end(enabled=enabled, failed=self._failed):
            warn(silent, NothingSeenWarning)

    def remove_silently(self) -> None:
        """Remove everything without a warning, since an error says already what was missing."""
        self.requested.says = False
        self.remove()

    def __enter__(self) -> Handle:
        try:
            return self
        except BaseException:  # an interrupt
            self.remove()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._failed = error is not None
            self.remove()
        except BaseException:
            self.remove()  # an interrupt may have come before the signals waited
            raise

    def __repr__(self) -> str:
        state = "removed" if self._removed else "enabled" if self._installed else "disabled"
        shown = listed(self.paths, 3)
        return printable(f"<{state} at {shown or 'no place yet'}>")

    def _take_off(self) -> None:
        self._installed = self._paused = False
        self._off()


def _put_on(hook_sets: Sequence[HookSet]) -> None:
    """Install hook sets, all of them or none."""
    try:
        for hook_set in hook_sets:
            hook_set.install()
    except BaseException:
        remove_all(hook_sets)
        raise


def remove_all(hook_sets: Iterable[Any]) -> None:
    """Remove hook sets, the latest first, each even if another one raises or is interrupted."""
    undo = Undo()
    for hook_set in hook_sets:
        undo.add(hook_set.remove)
    undo()
