"""Every page of the documentation runs as it stands and prints what it shows.

The python blocks of a page are one program, train.py, in which each line has the number it has in the page. A text
block right after a python block is what that block prints. A block ``python file`` begins another program, in which its
first line has number 1, as in the file of a reader who pastes it. Programs of their own are also:

- ``python 2 ranks``: two processes. The output is that of the first.
- ``python byname run --check``: run by that command. The output is the command, what the program prints, and what byname
  writes to the standard error.
- ``python pdb``: the output is a session, in which the user types the lines that begin with ``(Pdb)``.
- ``python pytest``: a file of tests. The output is what pytest says of the first one that does not pass.
- ``python needs wandb``: a program that is skipped where the package, or ``cuda``, is missing.

Left alone: ``python no-run``, ``text no-check``.

    python tests/test_docs.py [PAGE ...]    # write the outputs into the pages anew, after a change
"""

import math
import re
import sys
import tempfile
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from processes import run, run_forked_file, run_forked_ranks

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LONG = [page for page in PAGES if page.parent.name == "recipes" or page.name == "coming-from-tensortrace.md"]
"""The pages whose programs take seconds."""
END = "-- end of block --"
FILE = "python file"
NEEDS = "python needs "
ALONE = ("python 2 ranks", "python byname ", "python pdb", "python pytest", NEEDS)


FIGURE = re.compile(r"-?\d+\.\d+")


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
"""What PyTorch 2.10 and 2.11 say, and what newer ones say, as the pages do."""


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
        if block.kind in ("python", FILE) or block.kind.startswith(ALONE):
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


def run_in(folder, words, text, file="train.py", **options):
    """A program run by these words."""
    (folder / file).write_text(text, encoding="utf-8")
    return run(words, cwd=folder, capture_output=True, text=True, **options)


def printed_alone(folder, lines, part):
    """What a program of its own prints, as lines."""
    _, word, *rest = part.code.kind.split()
    text = "\n".join(lines[part.code.opening + 1 : part.code.closing])
    match word:
        case "2":
            first, *_ = run_forked_ranks(folder, "\n" * (part.code.opening + 1) + text, "train.py")
            return first
        case "byname":
            done = run_in(folder, ["-m", "byname", *rest, "train.py"], text)
            _, begins, found = done.stderr.partition("byname: ")
            return [" ".join(["$ byname", *rest, "train.py"]), *(done.stdout + begins + found).splitlines()]
        case "pytest":
            main = "import pytest; pytest.main(['-q', 'test_train.py'])"
            out = run_in(folder, ["-c", main], text, "test_train.py").stdout
            return out[out.find("\n__") + 1 :].partition("\n==")[0].splitlines()
        case "pdb":
            shown = lines[part.output.opening : part.output.closing]
            typed = [line.removeprefix("(Pdb) ") for line in shown if line.startswith("(Pdb) ")]
            done = run_in(folder, ["train.py"], text, input="\n".join([*typed, "continue", ""]))
            replies = done.stdout.split("(Pdb) ")[1:]
            session = [f"(Pdb) {command}\n{reply}" for command, reply in zip(typed, replies, strict=False)]
            return "".join(session).splitlines()
    done = run_in(folder, ["train.py"], text)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def available(part):
    """Whether there is what a program needs."""
    need = part.code.kind.removeprefix(NEEDS)
    return need == part.code.kind or (torch.cuda.is_available() if need == "cuda" else find_spec(need) is not None)


def printed(page, folder, needy=False):
    """What each python block of a page prints, as lists of lines; those that need a package alone, or all others."""
    lines = page.read_text(encoding="utf-8").splitlines()
    parts = [part for part in examples(lines) if part.code.kind.startswith(NEEDS) == needy]
    prints = {}
    for some in programs([part for part in parts if part.code.kind in ("python", FILE)]):
        pieces = [[]]
        for line in run_forked_file(folder, program(lines, some), "train.py"):
            if line == END:
                pieces.append([])
            else:
                pieces[-1].append(line.rstrip())
        prints |= dict(zip(some, pieces[:-1], strict=True))
    for part in parts:
        if part not in prints and available(part):
            prints[part] = [line.rstrip() for line in printed_alone(folder, lines, part)]
    return prints


def same(line, shown):
    """Whether two lines have the same words, and figures that are no further apart than those of two processors."""
    pairs = zip(FIGURE.findall(line), FIGURE.findall(shown), strict=False)
    return FIGURE.sub("", line) == FIGURE.sub("", shown) and all(
        math.isclose(float(one), float(other), rel_tol=0.05, abs_tol=1.5 * 10.0 ** -len(other.partition(".")[2]))
        for one, other in pairs
    )


def compare(page, lines, prints):
    """Fails where the output of a block is not what the page shows."""
    for (code, output), printed_lines in prints.items():
        if output is None:
            assert not printed_lines, f"{page.name}:{code.opening + 1} prints what the page does not show"
        elif output.kind == "text":
            shown = [line.rstrip() for line in lines[output.opening + 1 : output.closing]]
            if torch.__version__.startswith(("2.10.", "2.11.")):
                printed_lines = [OLDER.get(line, line) for line in printed_lines]
            pairs = zip(printed_lines, shown, strict=False)
            if len(printed_lines) == len(shown) and all(same(line, there) for line, there in pairs):
                continue
            assert printed_lines == shown, f"{page.name}:{output.opening + 1} shows something else than is printed"


@pytest.mark.grid(fast=9)
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] * (page in LONG)) for page in PAGES],
    ids=[page.relative_to(ROOT).as_posix() for page in PAGES],
)
def test_page(page, tmp_path):
    compare(page, page.read_text(encoding="utf-8").splitlines(), printed(page, tmp_path))


def needy_programs():
    for page in PAGES:
        lines = page.read_text(encoding="utf-8").splitlines()
        for part in examples(lines):
            if part.code.kind.startswith(NEEDS):
                yield pytest.param(page, lines, part, id=f"{page.name}:{part.code.kind.removeprefix(NEEDS)}")


@pytest.mark.slow
@pytest.mark.parametrize(("page", "lines", "part"), list(needy_programs()))
def test_a_program_that_needs_a_package(page, lines, part, tmp_path):
    if not available(part):
        pytest.skip(part.code.kind.removeprefix("python "))
    compare(page, lines, {part: printed_alone(tmp_path, lines, part)})


def rewrite(page):
    """Puts the outputs into a page, again until the line numbers in them stay what they are."""
    for _ in range(4):
        lines = page.read_text(encoding="utf-8").splitlines()
        with tempfile.TemporaryDirectory() as folder:
            prints = printed(page, Path(folder)) | printed(page, Path(folder), needy=True)
        for (_, output), new in sorted(prints.items(), key=lambda pair: pair[0].code.opening, reverse=True):
            if output is not None and output.kind == "text":
                lines[output.opening + 1 : output.closing] = new
        if prints:
            page.write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    for each in [Path(word).absolute() for word in sys.argv[1:]] or PAGES:
        rewrite(each)
