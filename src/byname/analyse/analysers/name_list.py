"""Which places does anything pass, how often, and what?"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from byname.analyse.analyser import Analyser
from byname.analyse.sample import Sample
from byname.analyse.statistics.statistic import Statistic
from byname.errors import BadArgumentError


class NameList(Analyser):
    """The places something passed, in the order of the first time; the values themselves are not looked at.

        >>> import torch, byname
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
        >>> names = byname.analyse.NameList()
        >>> with byname.observe(model, "*", names):
        ...     for size in (4, 4, 1):
        ...         _ = model(torch.ones(size, 2))
        >>> names.names
        ('0', '1')
        >>> names.result()["1"]
        {'calls': 3, 'shape': (None, 3), 'dtype': 'float32'}

    The figures are ``calls``, how many tensors passed; ``shape``, in which a dimension that changed is None, and all
    of it if their number changed; and ``dtype``, several with commas.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """The places, as `paths`."""
        return self.paths

    def begin(self, sample: Sample) -> Passings:
        """Nothing yet."""
        return Passings()

    def take(self, kept: Any, sample: Sample) -> None:
        """Takes down what passes."""
        kept.passes(sample.value)

    def figures(self, kept: Any) -> dict[Any, Any]:
        """What was taken down."""
        return {"calls": kept.count, **kept.result()}


class Passings(Statistic):
    """How many tensors there were, of what shape and type; `count` is the number of tensors, not of samples."""

    STATE = ("_shape", "_dtypes")

    def __init__(self, *, nan: str = "omit") -> None:
        super().__init__(nan=nan)
        self._shape: tuple[int | None, ...] | None = None
        self._dtypes: list[str] = []

    def passes(self, value: Tensor) -> None:
        """Takes one more tensor, of any number of dimensions."""
        self._take(tuple(value.shape), [str(value.dtype).removeprefix("torch.")])
        self.count += 1

    def _add(self, samples: Tensor, weights: Tensor | None) -> None:
        raise BadArgumentError("a tensor is taken by passes(value)")

    def _merge(self, other: Passings) -> None:
        self._take(other._shape, other._dtypes)

    def _take(self, shape: tuple[int | None, ...] | None, dtypes: list[str]) -> None:
        self._shape = shape if not self.count else _common(self._shape, shape)
        self._dtypes = [*dict.fromkeys([*self._dtypes, *dtypes])]

    def result(self) -> dict[str, Any]:
        """The shape and the types."""
        return {"shape": self._shape, "dtype": ", ".join(self._dtypes)}


def _common(one: tuple[int | None, ...] | None, other: tuple[int | None, ...] | None) -> tuple[int | None, ...] | None:
    if one is None or other is None or len(one) != len(other):
        return None
    return tuple(mine if mine == others else None for mine, others in zip(one, other, strict=True))
