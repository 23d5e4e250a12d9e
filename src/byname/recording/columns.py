"""Columns: what is known of the records of a series, each fact in one array instead of an object for each record.

They read like the lists of Python that they stand for, are equal to them, and show themselves as they do. Nobody can
write to them, so a series and its parts share one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Self, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

Item = TypeVar("Item")
Which = slice | NDArray[np.int64]


class Packed(Sequence[Item]):
    """A sequence over an array: a slice of it is a view, and several numbers at once pick as many items.

    Args:
        array: of one dimension.
    """

    __slots__ = ("array",)
    __hash__ = None  # type: ignore[assignment]  # it equals lists

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array.view()
        self.array.flags.writeable = False

    @abstractmethod
    def _of(self, array: NDArray[Any]) -> Self:
        """The same of other records."""

    @abstractmethod
    def _item(self, stored: Any) -> Item:
        """What an element of the array stands for."""

    def taken(self, which: Which) -> Self:
        """Some of the items."""
        return self._of(self.array[which])

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, which: int) -> Item: ...
    @overload
    def __getitem__(self, which: slice) -> Self: ...
    def __getitem__(self, which: int | slice) -> Item | Self:
        return self.taken(which) if isinstance(which, slice) else self._item(self.array[which].item())

    def __iter__(self) -> Iterator[Item]:
        return map(self._item, self.array.tolist())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        return len(self) == len(other) and all(map(_equal, self, other))

    def __repr__(self) -> str:
        return repr([*self])


def _equal(one: Any, other: Any) -> bool:
    return bool(one == other)


class Scalars(Packed[Any]):
    """Numbers of one type.

    >>> scalars = Scalars.of([3, 5, 8])
    >>> scalars, scalars == [3, 5, 8], scalars[1:], np.asarray(scalars)
    ([3, 5, 8], True, [5, 8], array([3, 5, 8]))
    """

    __slots__ = ()

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Self:
        """Whole numbers."""
        return cls(np.fromiter(numbers, np.int64))

    @classmethod
    def all(cls, number: int, count: int) -> Self:
        """The same number for each of so many records; it is kept once."""
        return cls(np.broadcast_to(np.int64(number), count))

    @classmethod
    def where_alike(cls, values: list[Any]) -> Self | list[Any]:
        """Values that are all floats, or all integers that fit, as an array; others as they are.

        >>> type(Scalars.where_alike([0.5, 2.0])), Scalars.where_alike([0.5, 2]), Scalars.where_alike([1, 1 << 80])[0]
        (<class 'byname.recording.columns.Scalars'>, [0.5, 2], 1)
        """
        kinds = {*map(type, values)}
        if kinds == {float} or (kinds == {int} and min(values) >= -(2**63) and max(values) < 2**63):
            return cls(np.array(values, np.float64 if float in kinds else np.int64))
        return values

    def _of(self, array: NDArray[Any]) -> Self:
        return type(self)(array)

    def _item(self, stored: Any) -> Any:
        return stored

    def __iter__(self) -> Iterator[Any]:
        return iter(self.array.tolist())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.array, dtype, copy=copy) if copy else np.asarray(self.array, dtype)


class SharedItems(Packed[Item]):
    """Few different items for many records, such as modes and shapes: each is kept once, and the array has its number.

    >>> SharedItems.of(["train", "train", "eval"])[1:]
    ['train', 'eval']
    """

    __slots__ = ("kinds",)

    def __init__(self, array: NDArray[Any], kinds: Sequence[Item]) -> None:
        super().__init__(array)
        self.kinds = tuple(kinds)

    @classmethod
    def of(cls, items: Sequence[Item]) -> Self:
        """Items that can be hashed."""
        numbers = {item: number for number, item in enumerate(dict.fromkeys(items))}
        if len(numbers) == 1:
            return cls.all(items[0], len(items))
        return cls(np.fromiter((numbers[item] for item in items), np.int32, len(items)), [*numbers])

    @classmethod
    def all(cls, item: Item, count: int) -> Self:
        """The same item for each of so many records."""
        return cls(np.broadcast_to(np.int32(0), count), (item,))

    def _of(self, array: NDArray[Any]) -> Self:
        return type(self)(array, self.kinds)

    def _item(self, stored: Any) -> Item:
        kind: Item = self.kinds[stored]
        return kind

    def __iter__(self) -> Iterator[Item]:
        return repeat(self.kinds[0], len(self)) if len(self.kinds) == 1 else super().__iter__()

    @classmethod
    def joined(cls, columns: Sequence[SharedItems[Item]]) -> Self:
        """Columns one after the other."""
        numbers: dict[Item, int] = {}
        codes: list[NDArray[Any]] = []
        for column in columns:
            own = [numbers.setdefault(kind, len(numbers)) for kind in column.kinds]
            codes.append(np.array(own, np.int32)[column.array])
        if len(numbers) == 1:
            return cls.all(next(iter(numbers)), sum(map(len, codes)))
        return cls(np.concatenate([np.zeros(0, np.int32), *codes]), [*numbers])


def picked(column: Sequence[Item], which: Which) -> Sequence[Item]:
    """Some items of any sequence."""
    if isinstance(column, Packed):
        return column.taken(which)
    return column[which] if isinstance(which, slice) else [column[number] for number in which.tolist()]


def end_to_end(columns: Sequence[Any]) -> Sequence[Any]:
    """Sequences one after the other."""
    scalars = [column.array for column in columns if isinstance(column, Scalars)]
    if len(scalars) == len(columns) and len({array.dtype for array in scalars}) == 1:
        return Scalars(np.concatenate(scalars))
    several = [column for column in columns if isinstance(column, SharedItems)]
    if len(several) == len(columns):
        return SharedItems[Any].joined(several)
    return [item for column in columns for item in column]


def distinct(column: Sequence[Item]) -> set[Item]:
    """The different items of a sequence."""
    if isinstance(column, Packed):
        return {column._item(stored) for stored in np.unique(column.array).tolist()}
    return set(column)
