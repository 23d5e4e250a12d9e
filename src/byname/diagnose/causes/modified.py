"""modified-in-place, optimizer-step-between: which saved tensor was changed, by which line, and how to write it?"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

import torch

from byname.autograd.saved import SavedTensor, rows_of
from byname.autograd.slots import Slot, slots_of, versions_of, versions_told
from byname.diagnose.context import Scene, base_name
from byname.diagnose.finding import Finding, culprits_of, known_sites
from byname.naming.name import Name, at, quote, quote_at
from byname.reading.quiet import untouched
from byname.reading.tensor import STORAGE, fact, facts_of
from byname.source.location import Site
from byname.table import counted
from byname.tracking.functions import memory_of
from byname.tracking.log import Mutation
from byname.tracking.tracker import logs

__all__ = ["modified"]


def modified(scene: Scene, message: str = "") -> list[Finding]:
    """Every tensor that was changed after autograd had saved it, one finding each; of an error, the one it tells.

    Args:
        scene: the graph.
        message: PyTorch's error, where there is one already.
    """
    if not scene.has_graph:
        return []
    with untouched():
        spoilt = [slot for slot in slots_of(scene.walk) if slot.state == "modified"]
        changed = {slot.number: slot for slot in spoilt if scene.can_fail_at(slot.number)}
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
        if change is None:
            watched = self.saved is not None  # only a tracker knows where the tensor was saved
            unseen = "by something that no tracker saw" if watched else "byname.explaining() remembers the line"
            what = f"changed in place since ({unseen})"
        else:
            more = len(self.changes) - 1
            again = f" and {counted(more, 'time')} more" if more else ""
            what = f"changed in place by {change.operation}(){at(where)}{again}"
        message = f"autograd saved {quote_at(self.name, self.saved)} for this backward, and it was {what}"
        return Finding(
            "modified-in-place",
            message,
            culprits_of(self.name),
            known_sites(self.saved, where, self._scene.noticed),
            _remedy(change, self.name, self._is_leaf()),
        )

    def _stepped(self, where: Site | None, what: str) -> Finding:
        message = f"this backward needs {quote(self.name)} as it was{at(self.saved)}; {what}{at(where)}"
        return Finding(
            "optimizer-step-between",
            message,
            culprits_of(self.name),
            known_sites(self.saved, where, self._scene.noticed),
            "call every backward before the step, or compute the forward again after it",
        )

    def _is_leaf(self) -> bool:
        """Whether it is a parameter, or another leaf that learns: of one there can be no second under its name."""
        base = self._base()
        return base is not None and bool(fact(base, "requires_grad")) and fact(base, "grad_fn") is None

    def _base(self) -> torch.Tensor | None:
        tensor = self._slot.tensor
        base = None if tensor is None else fact(tensor, "_base")
        return tensor if base is None else base

    def _optimizer(self) -> str:
        """The optimizer that has this parameter, among those given or found; empty when none has."""
        base = self._base()
        for optimizer in self._scene.all_optimizers:
            for group in optimizer.param_groups:
                if any(one is base for one in group["params"]):
                    return type(optimizer).__name__
        return ""


def _remedy(change: Mutation | None, name: Name, is_leaf: bool) -> str:
    """What to write instead of the change in place."""
    it = name.path or "the tensor"
    if is_leaf:
        return f"change {it} after the backward, or before the forward: values that backward needs must stay until then"
    rewritten = None if change is None or change.site is None else _rewritten(change.site.statement, change.operation)
    if rewritten is not None:
        return f"write it out of place: {rewritten}"
    return (
        f"change a copy instead: take {it}.clone() before the change, or use an operation that returns a new tensor "
        "(no underscore at its end, inplace=False, no out=; torch.where for some items)"
    )


def _rewritten(statement: str, operation: str) -> str | None:
    """``h += b`` as ``h = h + b`` and ``h.relu_()`` as ``h = h.relu()``; None for anything less plain."""
    try:
        parsed = ast.parse(statement).body[0]
    except (SyntaxError, IndexError):  # the head of a block, or a statement too long to be kept whole
        return None
    if isinstance(parsed, ast.AugAssign) and _is_path(parsed.target):
        value = ast.BinOp(ast.parse(ast.unparse(parsed.target), mode="eval").body, parsed.op, parsed.value)
        return f"{ast.unparse(parsed.target)} = {ast.unparse(value)}"
    call = parsed.value if isinstance(parsed, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr != operation:
        return None
    receiver, method = call.func.value, operation.removesuffix("_")
    plain = method != operation and method not in _NO_PLAIN_FORM and _is_path(receiver)
    if (
        not plain
        or ast.unparse(receiver).rpartition(".")[2] in _NAMESPACES
        or any(k.arg == "out" for k in call.keywords)
    ):
        return None
    call.func.attr = method
    return f"{ast.unparse(receiver)} = {ast.unparse(call)}"


_NAMESPACES = frozenset("torch F functional nn init special linalg fft".split())
_NO_PLAIN_FORM = frozenset("copy zero fill set normal uniform random bernoulli exponential requires_grad".split())
"""Changes in place of which no form without the underscore does the same."""


def _is_path(node: ast.expr) -> bool:
    """Whether an expression is a variable, or an attribute or item of one."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return isinstance(node, ast.Name)
