"""How is a linear classifier learnt from batches that pass, one step each?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from byname.analyse.analysers.scores import added, no_scores
from byname.analyse.statistics.statistic import Statistic
from byname.errors import BadArgumentError

__all__ = ["LinearClassifier", "Loss", "MakeOptimizer", "optimizer_of"]

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
MakeOptimizer: TypeAlias = Callable[[list[Tensor]], torch.optim.Optimizer]


class LinearClassifier(Statistic):
    """What a probe keeps of a place: a linear layer, its optimizer's state, and how well it did in the latest pass.

    The layer stands on standardised features, by the moments of all rows it was trained on so far. A step takes the
    moments of its batch in first; nothing but a step changes them.

    Attributes:
        weight: of standardised features, ``(classes, features)``; None before the first step.
        bias: ``(classes,)``.
        steps: how many steps were made.
        scored: what the scores are of, ``"held out"`` or ``"progressive"``.
        scores: sums over what was scored in the latest pass; see `scores.py`.
    """

    SETTINGS = ("classes", "standardise")
    STATE = (
        *("weight", "bias", "steps", "scored", "scores"),
        *("_rows", "_mean", "_squares", "_optimizer_state", "note"),
    )

    def __init__(self, *, classes: int | None = None, standardise: bool = True, nan: str = "omit") -> None:
        super().__init__(nan=nan)
        self.classes = classes
        self.standardise = standardise
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None
        self.steps = 0
        self.scored = "progressive"
        self.scores: dict[str, Any] = no_scores()
        self.latest: object = None
        """The pass of which the scores are; not kept in a state."""
        self._rows = 0
        self._mean: Tensor | None = None
        self._squares: Tensor | None = None
        self._optimizer: torch.optim.Optimizer | None = None  # made of weight and bias as they are, or anew
        self._optimizer_state: dict[int, Any] | None = None

    def _add(self, samples: Tensor, weights: Tensor | None) -> None:
        raise BadArgumentError("a classifier is given samples together with their classes: LinearProbe does that")

    def result(self) -> tuple[Tensor, Tensor]:
        """Weight ``(classes, features)`` and bias ``(classes,)`` in terms of the features as they came, in float64."""
        if self.weight is None or self.bias is None or self._mean is None:
            raise BadArgumentError("nothing was added yet")
        weight = self.weight.detach().double() * self._scale()
        return weight, self.bias.detach().double() - weight @ self._mean

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` gave, in place of what is here."""
        with torch.inference_mode(False):  # an optimizer changes its state in place
            super().load_state_dict(state)

    def wanted(self, targets: Tensor) -> int:
        """How many classes there are with these targets."""
        known = self.classes or (0 if self.weight is None else len(self.weight))
        return max(known, int(targets.max()) + 1)

    def logits(self, rows: Tensor, classes: int) -> Tensor:
        """What the classifier says of rows of features; 0 for a class that it does not know yet."""
        if self.weight is None or self.bias is None:
            return torch.zeros(len(rows), classes, dtype=_precision(rows), device=rows.device)
        known = torch.addmm(self.bias, self._standardised(rows), self.weight.T)
        return torch.nn.functional.pad(known, (0, classes - known.shape[1])).detach()

    def learn(self, rows: Tensor, targets: Tensor, loss: Loss, make: MakeOptimizer) -> None:
        """One step of the optimizer on a batch; the rows are finite, and at least one."""
        self._grow(rows, self.wanted(targets))
        optimizer = self._optimizer = self._made(make)
        self._follow(rows)
        features = self._standardised(rows)
        weight, bias = self._parameters()

        def closure() -> Tensor:
            # Hooks on saved tensors are the user's, or a checkpoint's that would run its region again here.
            with torch.enable_grad(), saved_tensors_hooks(_same, _same):
                found = loss(torch.addmm(bias, features, weight.T), targets)
                weight.grad, bias.grad = torch.autograd.grad(found, (weight, bias))
            return found.detach()

        optimizer.step(closure)  # type: ignore[arg-type]  # said to give a float; all take a tensor
        weight.grad = bias.grad = None
        self._optimizer_state = optimizer.state_dict()["state"]
        self.steps += 1

    def _made(self, make: MakeOptimizer) -> torch.optim.Optimizer:
        """The optimizer of weight and bias, which is made anew where these were loaded, moved or have grown."""
        if self._optimizer is not None and self._optimizer.param_groups[0]["params"][0] is self.weight:
            return self._optimizer
        self.weight, self.bias = (parameter.detach().clone().requires_grad_() for parameter in self._parameters())
        optimizer = optimizer_of([self.weight, self.bias], make)
        if self._optimizer_state:
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": self._optimizer_state, "param_groups": groups})
        return optimizer

    def _parameters(self) -> tuple[Tensor, Tensor]:
        assert self.weight is not None
        assert self.bias is not None
        return self.weight, self.bias

    def _grow(self, rows: Tensor, classes: int) -> None:
        """Makes room for more classes: their weights, and what the optimizer knows of them, are 0."""
        if self.weight is None:
            width, place = rows.shape[1], rows.device
            self.weight = torch.zeros(classes, width, dtype=_precision(rows), device=place)
            self.bias = torch.zeros(classes, dtype=_precision(rows), device=place)
            self._mean = torch.zeros(width, dtype=torch.float64, device=place)
            self._squares = torch.zeros(width, dtype=torch.float64, device=place)
        elif classes > len(self.weight):
            weight, bias = self._parameters()
            self._optimizer_state = _grown({0: weight, 1: bias}, self._optimizer_state, classes)
            self.weight, self.bias = (_padded(parameter.detach(), classes) for parameter in (weight, bias))

    def _follow(self, rows: Tensor) -> None:
        """Takes in the moments of rows (Chan et al. 1983)."""
        if not self.standardise:
            return
        assert self._mean is not None
        assert self._squares is not None
        variance, mean = torch.var_mean(rows.double(), 0, correction=0)
        total = self._rows + len(rows)
        delta = mean - self._mean
        shift = delta * (len(rows) / total)
        self._squares = self._squares + variance * len(rows) + delta * shift * self._rows
        self._mean = self._mean + shift
        self._rows = total

    def _scale(self) -> Tensor:
        """One over the standard deviation, 1 for a feature that is constant but for rounding."""
        assert self._mean is not None
        assert self._squares is not None
        deviation = (self._squares / max(self._rows, 1)).sqrt()
        return torch.where(deviation > 1e-7 * self._mean.abs(), 1 / deviation, 1.0)

    def _standardised(self, rows: Tensor) -> Tensor:
        assert self._mean is not None
        assert self.weight is not None
        return ((rows.double() - self._mean) * self._scale()).to(self.weight.dtype)

    def _merge(self, other: LinearClassifier) -> None:
        if self.weight is None:
            self.load_state_dict(other.state_dict())
            self.count = self.nans = 0  # which are added next
            return
        if other.weight is None:
            return
        if not self._says_the_same(other):
            raise BadArgumentError(
                "probes that were trained apart cannot be merged: train one, give its state_dict() to the others, "
                "call eval() on each, and merge what they scored"
            )
        if self.scored != "held out" or other.scored != "held out":
            raise BadArgumentError("only what was scored after eval() can be merged, not the progress of a training")
        self.scores = added(self.scores, other.scores)

    def _says_the_same(self, other: LinearClassifier) -> bool:
        mine, others = self.result(), other.result()
        return all(
            one.shape == two.shape and torch.equal(one, two.to(one.device))
            for one, two in zip(mine, others, strict=True)
        )


