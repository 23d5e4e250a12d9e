"""How does a picture read in the DOT language, for those who have Graphviz?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from byname.drawing.scene import Box, Line, Scene
from byname.drawing.style import paint
from byname.drawing.words import shape_text

__all__ = ["to_dot"]


def to_dot(scene: Scene) -> str:
    """The boxes as nodes, open ones as clusters, the lines as edges with their shapes."""
    inside: defaultdict[int | None, list[Box]] = defaultdict(list)
    for box in scene.boxes:
        inside[box.parent].append(box)
    lines = ["digraph byname {", '  node [shape=box, style="rounded,filled", fontname="sans-serif"];']
    lines += ['  edge [fontname="sans-serif", fontsize=10];', *_boxes(inside, None, "  ")]
    lines += [f"  {_edge(line)}" for line in scene.lines]
    return "\n".join([*lines, "}", ""])


def _boxes(inside: dict[int | None, list[Box]], parent: int | None, indent: str) -> Iterator[str]:
    for box in inside.get(parent, ()):
        words = "\n".join(part for part in (box.title, box.subtitle, *(f"* {mark}" for mark in box.marks)) if part)
        if not box.open:
            fill = "#e4e7eb" if box.kind in ("input", "output") else paint(box.kind, box.operation).fill
            yield f"{indent}n{box.number} [label={quoted(words)}, fillcolor={quoted(fill)}];"
            continue
        yield f"{indent}subgraph cluster_{box.number} {{"
        yield f"{indent}  label={quoted(words)};"
        yield from _boxes(inside, box.number, f"{indent}  ")
        yield f"{indent}}}"


def _edge(line: Line) -> str:
    shapes = ", ".join(shape_text(shape) for shape in line.shapes if shape is not None)
    label = f" [label={quoted(shapes)}]" if shapes else ""
    return f"n{line.source} -> n{line.target}{label};"


def quoted(words: str) -> str:
    """Text as DOT wants it, in double quotes."""
    escaped = words.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\0", "")
    return f'"{escaped}"'
