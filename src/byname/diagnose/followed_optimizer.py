"""Followed optimizer: an optimizer of a running program, and what held for its parameters in every step so far."""

from __future__ import annotations

import ast
import math
import re
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from byname.diagnose.causes.flat import FlatOperation
from byname.diagnose.causes.not_reached import Use, last_use
from byname.diagnose.context import FailureContext, enclosing, node_of
from byname.diagnose.finding import Finding
from byname.diagnose.nonfinite.reasons import can_read, is_zero, reading_values, sum_of
from byname.naming.name import Name, at
from byname.reading.frames import NO_LINE, Line, caller, reported_frame, user_line
from byname.reading.modules import modules_in, own_parameters, parameters_in, parameters_of
from byname.reading.objects import attributes_of, living
from byname.reading.tensor import PLAIN, fact
from byname.source.location import FILE_ORIGIN, LIBRARY, PROGRAM, Site, is_library
from byname.source.tracebacks import walk_frames
from byname.tracking.log import logs
from byname.tracking.lookup import made_last

ENOUGH = 4
"""The fewest steps of an optimizer, or backward calls, for a finding."""
CARRIED = 3
"""Steps in a row that used gradients of the step before, at which that is reported."""
MOST_NAMED = 200
"""Parameters that are named at a time, at most."""
MOVED, PUT_BACK = "moved", "put back"
"""Outcomes of a step for a parameter's values: it changed them; they were the old ones again before the next step."""
_WATCHED, _SMALL, _FAINT_SHARE = 3, 4096, 1e-4
"""Parameters of an optimizer whose values are compared, the numbers of each, at most; the share of a faint rate."""


