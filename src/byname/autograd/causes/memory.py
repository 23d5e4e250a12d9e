"""out-of-memory: the place where the census will say what fills the memory."""

from __future__ import annotations

from byname.autograd.causes.words import at, lines
from byname.autograd.finding import Finding
from byname.autograd.scene import Scene

__all__ = ["out_of_memory"]


def out_of_memory(scene: Scene, error: BaseException) -> Finding:
    """That there was no memory left, and for which line."""
    message = f"there was not enough memory left for what the program asked for{at(scene.noticed)}"
    remedy = "byname.saved(loss) lists what a graph keeps for backward; smaller batches and checkpoints keep less"
    return Finding("out-of-memory", message, sites=lines(scene.noticed), remedy=remedy)
