"""Facts: what a file says about the run that wrote it."""

from __future__ import annotations

import datetime
import platform
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from byname.recording.distributed.ranks import rank, run_id, world

_recorded: Counter[str] = Counter()
"""How often this process has recorded to a path: those of one number belong together in all processes of a run."""


def facts_of_run(where: Any, to: Any) -> dict[str, Any]:
    """Return versions, arguments, time, the commit of the program, and which process of how many this is."""
    _recorded[str(to)] += 1
    facts = {
        "run_id": run_id(f"{to}/{_recorded[str(to)]}"),
        "rank": rank(),
        "world_size": world(),
        "byname": version(),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "arguments": [str(one) for one in sys.argv],
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
        "where": [str(place) for place in where] if isinstance(where, (list, tuple, set, dict)) else str(where),
    }
    script = sys.argv[0] if sys.argv else ""
    commit = commit_of(Path(script).parent if script else Path())
    return facts | ({"commit": commit} if commit else {})


def version() -> str:
    return str(sys.modules["byname"].__dict__["__version__"])


def commit_of(folder: Path) -> str | None:
    """Return the commit that is checked out where a program lies, read without running git.

    A working tree with changes has the commit it started from.
    """
    try:
        root = next((one for one in (folder.resolve(), *folder.resolve().parents) if (one / ".git").exists()), None)
        return None if root is None else _head(root / ".git")
    except (OSError, UnicodeDecodeError):  # a folder that may not be read says nothing
        return None


def _head(git: Path) -> str | None:
    if git.is_file():  # a worktree or submodule: "gitdir: PATH"
        git = (git.parent / git.read_text().removeprefix("gitdir:").strip()).resolve()
    head = (git / "HEAD").read_text().strip()
    if not head.startswith("ref:"):
        return head
    name = head.removeprefix("ref:").strip()
    common = git / "commondir"
    shared = (git / common.read_text().strip()).resolve() if common.exists() else git
    for place in (git / name, shared / name):
        if place.is_file():
            return place.read_text().strip()
    packed = shared / "packed-refs"
    lines = packed.read_text().splitlines() if packed.is_file() else []
    return next((line.split()[0] for line in lines if line.endswith(f" {name}")), None)