@dataclass(eq=False)
class FollowedOptimizer:
    """An optimizer that is followed. It and its parameters are held weakly; parameters are known by their ``id``."""

    optimizer: weakref.ref[Any]
    kind: str = field(init=False)  # the name of its class
    keys: frozenset[int] = field(init=False)  # its parameters that require grad
    every_key: frozenset[int] = field(init=False)  # all its parameters, also those that are frozen for a while
    line: Line = NO_LINE  # of its first step
    steps: int = 0
    idle: int = 0  # the last steps in a row in which the learning rate of every group was 0
    rate: float = 0.0  # the largest learning rate of its groups at the last step
    largest_rate: float = 0.0  # and so far
    faint_steps: int = 0  # the steps whose rate was less than a ten-thousandth of the largest so far, and not 0
    frozen: bool = True  # none of its parameters required grad at any step so far
    anew: int = 0  # optimizers in a row, with this one, that make one step each for its parameters
    done: bool = False  # there are no more steps to come
    backward_line: Line = NO_LINE  # of the last backward call that reached one of its parameters
    backwards: int = 0  # these calls, of the ones that were looked at
    backward_steps: int = 0  # the steps before which one of them had been made
    steps_without_grads: int = 0  # the steps among these at which no parameter had a gradient
    has_new_grads: bool = False  # one of them was made since its last step
    has_backward: bool = False  # any backward call was seen in the program
    reached: set[int] = field(default_factory=set)  # the parameters that a backward call reached
    losses: set[bool] = field(default_factory=set)  # whether the losses of these calls were exactly 0
    flat: FlatOperation | None = None  # an operation before these losses whose derivative is 0 everywhere
    scaler: weakref.ref[Any] | None = None  # the ``GradScaler`` by which the last of these losses was multiplied
    without: dict[int, weakref.ref[torch.Tensor]] = field(init=False)  # those without a gradient in every step so far
    use: Use | None = None  # where some of these were used
    optional: set[int] = field(default_factory=set)  # those in a library's module of which others get a gradient
    zero: dict[int, weakref.ref[torch.Tensor]] = field(default_factory=dict)  # whose gradients were 0 whenever read
    still: dict[int, Site | None] = field(default_factory=dict)  # those that were 0 themselves: what gave them values
    names: dict[int, Name] = field(default_factory=dict)  # of some parameters, as they were at an early step
    outside: tuple[Name, ...] = ()  # of parameters that losses reach and that no optimizer has
    waiting: list[tuple[Finding, list[weakref.ref[torch.Tensor]]]] = field(default_factory=list)
    """Findings about parameters that a loss does not reach, for those without a gradient at its next step."""
    cuts: list[tuple[Finding, frozenset[int]]] = field(default_factory=list)
    """Findings about parameters that a recorded call cut off from a loss."""
    explained: set[int] = field(default_factory=set)  # those without a gradient that such a finding reported

    def __post_init__(self) -> None:
        optimizer = self.optimizer()
        self.kind = type(optimizer).__name__
        self.accumulation, self.modes, self.values = Accumulation(), StepModes(), ComparedValues()
        self.without = {id(one): weakref.ref(one) for one in self.parameters()}
        self.keys = frozenset(self.without)
        self.every_key = frozenset(map(id, parameters_of(optimizer)))
        self._matrices = {id(one) for one in self.parameters() if one.dim() > 1}

    @property
    def site(self) -> Site | None:
        return self.line.site

    @property
    def backward(self) -> Site | None:
        return self.backward_line.site

    @property
    def known(self) -> dict[str, Any]:
        return {
            "steps": f"the {self.steps} steps of {self.kind}{at(self.site)}",
            "kind": self.kind,
            "noticed": self.site,
            "backward": self.backward,
            "idle": self.idle,
            "without": self.without_gradient,
            "outside": self.outside,
            "evaluating": self.modes.evaluating,
            "modal": self.modes.modal,
            "put": self.modes.put,
        }

    @property
    def without_gradient(self) -> tuple[Name, ...]:
        """The names of the parameters that had no gradient in any step, but not those in a finding about a cut.

        Nor, where others learn, those that a backward reaches: a program that clears their gradients freezes them. Nor
        those of a library's module that the program uses in part, such as a pooler.
        """
        frozen = self.reached | self.optional if len(self.without) < len(self.keys) else set()
        return self.names_of(key for key in self.without if key not in self.explained | frozen)

    @property
    def all_without(self) -> bool:
        """Whether none of its parameters ever had a gradient."""
        return len(self.without) == len(self.keys) and bool(self.without_gradient)

    @property
    def loses_gradients(self) -> bool:
        """Whether a backward call had made gradients before each step, and none was left."""
        return self.steps_without_grads == self.backward_steps >= 1

    @property
    def is_sampled_step(self) -> bool:
        """Whether values are read at this step: at steps 1, 2, 4, 8 and so on."""
        return self.steps & (self.steps - 1) == 0

    @property
    def zero_gradient(self) -> tuple[Name, ...]:
        """The names of the parameters whose gradient was 0 whenever it was read.

        Biases alone are not reported: a bias that all outputs share has no gradient where a loss compares outputs, as
        that of a critic does. Nor are recurrent weights alone: in the first step they multiply 0, and the last output
        has one step of the reverse direction.
        """
        matrices = self._matrices & self.zero.keys()  # they may be gone when the program ends
        recurrent = all(".weight_hh" in f".{name.path}" for name in self.names_of(matrices))
        return self.names_of(self.zero) if not recurrent or self.zero.keys() == self.keys else ()

    def same_values(self) -> dict[str, tuple[Name, ...]]:
        """Return the names of the parameters that had the same values whenever they were read, by outcome."""
        is_meant = self.values.restored == self.steps  # the optimizer is put back as well
        kept = {} if is_meant else self.values.outcomes
        same = {self.names[key]: outcome for key, outcome in kept.items() if key in self.names}
        return {outcome: tuple([name for name, its in same.items() if its == outcome]) for outcome in same.values()}

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
        return tuple([self.names[key] for key in keys if key in self.names])

    def all_names(self) -> tuple[Name, ...]:
        """Return the names of its parameters in their order, as far as they are alive."""
        parameters = self.parameters()
        self.name(parameters)
        return self.names_of(map(id, parameters))

    @property
    def variable(self) -> Name:
        """The variable by which the program calls its step."""
        found = re.match(r"([\w.\[\]]+)\.step\(", "" if self.site is None else self.site.statement)
        return Name(found[1] if found else f"another {self.kind}", "local", exact=False)

    def note_backward(self, line: Line, mine: list[torch.Tensor], made: int) -> None:
        """Note a backward call that reaches some of its parameters."""
        self.accumulation.note_backward(line, mine, made)
        self.backward_line, self.has_new_grads = line, True
        self.backwards += 1
        self.reached.update(map(id, mine))
        if not self.steps and self.backwards == ENOUGH:
            self.name(mine)

    def note_step(self, groups: list[dict[str, Any]]) -> None:
        """Note what its next step is about to use. Callers hold `DisableTorchFunction`."""
        is_reached = self.accumulation.is_reached
        if self.values.outcomes and self.is_sampled_step:
            self.values.note_put_back(self.parameters())
        self.steps += 1
        if self.steps == 1:
            self.line = user_line(reported_frame(caller()))
            self.modes.find_modules(self.keys)
        self.backward_steps += is_reached
        self.frozen = self.frozen and not self.parameters()
        self.idle = self.idle + 1 if all(map(rate_is_zero, groups)) else 0
        self.rate = largest_rate(groups)
        self.largest_rate = max(self.largest_rate, self.rate)
        self.faint_steps += 0 < self.rate < _FAINT_SHARE * self.largest_rate
        if self.without:
            self._note_gradients(is_reached)
        if self.is_sampled_step:
            zeros = {id(one) for one in alive(self.zero.values()) if has_zero_gradient(one)}
            self.zero = {key: reference for key, reference in self.zero.items() if key in zeros}
            self.values.note_step(self.parameters(), is_first=self.steps == 1)
        self.values.note_groups(groups)
        self.accumulation.note_step(self.parameters, is_first=self.steps == 1)
        self.modes.note_step()
        if self.steps == ENOUGH:
            self.name(alive([*self.without.values(), *self.zero.values()]))
            still = [one for one in alive(self.zero.values()) if one.dim() > 1 and is_zero(one)]
            self.still = {id(one): made_last(one) for one in still}
            self.use = last_use(list(alive(self.without.values())))
            self.optional = _in_library_modules(self.without.keys(), self.keys) if self.without else set()
            self.name(one for one in self.parameters() if id(one) in self.values.first)

    def note_changes(self) -> None:
        """Note which of the parameters whose values are compared the step that has ended changed.

        Those that have a gradient now, and had none before it, may have it from a closure.
        """
        self.without = {id(one): weakref.ref(one) for one in alive(self.without.values()) if fact(one, "grad") is None}
        optimizer = self.optimizer() if self.is_sampled_step else None
        self.values.note_changes([] if optimizer is None else optimizer.param_groups)

    def _note_gradients(self, is_reached: bool) -> None:
        """Note which parameters have a gradient now that had none in any step before."""
        still = {id(one) for one in self.parameters() if fact(one, "grad") is None}
        graded = [key for key in self.without if key not in still]
        for key in graded:
            self.zero[key] = self.without.pop(key)
        self.steps_without_grads += not graded and not self.zero and is_reached


