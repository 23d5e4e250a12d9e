"""Open calls: the calls of modules that have begun in one thread and have not ended, the outermost first."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

T = TypeVar("T")


class OpenCalls(list[tuple[nn.Module, T]]):
    """A stack of modules, each with what is noted of its call.

    >>> calls = OpenCalls()
    >>> outer, inner = nn.ReLU(), nn.Tanh()
    >>> calls.append((outer, "first"))
    >>> calls.append((inner, "second"))
    >>> calls.end(outer), calls.end(inner), len(calls)
    ('first', None, 0)
    """

    def end(self, module: nn.Module) -> T | None:
        """Close the innermost call of a module, and those inside it, whose hooks may have been removed meanwhile.

        Returns:
            What was noted of the call; None if no call of the module is open, as when another hook raised before ours.
        """
        if not self or self[-1][0] is not module:
            if all(one is not module for one, _ in self):
                return None
            while self[-1][0] is not module:
                self.pop()
        return self.pop()[1]
