"""Render: a scene of boxes and lines, its colours, and its form as SVG, DOT and Mermaid."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from byname.drawing.layered import Position
from byname.drawing.nested_boxes import HEADER, LABEL, SUBTITLE, TITLE
from byname.drawing.plan import Shape
from byname.drawing.words import text_width
from byname.text import printable_lines, quoted_for_dot, shape_text, shortened

NOTE_HEIGHT = 16.0
_HALO = ' stroke="#ffffff" stroke-width="2.5" paint-order="stroke"'
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML text may contain."""


def escaped(text: str) -> str:
    """Return text escaped for XML, for use between tags and in attributes."""
    text = _FORBIDDEN.sub("\ufffd", text)
    for letter, code in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("'", "&#39;")):
        text = text.replace(letter, code)
    return text


def to_svg(scene: Scene) -> str:
    """Return the picture as one SVG element: open boxes, the outermost first; lines; then titles and closed boxes."""
    notes = list(_wrapped(scene.notes, scene.width))
    height = scene.height + NOTE_HEIGHT * len(notes) + (8 if notes else 0)
    size = f"{_number(scene.width)} {_number(height)}"
    summary = f"{len(scene.boxes)} boxes and {len(scene.lines)} lines between them"
    about = " ".join(f"{escaped(text)}." for text in (summary, *scene.notes))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" width="{_number(scene.width)}"'
            f' height="{_number(height)}" role="img" font-family="{FONT}" fill="{INK}">',
            f"<title>{escaped(scene.title)}</title>",
            f"<desc>{about}</desc>",
            '<rect width="100%" height="100%" fill="#ffffff"/>',
            *(part for box in scene.boxes if box.open for part in _frame(scene, box)),
            *(_line(scene, line) for line in scene.lines),
            *(part for box in scene.boxes for part in (_header(box) if box.open else _closed(box))),
            *_labels(scene),
            *(_text(16, scene.height + NOTE_HEIGHT * k + 8, note, LABEL + 1, QUIET) for k, note in enumerate(notes)),
            "</svg>",
        ]
    )


def _frame(scene: Scene, box: Box) -> Iterator[str]:
    """Yield the rim of an open box; one that repeats has a shadow like a stack."""
    level = 0
    around = box.parent
    while around is not None:
        level, around = level + 1, scene.boxes[around].parent
    yield from _shadows(box, 6)
    yield _rect(box, "#f8fafc" if level % 2 else "#ffffff", "#9aa5b1" if box.repeats > 1 else "#cbd2d9", 6)


def _shadows(box: Box, radius: float) -> Iterator[str]:
    for reach in (8, 4) if box.repeats > 1 else ():
        yield _rect(replace(box, x=box.x + reach, y=box.y + reach), "#ffffff", "#9aa5b1", radius)


def _rect(box: Box, fill: str, rim: str, radius: float, more: str = "") -> str:
    return (
        f'<rect x="{_number(box.x)}" y="{_number(box.y)}" width="{_number(box.width)}" height="{_number(box.height)}"'
        f' rx="{_number(radius)}" fill="{fill}" stroke="{rim}"{more}/>'
    )


def _header(box: Box) -> Iterator[str]:
    """Yield the title of an open box, drawn over the lines that enter it."""
    x = _number(box.x)
    fill, rim = "#e4e7eb", "#9aa5b1" if box.repeats > 1 else "#cbd2d9"
    path = f"M{x} {_number(box.y + HEADER)}v-{HEADER - 6:g}q0 -6 6 -6h{_number(box.width - 12)}q6 0 6 6v{HEADER - 6:g}z"
    yield f'<g><title>{escaped(box.tooltip)}</title><path d="{path}" fill="{fill}" stroke="{rim}"/>'
    yield _text(box.x + 10, box.y + 16, box.title, TITLE, INK, weight="600")
    after = box.x + 18 + text_width(box.title, TITLE, bold=True)
    yield _text(after, box.y + 16, box.subtitle, SUBTITLE, QUIET)
    yield from _marks(box, box.x + box.width - 6, box.y + 4)
    yield "</g>"


