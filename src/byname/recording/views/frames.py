"""How does a series become a DataFrame? One row a record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from byname.errors import NotInstalledError
from byname.recording.sampling import Sampling
from byname.recording.views.arrays import AnyArray, array_from, numpy_of, objects
from byname.recording.views.reading import Values, cropped

if TYPE_CHECKING:
    import pandas

__all__ = ["Records", "to_pandas"]


class Records(Protocol):
    """A series, as far as its columns go."""

    @property
    def path(self) -> str:
        """The place."""

    @property
    def values(self) -> Values:
        """One a record."""

    @property
    def iterations(self) -> Sequence[int]:
        """One a record."""

    @property
    def ranks(self) -> Sequence[int]:
        """One a record."""

    @property
    def calls(self) -> Sequence[int]:
        """One a record."""

    @property
    def modes(self) -> Sequence[str]:
        """One a record."""

    @property
    def sampling(self) -> Sampling | None:
        """How they were taken, if that is known."""

    @property
    def shapes(self) -> Sequence[tuple[int, ...]]:
        """One a record."""


def to_pandas(series: Records) -> pandas.DataFrame:
    """The columns of a series, and its values in one more."""
    try:
        import pandas
    except ImportError as missing:
        raise NotInstalledError('to_pandas() needs pandas: pip install "byname[frames]"') from missing
    values = _column(series)
    # Said to be objects: pandas 3 would otherwise turn strings into its own type, and None into NaN.
    column = pandas.Series(values, dtype=object if values.dtype == object else None)
    return pandas.DataFrame(
        {
            "iteration": np.array(series.iterations, np.int64),
            "mode": list(series.modes),
            "rank": np.array(series.ranks, np.int64),
            "call": np.array(series.calls, np.int64),
            "value": column,
        }
    )


def _column(series: Records) -> AnyArray:
    """Numbers where every value is one; else tensors with dimensions as arrays, one a cell."""
    values = [cropped(value, shape) for value, shape in zip(series.values, series.shapes, strict=True)]
    if all(torch.Size(shape).numel() == 1 for shape in series.shapes):
        return array_from([value.reshape(()) if issubclass(type(value), Tensor) else value for value in values])
    return objects(_cell(value) for value in values)


def _cell(value: Any) -> Any:
    return numpy_of(value).copy()[()] if issubclass(type(value), Tensor) else value
