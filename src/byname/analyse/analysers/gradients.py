"""GradientStatistics: how large and how noisy gradients are, and how far they move the weights."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from byname.analyse.analyser import Analyser
from byname.analyse.keeping import Kept
from byname.analyse.sample import Sample
from byname.analyse.statistics.moments import Mean
from byname.analyse.statistics.statistic import Statistic
from byname.errors import BadArgumentError


class GradientStatistics(Analyser):
    """Mean, variance, norm and noise of gradients, and the size of the updates of weights.

    At a parameter a sample is the gradient of one backward, whatever ``.grad`` holds already. At any other value the
    samples are the gradients of its rows, along dimension 0. A sample that is not finite, as after an overflow in mixed
    precision, is left out of everything, and counted.

        >>> import torch, byname
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 1))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> gradients = byname.analyse.GradientStatistics()
        >>> with byname.observe(model, "0.weight", gradients):
        ...     for scale in (1.0, 3.0, 5.0):
        ...         model(torch.tensor([[scale, 0.0]])).sum().backward()
        ...         optimizer.step()
        ...         optimizer.zero_grad()
        >>> figures = gradients.result()["0.weight"]
        >>> figures["mean"], figures["variance"]
        (tensor([[3., 0.]], dtype=torch.float64), tensor([[4., 0.]], dtype=torch.float64))
        >>> figures["norm"], round(figures["noise_scale"], 3)
        (3.0, 0.444)

    The figures, of n samples g:

    - ``mean``, ``variance``: of each element, the variance with ``n - 1``.
    - ``norm``: the mean of the Euclidean norms of the samples.
    - ``noise_scale``: ``sum(variance) / sum(mean ** 2)``, the simple noise scale of McCandlish et al. 2018 ("An
      Empirical Model of Large-Batch Training"), counted in samples: at a parameter in backwards, so that times the
      batch size it is in examples.
    - ``update_ratio``: the mean over steps of ``norm(w_t - w_(t-1)) / norm(w_(t-1))``, of a parameter, or of all own
      parameters of a module together where the place is its output. A forward before which nothing has changed is no
      step, and neither is one that starts from nothing but zeros. NaN where there was none, or nothing to update.
    - ``nonfinite``: how many samples were left out.
    - ``note``: only where samples have several shapes; elements then have no figures, and there is no noise scale.

    Args:
        unbiased: whether the noise in the mean gradient is taken off in `noise_scale`:
            ``sum(variance) / (sum(mean ** 2) - sum(variance) / n)``, NaN where the noise hides the mean altogether.
    """

    listens = frozenset({"value", "gradient"})
    of_gradients = True

    def __init__(self, *, unbiased: bool = False) -> None:
        super().__init__()
        self.unbiased = unbiased
        self._weights: dict[tuple[int, str], _Weights] = {}

    def settings(self) -> dict[str, Any]:
        """Whether the noise scale is the unbiased one."""
        return {"unbiased": self.unbiased}

    def begin(self, sample: Sample) -> Kept:
        """Nothing yet."""
        return {"gradient": {}, "norm": Mean(), "update": Mean(nan="propagate")}

    def take(self, kept: Any, sample: Sample) -> None:
        """Adds gradients, or follows the weights."""
        stored = sample.path.endswith(".grad")
        if sample.gradient or stored:
            _add(kept, sample)
        if not sample.gradient or stored:
            self._follow(kept, sample)

    def figures(self, kept: Any) -> dict[Any, Any]:
        """The figures of a place."""
        norm, update = kept["norm"], kept["update"]
        found: dict[Any, Any] = {"mean": _NAN, "variance": _NAN, "norm": _NAN, "noise_scale": _NAN}
        shapes = kept["gradient"]
        if norm.count > norm.nans:
            found["norm"] = float(norm.mean())
        if len(shapes) == 1:
            found.update(self._of_elements(*shapes.values()))
        ratio = float(update.mean()) if update.count else _NAN
        note = {"note": f"samples of several shapes, such as {' and '.join(map(str, [*shapes][:2]))}"}
        return {**found, "update_ratio": ratio, "nonfinite": norm.nans, **(note if len(shapes) > 1 else {})}

    def ended(self, observation: int) -> None:
        """The weights are not followed any more, and their copies go."""
        self.settle()
        self._weights = {key: weights for key, weights in self._weights.items() if key[0] != observation}

    def settle(self) -> None:
        """The latest step counts, though no forward has come after it."""
        for weights in self._weights.values():
            weights.settle()

    def reset(self) -> None:
        """Forgets what was seen."""
        super().reset()
        self._weights.clear()

    def _of_elements(self, moments: ElementMoments) -> dict[str, Any]:
        mean, variance = moments.mean(), moments.variance()
        spread, signal = float(variance.sum()), float((mean**2).sum())
        if self.unbiased:
            signal -= spread / moments.count
        return {"mean": mean, "variance": variance, "noise_scale": spread / signal if signal > 0 else _NAN}

    def _follow(self, kept: Any, sample: Sample) -> None:
        parameters = _parameters(sample)
        if not parameters:
            return
        key = (sample.observation, sample.path)
        weights = self._weights.get(key)
        if weights is None:
            weights = self._weights[key] = _Weights(sample)
        weights.step(parameters, sample.iteration)
        weights.tell(kept["update"])

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "_weights": {}})  # of observations, of which it has none

    def __getstate__(self) -> dict[str, Any]:
        self.settle()
        return {**super().__getstate__(), "_weights": {}}


_NAN = float("nan")


class _Weights:
    """Weights as they were at the latest forward; of the model itself nothing is held.

    Attributes:
        told: those that have the latest step: with a statistic for each class, several have.
        listening: those that were there at the latest forward.
    """

    def __init__(self, sample: Sample) -> None:
        self.told: list[Mean] = []
        self.listening: list[Mean] = []
        self._module = weakref.ref(sample.module)
        self._name = _parameter_name(sample)
        self._values: list[Tensor] = []
        self._iteration = -1
        self._ratio: float | None = None

    def step(self, now: list[Tensor], iteration: int) -> None:
        """Sees how far the weights have moved since the forward before, relative to their size, if they have.

        Values are compared, since the version of a tensor does not tell of changes through ``.data``.
        """
        change = self._change(now)
        if change != 0 or iteration != self._iteration:
            self._ratio = None
            self.told.clear()
        if iteration != self._iteration:
            self.listening.clear()
        if change is None:
            self._values = [one.detach().clone() for one in now]
        elif change != 0:
            self._moved(change, now)
        self._iteration = iteration

    def tell(self, update: Mean) -> None:
        """Adds the latest step, if there was one, to what a place keeps; not a second time."""
        if not any(one is update for one in self.listening):
            self.listening.append(update)
        if self._ratio is not None and not any(one is update for one in self.told):
            self.told.append(update)
            update.add(torch.tensor([self._ratio], dtype=torch.float64))

    def settle(self) -> None:
        """Tells of a step that has no forward after it."""
        module = self._module()
        now = [] if module is None else _followed(module, self._name)
        change = self._change(now) if now else None
        if not change:
            return
        self.told.clear()
        self._moved(change, now)
        for update in self.listening:
            self.tell(update)

    def _moved(self, change: float, now: list[Tensor]) -> None:
        size = _norm(self._values)
        self._ratio = change / size if size else None
        for mine, one in zip(self._values, now, strict=True):
            mine.copy_(one)

    def _change(self, now: list[Tensor]) -> float | None:
        """The norm of the change; None where there is nothing to compare with."""
        before = self._values
        if [(one.shape, one.dtype, one.device) for one in now] != [
            (one.shape, one.dtype, one.device) for one in before
        ]:
            return None
        return _norm(now, before)


def _norm(tensors: list[Tensor], others: list[Tensor] | None = None) -> float:
    """The norm of all tensors as one vector, or of their distance from as many others."""
    pairs = zip(tensors) if others is None else zip(tensors, others, strict=True)
    return math.sqrt(sum(float(_square(*pair)) for pair in pairs))


def _square(one: Tensor, other: Tensor | None = None) -> Tensor:
    """The sum of squares of a tensor, or of its distance from another, in float64."""
    total = torch.zeros((), dtype=torch.float64, device=one.device)
    wide, subtracted = _Wide(), _Wide()
    for piece, *less in _pieces(one) if other is None else _pieces(one, other):
        far = wide(piece)
        if less:
            far -= subtracted(less[0])
        total += torch.dot(far.view(-1), far.view(-1))
    return total


_PIECE = 1 << 17
"""Elements that are worked on at a time: as float64 they stay in the cache."""


def _pieces(*tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """The same parts of tensors of one shape, along their first dimension; on a GPU all as one."""
    if tensors[0].numel() <= _PIECE or tensors[0].device.type != "cpu":
        return [tensors]
    if all(one.is_contiguous() for one in tensors):
        tensors = tuple(one.view(-1) for one in tensors)
    step = max(1, _PIECE * len(tensors[0]) // tensors[0].numel())
    return zip(*(torch.split(one, step) for one in tensors), strict=True)


class _Wide:
    """Pieces as float64, each in the memory of the one before: new memory for each would take longer than the work.

    To convert both operands and then subtract is faster, too, than to subtract what is of another dtype.
    """

    def __init__(self) -> None:
        self._room = torch.empty(0, dtype=torch.float64)

    def __call__(self, piece: Tensor) -> Tensor:
        if self._room.numel() < piece.numel() or self._room.device != piece.device:
            self._room = torch.empty(piece.numel(), dtype=torch.float64, device=piece.device)
        return self._room[: piece.numel()].view(piece.shape).copy_(piece)


def _parameters(sample: Sample) -> list[Tensor]:
    """What is updated at a place."""
    if sample.parameter and not sample.path.endswith(".grad"):
        return [sample.value]
    return _followed(sample.module, _parameter_name(sample)) if sample.parameter or sample.output else []


def _parameter_name(sample: Sample) -> str | None:
    """What a module calls the parameter at a place; None where all of its parameters are followed."""
    return sample.path.removesuffix(".grad").rpartition(".")[2] if sample.parameter else None


def _followed(module: nn.Module, name: str | None) -> list[Tensor]:
    """The parameter of that name, or all that a module has of its own."""
    own = module.__dict__.get("_parameters", {})
    found = own.values() if name is None else [own.get(name)]
    return [one.detach() for one in found if one is not None and not nn.parameter.is_lazy(one)]


def _add(kept: Any, sample: Sample) -> None:
    gradient = sample.value.to_dense() if sample.value.layout is not torch.strided else sample.value
    rows = gradient[None] if sample.parameter or not gradient.ndim else gradient
    flat = rows.flatten(1) if rows.ndim > 1 else rows[:, None]
    alone = len(flat) == 1
    norms = _square(rows[0]).sqrt()[None] if alone else torch.linalg.vector_norm(flat, dim=1, dtype=torch.float64)
    finite = torch.isfinite(norms)  # as is each element then
    kept["norm"].add(torch.where(finite, norms, _NAN))
    _add_elements(kept["gradient"], rows if bool(finite.all()) else rows[finite])


def _add_elements(shapes: dict[tuple[int, ...], ElementMoments], rows: Tensor) -> None:
    """Adds to the moments of samples of one shape; when there is a second shape, they are given up."""
    shape = tuple(rows.shape[1:])
    if not len(rows):
        return
    if not shapes:
        shapes[shape] = ElementMoments()
    if [*shapes] == [shape]:
        shapes[shape].add(rows)
    elif len(shapes) == 1:
        shapes.update({one: ElementMoments() for one in [*shapes, shape]})


class ElementMoments(Statistic):
    """Mean and variance of each element of finite samples.

    `Variance` does more, with weights and NaN. This keeps but two tensors and goes over them a few times, which counts
    where each sample has the size of a weight and comes alone.
    """

    STATE = ("_mean", "_squares")

    def __init__(self, *, nan: str = "propagate") -> None:
        super().__init__(nan=nan)
        self._mean = self._squares = torch.zeros(0, dtype=torch.float64)

    def mean(self) -> Tensor:
        """The mean of each element."""
        return self._mean.clone()

    def variance(self) -> Tensor:
        """The variance of each element, with ``count - 1``; NaN of a single sample."""
        if self.count < 2:
            return torch.full_like(self._squares, torch.nan)
        return self._squares / (self.count - 1)

    def result(self) -> Tensor:
        """The variance."""
        return self.variance()

    def _add(self, samples: Tensor, weights: Tensor | None) -> None:
        if weights is not None:
            _refuse("takes no weights")
        if not len(samples):
            return
        self._check_shape(samples.shape[1:])
        if not self.count:
            self._mean = torch.zeros_like(samples[0], dtype=torch.float64)
            self._squares = torch.zeros_like(self._mean)
        if len(samples) == 1:
            self._join(samples[0], None, 1)
        else:
            mean = samples.mean(dim=0, dtype=torch.float64)
            self._join(mean, (samples - mean).square_().sum(dim=0), len(samples))

    def _merge(self, other: ElementMoments) -> None:
        self._check_shape(other._mean.shape)
        if not self.count:
            self._mean, self._squares = other._mean.clone(), other._squares.clone()
        else:
            device = self._mean.device
            self._join(other._mean.to(device), other._squares.to(device), other.count)

    def _join(self, mean: Tensor, squares: Tensor | None, count: int) -> None:
        """The update of Chan, Golub and LeVeque 1979; for a single sample that of Welford 1962."""
        whole, wide = self.count + count, _Wide()
        for piece, known, spread in _pieces(mean, self._mean, self._squares):
            distance = wide(piece).sub_(known)
            known.add_(distance, alpha=count / whole)
            spread.addcmul_(distance, distance, value=self.count / whole * count)
        if squares is not None:
            self._squares += squares

    def _check_shape(self, shape: torch.Size) -> None:
        if self.count and shape != self._mean.shape:
            _refuse(f"has samples of shape {tuple(self._mean.shape)}; what is added has {tuple(shape)}")


def _refuse(why: str) -> NoReturn:
    raise BadArgumentError(f"this {why}")
