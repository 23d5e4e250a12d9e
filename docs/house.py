"""Draws the house: which folder answers which question, and which folders it imports. Run by ``make house``.

The section between two marks in ``design.md`` is written anew from the code; a test compares the two.
"""

from __future__ import annotations

import ast
from pathlib import Path

__all__ = ["drawn", "house"]

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "byname"
PAGE = ROOT / "docs" / "design.md"
BEGIN, END = "<!-- house: written by make house -->\n", "<!-- end of house -->\n"


def house() -> str:
    """Return the section: a table of the folders, those that stand below first, and the picture of their imports."""
    imports = {
        folder.name: _imported_by(folder) for folder in SOURCE.iterdir() if folder.joinpath("__init__.py").exists()
    }
    order = _from_below(imports)
    rows = [
        f"| `{name}/` | {_question(SOURCE / name)} | {len([*SOURCE.joinpath(name).rglob('*.py')])} |" for name in order
    ]
    table = "\n".join(["| folder | what is in it | files |", "|---|---|---|", *rows])
    edges = [f"    {name} --> {other}" for name in order[::-1] for other in order if other in _direct(imports, name)]
    return f"{table}\n\n```mermaid\ngraph TD\n{chr(10).join(edges)}\n```\n"


def drawn(page: str) -> str:
    """Return the text of a page with its section about the house written anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{house()}\n{END}{after}"


def _question(folder: Path) -> str:
    doc = ast.get_docstring(ast.parse(folder.joinpath("__init__.py").read_text(encoding="utf-8"))) or ""
    return doc.partition("\n")[0]


def _imported_by(folder: Path) -> set[str]:
    """Return the folders that the files of a folder import, also inside functions."""
    found = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("byname."):
                found.add((node.module or "").split(".")[1])
    return {name for name in found - {folder.name} if (SOURCE / name).is_dir()}


def _from_below(imports: dict[str, set[str]]) -> list[str]:
    """Return the folders so that each comes after all that it imports."""
    order: list[str] = []
    while len(order) < len(imports):
        ready = sorted(name for name in imports if name not in order and imports[name] <= set(order))
        if not ready:
            raise ValueError(f"these folders import each other: {sorted(set(imports) - set(order))}")
        order += ready
    return order


def _direct(imports: dict[str, set[str]], name: str) -> set[str]:
    """Return what a folder imports and does not also reach through another: the picture stays readable."""
    return {one for one in imports[name] if not any(one in _reached(imports, other) for other in imports[name] - {one})}


def _reached(imports: dict[str, set[str]], name: str) -> set[str]:
    return imports[name].union(*(_reached(imports, one) for one in imports[name]))


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
