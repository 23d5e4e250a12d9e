"""Step modes: whether the modules that an optimizer trains are in training mode in its steps."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from byname.reading.modules import own_parameters
from byname.reading.objects import attributes_of
from byname.reading.tensor import fact
from byname.source.location import Site
from byname.tracking.log import logs


@dataclass(eq=False)
class StepModes:
    """The modules that ran before the first step of an optimizer, and their modes in its steps."""

    modal: str = ""  # the classes of those that had to be in training mode then, in words
    evaluating: int = 0  # the steps in which all of these were in evaluation mode
    put: Site | None = None  # the line that last put one of them into it
    modules: list[weakref.ref[nn.Module]] = field(default_factory=list)
    _owners: list[weakref.ref[nn.Module]] = field(default_factory=list)  # of parameters; alike in both modes

    def find_modules(self, keys: frozenset[int]) -> None:
        """Find the modules that have run, if those with the parameters of these ids are in training mode."""
        mine = [log for log in logs() if log.of_this_thread()]
        ran = [one for log in mine for one in log.modules_since_step()]
        every = [one for log in mine for one in log.modules_since_step(ever=True)]  # of a GAN another steps between
        owners = [one for one in every if not keys.isdisjoint(map(id, own_parameters(one)))]
        ran += owners
        modal = [one for one in ran if is_training(one) and has_modes(one)]
        if modal and any(map(is_training, owners)):
            self.modules = [*map(weakref.ref, modal)]
            self._owners = [weakref.ref(one) for one in owners if not has_modes(one)]
            self.modal = " and ".join(sorted({type(one).__name__ for one in modal}))

    def note_step(self) -> None:
        over = not self.modules or any((one := known()) is None or is_training(one) for known in self.modules)
        around = [one for known in self._owners if (one := known()) is not None and not over]
        trained = [one for one in around if any(fact(its, "requires_grad") for its in own_parameters(one))]
        self.evaluating += not over and (not self._owners or not all(map(is_training, trained)))


def has_modes(module: nn.Module) -> bool:
    """Return whether a module computes differently in evaluation: it has a dropout, or is a norm with statistics."""
    own = attributes_of(module)
    if issubclass(type(module), _BatchNorm):
        return own["_buffers"].get("running_mean") is not None
    between = issubclass(type(module), nn.RNNBase) and own["num_layers"] > 1
    drops = between or issubclass(type(module), nn.MultiheadAttention)
    return bool(own.get("p" if issubclass(type(module), _DropoutNd) else "dropout" if drops else "", 0))


def is_training(module: nn.Module) -> bool:
    return bool(attributes_of(module).get("training"))
