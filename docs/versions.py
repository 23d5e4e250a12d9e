"""The table of docs/versions.md: which versions the tests ran with, and how they ended. Written by ``make versions``.

python docs/versions.py "test slow" run.log    # the row of this Python and its packages, from what pytest printed
"""

from __future__ import annotations

import platform
import re
import sys
from datetime import date
from importlib.metadata import version
from pathlib import Path

PAGE = Path(__file__).parent / "versions.md"
OTHERS = ("numpy", "transformers", "lightning")
COUNT = re.compile(r"(\d+) (passed|failed|errors?)\b")


def row(suite: str, log: str) -> str:
    """Return the row: Python, PyTorch, other packages, what ran and when, and the sums of what pytest printed."""
    counts: dict[str, int] = {}
    for line in log.splitlines():
        if re.search(r" in \d[\d.:]*s\b", line):
            for number, kind in COUNT.findall(line):
                counts[kind] = counts.get(kind, 0) + int(number)
    counts = {"passed": 0, "failed": 0, **counts}
    ended = ", ".join(f"{number:,} {kind}" for kind, number in counts.items())
    others = ", ".join(f"{name} {version(name)}" for name in OTHERS)
    ran = " and ".join(f"`make {word}`" for word in suite.split())
    torch = version("torch").partition("+")[0]
    return f"| {platform.python_version()} | {torch} | {others} | {ran}, {date.today()} | {ended} |"


def written(page: str, new: str) -> str:
    """Return the page with the row in place of that of the same Python and PyTorch, or below the last one."""
    lines = page.splitlines()
    rows = [at for at, line in enumerate(lines) if re.match(r"\| \d+\.\d+\.\d+ \| \d+\.\d+\.\d+ \|", line)]
    same = [at for at in rows if lines[at].split("|")[1:3] == new.split("|")[1:3]]
    if same:
        lines[same[0]] = new
    else:
        lines.insert(rows[-1] + 1, new)
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    suite, log = sys.argv[1:]
    made = row(suite, Path(log).read_text(errors="replace"))
    print(made)
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), made), encoding="utf-8")
