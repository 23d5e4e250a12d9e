"""Origins: the calls of the forward pass that first made NaN or Inf, noted by a function mode."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext
from torch.utils.weak import WeakIdKeyDictionary

from byname.diagnose.nonfinite.reasons import (
    DIVERGING,
    OVERFLOW,
    Numbers,
    is_finite,
    nonfinite_kind,
    numbers_of,
    operation_of,
    reading_values,
    remedy_for,
    why,
)
from byname.reading.frames import NO_LINE, Line, caller
from byname.reading.functions import is_in_place, is_torch_function, name_of, target_of
from byname.reading.modes import FUNCTIONS
from byname.reading.quiet import DisableTorchFunction, dynamo_skip
from byname.reading.tensor import PLAIN, fact


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of values that are not finite: the call of an operation, its line, and its result."""

    turned: bool  # the call made them; else they came into it with `source`, or as a number in the source
    operation: str
    line: Line
    numbers: Numbers
    why: str  # a clause about the input that causes it, if known
    remedy: str
    source: weakref.ref[torch.Tensor] | None
    result: weakref.ref[torch.Tensor] | None
    was: str = ""  # the values that the call turned into these: finite numbers, or Inf


@dataclass
class Origins:
    """The origins of the living tensors that hold NaN or Inf."""

    known: MutableMapping[torch.Tensor, Origin] = field(default_factory=WeakIdKeyDictionary)
    overflow: Origin | None = None  # of the last product of finite float16 numbers that is Inf: no mask means this
    stepped: bool = False  # an optimizer has made a step


class OriginsMode(TorchFunctionMode):
    """Function mode that tests the results of every PyTorch function that one thread calls for NaN and Inf."""

    def __init__(self, origins: Origins) -> None:
        super().__init__()
        self._origins = origins
        self._kinds: dict[Any, int] = {}
        self._thread = threading.get_ident()
        self._stopped = False

    def start(self) -> None:
        """Enter the mode, below all others but that of the default device, so that no other mode sees a frame of it."""
        now = FUNCTIONS.modes()
        FUNCTIONS.put_in(self, 1 if now and type(now[0]) is DeviceContext else 0)

    def stop(self) -> None:
        """Leave the mode, with every other mode as it is."""
        self._stopped = True
        FUNCTIONS.remove(self)

    @dynamo_skip
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind = self._kinds.get(func) if is_torch_function(func) else None
        if kind is None:
            kind = self._learn_kind(func)
        if self._stopped or kind is _IGNORED:
            return func(*args, **(kwargs or {}))
        # Tensors that the call overwrites are checked before it; those that it only reads are checked later, if at all.
        changed = list(_tensors([target_of(args, kwargs, in_place=kind is _IN_PLACE)]))
        were_finite = [is_finite(one) for one in changed]
        result = func(*args, **(kwargs or {}))
        if type(result) is torch.Tensor and is_finite(result):
            if changed:
                self._clear(changed)
            return result
        bad = [one for one in list(_tensors([result])) or changed if not is_finite(one)]
        if changed and not bad:
            self._clear(changed)
        elif bad and not (changed and _is_leaf(bad[0])):  # a bad parameter after a step is reported as a parameter
            self._note(func, args, kwargs or {}, bad, (changed, were_finite))
        return result

    def _learn_kind(self, function: Any) -> int:
        name = name_of(function)
        is_left_alone = name in _MAKES_NOTHING or name.startswith(_UNFILLED)
        kind = _IGNORED if is_left_alone else _IN_PLACE if is_in_place(name) else _MAKES
        if is_torch_function(function):
            self._kinds[function] = kind
        return kind

    def _clear(self, changed: list[torch.Tensor]) -> None:
        for tensor in changed:
            self._origins.known.pop(tensor, None)

    @dynamo_skip
    def _note(self, function: Any, args: Any, kwargs: Any, bad: list[torch.Tensor], changed: Any) -> None:
        targets, were_finite = changed
        name = name_of(function)
        overwritten = {id(one) for one in targets}
        given = list(_tensors([args, kwargs]))
        sources = [one for one, fine in zip(targets, were_finite, strict=True) if not fine and name not in _FILLING]
        sources += [one for one in given if id(one) not in overwritten and not is_finite(one)]
        literal = any(map(_is_not_finite, _items([args, kwargs]))) or not given
        with reading_values():
            origin = self._origin(function, args, bad[0], sources, literal)
            if origin.turned and origin.numbers.kind == "Inf" and not sources and origin.operation in _PRODUCTS:
                self._origins.overflow = origin if bad[0].dtype is torch.float16 else None
            for one in bad:
                self._origins.known[one] = origin

    def _origin(self, function: Any, args: Any, bad: torch.Tensor, sources: Any, literal: bool) -> Origin:
        earlier = next((found for one in sources if (found := self._origins.known.get(one)) is not None), None)
        numbers = numbers_of(bad)
        made_nan = bool(sources) and "NaN" in numbers.kind and all(nonfinite_kind(one) == "Inf" for one in sources)
        if earlier is not None and (earlier.turned or not made_nan):
            return earlier
        turned = made_nan or (not sources and not literal)
        operation = operation_of(name_of(function))
        frame = caller()
        return Origin(
            turned=turned,
            operation=operation,
            line=NO_LINE if frame is None else Line(frame.f_code, frame.f_lasti),
            numbers=numbers,
            why=why(operation, _operands(function, args, bad), bad) if turned and not made_nan else "",
            remedy=self._remedy(operation, bad, numbers, made_nan) if turned else "",
            source=weakref.ref(sources[0]) if sources and not turned else None,
            result=weakref.ref(bad),
            was="Inf" if made_nan else "finite numbers",
        )

    def _remedy(self, operation: str, bad: torch.Tensor, numbers: Numbers, from_inf: bool) -> str:
        remedy = remedy_for(operation, bad.dtype, numbers.kind == "Inf", from_inf)
        if remedy == OVERFLOW and self._origins.stepped:
            return f"if the numbers have grown from step to step, {DIVERGING}; if not, {OVERFLOW}"
        return remedy