def _closed(box: Box) -> Iterator[str]:
    colours = paint(box.kind, box.operation)
    radius = 11 if box.kind in ("operation", "input", "output", "parameter", "constant", "unseen") else 5
    dashes = ' stroke-dasharray="3 2"' if box.kind in ("parameter", "constant", "unseen") else ""
    ink, quiet = ("#ffffff", "#e4e7eb") if box.kind in ("input", "output") else (INK, QUIET)
    yield f"<g><title>{escaped(box.tooltip)}</title>"
    yield from _shadows(box, radius)
    yield _rect(box, colours.fill, colours.rim, radius, dashes)
    middle, top = box.x + box.width / 2, box.y + (16 if box.marks else 0)
    weight = "600" if box.kind == "module" else "400"
    yield _text(middle, top + (15 if not box.subtitle else 15.5), box.title, TITLE, ink, weight, "middle")
    yield _text(middle, top + 29, box.subtitle, SUBTITLE, quiet, anchor="middle")
    yield from _marks(box, box.x + box.width - 4, box.y + 3)
    yield "</g>"


def _marks(box: Box, right: float, y: float) -> Iterator[str]:
    for mark in reversed(box.marks):
        width = text_width(shortened(mark), LABEL) + 18
        right -= width
        place = f'x="{_number(right)}" y="{_number(y)}" width="{_number(width)}" height="15"'
        yield f'<rect {place} rx="7.5" fill="{MARK}"/>'
        yield f'<circle cx="{_number(right + 7.5)}" cy="{_number(y + 7.5)}" r="2.5" fill="#ffffff"/>'
        yield _text(right + 13, y + 11, shortened(mark), LABEL, "#ffffff")
        right -= 4


def _line(scene: Scene, line: DrawnLine) -> str:
    source, target = scene.boxes[line.source], scene.boxes[line.target]
    words = [f"{source.path or source.title} → {target.path or target.title}"]
    words += [shape_text(shape) for shape in line.shapes if shape is not None]
    words += [line.repeated] if line.repeated else []
    words += [f"through {', '.join(line.via)}"] if line.via else []
    *_, (x, y) = line.points
    tip = f"M{_number(x - 3.2)} {_number(y - 6)}L{_number(x)} {_number(y)}L{_number(x + 3.2)} {_number(y - 6)}z"
    return (
        f'<g><title>{escaped(chr(10).join(words))}</title><path d="{_curve(line.points)}" fill="none" stroke="{LINE}"'
        f' stroke-width="1.2"/><path d="{tip}" fill="{LINE}"/></g>'
    )


def _curve(points: tuple[Position, ...]) -> str:
    """Return a smooth curve through the points, vertical at each of them."""
    (x, y), *others = points
    parts = [f"M{_number(x)} {_number(y)}"]
    for across, down in others:
        if across == x:
            parts.append(f"V{_number(down)}")
        else:
            middle = _number((y + down) / 2)
            parts.append(f"C{_number(x)} {middle} {_number(across)} {middle} {_number(across)} {_number(down)}")
        x, y = across, down
    return "".join(parts)


def _labels(scene: Scene) -> Iterator[str]:
    """Yield the output shapes of closed boxes, next to where their lines begin, and notes on repeated lines."""
    asides: defaultdict[int, set[float]] = defaultdict(set)
    for line in scene.lines:
        asides[line.source].add(_aside(line))
        if "each" in line.repeated:
            x, y = line.points[-1]
            yield _text(x + 6, y - 3, line.repeated, LABEL, QUIET, more=_HALO)
    for number, ways in sorted(asides.items()):
        box = scene.boxes[number]
        left = max(ways) > 0 and min(ways) >= 0
        if box.shapes and not box.open and box.kind in ("module", "operation", "unseen"):
            shade = 8 if box.repeats > 1 else 0
            x, y = box.x + box.width / 2 + (-5 if left else 5), box.y + box.height + shade + 10
            words = shape_text(box.shapes[0]) + (" …" if len(box.shapes) > 1 else "")
            yield _text(x, y, words, LABEL, QUIET, anchor="end" if left else "start", more=_HALO)


