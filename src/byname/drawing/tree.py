"""Which items does a model give that has not run? Its modules, one in the other."""

from __future__ import annotations

from torch import nn

from byname.drawing.plan import Plan
from byname.model.module_tree import inside_of

__all__ = ["read_tree"]


def read_tree(model: nn.Module) -> Plan:
    """The modules of a model in the order of registration; a shared one stands in each of its places, open in one."""
    plan = Plan([], [], flowing=False, notes=["modules in the order of registration; what goes where needs example="])
    plan.add("page", "", "", -1)
    seen: dict[int, str] = {}
    waiting: list[tuple[nn.Module, str, int]] = [(model, "", 0)]
    while waiting:
        module, path, parent = waiting.pop()
        item = plan.add("module", path, type(module).__name__, parent, module)
        if id(module) in seen:
            item.same = seen[id(module)]
            continue
        seen[id(module)] = path
        waiting += [(child, name, item.number) for name, child in reversed(_children(module, path))]
    for item in plan.items:
        item.children.sort()
    return plan


def _children(module: nn.Module, path: str) -> list[tuple[str, nn.Module]]:
    registry = object.__getattribute__(module, "__dict__").get("_modules") or {}
    prefix = f"{path}." if path else ""
    children = [(name, child) for name, child in list(registry.items()) if issubclass(type(child), nn.Module)]
    return [(f"{prefix}{name}", inside_of(child)[0]) for name, child in children]