def optimizer_of(parameters: list[Tensor], make: MakeOptimizer) -> torch.optim.Optimizer:
    """An optimizer of these parameters and no others."""
    optimizer = make(parameters)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise BadArgumentError(
            f"optimizer makes an optimizer of the parameters that it is given, such as "
            f"lambda parameters: torch.optim.SGD(parameters, lr=0.1), not {type(optimizer).__name__}"
        )
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if [*map(id, held)] != [*map(id, parameters)]:
        raise BadArgumentError("the optimizer of a probe is one of the parameters that it is given, and no others")
    return optimizer


def _precision(rows: Tensor) -> torch.dtype:
    return torch.float64 if rows.dtype is torch.float64 else torch.float32


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _padded(tensor: Tensor, classes: int) -> Tensor:
    return torch.cat([tensor, tensor.new_zeros(classes - len(tensor), *tensor.shape[1:])])


def _grown(parameters: dict[int, Tensor], state: dict[int, Any] | None, classes: int) -> dict[int, Any] | None:
    """The state of an optimizer for more classes; None, so that it starts anew, where it is not one value a weight."""
    grown: dict[int, Any] = {}
    for number, of_parameter in (state or {}).items():
        shape = parameters[number].shape
        for name, value in of_parameter.items():
            if isinstance(value, Tensor) and value.shape == shape:
                value = _padded(value, classes)
            elif isinstance(value, list) or (isinstance(value, Tensor) and value.ndim):
                return None
            grown.setdefault(number, {})[name] = value
    return grown
