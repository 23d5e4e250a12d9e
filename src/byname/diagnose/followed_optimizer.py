"""Followed optimizer: an optimizer of a running program, with what was so of its parameters in all steps so far."""

from __future__ import annotations

import math
import re
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from byname.diagnose.causes.not_reached import Use
from byname.diagnose.context import FailureContext
from byname.diagnose.finding import Finding
from byname.diagnose.nonfinite.reasons import can_look, is_zero, looking
from byname.naming.name import Name, at
from byname.reading.modules import own_parameters, parameters_of
from byname.reading.objects import attributes_of
from byname.reading.tensor import PLAIN, fact
from byname.source.location import Site
from byname.tracking.log import logs

ENOUGH = 4
"""Steps of an optimizer, or backward calls, of which something is said."""
MOVED, PUT_BACK = "moved", "put back"
"""What became of the values of a parameter: a step changed them; and they were the old ones before the next step."""


class Flat(NamedTuple):
    """An operation whose derivative is 0 everywhere, such as ``round``.

    Attributes:
        operation: its name.
        site: the line that calls it.
        of_one: whether it is a softmax along a dimension with one element, the result of which is always the same.
    """

    operation: str
    site: Site | None
    of_one: bool = False


@dataclass
class FollowedOptimizer:
    """An optimizer that is followed. It and its parameters are held weakly.

    Attributes:
        optimizer: the optimizer.
        kind: the name of its class.
        site: the line of its first step.
        steps: its steps so far.
        without: the parameters without a gradient in every step so far, by ``id``.
        zero: the parameters with gradients, but only zeros whenever their values were read, by ``id``.
        values: for some small parameters what their values were at the first step, by ``id``, if they still are.
        names: the names of these parameters, as they were at an early step.
        keys: the ``id`` of each of its parameters that require grad.
        idle: the last steps in a row in which the learning rate of every group was 0.
        frozen: whether none of its parameters required grad at any step so far.
        backward: the line of the last backward call that reached one of its parameters.
        backwards: those calls, of the ones that were looked at.
        reached: whether there was such a call since the last step.
        cleared: whether gradients were cleared before one of these calls.
        fed: steps with a backward call before them, of those that were looked at, that had reached parameters.
        lost: steps among these at which no parameter had a gradient.
        carried: steps in a row that used the gradients of the step before.
        left: the sums of the gradients that its last step used, if they may be carried on, by ``id``.
        last: the place of the last backward call that reached it, how many steps there were, and a parameter's version.
        wasted: backward calls since the last step whose gradients were cleared before the next call at the same place.
        wasteful: steps in a row with as many of these.
        groups: the ``id`` of its list of groups, which its ``load_state_dict()`` replaces.
        restored: steps before which that list was replaced.
        fates: what steps made of `values`: MOVED, PUT_BACK, or their dtype if nothing and it is small, by ``id``.
        modules: the modules of its first forward that have its parameters, or that had to be in training mode.
        modal: the classes of the latter, in words.
        evaluating: the last steps in a row in which all of these were in evaluation mode.
        use: where some of the parameters without a gradient were used.
        flat: an operation whose derivative is 0 everywhere, in a graph that reaches its parameters.
        cuts: findings about parameters that a recorded call cut off from a loss, with these parameters' ids.
        explained: the parameters without a gradient of which such a finding was told, by ``id``.
        outside: the names of parameters that losses reach and that no optimizer has.
        anew: optimizers in a row, with this one, that make one step each for its parameters.
        over: whether there are no more steps to come.
        heard: whether any backward call was seen in the program.
        fresh: whether a backward call reached its parameters since its last step, as far as calls were looked at.
    """

    optimizer: weakref.ref[Any]
    kind: str
    site: Site | None = None
    steps: int = 0
    without: dict[int, weakref.ref[torch.Tensor]] = field(default_factory=dict)
    zero: dict[int, weakref.ref[torch.Tensor]] = field(default_factory=dict)
    values: dict[int, bytes] = field(default_factory=dict)
    names: dict[int, Name] = field(default_factory=dict)
    keys: frozenset[int] = frozenset()
    idle: int = 0
    frozen: bool = True
    backward: Site | None = None
    backwards: int = 0
    reached: bool = False
    cleared: bool = False
    fed: int = 0
    lost: int = 0
    carried: int = 0
    left: dict[int, float] = field(default_factory=dict)
    last: tuple[Any, ...] = ()
    wasted: int = 0
    wasteful: int = 0
    groups: int = 0
    restored: int = 0
    fates: dict[int, str] = field(default_factory=dict)
    modules: list[weakref.ref[nn.Module]] = field(default_factory=list)
    modal: str = ""
    evaluating: int = 0
    use: Use | None = None
    flat: Flat | None = None
    cuts: list[tuple[Finding, frozenset[int]]] = field(default_factory=list)
    explained: set[int] = field(default_factory=set)
    outside: tuple[Name, ...] = ()
    anew: int = 0
    over: bool = False
    heard: bool = False
    fresh: bool = False

    @property
    def known(self) -> dict[str, Any]:
        """The facts that every sentence about it may mention."""
        return {
            "steps": f"the {self.steps} steps of {self.kind}{at(self.site)}",
            "kind": self.kind,
            "noticed": self.site,
            "backward": self.backward,
            "idle": self.idle,
            "without": self.without_gradient,
            "outside": self.outside,
            "evaluating": self.evaluating,
            "modal": self.modal,
        }

    @property
    def without_gradient(self) -> tuple[Name, ...]:
        """The names of the parameters that had no gradient in any step, without those of which a cut was told."""
        return self.names_of(key for key in self.without if key not in self.explained)

    @property
    def all_without(self) -> bool:
        """Whether none of its parameters ever had a gradient."""
        return len(self.without) == len(self.keys) and bool(self.without_gradient)

    @property
    def some_without(self) -> bool:
        """Whether some of its parameters never had a gradient, and others had."""
        return len(self.without) != len(self.keys) and bool(self.without_gradient)

    @property
    def loses_gradients(self) -> bool:
        """Whether a backward call had made gradients before each step, and none was left."""
        return self.lost == self.fed >= 1

    @property
    def zero_gradient(self) -> tuple[Name, ...]:
        """The names of the parameters whose gradient was 0 whenever it was read.

        They are told if all parameters have such gradients, or weights have, not biases alone: a bias that all outputs
        share has no gradient where a loss compares outputs, as that of a critic does.
        """
        matrices = any(one.dim() > 1 for one in alive(self.zero.values()))
        return self.names_of(self.zero) if matrices or self.zero.keys() == self.keys else ()

    def same_values(self) -> dict[str, tuple[Name, ...]]:
        """Return the names of the parameters that had the same values whenever they were read, by their fate."""
        is_meant = self.restored == self.steps  # the optimizer is put back as well
        kept = {} if is_meant else {key: fate for key, fate in self.fates.items() if key in self.values}
        same = {self.names[key]: fate for key, fate in kept.items() if key in self.names}
        return {fate: tuple([name for name, its in same.items() if its == fate]) for fate in same.values()}

    def parameters(self) -> list[torch.Tensor]:
        """Return its parameters that require grad."""
        optimizer = self.optimizer()
        found = [] if optimizer is None else parameters_of(optimizer)
        return [one for one in found if fact(one, "requires_grad")]

    def name(self, tensors: Iterable[torch.Tensor]) -> None:
        """Note the names of some of its parameters, as long as they and the program's variables are alive."""
        unnamed = [one for one in tensors if id(one) not in self.names][:MOST_NAMED]
        if unnamed:
            names = FailureContext(optimizers=[self.optimizer()]).names(unnamed)
            self.names.update(zip(map(id, unnamed), names, strict=True))

    def names_of(self, keys: Iterable[int]) -> tuple[Name, ...]:
        """Return the names of those parameters that have one."""
        return tuple([self.names[key] for key in keys if key in self.names])

    def all_names(self) -> tuple[Name, ...]:
        """Return the names of its parameters, as far as they are alive."""
        self.name(self.parameters())
        return self.names_of(self.keys)

    @property
    def variable(self) -> Name:
        """The variable by which the program calls its step."""
        found = re.match(r"([\w.\[\]]+)\.step\(", "" if self.site is None else self.site.statement)
        return Name(found[1] if found else f"another {self.kind}", "local", exact=False)

    def _note_modules(self) -> None:
        """Note the modules that ran before its first step, if one of them was in training mode and has another mode."""
        ran = [one for log in logs() if log.of_this_thread() for one in log.modules_since_step()]
        owners = [one for one in ran if not self.keys.isdisjoint(map(id, own_parameters(one)))]
        modal = [one for one in ran if is_training(one) and has_modes(one)]
        if modal and any(map(is_training, owners)):
            self.modules = [weakref.ref(one) for one in [*modal, *owners]]
            self.modal = " and ".join(sorted({type(one).__name__ for one in modal}))

    def note_mode(self) -> None:
        """Note whether all of these modules are in evaluation mode in this step."""
        if self.steps == 1:
            self._note_modules()
        over = not self.modules or any((one := known()) is None or is_training(one) for known in self.modules)
        self.evaluating = 0 if over else self.evaluating + 1