@dataclass(eq=False)
class Accumulation:
    """Backward calls between the steps of an optimizer, and the gradients that these leave."""

    carried: int = 0  # steps in a row that used the gradients of the step before
    wasted: int = 0  # calls since the last step whose gradients were cleared before the next call at the same place
    wasteful: int = 0  # steps in a row with as many of these
    added: int = 0  # calls in a row that added to gradients in closures of steps, which clear none
    is_reached: bool = False  # a backward call has reached a parameter since the last step
    _cleared: bool = False
    _left: dict[int, float] = field(default_factory=dict)  # sums of the gradients that may be used on, as they were
    _last: tuple[Any, ...] = ()  # place of the last backward call, the steps and a parameter's version then

    def note_backward(self, line: Line, mine: list[torch.Tensor], made: int) -> None:
        """Note a backward call that reaches some parameters, and whether their gradients were cleared before."""
        graded = [one for one in mine if fact(one, "grad") is not None]
        cleared = not graded or has_zero_gradient(min(graded, key=torch.numel))  # then the next one adds to nothing
        now = (*line.place, made, id(mine[0]), fact(mine[0], "_version"))
        inside = torch._C._current_graph_task_id() != -1  # that of a reentrant checkpoint
        self.added = self.added + 1 if not cleared and _is_in_closure(line) else 0
        self.wasted += cleared and self.is_reached and self._last == now and not inside
        kept = [one for one in mine if id(one) in self._left] if not self.is_reached else []
        changed = any(sum_of(fact(one, "grad")) != self._left[id(one)] for one in kept)
        self._cleared = self._cleared or cleared or changed
        self.is_reached, self._last = True, now

    def note_step(self, parameters: Callable[[], list[torch.Tensor]], *, is_first: bool) -> None:
        again = not is_first and self.is_reached and not self._cleared
        self.carried = self.carried + 1 if again else 0
        carrying = parameters() if again and self.carried < CARRIED else []
        self._left = {id(one): sum_of(grad) for one in carrying if (grad := fact(one, "grad")) is not None}
        self.wasteful = self.wasteful + 1 if self.wasted else 0
        self.is_reached = self._cleared = False


