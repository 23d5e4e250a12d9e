"""modified-in-place, optimizer-step-between: which saved tensor was changed, by which line, and how to write it?"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from byname.autograd.causes.words import at, blamed, lines, said
from byname.autograd.finding import Finding
from byname.autograd.saved import SavedTensor, rows_of
from byname.autograd.scene import Scene, base_name
from byname.autograd.slots import Slot, slots_of, versions_of, versions_told
from byname.card import STORAGE, fact, facts_of
from byname.naming.kinds import memory_of
from byname.naming.log import Mutation
from byname.naming.name import Name
from byname.naming.track import logs
from byname.quiet import untouched
from byname.site import Site
from byname.table import counted

__all__ = ["modified"]


def modified(scene: Scene, message: str = "") -> list[Finding]:
    """Every tensor that was changed after autograd had saved it, one finding each; of an error, the one it tells.

    Args:
        scene: the graph.
        message: PyTorch's error, where there is one already.
    """
    with untouched():
        changed = {slot.number: slot for slot in slots_of(scene.walk) if slot.state == "modified"}
        first = [changed[number] for number in scene.order() if number in changed] if changed else []
        if message:
            first = _told(scene, first, message)[:1]
        found = [_Change(scene, slot) for slot in _one_of_each(first)]
        return [change.finding() for change in found]


def _told(scene: Scene, slots: list[Slot], message: str) -> list[Slot]:
    """The slots that fit the versions in PyTorch's message; all of them where none does."""
    told = versions_told(message)
    fitting = [slot for slot in slots if versions_of(scene.walk.nodes[slot.number], slot.name) == told]
    return fitting or slots


def _one_of_each(slots: Iterable[Slot]) -> list[Slot]:
    seen: dict[Any, Slot] = {}
    for slot in slots:
        storage = None if slot.tensor is None else facts_of(slot.tensor)[STORAGE]
        seen.setdefault(id(slot) if storage is None else (storage,), slot)
    return list(seen.values())


class _Change:
    """One saved tensor that was changed. It lives as long as the look at it."""

    def __init__(self, scene: Scene, slot: Slot) -> None:
        self._scene = scene
        self._slot = slot
        row: SavedTensor = rows_of(scene.walk, [slot], [*scene.models, *scene.optimizers])[0]
        self.saved = row.site or scene.site(slot.number)
        self.versions = versions_of(scene.walk.nodes[slot.number], slot.name)
        self.changes = self._changes()
        self.name = self._named(row)

    def _named(self, row: SavedTensor) -> Name:
        if row.name.how != "unnamed":
            return base_name(row.name)
        for change in self.changes:
            if change.changed is not None:
                how = "local" if change.changed.isidentifier() else "item" if "[" in change.changed else "attribute"
                return Name(change.changed, how, change.scope, exact=False, site=row.name.site)
        return self._scene.variable(self._slot.number) if row.slot == "result" else row.name

    def _changes(self) -> list[Mutation]:
        """The changes of the tensor's memory since it was saved, the first one first."""
        if self._slot.tensor is None:
            return []
        owner = memory_of(self._slot.tensor)
        every = [one for log in logs() for one in log.mutations(owner)]
        saved = -1 if self.versions is None else self.versions[1]
        later = {(one.before, one.after): one for one in every if one.before >= saved}
        return [later[key] for key in sorted(later)]

    def finding(self) -> Finding:
        """What there is to say of it."""
        step = next((one for one in self.changes if one.operation.endswith(".step")), None)
        if step is not None and step is self.changes[0]:
            return self._stepped(step.site, f"{step.operation}() changed it")
        owner = self._optimizer()
        if not self.changes and owner:
            return self._stepped(None, f"it has changed since, and {owner} has it: most likely by a step")
        return self._changed(self.changes[0] if self.changes else None)

    def _changed(self, change: Mutation | None) -> Finding:
        where = None if change is None else change.site
        saved, name = self.saved, said(self.name)
        if change is None:
            unseen = "by something that no tracker saw" if logs() else "byname.explaining() remembers the line"
            what = f"changed in place since ({unseen})"
        else:
            more = len(self.changes) - 1
            again = f" and {counted(more, 'time')} more" if more else ""
            what = f"changed in place by {change.operation}(){at(where)}{again}"
        message = f"autograd saved {name}{at(saved)} for this backward, and it was {what}"
        return Finding(
            "modified-in-place",
            message,
            blamed(self.name),
            lines(saved, where, self._scene.noticed),
            _remedy(change, self.name),
        )

    def _stepped(self, where: Site | None, what: str) -> Finding:
        message = f"this backward needs {said(self.name)} as it was{at(self.saved)}; {what}{at(where)}"
        return Finding(
            "optimizer-step-between",
            message,
            blamed(self.name),
            lines(self.saved, where, self._scene.noticed),
            "call every backward before the step, or compute the forward again after it",
        )

    def _optimizer(self) -> str:
        """The optimizer that has this parameter, among those given or found; empty when none has."""
        tensor = self._slot.tensor
        base = None if tensor is None else (fact(tensor, "_base") if fact(tensor, "_base") is not None else tensor)
        for optimizer in self._scene.all_optimizers:
            for group in optimizer.param_groups:
                if any(one is base for one in group["params"]):
                    return type(optimizer).__name__
        return ""


_OUT_OF_PLACE = {"__setitem__": "", "copy_": "", "zero_": "", "fill_": "", "set_": ""}


def _remedy(change: Mutation | None, name: Name) -> str:
    """The statement written without the change in place."""
    it = name.path or "the tensor"
    site = None if change is None else change.site
    if change is None or site is None:
        return f"write the change of {it} out of place: {it} = {it} + ... instead of {it} += ..."
    plain = _augmented(site.statement)
    if plain is not None:
        return f"write it out of place: {plain}"
    operation = change.operation
    if operation == "__setitem__" or operation in _OUT_OF_PLACE:
        return f"change a copy: {it} = {it}.clone() before {site}, or build the new value with torch.where or torch.cat"
    method = operation.removesuffix("_")
    if f".{operation}(" in site.statement:
        return f"write it out of place: {_without(site.statement, operation, method)}"
    if operation.endswith("_") and "inplace" not in site.statement and f"{operation}(" in site.statement:
        return (
            f"write it out of place: {site.statement.replace(f'{operation}(', f'{method}(')}, and use what it returns"
        )
    return f"use the form that returns a new tensor (inplace=False, no underscore), or change {it}.clone()"


def _augmented(statement: str) -> str | None:
    """``h += b`` as ``h = h + b``."""
    found = re.fullmatch(r"([\w.]+)\s*(\+|-|\*\*|\*|//|/|@|%|&|\||\^)=\s*(.+)", statement)
    if found is None:
        return None
    target, operator, value = found.groups()
    simple = re.fullmatch(r"[\w.()\[\]'\", ]+", value) is not None
    return f"{target} = {target} {operator} {value if simple else f'({value})'}"


def _without(statement: str, operation: str, method: str) -> str:
    """``h.relu_()`` as ``h = h.relu()``."""
    plain = statement.replace(f".{operation}(", f".{method}(")
    alone = re.match(rf"([\w.\[\]'\"]+)\.{re.escape(method)}\(", plain)
    return f"{alone[1]} = {plain}" if alone is not None and "=" not in plain.split("(")[0] else plain
