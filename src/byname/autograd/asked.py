"""Which models and optimizers is the question about? What the user gave, refused before anything is looked at."""

from __future__ import annotations

from typing import Any

from torch import nn

from byname.errors import NotAModuleError, NotAnOptimizerError

__all__ = ["models_of", "optimizers_of"]


def models_of(model: Any) -> list[nn.Module]:
    """The modules given as ``model=``: none, one, or a list of them."""
    given = [] if model is None else list(model) if type(model) in (list, tuple) else [model]
    for one in given:
        if not issubclass(type(one), nn.Module):
            hint = "; did you mean to call it, Model()?" if isinstance(one, type) else ""
            raise NotAModuleError(f"model= wants an nn.Module or a list of them, and this is {_said(one)}{hint}")
    return given


def optimizers_of(optimizer: Any) -> list[Any]:
    """The optimizers given as ``optimizer=``: none, one, or a list of them."""
    given = [] if optimizer is None else list(optimizer) if type(optimizer) in (list, tuple) else [optimizer]
    for one in given:
        if isinstance(one, type) or not isinstance(getattr(one, "param_groups", None), list):
            raise NotAnOptimizerError(
                f"optimizer= wants a torch.optim.Optimizer (or something with its param_groups), or a list of them, "
                f"and this is {_said(one)}"
            )
    return given


def _said(thing: Any) -> str:
    return f"a class, {thing.__name__}" if isinstance(thing, type) else f"of type {type(thing).__name__}"
