"""Reduce: `reduce=` and `dtype=`, the figures and conversions recorded in the place of a tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

import numpy
import torch

from byname.errors import BadArgumentError, NotReducibleError, NotStorableError
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import fact
from byname.recording.values.copy import Copying
from byname.recording.values.plain import (
    Refused,
    bare,
    function_mode_count,
    inner,
    is_ordinary,
    no_dispatch_modes,
    numbers,
    recorded_class,
    without_dispatch_modes,
)
from byname.table import closest
from byname.text import note_on

Reduction: TypeAlias = Callable[[torch.Tensor], Any]

BINS = 64
"""Of a histogram, all of one width."""


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """Return the numbers in a dtype in which they can be added up."""
    if tensor.dtype in _WIDE:
        return tensor
    if tensor.is_complex():
        return tensor.to(torch.complex64)
    return tensor.to(torch.float32 if tensor.is_floating_point() else torch.float64)


_WIDE = frozenset((torch.float32, torch.float64, torch.complex64, torch.complex128))


def _mean(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype in (torch.bfloat16, torch.float16):
        return tensor.mean(dtype=torch.float32)  # without a copy of the whole
    return _wide(tensor).mean()


def _std(tensor: torch.Tensor) -> torch.Tensor:
    """Return the standard deviation in two passes; the second corrects for the rounding of the mean.

    A third of the time that ``torch.std`` takes on the CPU (PyTorch 2.13), with an error no larger. Chan, Golub and
    LeVeque, "Algorithms for computing the sample variance" (1983), formula 1.7.
    """
    tensor = _wide(tensor)
    count = tensor.numel()
    if count < 2:
        return tensor.new_full((), math.nan).real
    distance = tensor - tensor.mean()
    square = torch.linalg.vector_norm(distance).double().square()
    missed = distance.sum().abs().double().square() / count
    std: torch.Tensor = ((square - missed) / (count - 1)).clamp_min(0).sqrt()
    return std.to(distance.real.dtype)


def _norm(tensor: torch.Tensor) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.vector_norm(_wide(tensor))
    return norm


def _extreme(tensor: torch.Tensor, of: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Return the least or greatest; by way of another dtype where PyTorch compares none of its own (2.13)."""
    if tensor.numel() == 0:
        return tensor.new_full((), math.nan, dtype=torch.float64)
    if tensor.dtype is torch.uint64:  # the order of int64, once the highest bit is turned over
        return (of(tensor.view(torch.int64) ^ _HIGHEST) ^ _HIGHEST).view(torch.uint64)
    if tensor.dtype in (torch.uint16, torch.uint32):
        return of(tensor.to(torch.int64)).to(tensor.dtype)
    if tensor.is_floating_point() and tensor.element_size() == 1:
        return of(tensor.to(torch.float32))
    return of(tensor)


_least = partial(_extreme, of=torch.Tensor.amin)
_greatest = partial(_extreme, of=torch.Tensor.amax)
_HIGHEST = -(2**63)


