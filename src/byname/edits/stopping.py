"""Stopping: a signal that ends a forward early, and leaves nothing of it behind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

from torch import nn
from torch.nn.modules import module as calls

from byname.reading.frames import CODE_OF_A_MODULES_CALL
from byname.reading.interrupts import raise_first
from byname.watch.attachment import Event


class Stopped(BaseException):
    """Ends a forward. No error: a program that handles its own errors (``except Exception``) does not catch it.

    Args:
        by: the stopper that has raised it.
    """

    def __init__(self, by: Stopper) -> None:
        super().__init__("byname has ended this forward early, since nothing that comes later is wanted")
        self.by = by


class Stopper:
    """A callback at modules, which ends the forward once each of them has returned.

    Args:
        modules: the modules that own what is wanted.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self.modules = list({id(one): one for one in modules}.values())
        self._left = {id(one) for one in self.modules}

    def __call__(self, event: Event) -> None:
        """A module has returned."""
        self._left.discard(id(event.module))
        if not self._left and not event.recomputed:
            raise Stopped(self)


def finish(stopped: Stopped) -> None:
    """Run the hooks that PyTorch runs after a forward that raised, which it does for errors alone (PyTorch 2.13)."""
    errors: list[BaseException] = []
    for frame in reversed([*_frames(stopped)]):
        if frame.f_code is CODE_OF_A_MODULES_CALL:
            for hook in _always_called(frame.f_locals):
                try:
                    hook()
                except Exception as error:  # noqa: BLE001 - a hook of anybody's; raised after the others have run
                    errors.append(error)
    stopped.__traceback__ = None  # its frames hold the values of the forward
    raise_first(errors)


def _frames(stopped: Stopped) -> Iterator[FrameType]:
    at = stopped.__traceback__
    while at is not None:
        yield at.tb_frame
        at = at.tb_next


def _always_called(call: dict[str, Any]) -> Iterator[Any]:
    """Yield the hooks of a module's call that are left to run, each as a function without arguments."""
    module, args, result = call["self"], call["args"], call.get("result")
    done = call.get("called_always_called_hooks", ())
    for hooks, always in (
        (calls._global_forward_hooks, calls._global_forward_hooks_always_called),
        (module._forward_hooks, module._forward_hooks_always_called),
    ):
        for key, hook in [*hooks.items()]:
            if key in always and key not in done:
                given = (call["kwargs"],) if key in module._forward_hooks_with_kwargs else ()
                yield lambda hook=hook, given=given: hook(module, args, *given, result)
