"""How is a figure of many places drawn? Bars, boxes, curves or a heat map, whichever its values ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from byname.analyse.results.drawing import bars, boxes, curves, heat_map
from byname.analyse.results.leaves import Leaf, keys_of, leaves_of
from byname.analyse.results.rows import plain, single
from byname.errors import BadArgumentError
from byname.table import closest

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plotted"]

SPECTRA = ("eigenvalues", "singular_values", "spectrum")
"""Figures whose values come in order of size."""


def plotted(figures: Mapping[str, Mapping[Any, Any]], name: str, figure: str | None, axes: Axes | None) -> Axes:
    """The axes, with the figure drawn in them."""
    leaves = _chosen([*leaves_of(figures)], name, figure)
    figure = leaves[0].figure
    if any(isinstance(leaf.value, Mapping) for leaf in leaves):
        drawn = _matrix(axes, leaves)
    elif all(single(leaf.value) for leaf in leaves):
        drawn = _numbers(axes, leaves)
    else:
        drawn = _tensors(axes, leaves)
    drawn.set_title(f"{name}: {figure}", loc="left")
    return drawn


def _chosen(leaves: list[Leaf], name: str, figure: str | None) -> list[Leaf]:
    drawable = [leaf for leaf in leaves if _has_numbers(leaf.value)]
    known = [*dict.fromkeys(leaf.figure for leaf in drawable)]
    if not known:
        raise BadArgumentError(f"these results of {name} have no numbers to draw")
    if figure is not None and figure not in known:
        raise BadArgumentError(f"{name} has no figure {figure!r} with numbers; there is {closest(str(figure), known)}")
    return [leaf for leaf in drawable if leaf.figure == (known[0] if figure is None else figure)]


def _has_numbers(value: Any) -> bool:
    if isinstance(value, Mapping):
        return bool(value) and all(single(one) for one in value.values())
    return single(value) or (isinstance(value, Tensor) and not value.is_complex())


def _matrix(axes: Axes | None, leaves: Sequence[Leaf]) -> Axes:
    """One row a place, one column a key."""
    keys = keys_of(leaves, [leaf.path for leaf in leaves])
    rows = {
        _label(leaf): [plain(leaf.value.get(key)) if isinstance(leaf.value, Mapping) else None for key in keys]
        for leaf in leaves
    }
    return heat_map(axes, rows, [str(key) for key in keys], of=leaves[0].figure)


def _numbers(axes: Axes | None, leaves: Sequence[Leaf]) -> Axes:
    """One bar a place; of classes one row a place and one column a class."""
    if not any(leaf.labels for leaf in leaves):
        return bars(axes, {leaf.path: float(plain(leaf.value)) for leaf in leaves}, of=leaves[0].figure)
    known = {(leaf.path, leaf.labels): plain(leaf.value) for leaf in leaves}
    classes = [*dict.fromkeys(leaf.labels for leaf in leaves)]
    rows = {
        path: [known.get((path, labels)) for labels in classes] for path in dict.fromkeys(one.path for one in leaves)
    }
    return heat_map(axes, rows, [_words(labels) for labels in classes], of=leaves[0].figure)


def _tensors(axes: Axes | None, leaves: Sequence[Leaf]) -> Axes:
    """One box a place, or one curve where the values are a spectrum."""
    values = {_label(leaf): Tensor.reshape(_numbers_of(leaf.value), (-1,)).tolist() for leaf in leaves}
    draw = curves if leaves[0].figure in SPECTRA else boxes
    return draw(axes, values, of=leaves[0].figure)


def _numbers_of(value: Any) -> Tensor:
    import torch

    return torch.as_tensor(value).detach().double().cpu()


def _label(leaf: Leaf) -> str:
    return f"{leaf.path}  {_words(leaf.labels)}" if leaf.labels else leaf.path


def _words(labels: tuple[Any, ...]) -> str:
    return " ".join(map(str, labels))
