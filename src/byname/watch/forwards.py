"""Forwards: follow when forwards of a model begin and end; each outermost forward is an iteration."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from byname.watch.attachment import Attachment
from byname.watch.handle import Handle
from byname.watch.hooks import AFTER, ALWAYS, BEFORE, Hook, Hooks
from byname.watch.parameters import States


def watch_forwards(
    model: nn.Module,
    begun: Callable[[int], object],
    ended: Callable[[], object],
    *,
    well: Callable[[], None] | None = None,
    follow: Callable[[], bool] = bool,
) -> Handle:
    """Return a handle that, once enabled, has functions called when outermost forwards of a model begin and end.

    Compiled functions stay compiled. Hooks of later attachments run after these hooks.

        >>> import torch
        >>> model = torch.nn.Linear(2, 3)
        >>> handle = watch_forwards(model, lambda number: print("forward", number), lambda: print("ended"))
        >>> handle.enabled = True
        >>> _ = model(torch.ones(1, 2))
        forward 0
        ended

    The model is the module itself, without wrappers, and `begun` is called with the number of the forward. For the
    other functions see `Iterations`.
    """
    attachment = Attachment(model, do_nothing, reads=True)
    attachment.begun = begun
    iterations = Iterations(attachment, States(attachment), do_nothing, well or do_nothing, ended, follow)
    first, last = Hooks(attachment), Hooks(attachment)
    iterations.begin_with(first)
    iterations.end_with(last)
    return Handle([attachment, first, last, iterations], attachment.paths, attachment.notes)


def do_nothing(*_: object) -> None:
    """Do nothing; stands for a callback that nobody gave."""


@dataclass(eq=False)
class Iterations:
    """Calls functions when an outermost forward of a model begins and ends.

    Attributes:
        reset: called when an outermost forward begins, and again when it has ended; no call is open at either time.
        well: called when an outermost forward ended without an error, and all hooks were installed from its beginning
            to its end. It may raise.
        ended: called last after each outermost forward, also after one that raised.
        follow: called first; returns whether it has installed the hooks again.
    """

    attachment: Attachment
    states: States
    reset: Callable[[], None]
    well: Callable[[], None]
    ended: Callable[[], object] = do_nothing
    follow: Callable[[], bool] = bool
    _time = 0
    _whole = False

    def install(self) -> None:
        """Begin to report. All hook sets are installed, so forwards that begin from now on are reported completely."""
        self._time += 1
        self._whole = True

    def remove(self) -> None:
        """Note that a forward that is still running is reported only in part."""
        self._whole = False

    def begin_with(self, hooks: Hooks) -> None:
        """Register the hook that must run before all others of the attachment."""
        hooks.call(BEFORE, self.attachment.model, self._begin)

    def end_with(self, hooks: Hooks) -> None:
        """Register the hooks that must run after all others of the attachment."""
        hooks.call(AFTER, self.attachment.model, self._well)
        hooks.call(ALWAYS, self.attachment.model, self._end)

    def _begin(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if self.attachment.active and self.attachment.enter():
            first = RemovableHandle.next_id
            again = self.follow()
            if again:
                self.install()
            if self.attachment.begun is not None:
                self.attachment.begun(self.attachment.iteration)
            here = self.attachment.thread.state
            here.succeeded = False
            here.whole = self._time if self._whole else -1
            self.reset()
            self.states.begin()
            return self._catch_up(first, module, args, kwargs) if again else None
        return None

    def _catch_up(self, first: int, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Run the other hooks before this forward from key `first` on: PyTorch has begun with those of before."""
        for key, hook in [*module._forward_pre_hooks.items()]:
            if key >= first and isinstance(hook, Hook) and hook.function != self._begin:
                args, kwargs = hook(module, args, kwargs) or (args, kwargs)
        return args, kwargs

    def _well(self, *_: Any) -> None:
        here = self.attachment.thread.state
        here.succeeded = here.depth == 1 or here.succeeded

    def _end(self, *_: Any) -> None:
        outermost = self.attachment.leave()
        if outermost:
            self.reset()  # calls may be open: another thread may have removed hooks once it knew which are needed
            self.states.put_back()
            here = self.attachment.thread.state
            if not here.succeeded:
                self.attachment.annotate_error(sys.exception())
            else:
                here.succeeded = False
                self.states.end()
                if self._whole and here.whole == self._time:  # otherwise a thread installed or removed it
                    self.well()
            self.ended()