def has_modes(module: nn.Module) -> bool:
    """Return whether a module computes otherwise in evaluation: a dropout, or a norm with statistics of its own."""
    if issubclass(type(module), _BatchNorm):
        return attributes_of(module)["_buffers"].get("running_mean") is not None
    return issubclass(type(module), _DropoutNd) and bool(attributes_of(module)["p"])


def is_training(module: nn.Module) -> bool:
    """Return whether a module is in training mode."""
    return bool(attributes_of(module).get("training"))


MOST_NAMED = 200
"""Parameters that are named at a time, at most."""


def alive(references: Iterable[weakref.ref[torch.Tensor]]) -> Iterator[torch.Tensor]:
    """Return those of some tensors that are still alive."""
    return (tensor for reference in references if (tensor := reference()) is not None)


def has_zero_gradient(parameter: torch.Tensor) -> bool:
    """Return whether a parameter has a gradient of zeros only."""
    gradient = fact(parameter, "grad")
    return gradient is not None and is_zero(gradient)


_WATCHED = 3
"""Parameters of an optimizer whose values are compared."""
_SMALL = 4096
"""Numbers of a parameter that is compared, at most."""


def note_changes(followed: FollowedOptimizer) -> None:
    """Note which of the parameters whose values are compared the step that has ended changed."""
    optimizer = followed.optimizer()
    for group in () if optimizer is None else optimizer.param_groups:
        for one in group["params"]:
            key, now = id(one), bytes_of(one) if id(one) in followed.values else b""
            if now and now != followed.values[key] and followed.fates.get(key) != PUT_BACK:
                followed.fates[key] = MOVED
            elif now and not rate_is_zero(group) and one.dtype.itemsize < 4:  # a bias before a norm has but noise
                followed.fates.setdefault(key, str(fact(one, "dtype")))


