"""When does a forward of a model begin and end? Following them without looking at any value."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from byname.watch.attachment import Running
from byname.watch.handle import Handle
from byname.watch.hooks import Hooks
from byname.watch.iterations import Iterations
from byname.watch.parameters import States

__all__ = ["follow_forwards"]


def follow_forwards(
    model: nn.Module,
    begun: Callable[[int], object],
    ended: Callable[[], object],
    *,
    enabled: bool = True,
    well: Callable[[], None] | None = None,
) -> Handle:
    """Has the outermost forwards of a model told; compiled functions run compiled as before.

        >>> import torch
        >>> model = torch.nn.Linear(2, 3)
        >>> with follow_forwards(model, begun=lambda number: print("forward", number), ended=lambda: print("ended")):
        ...     _ = model(torch.ones(1, 2))
        forward 0
        ended

    Args:
        model: the module itself, without wrappers.
        begun: is called with the number of each that begins.
        ended: is called after each, also one that raised.
        enabled: whether this is so at once; what is attached to the model later is told of a forward later, too.
        well: is called before `ended` where a forward did not raise and was told of as a whole; what it raises comes
            out of the forward.
    """
    running = Running(model, _nothing, reads=True)
    iterations = Iterations(running, States(running, ()), _nothing, well or _nothing, begun, ended)
    first, last = Hooks(model, running), Hooks(model, running)
    iterations.begin_with(first)
    iterations.end_with(last)
    handle = Handle([running, first, last, iterations], running.paths, running.notes)
    return handle.switched(enabled)


def _nothing(*_: object) -> None:
    """No value is told."""