@dataclass(eq=False)
class ComparedValues:
    """The values of some small parameters of an optimizer, before and after its steps."""

    first: dict[int, bytes] = field(default_factory=dict)  # at the first step, if they are the same whenever read
    outcomes: dict[int, str] = field(default_factory=dict)  # MOVED, PUT_BACK, or the dtype of those that stay
    restored: int = 0  # the steps before which `load_state_dict` had replaced the list of groups
    _groups: int = 0

    def note_groups(self, groups: list[dict[str, Any]]) -> None:
        self.restored, self._groups = self.restored + (self._groups != id(groups)), id(groups)

    def note_put_back(self, parameters: list[torch.Tensor]) -> None:
        """Note which parameters that the last step changed have the old values again, just before the next step."""
        for one in parameters:
            if self.outcomes.get(id(one)) == MOVED and bytes_of(one) == self.first.get(id(one)):
                self.outcomes[id(one)] = PUT_BACK

    def note_step(self, parameters: list[torch.Tensor], *, is_first: bool) -> None:
        """Read some small parameters that have gradients, and drop those whose values have changed."""
        small = [one for one in parameters if fact(one, "grad") is not None and one.numel() <= _SMALL]
        small = [one for one in small if is_first or id(one) in self.first]
        some = [one for one in sorted(small, key=torch.numel)[:_WATCHED] if not has_zero_gradient(one)]
        now = {id(one): bytes_of(one) for one in some}
        self.first = {key: value for key, value in now.items() if value and value == self.first.get(key, value)}
        self.outcomes = {key: outcome for key, outcome in self.outcomes.items() if key in self.first}

    def note_changes(self, groups: list[dict[str, Any]]) -> None:
        """Note which of the parameters the step that has ended changed."""
        for group in groups if self.first else ():
            for one in group["params"]:
                key, now = id(one), bytes_of(one) if id(one) in self.first else b""
                if now and now != self.first[key] and self.outcomes.get(key) != PUT_BACK:
                    self.outcomes[key] = MOVED
                elif now and not rate_is_zero(group) and one.dtype.itemsize < 4:  # a bias before a norm has but noise
                    self.outcomes.setdefault(key, str(fact(one, "dtype")))