def _is_leaf(tensor: torch.Tensor) -> bool:
    with DisableTorchFunction():
        return bool(fact(tensor, "is_leaf")) and tensor.requires_grad


_IGNORED, _MAKES, _IN_PLACE = range(3)
_MAKES_NOTHING = ("__get__", "__set__", "__delete__", "new", "set_", "resize_", "backward", "grad")
_UNFILLED = ("empty", "new_empty", "_foreach", "_fused")
_FILLING = ("copy_", "fill_", "zero_")
_PRODUCTS = ("pow", "square", "mm", "bmm", "matmul", "linear", "conv2d", "einsum")


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    return (value for value in _items(values) if issubclass(type(value), torch.Tensor))


def _items(values: Any, depth: int = 4) -> Iterator[Any]:
    """Yield arguments or results, and in place of lists, tuples and dicts what is in them."""
    for value in values.values() if type(values) is dict else values:
        if depth and issubclass(type(value), list | tuple | dict):
            yield from _items(value, depth - 1)
        else:
            yield value


def _is_not_finite(value: Any) -> bool:
    if type(value) is float:
        return not math.isfinite(value)
    if type(value) not in (complex, numpy.ndarray) and not issubclass(type(value), numpy.generic):
        return False
    try:
        return not numpy.isfinite(value).all()
    except TypeError:  # an array of strings or objects
        return True


def _operands(function: Any, args: Any, result: torch.Tensor) -> dict[str, Any]:
    """Return the inputs of a call that its result has not overwritten."""
    name = name_of(function)
    named = dict(zip(("self", "other"), args[:2], strict=False))
    if name in ("__rtruediv__", "__rdiv__", "__rpow__"):
        named = {"self": named.get("other"), "other": named.get("self")}
    return {slot: one for slot, one in named.items() if type(one) in PLAIN and one is not result}
