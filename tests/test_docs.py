"""Every page of the documentation runs as it stands and prints what it shows.

The python blocks of a page are one program, train.py, in which each line has the number it has in the page. A text
block right after a python block is what that block prints. A block ``python file`` begins another program, in which its
first line has number 1, as in the file of a reader who pastes it. A block ``python 2 ranks`` is a program of its own,
which is started as two processes; what it prints is the output of the first. Left alone: ``python no-run``,
``text no-check``.

    python tests/test_docs.py       # write the outputs into the pages anew, after a change
"""

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from processes import run_forked_file, run_forked_ranks

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LONG = [page for page in PAGES if page.parent.name == "recipes" or page.name == "coming-from-tensortrace.md"]
"""The pages whose programs take seconds."""
END = "-- end of block --"
FILE = "python file"
RANKS = "python 2 ranks"


class Block(NamedTuple):
    kind: str
    opening: int
    closing: int


UNUSED = "PyTorch: {} appears to not have been used in the graph. Set allow_unused=True if {}…"
VIEW = "PyTorch: Output 0 of {} is a view and is being modified inplace. This view {} …"
OLDER = {
    UNUSED.format("One of the differentiated Tensors", "this "): UNUSED.format(
        "The differentiated Tensor at index 2", ""
    ),
    VIEW.format("UnbindBackward0", "is the output of a function"): VIEW.format(
        "Unbind", "is the output of a function that"
    ),
    VIEW.format("BackwardHookFunctionBackward", "was created"): VIEW.format(
        "BackwardHookFunction", "was created inside a"
    ),
}
"""What PyTorch 2.10 says, and what newer ones say, as the pages do."""


class Example(NamedTuple):
    """A python block, and the block of its output where the page shows it."""

    code: Block
    output: Block | None


def blocks(lines):
    fences = [number for number, line in enumerate(lines) if line.startswith("```")]
    assert len(fences) % 2 == 0, "a block is not closed"
    return [Block(lines[first][3:].strip(), first, last) for first, last in zip(fences[::2], fences[1::2], strict=True)]


def examples(lines):
    found = []
    for block, following in pairwise([*blocks(lines), Block("", len(lines), len(lines))]):
        between = "".join(lines[block.closing + 1 : following.opening])
        shown = following.kind.startswith("text") and not between.strip()
        if block.kind in ("python", FILE, RANKS):
            found.append(Example(block, following if shown else None))
    return found


def program(lines, parts):
    code = [""] * len(lines)
    for part in parts:
        inside = slice(part.code.opening + 1, part.code.closing)
        code[inside] = lines[inside]
        code[part.code.closing] = f"print({END!r})"
    first = parts[0].code
    return "\n".join(code[first.opening + 1 :] if first.kind == FILE else code)


def programs(parts):
    """The examples of each program of a page."""
    found = []
    for part in parts:
        if not found or part.code.kind != "python":
            found.append([])
        found[-1].append(part)
    return found


def printed(page, folder):
    """What each python block of a page prints, as lists of lines."""
    lines = page.read_text(encoding="utf-8").splitlines()
    parts = examples(lines)
    prints = {}
    for some in programs([part for part in parts if part.code.kind != RANKS]):
        pieces = [[]]
        for line in run_forked_file(folder, program(lines, some), "train.py"):
            if line == END:
                pieces.append([])
            else:
                pieces[-1].append(line.rstrip())
        prints |= dict(zip(some, pieces[:-1], strict=True))
    for part in parts:
        if part not in prints:
            first, *_ = run_forked_ranks(folder, program(lines, [part]), "train.py")
            prints[part] = [line.rstrip() for line in first if line != END]
    return [prints[part] for part in parts]


@pytest.mark.grid(fast=12)
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] * (page in LONG)) for page in PAGES],
    ids=[page.relative_to(ROOT).as_posix() for page in PAGES],
)
def test_page(page, tmp_path):
    lines = page.read_text(encoding="utf-8").splitlines()
    for (code, output), prints in zip(examples(lines), printed(page, tmp_path), strict=True):
        if output is None:
            assert not prints, f"{page.name}:{code.opening + 1} prints what the page does not show"
        elif output.kind == "text":
            shown = [line.rstrip() for line in lines[output.opening + 1 : output.closing]]
            if torch.__version__.startswith("2.10."):
                prints = [OLDER.get(line, line) for line in prints]
            assert prints == shown, f"{page.name}:{output.opening + 1} shows something else than is printed"


def rewrite(page):
    """Puts the outputs into a page, again until the line numbers in them stay what they are."""
    for _ in range(4):
        lines = page.read_text(encoding="utf-8").splitlines()
        with tempfile.TemporaryDirectory() as folder:
            prints = printed(page, Path(folder))
        for (_, output), new in reversed(list(zip(examples(lines), prints, strict=True))):
            if output is not None and output.kind == "text":
                lines[output.opening + 1 : output.closing] = new
        if prints:
            page.write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    for each in PAGES:
        rewrite(each)
