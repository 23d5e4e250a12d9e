"""out-of-memory: which line asked for memory that was not there, and what fills it?"""

from __future__ import annotations

import re

from byname.diagnose.context import Scene, message_of
from byname.diagnose.finding import Finding, known_sites
from byname.memory.oom import what_fills_the_memory
from byname.naming.name import at
from byname.table import bytes_text

__all__ = ["out_of_memory"]


def out_of_memory(scene: Scene, error: BaseException) -> Finding:
    """That there was no memory left, for which line, and what is alive at that moment."""
    message = f"there was not enough memory left for {_asked(message_of(error))}{at(scene.noticed)}"
    remedy = (
        "let go of what is no longer needed: byname.growth() tells what piles up from step to step, "
        "byname.holders(tensor) what keeps a tensor; smaller batches and checkpoints keep less for backward"
    )
    return Finding("out-of-memory", message, (), known_sites(scene.noticed), remedy, what_fills_the_memory())


def _asked(message: str) -> str:
    """How much was asked for, where the message tells it."""
    found = re.search(r"[Tt]ried to allocate ([\d.]+) (bytes|[KMGT]iB)", message)
    if found is None:
        return "what was asked for"
    return f"the {bytes_text(int(found[1]))}" if found[2] == "bytes" else f"the {found[1]} {found[2]}"
