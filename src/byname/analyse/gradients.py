"""GradientStatistics: how large and how noisy gradients are, and how far they move the weights."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from byname.analyse.analyser import Analyser, Sample
from byname.analyse.moments import Mean, Variance
from byname.analyse.power_sums import distance_and_norm, most_of
from byname.analyse.statistic import computing
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

    KEEPS: ClassVar[dict[str, Any]] = {"gradient": dict, "norm": Mean, "update": partial(Mean, nan="propagate")}
    listens = frozenset({"value", "gradient"})
    of_gradients = True
    SETTINGS = ("unbiased",)

    def __init__(self, *, unbiased: bool = False) -> None:
        super().__init__()
        self.unbiased = unbiased
        self._forget()

    def _forget(self) -> None:
        self._weights: dict[tuple[int, str], _Weights] = {}
        self._numbers: dict[int, tuple[Mean, list[float]]] = {}  # that a mean will be given together
        self._gradients: dict[int, tuple[Any, Tensor]] = {}  # small ones of a forward, by what is kept of their places
        self._used: dict[int, tuple[Any, Tensor]] = {}  # memory for the next ones: new memory takes as long as the sums
        self._moves: dict[int, tuple[_Weights, list[Tensor], Mean]] = {}
        self._forward = (-1, -1)

    def take(self, kept: Any, sample: Sample) -> None:
        """Add gradients, or follow the weights; small ones together, when the next forward comes."""
        if sample.value.is_complex():
            raise BadArgumentError(f"`{sample.path}` is complex: observe its real part, or torch.view_as_real of it")
        if self._forward != (sample.observation, sample.iteration):
            self._take_together()
            self._forward = (sample.observation, sample.iteration)
        stored = sample.path.endswith(".grad")
        if sample.gradient or stored:
            self._add(kept, sample)
        if not sample.gradient or stored:
            self._follow(kept, sample)

    def figures(self, kept: Any) -> dict[Any, Any]:
        """Return the figures of a place."""
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
        """Follow the weights no more, and free their copies."""
        self.settle()
        self._weights = {key: weights for key, weights in self._weights.items() if key[0] != observation}

    def settle(self) -> None:
        """Count the latest step, though no forward has come after it."""
        self._take_together()
        for weights in self._weights.values():
            for update in weights.settle():
                self._pass_on(weights, update)
        for mean, numbers in self._numbers.values():
            mean.add(torch.tensor(numbers, dtype=torch.float64, device="cpu"))
        self._numbers.clear()

    def reset(self) -> None:
        """Forget what was seen."""
        super().reset()
        self._forget()

    def _of_elements(self, moments: Variance) -> dict[str, Any]:
        mean, variance = moments.mean(), moments.variance()
        spread, signal = float(variance.sum()), float((mean**2).sum())
        if self.unbiased:
            signal -= spread / moments.count
        return {"mean": mean, "variance": variance, "noise_scale": spread / signal if signal > 0 else _NAN}

    def _add(self, kept: Any, sample: Sample) -> None:
        gradient = sample.value.to_dense() if sample.value.layout is not torch.strided else sample.value
        if sample.parameter and gradient.numel() <= most_of(gradient):
            if id(kept) in self._gradients:
                self._take_together()
            _, memory = self._used.pop(id(kept), (None, None))
            fits = memory is not None and (memory.shape, memory.device) == (gradient.shape, gradient.device)
            copy = memory.copy_(gradient) if memory is not None and fits else gradient.to(torch.float64, copy=True)
            self._gradients[id(kept)] = kept, copy
            return
        rows = gradient[None] if sample.parameter or not gradient.ndim else gradient
        finite = self._note_norms(kept, _norms_of_rows(rows))  # and each element then
        rows = rows if all(finite) else rows[finite]
        for moments in _of_shape(kept["gradient"], rows.shape[1:]) if len(rows) else ():
            moments.add_finite(rows)

    def _note_norms(self, kept: Any, norms: list[float]) -> list[bool]:
        """Note the norms of samples; return which are finite."""
        finite = [*map(math.isfinite, norms)]
        self._await(kept["norm"], [norm if good else _NAN for norm, good in zip(norms, finite, strict=True)])
        return finite

    def _follow(self, kept: Any, sample: Sample) -> None:
        now = _parameters(sample)
        if not now:
            return
        key = (sample.observation, sample.path)
        weights = self._weights.get(key)
        if weights is None:
            weights = self._weights[key] = _Weights(sample)
        if sum(one.numel() for one in now) <= most_of(now[0]):
            if id(weights) in self._moves:
                self._take_together()
            self._moves[id(weights)] = weights, weights.copied(now), kept["update"]
        else:
            weights.see(now, sample.iteration)
            self._pass_on(weights, kept["update"])

    def _await(self, mean: Mean, numbers: Iterable[float]) -> None:
        """Give some numbers to a mean later, many at a time: that takes as long as to give it one."""
        _, waiting = self._numbers.setdefault(id(mean), (mean, []))
        waiting.extend(numbers)
        if len(waiting) >= _AT_ONCE:
            mean.add(torch.tensor(waiting, dtype=torch.float64, device="cpu"))
            del self._numbers[id(mean)]

    def _pass_on(self, weights: _Weights, update: Mean) -> None:
        """Give the latest step of weights to a mean, if there was one; not a second time."""
        if not any(one is update for one in weights.following):
            weights.following.append(update)
            if weights.ratio is not None:
                self._await(update, [weights.ratio])

    def _take_together(self) -> None:
        """Take small gradients and weights: one call of PyTorch for all of them takes little longer than for one."""
        gradients, moves = [*self._gradients.values()], [*self._moves.values()]
        self._used, self._gradients, self._moves = self._gradients, {}, {}
        with computing():
            chosen = []
            for (kept, gradient), norm in zip(gradients, _norms([one for _, one in gradients]), strict=True):
                if all(self._note_norms(kept, [norm])):
                    chosen += [(moments, gradient) for moments in _of_shape(kept["gradient"], gradient.shape)]
            Variance.add_each(chosen)
            sizes = iter(_norms([one for _, now, _ in moves for one in now]))
            before = [one for weights, _, _ in moves for one in weights.values]
            if before:
                torch._foreach_sub_(before, [one for weights, now, _ in moves if weights.values for one in now])
            changes = iter(_norms(before))
        for weights, now, update in moves:
            change = math.hypot(*islice(changes, len(now))) if weights.values else None
            weights.step(change, math.hypot(*islice(sizes, len(now))), self._forward[1])
            weights.values, weights.used = now, weights.values
            self._pass_on(weights, update)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._forget()  # data about observations, and it has none

    def __getstate__(self) -> dict[str, Any]:
        hidden = ("_weights", "_numbers", "_gradients", "_used", "_moves", "_forward")
        return {name: value for name, value in super().__getstate__().items() if name not in hidden}


_NAN = float("nan")
_AT_ONCE = 256
"""Numbers that wait for a mean at most."""


class _Weights:
    """Weights as they were at the latest forward; of the model itself nothing is held.

    Attributes:
        values: small ones in float64.
        used: memory for the next ones.
        ratio: the size of the latest step, relative to that of the weights; None if there was none.
        following: the means that know it: with a statistic for each class several do.
    """

    def __init__(self, sample: Sample) -> None:
        self.values: list[Tensor] = []
        self.used: list[Tensor] = []
        self.ratio: float | None = None
        self.following: list[Mean] = []
        self._module = weakref.ref(sample.module)
        self._name = _parameter_name(sample)
        self._kinds: list[Any] = []
        self._size = 0.0
        self._iteration = -1

    def step(self, change: float | None, size: float, iteration: int) -> None:
        """Note how far the weights have moved since the last forward: None if they cannot be compared.

        Values were compared, since the version of a tensor does not tell of changes through ``.data``.
        """
        if change != 0 or iteration != self._iteration:
            self.ratio = change / self._size if change and self._size else None
            self.following = []
        self._size, self._iteration = size, iteration

    def copied(self, now: list[Tensor]) -> list[Tensor]:
        """Return copies in float64; drop the previous ones if shapes, dtypes or devices have changed."""
        self._forget_others(now)
        memory, self.used = self.used or [torch.empty_like(one, dtype=torch.float64) for one in now], []
        torch._foreach_copy_(memory, now)
        return memory

    def see(self, now: list[Tensor], iteration: int) -> bool:
        """Compare large weights with the previous ones, keep them, and return whether they have moved."""
        self._forget_others(now)
        found = map(distance_and_norm, now, self.values or now)
        change, size = (math.hypot(*each) for each in zip(*found, strict=True))
        self.step(change if self.values else None, size, iteration)
        if not self.values:
            self.values = [one.clone() for one in now]
        elif change:
            for mine, one in zip(self.values, now, strict=True):
                mine.copy_(one)
        return bool(change)

    def settle(self) -> list[Mean]:
        """Take in a step with no forward after it; return the means to give it to."""
        module, following = self._module(), self.following
        now = [] if module is None else _followed(module, self._name)
        return following if now and self.see(now, self._iteration) else []

    def _forget_others(self, now: list[Tensor]) -> None:
        kinds = [(one.shape, one.dtype, one.device) for one in now]
        if kinds != self._kinds:
            self._kinds, self.values, self.used = kinds, [], []


def _norms_of_rows(rows: Tensor) -> list[float]:
    if len(rows) == 1:  # PyTorch converts slowly while it takes a norm (2.13)
        return [distance_and_norm(rows)[1]]
    flat = rows.reshape(len(rows), rows.shape[1:].numel())
    found: list[float] = torch.linalg.vector_norm(flat, dim=1, dtype=torch.float64).tolist()
    return found


def _norms(tensors: list[Tensor] | tuple[Tensor, ...]) -> list[float]:
    found = torch._foreach_norm(tensors) if tensors else ()
    return torch.stack([one.cpu() for one in found]).tolist() if found else []


def _parameters(sample: Sample) -> list[Tensor]:
    if sample.parameter and not sample.path.endswith(".grad"):
        return [sample.value]
    return _followed(sample.module, _parameter_name(sample)) if sample.parameter or sample.output else []


def _parameter_name(sample: Sample) -> str | None:
    """Return the name of the parameter at a place in its module; None if all its parameters are followed."""
    return sample.path.removesuffix(".grad").rpartition(".")[2] if sample.parameter else None


def _followed(module: nn.Module, name: str | None) -> list[Tensor]:
    held = module.__dict__.get("_parameters", {})
    found = held.values() if name is None else [held.get(name)]
    own = [one.detach() for one in found if one is not None and not nn.parameter.is_lazy(one)]
    return [torch.view_as_real(one) if one.is_complex() else one for one in own]


def _of_shape(shapes: dict[tuple[int, ...], Variance], shape: Sequence[int]) -> list[Variance]:
    """Return the moments of samples of a shape, in a list; none once there is a second shape."""
    shape = tuple(shape)
    if not shapes:
        shapes[shape] = Variance()
    if [*shapes] == [shape]:
        return [shapes[shape]]
    if len(shapes) == 1:
        shapes.update({one: Variance() for one in [*shapes, shape]})
    return []


class ElementMoments(Variance):
    """Mean and variance of each element, as states of byname 0.2.0 had them; one that is read becomes a `Variance`."""

    @classmethod
    def made(cls, state: Any) -> Any:
        """Return a `Variance` of the same samples."""
        found, inner = Variance(), state.get("state", state)
        about = {"statistic": "byname.analyse:Variance", "settings": found.settings()}
        sums = [torch.zeros_like(inner["_mean"]), inner["_squares"]]
        moved = {"_counts": inner["count"], "_pivot": inner["_mean"], "_sums": sums, "_room": 0.0}
        found.load_state_dict({**about, **moved, "count": inner["count"], "nans": 0})
        return found
