"""Sweep: an edit made at each of many points, such as layers x positions, and the metric of each output."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from byname.edits.reused import ReusedAttachments
from byname.errors import BadArgumentError
from byname.extras import needs
from byname.model.module_tree import modules_by_path
from byname.model.where import unwrapped
from byname.reading.interrupts import defer_signals
from byname.reading.tensor import is_tensor
from byname.source.tracebacks import warn
from byname.table import Row, Rows, counted
from byname.text import note_on, with_progress
from byname.tracing.preserve import arguments_of
from byname.watch.handle import Handle

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes


def sweep(
    model: nn.Module,
    edit: Callable[..., Handle],
    *,
    over: Mapping[str, Iterable[Any]],
    metric: Callable[[Any], Any],
    example: Any,
    batch: int | None = None,
    progress: bool = True,
) -> Sweep:
    """Make an edit at each of many points, run the model, and return the metric of each output.

        >>> import torch, byname
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 3)).eval()
        >>> clean = byname.capture(model, ["0", "2"])(torch.ones(1, 2))
        >>> found = byname.sweep(
        ...     model,
        ...     lambda model, layer, feature: byname.patch(model, layer, clean, features=feature),
        ...     over={"layer": ["0", "2"], "feature": range(3)},
        ...     metric=lambda output: output.sum(),
        ...     example=torch.zeros(1, 2),
        ... )
        >>> found.values.shape
        (2, 3)
        >>> found.rows()[4]["layer"], found.rows()[4]["feature"]
        ('2', 1)

    There is one forward for each point, in the mode that the model is in, and with gradients or without as they are
    where this is called; the edit of one point is removed before that of the next. The figures are those of the same
    loop by hand, to the last bit. Ctrl-C ends the sweep with a warning; the points that were not run are NaN.

    Args:
        model: any module.
        edit: a function ``f(model, **point)`` that returns the handle of an edit, such as that of `patch`, `ablate`,
            `steer`, `skip` or `interject`.
        over: for each argument of `edit` the values that it takes: layers, positions, heads, modules, names. There is a
            point for each combination, the last argument varies fastest.
        metric: a function of the model's output that returns a number, or a tensor of one number.
        example: the arguments to run the model with: a tensor; a tuple of positional arguments; a dict of keyword
            arguments; or ``(args, kwargs)``.
        batch: the most points in one forward. It changes nothing: an edit holds for all samples of a forward, so that
            each point has a forward of its own.
        progress: whether a terminal shows a bar if the sweep takes longer than a second.

    Raises:
        BadArgumentError: an argument is invalid, or the edit or the metric returns something else.
        Exception: what the edit, the model or the metric raises, with a note that names the point.
    """
    if batch is not None and (type(batch) is not int or batch < 1):
        raise BadArgumentError(f"batch= must be a number of points, at least 1, or None, not {batch!r}")
    root, choices = unwrapped(model), _choices(over)
    args, kwargs = arguments_of(example)
    paths = {id(module): path for path, module in modules_by_path(root).items()}
    labels = {name: tuple(_label(one, paths) for one in some) for name, some in choices.items()}
    points = [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]
    values: list[float] = []
    run = partial(model, *args, **kwargs)
    try:
        with ReusedAttachments() as attachments:
            for point in with_progress(points, "sweep", wanted=None if progress else False):
                try:
                    values.append(_value(attachments, partial(attachments.put_on, edit, model, point), run, metric))
                except Exception as error:
                    at = ", ".join(f"{name}={_label(one, paths)!r:.60}" for name, one in point.items())
                    note_on(error, f"byname: at {at} of the sweep")
                    raise
    except KeyboardInterrupt:
        if not values:
            raise
        warn(_stopped(len(values), len(points)), UserWarning)
    return Sweep(labels, tuple(values), type(root).__name__)


def _choices(over: Any) -> dict[str, list[Any]]:
    if not isinstance(over, Mapping) or not over:
        raise BadArgumentError("over= takes a dict of arguments of the edit and their values, as {'layer': range(12)}")
    choices = {}
    for name, some in over.items():
        if type(name) is not str or name in ("value", "model"):
            raise BadArgumentError(f"over= has {name!r:.40}, which cannot be the name of a dimension of a sweep")
        if isinstance(some, str | bytes | nn.Module) or not isinstance(some, Iterable):
            raise BadArgumentError(f"over[{name!r}] must be a sequence of values, not {some!r:.40}; try [value]")
        choices[name] = [*some]
        if not choices[name]:
            raise BadArgumentError(f"over[{name!r}] is empty, so there is no point to run")
    return choices


def _value(
    attachments: ReusedAttachments,
    put_on: Callable[[], Handle],
    run: Callable[[], Any],
    metric: Callable[[Any], Any],
) -> float:
    """Return the figure of one point; nothing of the edit stays, also after an error or an interrupt."""
    handle: Handle | None = None
    try:
        with defer_signals():
            handle = put_on()
        value = _number(metric(run()))
        attachments.take_off(handle)
        return value
    except BaseException:
        if handle is not None:
            handle.__exit__(*sys.exc_info())
        raise


def _number(found: Any) -> float:
    try:
        return float(found.item() if is_tensor(found) else found)
    except (TypeError, ValueError, RuntimeError) as error:
        kind = f"tensor of shape {tuple(found.shape)}" if is_tensor(found) else f"value of type {type(found).__name__}"
        raise BadArgumentError(f"metric= must return a number or a tensor with one element, not a {kind}") from error


def _label(value: Any, paths: Mapping[int, str]) -> Any:
    """Return what stands for a value in a table: itself, or for a module its path."""
    if isinstance(value, nn.Module):
        return paths.get(id(value)) or type(value).__name__
    if is_tensor(value) or type(value).__module__ == "numpy":
        value = value.tolist()
    return value if type(value) in (int, float, str, bool) else str(value)


def _stopped(done: int, total: int) -> str:
    return f"the sweep was interrupted: {done} of {counted(total, 'point')} ran, and the others are NaN"


@dataclass(frozen=True, slots=True, repr=False)
class Sweep(Rows[Row]):
    """The figures of a sweep: a row for each point, with the values of the arguments and ``value``.

    Attributes:
        over: the values of each argument, as they stand in rows and coordinates.
        done: the figures of the points that were run, in the order of the rows.
        of: the class of the model.
    """

    over: dict[str, tuple[Any, ...]]
    done: tuple[float, ...]
    of: str

    @property
    def complete(self) -> bool:
        """Whether every point was run."""
        return len(self.done) == math.prod(self.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of values of each argument."""
        return tuple(map(len, self.over.values()))

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence if points are missing."""
        return () if self.complete else (_stopped(len(self.done), math.prod(self.shape)),)

    @property
    def values(self) -> Any:
        """The figures as a NumPy array of float64 with one dimension for each argument; NaN where no point was run."""
        found = torch.full((math.prod(self.shape),), torch.nan, dtype=torch.float64, device="cpu")
        found[: len(self.done)] = torch.tensor(self.done, dtype=torch.float64, device="cpu")
        return found.view(self.shape).numpy()

    @property
    def items(self) -> tuple[Row, ...]:  # type: ignore[override]
        """The rows."""
        points = itertools.product(*self.over.values())
        values = itertools.chain(self.done, itertools.repeat(math.nan))
        return tuple({**dict(zip(self.over, point, strict=True)), "value": next(values)} for point in points)

    def rows(self) -> list[Row]:
        """Return one dict for each point: the values of the arguments, and ``value``."""
        return [*self.items]

    def to_xarray(self) -> xarray.DataArray:
        """Return the figures as an array with one dimension for each argument, and its values as coordinates.

        Raises:
            NotInstalledError: xarray is not installed (``pip install "byname[frames]"``).
        """
        with needs("to_xarray()", "xarray"):
            import xarray
        coords = {name: [*some] for name, some in self.over.items()}
        return xarray.DataArray(self.values, coords, [*coords], name="value", attrs={"notes": [*self.notes]})

    def plot(self, *, ax: Axes | None = None) -> Axes:
        """Draw the figures as a heat map.

        It has a column for each value of the last argument, and a row for each combination of the others.

        Args:
            ax: the axes to draw in; by default those of a new figure.

        Raises:
            NotInstalledError: matplotlib is not installed (``pip install "byname[plot]"``).
        """
        from byname.analyse.plots import draw_heat_map

        *names, last = self.over
        rows = [" · ".join(map(str, row)) for row in itertools.product(*(self.over[name] for name in names))]
        values = self.values.reshape(len(rows), -1)
        ax = draw_heat_map(ax, dict(zip(rows, values, strict=True)), [*map(str, self.over[last])], of="value")
        ax.set_ylabel(" · ".join(names))
        ax.set_xlabel(last)
        ax.set_title(self.of, loc="left")
        return ax

    def _shown(self) -> list[Row]:
        """Return the rows to print; of two arguments a row for each value of the first one."""
        if len(self.over) != 2 or self.shape[1] > _SIDE_BY_SIDE:
            return [{**row, "value": f"{row['value']:.5g}"} for row in self.items]
        (name, rows), (other, columns) = self.over.items()
        return [
            {name: row, **{f"{other}={column}": f"{one:.5g}" for column, one in zip(columns, values, strict=True)}}
            for row, values in zip(rows, self.values, strict=True)
        ]

    def _title(self) -> str:
        return f"{self.of}: {counted(math.prod(self.shape), 'point')} of {' × '.join(self.over)}"


_SIDE_BY_SIDE = 12
"""Columns that the table of two arguments has at most; of more values each point has a row."""