def note_put_back(followed: FollowedOptimizer) -> None:
    """Note which of the parameters that the last step changed have the old values again, just before the next step."""
    for one in followed.parameters():
        if followed.fates.get(id(one)) == MOVED and bytes_of(one) == followed.values.get(id(one)):
            followed.fates[id(one)] = PUT_BACK


def rate_is_zero(group: dict[str, Any]) -> bool:
    """Return whether the learning rate of a group of parameters is 0."""
    rate = group.get("lr")
    return type(rate) in (int, float) and rate == 0


def unchanged(followed: FollowedOptimizer) -> dict[int, bytes]:
    """Return the values of some small parameters that have gradients, without those whose values have changed."""
    small = [one for one in followed.parameters() if fact(one, "grad") is not None and one.numel() <= _SMALL]
    if followed.steps > 1:
        small = [one for one in small if id(one) in followed.values]
    some = [one for one in sorted(small, key=torch.numel)[:_WATCHED] if not has_zero_gradient(one)]
    now = {id(one): bytes_of(one) for one in some}
    return {key: value for key, value in now.items() if value and value == followed.values.get(key, value)}


def bytes_of(tensor: torch.Tensor) -> bytes:
    """Return the values of a tensor as bytes; none if they cannot be read."""
    with looking():
        if type(tensor) not in PLAIN or not can_look(tensor):
            return b""
        return tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()


def sum_of(tensor: torch.Tensor) -> float:
    """Return the sum of all numbers of a tensor; NaN if they cannot be read."""
    with looking():
        return float(tensor.double().sum().item()) if can_look(tensor) else math.nan
