"""What is recorded of a tensor when not the tensor itself? Its mean, norm and the like, taken where the tensor is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch

from byname.errors import BadArgumentError, NotReducibleError
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import fact
from byname.recording.values.figures import FIGURES, ORDERED, Reduction
from byname.recording.values.kinds import Refused, kind_of, plain_items, plain_key
from byname.recording.values.ordinary import bare, is_ordinary, nothing_listens, undisturbed
from byname.recording.values.unusual import inner, numbers
from byname.table import closest
from byname.text import note_on

__all__ = ["NAMES", "conversion", "name_of", "reduction"]

Asked = str | Callable[[torch.Tensor], Any] | Sequence[str | Callable[[torch.Tensor], Any]] | None


def reduction(reduce: Asked, path: str) -> Callable[[Any], Any] | None:
    """What makes of a value what is recorded of it; None where the value itself is.

    The figures are taken on the tensor's own device, without gradients and without waiting for the device. Whole
    numbers and bools are taken as float64, and half precision in float32; of an empty tensor the mean, deviation,
    smallest and largest are NaN.

    - ``"mean"``, ``"std"`` (with Bessel's correction, as ``torch.std``; NaN for one element), ``"norm"`` (Euclidean).
    - ``"min"``, ``"max"``: in the tensor's own dtype, float8 in float32; NaN if one is in it.
    - ``"histogram"``: a dict of ``counts`` (int64, 64 bins of one width), ``edges`` (float64, 65, from the smallest to
      the largest finite value) and ``non_finite``, how many are in no bin. A value ``v`` is in bin
      ``floor((v - smallest) / (largest - smallest) * 64)``, the largest in the last.

    Args:
        reduce: a name, a function of a tensor, a sequence of these (recorded as a dict by their names), or None.
            A function gets the tensor without its history; it may return anything that can be recorded, but not None,
            and may not change the tensor.
        path: the place, for errors.

    Returns:
        A function of a value. In a dict, list or tuple each tensor is reduced; values without tensors stay as they are.

    Raises:
        BadArgumentError: there is no such reduction.

    >>> reduction("mean", "fc1.output")(torch.tensor([1.0, 2.0, 6.0]))
    tensor(3.)
    >>> reduction(("min", "max"), "fc1.output")(torch.tensor([1, 2, 6]))
    {'min': tensor(1), 'max': tensor(6)}
    """
    if reduce is None:
        return None
    if type(reduce) is str or callable(reduce):
        one = _one(reduce, path)
        return lambda value: _reduced(value, one)
    if type(reduce) not in (list, tuple) or not reduce:
        raise BadArgumentError(
            f"reduce={reduce!r} for `{path}` is no reduction: there are {', '.join(FIGURES)}; or give a function"
        )
    several = {name_of(each): _one(each, path) for each in reduce}
    if len(several) < len(reduce):
        raise BadArgumentError(f"reduce={reduce!r} for `{path}` has two of one name; each needs a name of its own")
    return lambda value: _reduced(value, lambda tensor: {name: take(tensor) for name, take in several.items()})


def name_of(reduce: Any) -> str:
    """The name of a figure or function."""
    return reduce if type(reduce) is str else str(getattr(reduce, "__name__", type(reduce).__name__))


def _one(reduce: Any, path: str) -> Reduction:
    if callable(reduce):
        return lambda tensor: _by_user(tensor, reduce, path)
    if type(reduce) is not str or reduce not in FIGURES:
        near = closest(reduce, FIGURES) if type(reduce) is str else ", ".join(FIGURES)
        raise BadArgumentError(f"there is no reduction {reduce!r} for `{path}`: there are {near}; or give a function")
    return lambda tensor: _figure(tensor, reduce, path)


def _reduced(value: Any, take: Reduction) -> Any:
    """The value with each tensor in it reduced. What cannot be recorded stays in it, for `plain_copy` to name."""
    return take(value) if kind_of(value) is torch.Tensor else _inside(value, take, {}, 100)


def _inside(value: Any, take: Reduction, done: dict[int, Any], deeper: int) -> Any:
    """The same for what stands in a container; a container that stands in it twice is gone through once."""
    kind = kind_of(value)
    if kind is torch.Tensor:
        return take(value)
    if kind not in (dict, list, tuple) or not deeper:
        return value
    if id(value) in done:  # the outermost value holds them all, so that no id is given twice
        return done[id(value)]
    done[id(value)] = value
    try:
        reduced: Any
        if kind is dict:
            reduced = {plain_key(key): _inside(item, take, done, deeper - 1) for key, item in plain_items(value)}
        else:
            reduced = kind(_inside(item, take, done, deeper - 1) for item in kind.__iter__(value))
    except Refused:
        return value
    done[id(value)] = reduced
    return reduced


def _figure(tensor: torch.Tensor, name: str, path: str) -> Any:
    try:
        if is_ordinary(tensor) and nothing_listens():
            with DisableTorchFunction():
                return _taken(bare(tensor), name)
        return _of_unusual(tensor, name)
    except (Refused, RuntimeError, TypeError) as error:  # PyTorch's answers for what an operator does not do
        with DisableTorchFunction():
            what = f"{fact(tensor, 'dtype')} tensor of shape {list(fact(tensor, 'shape'))}"
        raise NotReducibleError(f"reduce={name!r} of `{path}`, a {what}: it {error}") from error


def _of_unusual(tensor: torch.Tensor, name: str) -> Any:
    tensor = inner(tensor)
    with undisturbed():
        if fact(tensor, "is_nested") or fact(tensor, "layout") is not torch.strided:
            raise Refused("is not dense. Let `on_value` return a dense tensor, or give a function as `reduce`")
        return _taken(numbers(tensor), name)


def _taken(tensor: torch.Tensor, name: str) -> Any:
    if name in ORDERED and tensor.is_complex():
        raise Refused("is complex, and complex numbers have no order. Take 'mean', 'std', 'norm' or a function of it")
    return FIGURES[name](tensor)


def _by_user(tensor: torch.Tensor, function: Callable[[torch.Tensor], Any], path: str) -> Any:
    name = name_of(function)
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
            f"reduce={name} has changed the tensor at `{path}` in place, and so the program's own. Work on a copy in "
            "it, or use the operators without an underscore"
        )
    if result is None:
        raise BadArgumentError(f"reduce={name} returned None for `{path}`. Return what is to be recorded")
    return result


NAMES = tuple(FIGURES)
"""The reductions that have a name."""


def conversion(dtype: Any) -> torch.dtype | None:
    """The dtype that was asked for, by PyTorch's object, its name, or numpy's type.

    Raises:
        BadArgumentError: it is none, or none that PyTorch has.

    >>> conversion("float16"), conversion(torch.bfloat16), conversion(None)
    (torch.float16, torch.bfloat16, None)
    """
    if dtype is None or type(dtype) is torch.dtype:
        return dtype
    name = dtype.removeprefix("torch.") if type(dtype) is str else _numpy_name(dtype)
    found = getattr(torch, name, None) if name in _DTYPES else None
    if type(found) is not torch.dtype:
        raise BadArgumentError(f"dtype={dtype!r} is no dtype of PyTorch; there are {closest(name, _DTYPES)}")
    return found


_DTYPES = tuple(sorted(name for name, one in vars(torch).items() if type(one) is torch.dtype))


def _numpy_name(dtype: Any) -> str:
    if issubclass(type(dtype), numpy.dtype) or (issubclass(type(dtype), type) and issubclass(dtype, numpy.generic)):
        return str(numpy.dtype(dtype).name)
    return next((name for kind, name in _PYTHONS if dtype is kind), repr(dtype))


_PYTHONS = ((bool, "bool"), (int, "int64"), (float, "float64"), (complex, "complex128"))
