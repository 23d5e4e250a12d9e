"""Arguments: the models and optimizers that a question is about, as given by the user or as found in the process."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from byname.errors import NotAModuleError, NotAnOptimizerError


def models_of(model: Any) -> list[nn.Module]:
    """Return the modules given as ``model=``: none, one, or a list or tuple of them.

    Raises:
        NotAModuleError: one of them is not an ``nn.Module``.
    """
    given = [] if model is None else list(model) if type(model) in (list, tuple) else [model]
    for one in given:
        if not issubclass(type(one), nn.Module):
            hint = "; did you mean to call it, Model()?" if isinstance(one, type) else ""
            raise NotAModuleError(f"model= expects an nn.Module or a list of them, but got {_said(one)}{hint}")
    return given


def optimizers_of(optimizer: Any) -> list[Any]:
    """Return the optimizers given as ``optimizer=``: none, one, or a list or tuple of them.

    Raises:
        NotAnOptimizerError: one of them has no list of ``param_groups``.
    """
    given = [] if optimizer is None else list(optimizer) if type(optimizer) in (list, tuple) else [optimizer]
    for one in given:
        if isinstance(one, type) or not isinstance(getattr(one, "param_groups", None), list):
            raise NotAnOptimizerError(
                f"optimizer= expects a torch.optim.Optimizer (or an object with param_groups), or a list of them, "
                f"but got {_said(one)}"
            )
    return given


def parameters_of(optimizer: Any) -> list[torch.Tensor]:
    """Return the parameters of all groups of an optimizer."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _said(thing: Any) -> str:
    return f"the class {thing.__name__}" if isinstance(thing, type) else type(thing).__name__