def _histogram(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the counts of a histogram, without waiting for a GPU to know between what."""
    flat = tensor.reshape(-1)
    if not flat.numel():
        nothing = flat.new_full((), math.nan, dtype=torch.float64)
        return _binned(flat, nothing, nothing, torch.ones_like(flat, dtype=torch.bool))
    least, greatest = _least(flat).to(torch.float64), _greatest(flat).to(torch.float64)
    if flat.device.type == "cpu" and bool(least.isfinite()) and bool(greatest.isfinite()):
        return _binned(flat, least, greatest, None)
    flat = flat.to(torch.float64)
    finite = flat.isfinite()
    none = ~finite.any()
    least = torch.where(finite, flat, math.inf).amin().masked_fill(none, math.nan)
    greatest = torch.where(finite, flat, -math.inf).amax().masked_fill(none, math.nan)
    return _binned(flat, least, greatest, finite)


def _binned(
    flat: torch.Tensor, least: torch.Tensor, greatest: torch.Tensor, finite: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """`finite` says which of the numbers are counted; None where all are, which are then on the CPU."""
    alone = greatest == least  # bins around the only value, as numpy has them
    least, greatest = torch.where(alone, least - 0.5, least), torch.where(alone, greatest + 0.5, greatest)
    steps = torch.arange(BINS + 1, dtype=torch.float64, device=flat.device) / BINS
    edges = least * (1 - steps) + greatest * steps
    counts = torch.zeros(BINS, dtype=torch.int64, device=flat.device)
    if finite is None:
        for start in range(0, flat.numel(), _AT_ONCE):
            counts += torch.bincount(_bins(flat[start : start + _AT_ONCE], least, greatest), minlength=BINS)
    else:  # on a GPU `bincount` would wait for it
        counts.scatter_add_(0, _bins(flat, least, greatest, finite), finite.to(torch.int64))
    return {"counts": counts, "edges": edges, "non_finite": flat.numel() - counts.sum()}


_AT_ONCE = 1 << 15
"""Numbers that the CPU works on together, so that intermediate results stay in its caches."""


def _bins(
    part: torch.Tensor, least: torch.Tensor, greatest: torch.Tensor, finite: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the bin of each number; 0 for those that are not finite."""
    half = greatest / 2 - least / 2  # the whole may be more than the largest float64
    place = part.to(torch.float64, copy=True).div_(2).sub_(least / 2).div_(half).mul_(BINS)
    if finite is not None:
        place.masked_fill_(~finite, 0)
    return place.clamp_(0, BINS - 1).to(torch.int64)


ORDERED = ("min", "max", "histogram")
"""The figures that compare, which complex numbers do not."""

FIGURES: dict[str, Reduction] = {
    "mean": _mean,
    "std": _std,
    "norm": _norm,
    "min": _least,
    "max": _greatest,
    "histogram": _histogram,
}


_Asked = str | Callable[[torch.Tensor], Any] | Sequence[str | Callable[[torch.Tensor], Any]] | None


def reduction(reduce: _Asked, path: str) -> Callable[[Any], Any] | None:
    """Return the function whose result is recorded instead of a value; None if the value itself is recorded.

    Figures are taken on the tensor's own device, without gradients and without waiting for the device. Whole numbers
    and bools are taken as float64, and half precision in float32; of an empty tensor the mean, deviation, smallest and
    largest are NaN.

    - ``"mean"``, ``"std"`` (with Bessel's correction; NaN for one element), ``"norm"`` (Euclidean).
    - ``"min"``, ``"max"``: in the tensor's own dtype, float8 in float32; NaN if one is in it.
    - ``"histogram"``: a dict of ``counts`` (int64, 64 bins of one width), ``edges`` (float64, 65, from the smallest to
      the largest finite value) and ``non_finite``, how many are in no bin.
    - A function gets the tensor without its history; it may not return None, and may not change the tensor.
    - Several of these are recorded as a dict by their names.

    >>> reduction("mean", "fc1.output")(torch.tensor([1.0, 2.0, 6.0]))
    tensor(3.)
    """
    if reduce is None:
        return None
    if type(reduce) is str or callable(reduce):
        one = _one(reduce, path)
        return lambda value: _reduced(value, one)
    if type(reduce) not in (list, tuple) or not reduce:
        raise BadArgumentError(f"reduce={reduce!r} is not a reduction: use {', '.join(FIGURES)}, or a function")
    several = {reduction_name(each): _one(each, path) for each in reduce}
    if len(several) < len(reduce):
        raise BadArgumentError(f"reduce={reduce!r} has two reductions of one name; give each its own")
    return lambda value: _reduced(value, lambda tensor: {name: take(tensor) for name, take in several.items()})


def reduction_name(reduce: Any) -> str:
    return reduce if type(reduce) is str else str(getattr(reduce, "__name__", type(reduce).__name__))


def _one(reduce: Any, path: str) -> Reduction:
    if callable(reduce):
        return lambda tensor: _by_user(tensor, reduce, path)
    if type(reduce) is not str or reduce not in FIGURES:
        near = closest(reduce, FIGURES) if type(reduce) is str else ", ".join(FIGURES)
        raise BadArgumentError(f"there is no reduction {reduce!r}; there are {near}, or give a function")
    return lambda tensor: _figure(tensor, reduce, path)


def _reduced(value: Any, take: Reduction) -> Any:
    """Return the value with each tensor in it reduced; as it is if it cannot be recorded, for its copy to say why."""
    if recorded_class(value) is torch.Tensor:
        return take(value)
    try:
        return Copying(take).copy(value)
    except Refused:
        return value


def _figure(tensor: torch.Tensor, name: str, path: str) -> Any:
    try:
        if is_ordinary(tensor) and no_dispatch_modes():
            with DisableTorchFunction():
                return _taken(bare(tensor), name)
        return _of_unusual(tensor, name)
    except (Refused, RuntimeError, TypeError) as error:  # PyTorch's answers for what an operator does not do
        with DisableTorchFunction():
            what = f"{fact(tensor, 'dtype')} tensor of shape {list(fact(tensor, 'shape'))}"
        raise NotReducibleError(f"reduce={name!r} of `{path}`, a {what}: it {error}") from error


def _of_unusual(tensor: torch.Tensor, name: str) -> Any:
    tensor = inner(tensor)
    with without_dispatch_modes():
        if fact(tensor, "is_nested") or fact(tensor, "layout") is not torch.strided:
            raise Refused("is not dense. Let `on_value` return a dense tensor, or give a function as `reduce`")
        return _taken(numbers(tensor), name)


def _taken(tensor: torch.Tensor, name: str) -> Any:
    if name in ORDERED and tensor.is_complex():
        raise Refused("is complex, and complex numbers have no order. Use 'mean', 'std', 'norm' or a function")
    return FIGURES[name](tensor)


def quick_figure(reduce: _Asked) -> Reduction:
    """Return a function that computes one named figure of the usual tensor, as new memory; None where there is none.

    The figure is that of `reduction`, which has the answer for any other value.
    """
    figure = FIGURES.get(reduce) if type(reduce) is str and reduce not in ORDERED else None

    def take(value: Any) -> torch.Tensor | None:
        if figure is None or not is_ordinary(value) or not no_dispatch_modes() or torch.is_inference_mode_enabled():
            return None
        try:
            if not function_mode_count():
                return figure(bare(value))  # type: ignore[no-any-return]
            with DisableTorchFunction():
                return figure(bare(value))  # type: ignore[no-any-return]
        except (RuntimeError, TypeError):  # `reduction` says which number PyTorch lacks
            return None

    return take


def _by_user(tensor: torch.Tensor, function: Callable[[torch.Tensor], Any], path: str) -> Any:
    name = reduction_name(function)
    with torch.no_grad():
        given = tensor.detach()
        before = None if given.is_inference() else given._version
        try:
            result = function(given)
        except Exception as error:  # the user's own, which is to say where it came from
            note_on(error, f"in reduce={name} of `{path}`")
            raise
    if before is not None and given._version != before:
        raise BadArgumentError(
            f"reduce={name} changed the tensor at `{path}` in place, which the program uses. Let it work on a copy, "
            "or use the methods without an underscore"
        )
    if result is None:
        raise BadArgumentError(f"reduce={name} returned None for `{path}`. Return the value to record")
    return result


def torch_dtype(dtype: Any) -> torch.dtype | None:
    """Return the dtype that was asked for, by PyTorch's object, its name, or numpy's type.

    >>> torch_dtype("float16"), torch_dtype(torch.bfloat16), torch_dtype(None)
    (torch.float16, torch.bfloat16, None)
    """
    if dtype is None or type(dtype) is torch.dtype:
        return dtype
    name = dtype.removeprefix("torch.") if type(dtype) is str else _numpy_name(dtype)
    found = getattr(torch, name, None) if name in _DTYPES else None
    if type(found) is not torch.dtype:
        raise BadArgumentError(f"dtype={dtype!r} is not a dtype of PyTorch; there are {closest(name, _DTYPES)}")
    return found


def converted(dtype: torch.dtype, path: str, warn: Callable[[str], None]) -> Callable[[Any], Any]:
    """Return a function that converts the tensors of a value; a number that fits no whole dtype is an error.

    `warn` is called where a finite number does not stay finite.
    """
    name = str(dtype).removeprefix("torch.")

    @torch.no_grad()
    def take(tensor: torch.Tensor) -> torch.Tensor:
        new, wrong = tensor.detach().to(dtype), None
        with suppress(Refused, RuntimeError, TypeError):  # a copy of it says what it is that has no numbers
            if _narrows(tensor.dtype, dtype):
                wrong = _misfit(_dense(tensor.detach()), _dense(new))
        if wrong is not None and dtype.is_floating_point | dtype.is_complex:
            warn(f"`{path}` has finite numbers beyond {_limits(dtype).max:g}, the largest of dtype={name!r}")
        elif wrong is not None:
            raise NotStorableError(f"`{path}`: {wrong} does not fit into dtype={name!r}")
        return new

    return lambda value: _reduced(value, take)


def _narrows(old: torch.dtype, new: torch.dtype) -> bool:
    """Return whether numbers of the one may be out of reach of the other; bfloat16 reaches as far as float32."""
    if new is torch.bool or old is torch.bool:
        return False
    (low, high), (least, most) = ((float(one.min), float(one.max)) for one in map(_limits, (old, new)))
    return low < 1.01 * least or high > 1.01 * most


def _limits(dtype: torch.dtype) -> torch.finfo | torch.iinfo:
    return torch.finfo(dtype) if dtype.is_floating_point or dtype.is_complex else torch.iinfo(dtype)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    tensor = inner(tensor)
    if fact(tensor, "is_nested") or fact(tensor, "layout") is not torch.strided:
        return tensor.coalesce().values() if fact(tensor, "layout") is torch.sparse_coo else tensor.values()
    return tensor


def _misfit(old: torch.Tensor, new: torch.Tensor) -> Any:
    """Return a finite number that is out of reach of another dtype."""
    limits, old = _limits(new.dtype), old.real if old.is_complex() else old
    if isinstance(limits, torch.iinfo):
        ends = [_least(old).item(), _greatest(old).item()] if old.numel() else []
        return next((number for number in ends if not limits.min - 1 < number < limits.max + 1), None)
    if ((new.float() if new.element_size() == 1 else new).abs() < limits.max).all():
        return None
    beyond = old.double().abs() >= limits.max * (1 + limits.eps / 4)  # less is rounded down
    return next(iter(old[beyond & old.isfinite()].tolist()), None)


_DTYPES = tuple(sorted(name for name, one in vars(torch).items() if type(one) is torch.dtype))


def _numpy_name(dtype: Any) -> str:
    if issubclass(type(dtype), numpy.dtype) or (issubclass(type(dtype), type) and issubclass(dtype, numpy.generic)):
        return str(numpy.dtype(dtype).name)
    return next((name for kind, name in _PYTHONS if dtype is kind), repr(dtype))


_PYTHONS = ((bool, "bool"), (int, "int64"), (float, "float64"), (complex, "complex128"))
