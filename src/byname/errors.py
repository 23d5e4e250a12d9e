"""What can go wrong in a question put to byname? One family of errors, each saying what to try.

Every error is a ``BynameError`` and also the builtin error that fits, so that code which knows nothing of byname can
catch it.
"""

from __future__ import annotations

__all__ = [
    "BadArgumentError",
    "BynameError",
    "DeadTensorError",
    "NoGraphError",
    "NotAModuleError",
    "NotAnErrorError",
    "NotAnOptimizerError",
    "NotATensorError",
]


class BynameError(Exception):
    """The parent of every error that byname raises on purpose."""


class NotATensorError(BynameError, TypeError):
    """A tensor (or a node, or a sequence of these) was asked for and something else was given."""


class NotAModuleError(BynameError, TypeError):
    """``model=`` was given something that is not an ``nn.Module``."""


class NotAnOptimizerError(BynameError, TypeError):
    """``optimizer=`` was given something that has no parameter groups."""


class NotAnErrorError(BynameError, TypeError):
    """`explain` was given something that is not an exception."""


class BadArgumentError(BynameError, ValueError):
    """An argument has the right type and an impossible value."""


class NoGraphError(BynameError, ValueError):
    """The tensor belongs to no autograd graph; the message says why, as far as it can be known."""


class DeadTensorError(BynameError, ReferenceError):
    """The tensor that a result speaks of is no longer alive."""
