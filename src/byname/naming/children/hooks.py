"""Which hooks hold what? Those of a module, an optimizer, a tensor, and those that PyTorch keeps for all of them."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from byname.naming.children.step import ATOMS, Held, Step, literal, suffix
from byname.reading.objects import snapshot

__all__ = ["held_by_hooks", "hooks_for_all", "is_hooks"]


def is_hooks(name: str, value: object) -> bool:
    """Whether an attribute is a register of hooks with something in it."""
    return type(value) is OrderedDict and len(value) > 0 and name.endswith("_hooks")


def held_by_hooks(registry: str, hooks: Any, evaluates: bool) -> Held:
    """The hooks in a register that its owner has as an attribute."""
    for key, value in snapshot(hooks):
        if type(value) not in ATOMS:
            yield _hook, (registry, key, evaluates), value


def _hook(found: tuple[str, object, bool]) -> Step:
    registry, key, evaluates = found
    written = repr(key) if literal(key) else "?"
    return Step(
        "hook",
        suffix(f".{registry}[{written}]"),
        evaluates and written != "?",
        reads_registry=True,
        wild=suffix(f".{registry}[*]"),
    )


def hooks_for_all() -> Iterator[tuple[str, str, object]]:
    """PyTorch's registers of hooks that are for every module or optimizer: module, source, register."""
    for module, name in _FOR_ALL:
        value = vars(sys.modules[module]).get(name)
        if is_hooks(name, value):
            yield module, f"{module}.{name}", value


_FOR_ALL = [
    (module, name)
    for module in ("torch.nn.modules.module", "torch.optim.optimizer")
    for name in vars(sys.modules[module])
    if name.startswith("_global_") and name.endswith("_hooks")
]
