"""What is an analyser given when a value passes a place?"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor, nn

from byname.model.feature_dims import Surroundings


@dataclass(frozen=True, slots=True)
class Sample:
    """A value, or the gradient of one, at an observed place.

    Attributes:
        path: the place, without wildcards.
        module: the module called, or the one that owns the value.
        value: the tensor, detached, not a copy: it may change when the analyser has returned. Samples are along
            dimension 0, unless it is a parameter.
        gradient: whether it is the gradient of the value, not the value.
        parameter: whether the place is a parameter, or its ``.grad``.
        targets: what the samples are of, where the analyser was told.
        observation: which `byname.observe` it comes from, a number.
        iteration: the number of the forward.
        output: whether it is the output of `module`, an item of it, or the gradient of that.
        around: the modules that tell which dimension of the value are its features.
    """

    path: str
    module: nn.Module
    value: Tensor
    gradient: bool
    parameter: bool
    targets: Tensor | None
    observation: int
    iteration: int
    output: bool = False
    around: Surroundings | None = None

    def only(self, chosen: Tensor) -> Sample:
        """The samples that a mask of bools, of shape ``(len(value),)``, chooses."""
        targets = None if self.targets is None else self.targets[chosen.to(self.targets.device)]
        return replace(self, value=self.value[chosen.to(self.value.device)], targets=targets)