def _aside(line: DrawnLine) -> float:
    """Return the direction in which a line turns first: negative is left, positive is right, 0 is a straight line."""
    start = line.points[0][0]
    return next((x - start for x, _ in line.points if abs(x - start) > 2), 0.0)


def _text(
    x: float, y: float, text: str, size: float, fill: str, weight: str = "400", anchor: str = "start", more: str = ""
) -> str:
    if not text:
        return ""
    shape = f'font-size="{size:g}" fill="{fill}" font-weight="{weight}" text-anchor="{anchor}"{more}'
    return f'<text x="{_number(x)}" y="{_number(y)}" {shape}>{escaped(text)}</text>'


def _wrapped(notes: tuple[str, ...], width: float) -> Iterator[str]:
    """Yield the notes in lines that fit into the width of the picture."""
    for note in notes:
        line = ""
        for word in note.split(" "):
            if line and text_width(f"{line} {word}", LABEL + 1) > width - 32:
                yield line
                line = word
            else:
                line = f"{line} {word}".strip()
        yield line


def _number(value: float) -> str:
    return f"{round(value, 1):g}" if abs(value) < 1e5 else f"{value:.1f}"


@dataclass(frozen=True, slots=True)
class Box:
    """One box of a drawing.

    Attributes:
        number: its index in `Scene.boxes`.
        parent: the number of the box around it; None for an outermost box.
        kind: "module", "operation", "input", "output", "parameter", "constant", "unseen" or "repeat".
        path: the place in the model, as `byname.interject` takes it; for an input its name.
        operation: the class of the module, or the name of the function.
        title: the first line of text in it.
        subtitle: the second line; may be empty.
        tooltip: all known facts about it, in lines.
        shapes: the shapes of its output tensors.
        calls: the numbers of the calls that it represents, in the order in which they began; empty without an example.
        repeats: the number of equal neighbours that it represents, itself included.
        marks: the names of the callbacks attached to it.
        open: whether its contents are drawn.
        x, y, width, height: its upper left corner and size, in pixels.
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
class DrawnLine:
    """A line from one box to another, for the tensors that go there.

    Attributes:
        source, target: the numbers of the boxes.
        shapes: the shapes of the tensors; None for an unknown shape.
        via: the names of the operations on the way that have no boxes.
        repeated: the repetitions at which it begins and ends: "from each of 12", "to the first of 12"; usually empty.
        points: the points of the line, from the lower side of the source to the upper side of the target.
    """

    source: int
    target: int
    shapes: tuple[Shape | None, ...]
    via: tuple[str, ...]
    repeated: str
    points: tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class Scene:
    """A whole picture.

    Attributes:
        title: the class of the model.
        boxes: the boxes, each after the box around it.
        lines: the lines.
        notes: sentences about things that the picture does not show.
        width, height: the size of the picture, in pixels.
    """

    title: str
    boxes: tuple[Box, ...]
    lines: tuple[DrawnLine, ...]
    notes: tuple[str, ...]
    width: float
    height: float


FONT = "'Helvetica Neue', Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
INK, QUIET, LINE, MARK = "#1f2933", "#52606d", "#7b8794", "#c2185b"


class Paint(NamedTuple):
    """The colours of a box, inside and rim."""

    fill: str
    rim: str


_PLAIN = Paint("#ffffff", "#9aa5b1")
_OPERATION = Paint("#f5f7fa", "#9aa5b1")
_FAMILIES: tuple[tuple[Paint, tuple[str, ...]], ...] = (
    (
        Paint("#fff3d6", "#d9a521"),
        ("relu", "gelu", "elu", "silu", "sigmoid", "tanh", "softmax", "softplus", "mish", "swish", "activation"),
    ),
    (Paint("#e3f6e5", "#57a773"), ("norm",)),
    (Paint("#f0e6fb", "#9067c6"), ("attention", "attn", "transformer")),
    (Paint("#dcf3f5", "#3c9ca6"), ("embedding",)),
    (Paint("#fde4dc", "#d9714e"), ("lstm", "gru", "rnn")),
    (Paint("#ececec", "#9a9a9a"), ("dropout", "identity", "flatten")),
    (Paint("#e9efd9", "#8aa34a"), ("pool", "pad", "upsample", "interpolate")),
    (Paint("#dfeafa", "#4a7fc1"), ("linear", "conv", "bilinear", "matmul", "bmm", "addmm", "einsum", "mm")),
)  # fmt: skip
_ENDS = {
    "input": Paint("#323f4b", "#323f4b"),
    "output": Paint("#323f4b", "#323f4b"),
    "parameter": Paint("#ffffff", "#4a7fc1"),
    "constant": Paint("#ffffff", "#9aa5b1"),
    "unseen": Paint("#ffffff", "#c2185b"),
}


def paint(kind: str, operation: str) -> Paint:
    """Return the colours of a closed box, by its kind and the name of its operation."""
    if kind in _ENDS:
        return _ENDS[kind]
    name = operation.lower()
    for colours, words in _FAMILIES:
        if any(word in name for word in words):
            return colours
    return _OPERATION if kind == "operation" else _PLAIN


class _Syntax(NamedTuple):
    """How a graph is written in a language: templates for its parts, and a function that quotes a text."""

    begin: str
    end: str
    quoted: Callable[[str], str]
    node: str
    opened: str
    closed: str
    line: tuple[str, str]


def to_dot(scene: Scene) -> str:
    """Return the picture as DOT: boxes as nodes, open boxes as clusters, lines as edges with their shapes."""
    return _written(scene, _DOT)


def to_mermaid(scene: Scene) -> str:
    """Return the picture as a flowchart: boxes as nodes, open boxes as subgraphs, lines as edges with their shapes."""
    return _written(scene, _MERMAID)


def _written(scene: Scene, syntax: _Syntax) -> str:
    inside: defaultdict[int | None, list[Box]] = defaultdict(list)
    for box in scene.boxes:
        inside[box.parent].append(box)
    parts = [syntax.begin, *_boxes(inside, None, "  ", syntax)]
    for line in scene.lines:
        shapes = ", ".join(shape_text(shape) for shape in line.shapes if shape is not None)
        template = syntax.line[bool(shapes)]
        parts.append("  " + template.format(source=line.source, target=line.target, words=syntax.quoted(shapes)))
    return "\n".join([*parts, syntax.end])


def _boxes(inside: dict[int | None, list[Box]], parent: int | None, indent: str, syntax: _Syntax) -> Iterator[str]:
    for box in inside.get(parent, ()):
        lines = (box.title, box.subtitle, *(f"* {mark}" for mark in box.marks))
        words = syntax.quoted("\n".join(one for one in lines if one))
        if box.open:
            yield syntax.opened.format(indent=indent, number=box.number, words=words)
            yield from _boxes(inside, box.number, f"{indent}  ", syntax)
            yield f"{indent}{syntax.closed}"
        else:
            fill = "#e4e7eb" if box.kind in ("input", "output") else paint(box.kind, box.operation).fill
            left, right = ("[", "]") if box.kind == "module" else ("(", ")")
            yield indent + syntax.node.format(number=box.number, words=words, fill=fill, left=left, right=right)


_CODES = str.maketrans({"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "\n": "<br>", "`": "#96;"})
"""Codes of Mermaid for the characters that have a meaning in its texts."""

_DOT = _Syntax(
    begin='digraph byname {\n  node [shape=box, style="rounded,filled", fontname="sans-serif"];\n'
    '  edge [fontname="sans-serif", fontsize=10];',
    end="}\n",
    quoted=quoted_for_dot,
    node='n{number} [label={words}, fillcolor="{fill}"];',
    opened="{indent}subgraph cluster_{number} {{\n{indent}  label={words};",
    closed="}",
    line=("n{source} -> n{target};", "n{source} -> n{target} [label={words}];"),
)
_MERMAID = _Syntax(
    begin="flowchart TD",
    end="",
    quoted=lambda words: f'"{printable_lines(words).translate(_CODES)}"',
    node="n{number}{left}{words}{right}",
    opened="{indent}subgraph n{number}[{words}]",
    closed="end",
    line=("n{source} --> n{target}", "n{source} -->|{words}| n{target}"),
)
