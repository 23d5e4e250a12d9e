"""Ranks: which process this is among how many, and how the files of each are called."""

from __future__ import annotations

import re
import sys
import uuid
from os import PathLike
from pathlib import Path
from typing import Any

_RANK = re.compile(r"\.rank(0|[1-9][0-9]{0,8})\Z")


def rank() -> int:
    """Return the number of this process, 0 where ``torch.distributed`` is not in use."""
    distributed = _distributed()
    return 0 if distributed is None else int(distributed.get_rank())


def world() -> int:
    """Return how many processes there are, 1 where ``torch.distributed`` is not in use."""
    distributed = _distributed()
    return 1 if distributed is None else int(distributed.get_world_size())


def run_id(name: str) -> str:
    """Return a random text by which the files of one run know each other, in all processes; none waits for it.

    The name is the same for a recording in all processes, and another for each recording of a run.
    """
    own = uuid.uuid4().hex
    distributed = _distributed()
    if distributed is None:
        return own
    store = distributed.distributed_c10d._get_default_store()
    try:
        return str(store.compare_set(f"byname/{name}", "", own).decode())  # whoever comes first decides
    except (RuntimeError, NotImplementedError):  # a store that cannot do it, or whose server has gone
        return ""


def rank_file(path: str | PathLike[str], rank: int) -> Path:
    """Return the file of one rank of a run that is recorded to ``path``.

    >>> str(rank_file("runs/run.v2.h5", 1))
    'runs/run.v2.rank1.h5'
    """
    whole = Path(path)
    return whole.with_name(f"{whole.stem}.rank{rank}{whole.suffix}")


def rank_of(path: str | PathLike[str]) -> int | None:
    """Return the rank in the name of a file; None if there is none.

    >>> rank_of("run.rank3.h5"), rank_of("run.h5")
    (3, None)
    """
    whole = Path(path)
    found = _RANK.search(whole.stem) or _RANK.search(whole.name)  # the second where the run has no suffix
    return None if found is None else int(found[1])


def rank_files(path: str | PathLike[str]) -> dict[int, Path]:
    """Return the files ``run.rank0.h5`` ... of the single ranks of a run recorded to ``run.h5``, by rank.

    Of a rank that has only a log yet, the path that its file will have.
    """
    whole = Path(path)
    try:
        beside = {one.name.removesuffix(".log") for one in whole.parent.iterdir() if one.is_file()}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    numbers = sorted({number for name in beside if (number := rank_of(name)) is not None})
    files = {number: rank_file(whole, number) for number in numbers}
    return {number: one for number, one in files.items() if one.name in beside}


def _distributed() -> Any:
    """``torch.distributed`` if the program has set it up; it is not imported to find out."""
    module = sys.modules.get("torch.distributed")
    ready = module is not None and module.is_available() and module.is_initialized()
    return module if ready else None
