"""Mermaid: the picture as a flowchart in a language that GitHub, GitLab and many notebooks render themselves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from byname.drawing.render import Box, DrawnLine, Scene
from byname.drawing.words import shape_text


def to_mermaid(scene: Scene) -> str:
    """Return the picture as a flowchart: boxes as nodes, open boxes as subgraphs, lines as edges with their shapes."""
    inside: defaultdict[int | None, list[Box]] = defaultdict(list)
    for box in scene.boxes:
        inside[box.parent].append(box)
    lines = ["flowchart TD", *_boxes(inside, None, "  "), *(f"  {_edge(line)}" for line in scene.lines)]
    return "\n".join([*lines, ""])


def _boxes(inside: dict[int | None, list[Box]], parent: int | None, indent: str) -> Iterator[str]:
    for box in inside.get(parent, ()):
        words = _text("\n".join(part for part in (box.title, box.subtitle, *(f"* {one}" for one in box.marks)) if part))
        if not box.open:
            left, right = ("[", "]") if box.kind == "module" else ("(", ")")
            yield f"{indent}n{box.number}{left}{words}{right}"
            continue
        yield f"{indent}subgraph n{box.number}[{words}]"
        yield from _boxes(inside, box.number, f"{indent}  ")
        yield f"{indent}end"


def _edge(line: DrawnLine) -> str:
    shapes = ", ".join(shape_text(shape) for shape in line.shapes if shape is not None)
    return f"n{line.source} -->{f'|{_text(shapes)}|' if shapes else ''} n{line.target}"


def _text(words: str) -> str:
    """Return text for Mermaid, in double quotes, with codes for the characters that have a meaning there.

    >>> _text('a "b" <c>#1')
    '"a #quot;b#quot; #lt;c#gt;#35;1"'
    """
    return f'"{words.translate(_CODES)}"'


_CODES = str.maketrans({"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "\n": "<br>", "`": "#96;"})