def _is_in_closure(line: Line) -> bool:
    """Return whether LBFGS makes a step, and calls no loop, and nothing that clears gradients, by its names."""
    is_loop = isinstance(enclosing(node_of(line), ast.For, ast.While, ast.FunctionDef), ast.For | ast.While)
    codes = [frame.f_code for frame in walk_frames(sys._getframe(1))]
    ends = [at for at, one in enumerate(codes) if one.co_filename.endswith("lbfgs.py")]
    called = [" ".join(one.co_names) for one in codes[: ends[0]] if not is_library(one.co_filename)] if ends else []
    return bool(called) and not is_loop and not any(re.search(r"zero|clear|reset|\bgrad\b", one) for one in called)


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


def alive(references: Iterable[weakref.ref[torch.Tensor]]) -> Iterator[torch.Tensor]:
    return (tensor for reference in references if (tensor := reference()) is not None)


def has_zero_gradient(parameter: torch.Tensor) -> bool:
    gradient = fact(parameter, "grad")
    return gradient is not None and is_zero(gradient)


def largest_rate(groups: Iterable[dict[str, Any]]) -> float:
    """Return the largest learning rate of some groups."""
    rates: list[Any] = [group.get("lr") for group in groups]
    return max([float(one) for one in rates if type(one) in (int, float)], default=0.0)


def rate_is_zero(group: dict[str, Any]) -> bool:
    rate = group.get("lr")
    return type(rate) in (int, float) and rate == 0


def _in_library_modules(without: Iterable[int], keys: frozenset[int]) -> set[int]:
    """Return the parameters without a gradient in libraries' modules of which others have one; all ids are of `keys`.

    A module of the program inside makes a library's module a wrapper, which is used as a whole.
    """
    found: set[int] = set()
    for module in [one for one in living(nn.Module) if _origin_of(type(one)) == LIBRARY]:
        mine = keys.intersection(map(id, parameters_in(module)))
        lacking = mine.intersection(without)
        if lacking < mine and all(_origin_of(type(one)) != PROGRAM for one in modules_in(module)):
            found |= lacking
    return found


def _origin_of(kind: type) -> int:
    return FILE_ORIGIN[getattr(sys.modules.get(kind.__module__), "__file__", None) or ""]


def bytes_of(tensor: torch.Tensor) -> bytes:
    """Return the values of a tensor as bytes; none if they cannot be read."""
    with reading_values():
        if type(tensor) not in PLAIN or not can_read(tensor):
            return b""
        return tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()


class SingleSteps:
    """Optimizers in a row that make one step each for the same parameters, as one that is made in each iteration."""

    def __init__(self) -> None:
        self._known: dict[frozenset[int], tuple[int, Sequence[weakref.ref[torch.Tensor]], float]] = {}

    def note(self, followed: FollowedOptimizer, optimizer: Any) -> None:
        """Note a step; none counts that begins with the values of the one before, as where a model is adapted."""
        followed.anew = 0
        if followed.steps > 1:
            self._known.pop(followed.keys, None)
        elif followed.keys and _keeps_state(optimizer):
            known = {keys: one for keys, one in self._known.items() if len([*alive(one[1])]) == len(one[1])}
            every = followed.parameters()
            now, (before, _, then) = sum_of(every[0]), known.get(followed.keys, (0, (), math.nan))
            followed.anew = 0 if now == then else before + 1
            self._known = {**known, followed.keys: (followed.anew, [weakref.ref(one) for one in every], now)}


def _keeps_state(optimizer: Any) -> bool:
    """Return whether the steps of an optimizer are known to depend on earlier gradients."""
    if issubclass(type(optimizer), torch.optim.SGD):
        return any(group.get("momentum") for group in optimizer.param_groups)
    return issubclass(type(optimizer), _WITH_STATE)


_WITH_STATE = (
    *(torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam),
    *(torch.optim.RMSprop, torch.optim.Adadelta, torch.optim.Adagrad),
)
