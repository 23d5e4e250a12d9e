"""For which way to run a model is one of its graphs? Its arguments, and the flags and modes that it depends on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from byname.rewriting.call_arguments import Arguments
from byname.rewriting.outside import answers_hold

__all__ = ["Variant"]


@dataclass(slots=True, eq=False)
class Variant:
    """One graph, and what it was made for.

    Attributes:
        arguments: the way to call the forward.
        flags: the ``training`` flags on which a decision in the forward depends, by module path.
        graph: with the interjections in it.
        switches: whether it switches the recording of gradients.
        answers: what PyTorch said when it was asked, such as ``is_grad_enabled``.
        run: its code, compiled.
    """

    arguments: Arguments
    flags: Mapping[str, bool]
    graph: fx.Graph
    switches: bool
    answers: Mapping[str, Any] = field(default_factory=dict)
    run: Callable[..., Any] = field(default=lambda: None, repr=False)

    def fits(self, model: nn.Module) -> bool:
        """Whether the training flags of a model, and the modes that PyTorch is in, are those that it was made for."""
        return all(model.get_submodule(path).training == flag for path, flag in self.flags.items()) and answers_hold(
            self.answers
        )

    def __call__(self, model: nn.Module, call: Arguments) -> Any:
        """Runs the graph with the arguments of a call."""
        if not self.switches:
            return self.run(model, *call.values.values())
        with torch.set_grad_enabled(torch.is_grad_enabled()):  # switches back, also after an exception
            return self.run(model, *call.values.values())
