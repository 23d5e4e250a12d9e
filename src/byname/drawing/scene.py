"""What does a picture consist of? Boxes and lines with their places, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Box", "Line", "Scene"]

Shape = tuple[int, ...]
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Box:
    """One box of a drawing.

    Attributes:
        number: its place in `Scene.boxes`.
        parent: number of the box around it; None for the outermost.
        kind: "module", "operation", "input", "output", "parameter", "constant", "unseen" or "repeat".
        path: the place in the model, as `byname.interject` and the others take it; of an input its name.
        operation: class of the module, or name of the function.
        title: first line of text in it.
        subtitle: second line; empty where there is none.
        tooltip: all that is known of it, in lines.
        shapes: of the tensors that come out.
        calls: the calls it stands for, as numbers in the order in which they began; empty without an example.
        repeats: how many neighbours of the same shape it stands for, itself included.
        marks: what is attached to it.
        open: whether what is in it is drawn.
        x, y, width, height: upper left corner and size, in pixels.
    """

    number: int
    parent: int | None
    kind: str
    path: str
    operation: str
    title: str
    subtitle: str
    tooltip: str
    shapes: tuple[Shape, ...]
    calls: tuple[int, ...]
    repeats: int
    marks: tuple[str, ...]
    open: bool
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Line:
    """A line from one box to another: a tensor goes there.

    Attributes:
        source, target: numbers of boxes.
        shapes: of the tensors that arrive; None in it for one that is not known.
        repeated: from and to which repetitions it goes: "from each of 12", "to the first of 12"; mostly empty.
        via: for each operation on the way that has no box of its own, its name.
        points: where the line runs; first on the lower side of its source, last on the upper side of its target.
    """

    source: int
    target: int
    shapes: tuple[Shape | None, ...]
    via: tuple[str, ...]
    repeated: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Scene:
    """A whole picture.

    Attributes:
        title: what is drawn.
        boxes: each after the box around it.
        lines: all lines.
        notes: what the picture does not show, in sentences.
        width, height: of the picture, in pixels.
    """

    title: str
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...]
    width: float
    height: float
