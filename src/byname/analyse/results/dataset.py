"""How do figures become arrays with named dimensions? Place by place; what a place does not have is marked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from byname.analyse.results.tables import ResultLeaf, keys_of, leaves_of, levels_of, named
from byname.errors import BynameError
from byname.extras import needs

if TYPE_CHECKING:
    import xarray

MOST = 2**26
"""So many elements may an array have, however few of them are values."""

Array = np.ndarray[Any, np.dtype[Any]]


def dataset_of(figures: Mapping[str, Mapping[Any, Any]], name: str) -> xarray.Dataset:
    """One variable a figure."""
    with needs("to_xarray()", "xarray"):
        import xarray
    leaves = [*leaves_of(figures)]
    coords = _coordinates(figures, leaves)
    variables: dict[str, Any] = {}
    masks: dict[str, Any] = {}
    for figure in dict.fromkeys(leaf.figure for leaf in leaves):
        dims, data, mask = _variable(figure, [leaf for leaf in leaves if leaf.figure == figure], coords)
        variables[named(figure, coords)] = dims, data
        if mask is not None:
            masks[f"{figure}_mask"] = dims, mask
    return xarray.Dataset(variables, {**coords, **masks}, attrs={"analyser": name})


def _coordinates(figures: Mapping[str, Any], leaves: list[ResultLeaf]) -> dict[str, list[Any]]:
    """The names along the dimensions that figures share."""
    coords: dict[str, dict[Any, None]] = {"place": dict.fromkeys(figures)}
    for leaf in leaves:
        for level, label in zip(levels_of(leaf.labels), leaf.labels, strict=True):
            coords.setdefault(level, {})[label] = None
    if any(isinstance(leaf.value, Mapping) for leaf in leaves):
        coords["other"] = dict.fromkeys(keys_of(leaves, figures))
    return {name: [*labels] for name, labels in coords.items()}


def _variable(
    figure: str, leaves: list[ResultLeaf], coords: Mapping[str, list[Any]]
) -> tuple[tuple[str, ...], Array, Array | None]:
    """The dimensions and the array of one figure, and its mask where something was padded."""
    several = any(isinstance(leaf.value, Mapping) for leaf in leaves)
    levels = [*dict.fromkeys(level for leaf in leaves for level in levels_of(leaf.labels))]
    outer = ["place", *levels, *(["other"] if several else [])]
    cells = {
        tuple(coords[level].index(label) for level, label in zip(outer, key, strict=True)): _array(value)
        for leaf in leaves
        for key, value in _cells(leaf, levels, several=several)
    }
    shape = tuple(len(coords[level]) for level in outer)
    data, mask = _filled(figure, shape, cells)
    dims = (*outer, *(f"{figure}_dim_{number}" for number in range(data.ndim - len(outer))))
    return dims, data, mask


def _cells(leaf: ResultLeaf, levels: list[str], *, several: bool) -> Iterable[tuple[tuple[Any, ...], Any]]:
    if len(leaf.labels) != len(levels) or several != isinstance(leaf.value, Mapping):
        raise BynameError(f"`{leaf.figure}` has classes or keys at some places only: to_pandas(long=True) has it all")
    key = (leaf.path, *leaf.labels)
    return [((*key, other), one) for other, one in leaf.value.items()] if several else [(key, leaf.value)]


def _array(value: Any) -> Array:
    if isinstance(value, Tensor):
        kept = value.detach().cpu()
        return np.asarray((kept.float() if kept.dtype.itemsize < 4 and kept.is_floating_point() else kept).numpy())
    if isinstance(value, bool | int | float | complex):
        return np.asarray(value)
    array = np.empty((), object)  # texts and lists of them stay what they are
    array[()] = value
    return array


def _filled(figure: str, shape: tuple[int, ...], cells: Mapping[tuple[int, ...], Array]) -> tuple[Array, Array | None]:
    """All values in one array, those of fewer dimensions and smaller sizes at its beginning."""
    deepest = max((array.ndim for array in cells.values()), default=0)
    shaped = {at: array.reshape(array.shape + (1,) * (deepest - array.ndim)) for at, array in cells.items()}
    inner = tuple(max(sizes) for sizes in zip(*(array.shape for array in shaped.values()), strict=True))
    elements, own = math.prod(shape) * math.prod(inner), sum(array.size for array in shaped.values())
    if elements > MOST and elements > 4 * own:
        raise BynameError(
            f"one array of `{figure}`, of shape {shape + inner}, would have {elements:,} elements, of which {own:,} "
            "have a value: take the tensors of each place, or to_pandas(long=True)"
        )
    whole = elements == own
    dtype = np.result_type(*(array.dtype for array in shaped.values())) if shaped else np.dtype(np.float64)
    if not whole and dtype.kind in "biu":
        dtype = np.dtype(np.float64)
    data = np.full((*shape, *inner), None if dtype.kind == "O" else np.nan if dtype.kind in "fc" else 0, dtype)
    mask = np.zeros(data.shape, bool)
    for at, array in shaped.items():
        here: tuple[int | slice, ...] = (*at, *(slice(0, size) for size in array.shape))
        data[here] = array if array.ndim else array[()]  # else a list would stay in an array of its own
        mask[here] = True
    return data, None if whole else mask
