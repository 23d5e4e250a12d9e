"""Draw: `draw`, and the picture that it returns: the modules of a model and the tensors that pass between them."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils._pytree import tree_leaves

from byname.drawing.nested_boxes import MARGIN, Nester, outline
from byname.drawing.plan import add_marks, fold, marks_of, read_flow, read_tree
from byname.drawing.render import Box, DrawnLine, Scene, to_dot, to_mermaid, to_svg
from byname.drawing.view import View, collapse, view
from byname.drawing.words import repeated, tooltip
from byname.errors import BadArgumentError, NotAModuleError
from byname.model.module_tree import modules_by_path, unwrap_module
from byname.model.where import modules_of
from byname.table import counted
from byname.text import printable
from byname.tracing.tensor_ids import shape_of
from byname.tracing.tracer import trace


@dataclass(frozen=True, slots=True, repr=False)
class Drawing:
    """A picture of a model. A notebook displays it; `save` writes it to a file. It holds no module and no tensor.

    Attributes:
        scene: the boxes and lines as plain data.
    """

    scene: Scene

    @property
    def svg(self) -> str:
        """The picture as SVG."""
        return to_svg(self.scene)

    @property
    def dot(self) -> str:
        """The picture in the DOT language of Graphviz."""
        return to_dot(self.scene)

    @property
    def mermaid(self) -> str:
        """The picture as a Mermaid flowchart, which GitHub renders in Markdown."""
        return to_mermaid(self.scene)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the picture to a file that ends in ``.svg``, ``.dot``, ``.gv`` or ``.mmd`` (Mermaid).

        Raises:
            BadArgumentError: the path has another ending.
        """
        file = Path(path)
        texts = {".svg": to_svg, ".dot": to_dot, ".gv": to_dot, ".mmd": to_mermaid}
        if file.suffix.lower() not in texts:
            raise BadArgumentError(f"a drawing is saved as .svg, .dot or .mmd, not as {file.name!r}")
        file.write_text(texts[file.suffix.lower()](self.scene), encoding="utf-8")

    def _repr_svg_(self) -> str:
        return self.svg

    def __str__(self) -> str:
        calls = {call for box in self.scene.boxes for call in box.calls}
        parts = [counted(len(self.scene.boxes), "box", "boxes"), counted(len(self.scene.lines), "line")]
        parts += [f"for {counted(len(calls), 'call')}"] if calls else []
        lines = [f"drawing of {self.scene.title}: {', '.join(parts)}", *self.scene.notes]
        return "\n".join(map(printable, lines))

    __repr__ = __str__


def draw(
    model: nn.Module,
    *,
    example: Any = None,
    depth: int | None = None,
    detail: bool = False,
    open: Any = None,
    closed: Any = None,
) -> Drawing:
    """Return a picture of a model: modules as nested boxes, tensors as lines between them, with shapes.

    Consecutive blocks of the same structure are drawn once.

    Args:
        model: the model. It is not changed.
        example: a tensor; a tuple of positional arguments; a dict of keyword arguments; or ``(args, kwargs)``. The
            lines are the tensors that passed from call to call in that run. Without an example the picture has the
            modules only.
        depth: the number of nested modules that are opened; 0 draws the model as one box. By default, the greatest
            depth with up to 400 boxes.
        detail: also draw operations that only move, select or reshape elements (``view``, ``transpose``, ``[...]``).
        open: modules that are drawn open at any depth, together with the modules around them: a path, a class, a
            selector, or a sequence of these.
        closed: modules that are drawn as one box, given in the same way.

    Raises:
        NotAModuleError: `model` is not a module.
        NoMatchError: `open` or `closed` matches no module.
        BadArgumentError: `depth` is negative.
        BadExampleError: `example` is not one of these forms.

    >>> import byname, torch
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> drawing = byname.draw(model, example=torch.rand(4, 8))
    >>> print(drawing)
    drawing of Sequential: 6 boxes, 4 lines, for 4 calls
    >>> [(box.path, box.operation, box.shapes) for box in drawing.scene.boxes][1:3]
    [('0', 'Linear', ((4, 16),)), ('1', 'ReLU', ((4, 16),))]
    >>> drawing.svg.startswith("<svg")
    True
    """
    if not issubclass(type(model), nn.Module):
        raise NotAModuleError(f"draw() takes an nn.Module, not {type(model).__name__}")
    if depth is not None and not (isinstance(depth, int) and depth >= 0):
        raise BadArgumentError(f"depth= is the number of levels of modules, from 0, not {depth!r:.40}")
    model, _ = unwrap_module(model)
    flow = None if example is None else trace(model, example)
    opened, shut = _paths(model, open), _paths(model, closed)
    shapes = {id(leaf): shape_of(leaf) for leaf in tree_leaves(example)}  # each tensor once
    sizes = [shape for shape in shapes.values() if shape is not None]
    plan = read_tree(model) if flow is None else read_flow(flow, sizes)
    add_marks(plan, marks_of(model))
    if not detail:
        fold(plan)
    collapse(plan)
    return Drawing(_scene_of(view(plan, depth, opened=opened, closed=shut), type(model).__name__))


def _paths(model: nn.Module, where: Any) -> set[str]:
    """Return all paths of the modules that a ``where`` matches; none for None."""
    meant = {id(module) for module in modules_of(model, where).values()} if where is not None else set()
    return {path for path, module in modules_by_path(model).items() if id(module) in meant}


def _scene_of(part: View, title: str) -> Scene:
    """Lay out the part of a plan to show, and return its boxes and lines."""
    plan = part.plan
    routes = Nester(part).nest() if plan.flowing else outline(part)
    shown = [number for number in part.shown if number]
    numbers = {number: place for place, number in enumerate(shown)}
    boxes = tuple(_box(part, number, numbers) for number in shown)
    lines = tuple(
        DrawnLine(
            source=numbers[link.source],
            target=numbers[link.target],
            shapes=tuple(link.shapes),
            via=tuple(link.via),
            repeated=", ".join(repeated(plan, link)),
            points=tuple(points),
        )
        for link, points in zip(part.links, routes, strict=False)
    )
    page = plan.items[0]
    return Scene(title, boxes, lines, tuple(plan.notes), round(page.width + MARGIN / 2, 1), round(page.height, 1))


def _box(view: View, number: int, numbers: dict[int, int]) -> Box:
    item = view.plan.items[number]
    facts: dict[str, Any] = {name: getattr(item, name) for name in ("kind", "path", "operation", "shapes")}
    facts |= {name: round(getattr(item, name), 1) for name in ("x", "y", "width", "height")}
    return Box(
        number=numbers[number],
        parent=numbers.get(item.parent),
        title=item.title,
        subtitle=item.subtitle,
        tooltip=tooltip(view.plan, item),
        calls=tuple(sorted(view.calls[number])),
        repeats=len(item.run.groups) if item.run else 1,
        marks=tuple(item.marks),
        open=number in view.open,
        **facts,
    )
