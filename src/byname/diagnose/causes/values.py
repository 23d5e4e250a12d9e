"""non-finite-gradient: which operation's backward made a NaN? Told where PyTorch's anomaly mode has stopped it."""

from __future__ import annotations

import re

from byname.autograd.slots import has_freed_slot
from byname.autograd.walk import node_name
from byname.diagnose.context import Scene, message_of
from byname.diagnose.finding import Finding, culprits_of, known_sites
from byname.naming.name import at, quote
from byname.reading.quiet import untouched

__all__ = ["anomaly"]


def anomaly(scene: Scene, error: BaseException) -> Finding | None:
    """The node that anomaly mode names: the last of that name that the engine has run."""
    told = re.search(r"Function '(?:.*::)?(\w+)' returned nan", message_of(error))
    if told is None or not scene.has_graph:
        return None
    with untouched():
        named = [number for number in scene.order() if node_name(scene.walk.nodes[number]) == told[1]]
        ran = [number for number in named if has_freed_slot(scene.walk.nodes[number])]
    sure = len(named) == 1 or bool(ran)
    number = (ran or named or [0])[-1]
    if not number or not sure:
        return None
    variable, made = scene.variable(number), scene.site(number)
    operation = told[1].rstrip("0123456789").removesuffix("Backward").lower()
    message = f"the backward of {operation}, which computes {quote(variable)}{at(made)}, gives NaN"
    remedy = "byname run --non-finite tells which values do it; keep them away before the operation, not after it"
    return Finding("non-finite-gradient", message, culprits_of(variable), known_sites(made, scene.noticed), remedy)
