"""Difference: where and how much the values of one place differ, and which place of several differs first."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.testing._comparison import default_tolerances

from byname.codec import dtype_name
from byname.errors import BadArgumentError
from byname.recording.export import NUMBERS, numpy_of
from byname.recording.values.change import same_bits
from byname.table import Column, Tabled, cell

EQUAL, WITHIN, DIFFERENT, UNCOMPARED = "equal", "within tolerance", "different", "not compared"
ONLY = "only in a", "only in b"


def _figure(key: str, drop_order: int = 0) -> Column:
    return Column(
        key, drop_order, show=lambda one: None if getattr(one, key) is None else float(f"{getattr(one, key):.3g}")
    )


def _of(part: str, whole: str, title: str, drop_order: int) -> Column:
    def shown(one: Any) -> str:
        return f"{getattr(one, part):,} of {getattr(one, whole):,}" if getattr(one, part) else ""

    return Column(part, drop_order, show=shown, title=title)


@dataclass(frozen=True, slots=True)
class PlaceDiff(Tabled):
    """How one place of two recordings or models differs: how often, and how much where it first does.

    Attributes:
        path: the place, as a calls it.
        path_b: as b calls it, if otherwise.
        kind: ``"parameter"``, ``"buffer"`` or ``"value"``.
        state: ``"equal"``, ``"within tolerance"``, ``"different"``, ``"only in a"``, ``"only in b"`` or
            ``"not compared"``; by the tolerances of the dtypes where none was given.
        counts: whether it counts as a difference.
        iteration, mode, rank: the moment of its first difference that counts, or else of the first; None for models.
        call: which of several values in that iteration, from 0.
        error: the largest absolute error; NaN if the elements that differ are NaN in one of the two; None where there
            are no numbers to compare, as between two shapes.
        relative: the largest ``|a - b| / |b|``, which is infinite where b is 0.
        elements: the number of elements that differ.
        size: the number of elements.
        nan: how many elements are NaN in one of the two only.
        what: what else differs, in words: shapes, dtypes, texts, or that there is a value in one of the two only.
        beyond: whether the error is larger than the tolerance.
        records: how many values were compared.
        differ: how many of them differ.
        largest: the largest absolute error of all.
        calls: how often the place ran in that iteration.
        time: a number that orders differences: by iterations, for models by the values in the order of the run.
    """

    path: str = ""
    kind: str = "value"
    state: str = UNCOMPARED
    path_b: str = ""
    counts: bool = False
    iteration: int | None = None
    mode: str | None = None
    rank: int | None = None
    call: int | None = None
    error: float | None = None
    relative: float | None = None
    elements: int | None = None
    size: int | None = None
    nan: int = 0
    what: str = ""
    beyond: bool = False
    records: int = 0
    differ: int = 0
    largest: float | None = None
    calls: int = 1
    time: float = -1.0

    columns = (
        Column("path"),
        Column("path_b", title="in b"),
        Column("kind", printed=False),
        Column("state"),
        Column("counts", printed=False),
        Column("iteration"),
        Column("mode", drop_order=1),
        Column("rank", drop_order=2),
        Column("call", drop_order=4),
        _figure("error"),
        _figure("relative", drop_order=6),
        _of("elements", "size", "elements", 5),
        Column("size", printed=False),
        Column("nan", show=lambda one: one.nan or None, title="NaN"),
        _of("differ", "records", "values", 7),
        Column("records", printed=False),
        _figure("largest", drop_order=3),
        Column("what"),
    )

    def describe_error(self) -> str:
        words = [] if self.error is None else [f"error {self.error:.3g} (relative {self.relative:.3g})"]
        words += [f"in {self.elements:,} of {self.size:,} elements"] if self.elements else []
        words += [f"{self.nan:,} NaN in only one"] if self.nan else []
        return ", ".join([*words, *([self.what] if self.what else [])])

    def where(self) -> str:
        words = [f"`{self.path}`"]
        if self.iteration is not None:
            words.append(f"{'eval ' if self.mode == 'eval' else ''}iteration {self.iteration:,}")
        words += [f"call {self.call}"] if self.calls > 1 else []
        return ", ".join([*words, *([f"rank {self.rank}"] if self.rank else [])])


def earliest(places: Iterable[PlaceDiff]) -> PlaceDiff | None:
    """Return the place whose difference came first, of those that count, in the order in which they ran."""
    first: PlaceDiff | None = None
    for one in places:
        if one.counts and (first is None or _is_before(one, first)):
            first = one
    return first


def _is_before(one: PlaceDiff, first: PlaceDiff) -> bool:
    """Return whether a difference came before that of a place that runs earlier in each iteration.

    Places that ran equally often are taken for the parts of one loop.
    """
    if one.time != first.time:
        return one.time < first.time
    return one.calls == first.calls and (one.call or 0) < (first.call or 0)


Array = NDArray[Any]
Allowed = tuple[float, float]

PIECE = 1 << 20
"""Elements of a record that are compared at once."""
_PLAIN = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


class Tolerance:
    """The relative and absolute error that is allowed: ``|a - b| <= atol + rtol * |b|``.

    Where None is given any difference counts, which `exact` says.
    """

    def __init__(self, given: Any) -> None:
        self.exact = given is None
        self._every = float(given) if _is_allowed(given) else None
        self._own: Mapping[torch.dtype, Allowed] = given if isinstance(given, Mapping) else {}
        known = self.exact or self._every is not None or isinstance(given, Mapping)
        if not known or not all(map(_is_of_dtype, self._own, self._own.values())):
            raise BadArgumentError(
                "tolerance= is the largest absolute error, such as 1e-3, or a dict {torch.float32: (rtol, atol)}; {} "
                f"means the tolerances of torch.testing.assert_close. Not {str(given)[:80]}"
            )

    def allowed(self, a: torch.dtype, b: torch.dtype) -> Allowed:
        """Return ``(rtol, atol)`` for two dtypes: of each, the larger one."""
        if self._every is not None:
            return 0.0, self._every
        known = [self._own.get(dtype) or default_tolerances(dtype) for dtype in (a, b)]
        return max(rtol for rtol, _ in known), max(atol for _, atol in known)


def _is_of_dtype(dtype: Any, errors: Any) -> bool:
    return type(dtype) is torch.dtype and type(errors) is tuple and len(errors) == 2 and all(map(_is_allowed, errors))


def _is_allowed(number: Any) -> bool:
    return isinstance(number, int | float) and type(number) is not bool and 0 <= number < math.inf


class Errors(NamedTuple):
    """How much records differ, an array with an element for each record; the fields are those of `PlaceDiff`."""

    error: Array
    relative: Array
    elements: Array
    nan: Array
    beyond: Array


def errors(a: Array, b: Array, allowed: Allowed) -> Errors:
    """Return how much the records of two arrays of one shape differ; the first dimension is the record."""
    found = Errors(*(np.zeros(len(a), kind) for kind in (float, float, int, int, bool)))
    a, b = (one.reshape(len(a), math.prod(a.shape[1:])) for one in (a, b))
    with np.errstate(all="ignore"):
        for begin in range(0, a.shape[1], PIECE):
            _add(found, a[:, begin : begin + PIECE], b[:, begin : begin + PIECE], allowed)
    found.error[(found.elements > 0) & (found.elements == found.nan)] = math.nan
    return found


def _add(found: Errors, a: Array, b: Array, allowed: Allowed) -> None:
    unequal = (a != b) & ((a == a) | (b == b))
    rows = np.flatnonzero(unequal.any(axis=1))
    if not len(rows):
        return
    a, b, unequal = a[rows], b[rows], unequal[rows]
    gap = np.where(unequal, _gap(a, b), 0.0)
    alone = np.isnan(gap)
    gap[alone] = 0.0
    size = np.abs(b.astype(complex if b.dtype.kind == "c" else float))
    relative = np.where(gap > 0, gap / size, 0.0)
    relative[np.isnan(relative)] = math.inf
    beyond = (gap > allowed[1] + allowed[0] * size) | np.isinf(gap) | alone
    found.error[rows] = np.maximum(found.error[rows], gap.max(axis=1))
    found.relative[rows] = np.maximum(found.relative[rows], relative.max(axis=1))
    found.elements[rows] += unequal.sum(axis=1)
    found.nan[rows] += alone.sum(axis=1)
    found.beyond[rows] |= beyond.any(axis=1)


def _gap(a: Array, b: Array) -> Array:
    """Return the absolute errors; those of whole numbers do not pass through floats, which round them."""
    if a.dtype.kind == b.dtype.kind and a.dtype.kind in "iu":
        return (np.maximum(a, b).astype(np.uint64) - np.minimum(a, b).astype(np.uint64)).astype(float)
    wide: type = complex if "c" in (a.dtype.kind, b.dtype.kind) else float
    return np.abs(a.astype(wide) - b.astype(wide))


def measured(a: Any, b: Any, tolerance: Tolerance) -> PlaceDiff:
    """Return how much two values differ; of containers, the worst of the values in them."""
    found = [_measured(*each, tolerance) for each in _leaves(a, b, "")]
    return max(found, key=_size, default=PlaceDiff())


def _size(one: PlaceDiff) -> tuple[bool, bool, float]:
    error = one.error or 0.0
    return one.beyond, bool(one.elements), math.inf if math.isnan(error) else error


def _measured(at: str, a: Any, b: Any, tolerance: Tolerance) -> PlaceDiff:
    one, other = _numbers(a), _numbers(b)
    if one is None or other is None or one.shape != other.shape:
        if same_bits(a, b):
            return PlaceDiff()
        return PlaceDiff(beyond=True, what=f"{at}{': ' if at else ''}{_short(a)} and {_short(b)}")
    dtypes = dtype_of(a), dtype_of(b)
    names = " and ".join(map(dtype_name, dtypes)) if dtypes[0] != dtypes[1] else ""
    found = errors(one, other, tolerance.allowed(*dtypes))
    facts = {name: column.item() for name, column in found._asdict().items()}
    return PlaceDiff(size=one.size, what=": ".join(filter(None, (at, names))), **facts)


def _leaves(a: Any, b: Any, at: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield the values in two containers that stand at the same keys, each after these."""
    if type(a) is type(b) is dict and [*a] == [*b]:
        for key in a:
            yield from _leaves(a[key], b[key], f"{at}[{key!r}]")
    elif type(a) is type(b) and type(a) in (list, tuple) and len(a) == len(b):
        for number, (one, other) in enumerate(zip(a, b, strict=True)):
            yield from _leaves(one, other, f"{at}[{number}]")
    else:
        yield at, a, b


def _numbers(value: Any) -> Array | None:
    """Return a tensor or a number as an array of one record; None for another value."""
    if type(value) is Tensor:
        return numpy_of(value)[None]
    if type(value) not in NUMBERS or (type(value) is int and not -(2**63) <= value < 2**63):
        return None
    return np.array([value])


def dtype_of(value: Any) -> torch.dtype:
    """Return the dtype of a tensor, and that of PyTorch for a plain number; other values count as bool."""
    return value.dtype if type(value) is Tensor else _PLAIN.get(type(value), torch.bool)


def _short(value: Any) -> str:
    if type(value) is Tensor:
        return f"{dtype_name(value.dtype)} {cell('shape', tuple(value.shape))}"
    return reprlib.repr(value)
