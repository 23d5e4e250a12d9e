"""In-place changes: modified-in-place, optimizer-step-between, leaf-in-place, view-in-place.

Each finding names the tensor that was changed, the line, and the code to write instead.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn

from byname.autograd.saved import SavedTensor, find_saved, rows_among
from byname.autograd.slots import Slot, parse_versions, slots_of, suspect_nodes, versions_in_error
from byname.autograd.walk import leaf_tensors, nodes_behind
from byname.diagnose.cause import Cause, Facts, Raised, Subject, any_of, render
from byname.diagnose.causes.iterations import CarriedOver, detach_advice, find_carried_over
from byname.diagnose.causes.out_of_place import out_of_place_advice
from byname.diagnose.context import FailingExpression, FailureContext, base_name, made_at
from byname.diagnose.engine import first_run
from byname.naming.name import Name, at, unnamed
from byname.naming.names import Searches
from byname.reading.modules import own_parameters, parameters_of
from byname.reading.objects import attributes_of, living
from byname.reading.tensor import fact, is_tensor, memory_of, storage_of
from byname.table import counted
from byname.tracking.log import Mutation, logs


class _Changed(NamedTuple):
    """The facts of saved tensors that were changed in place, and of those that a step of an optimizer changed."""

    in_place: list[Facts]
    by_step: list[Facts]


def _changed_in(context: FailureContext) -> _Changed:
    """Return the facts of the saved tensors that were changed since; for an error one at most."""
    if not context.has_graph:
        return _Changed([], [])
    modified = [slot for slot in slots_of(context.walk) if slot.state == "modified"]
    changed = {slot.number: slot for slot in modified if context.can_fail_at(slot.number)}
    first = [changed[number] for number in context.order() if number in changed] if changed else []
    if context.error is not None:
        first = _reported(context, first, context.message)[:1]
    groups = _by_step([_Change(context, slot) for slot in _one_of_each(first)])
    stepped = [one.facts_of_step([other.name for other in others]) for one, *others in groups if one.is_stepped()]
    return _Changed([one.facts() for one, *_ in groups if not one.is_stepped()], stepped)


def _reported(context: FailureContext, slots: list[Slot], message: str) -> list[Slot]:
    """Return the slots that fit the versions in PyTorch's message, or all slots if none fits."""
    versions = parse_versions(message)
    fitting = [slot for slot in slots if versions_in_error(context.walk.nodes[slot.number], slot.name) == versions]
    return fitting or slots


def _one_of_each(slots: Iterable[Slot]) -> list[Slot]:
    seen: dict[Any, Slot] = {}
    for slot in slots:
        storage = None if slot.tensor is None else storage_of(slot.tensor)
        seen.setdefault(id(slot) if storage is None else (storage,), slot)
    return list(seen.values())


def _by_step(changes: Iterable[_Change]) -> list[list[_Change]]:
    """Return the changes in groups: those that one step of an optimizer made together, every other one alone."""
    groups: dict[Any, list[_Change]] = {}
    for change in changes:
        step = change.step()
        groups.setdefault(id(change) if step is None else (step.site, step.operation), []).append(change)
    return list(groups.values())


class _Change:
    """A saved tensor that was changed in place. It holds the tensor, so it lives no longer than the call that asked."""

    def __init__(self, context: FailureContext, slot: Slot) -> None:
        self._context = context
        self._slot = slot
        index = find_saved([slot], Searches([*context.models, *context.optimizers]))
        row: SavedTensor = rows_among(context.walk, [slot], index)[0]
        self.saved = row.site or context.site(slot.number)
        self.versions = versions_in_error(context.walk.nodes[slot.number], slot.name)
        self.changes = self._changes()
        self.name = self._named(row)

    def _named(self, row: SavedTensor) -> Name:
        if row.name.how != "unnamed":
            return base_name(row.name)
        for change in self.changes:
            if change.changed is not None:
                how = "local" if change.changed.isidentifier() else "item" if "[" in change.changed else "attribute"
                return Name(change.changed, how, change.scope, exact=False, site=row.name.site)
        return self._context.variable(self._slot.number) if row.slot == "result" else row.name

    def _changes(self) -> list[Mutation]:
        """Return the changes of the tensor's memory since it was saved, oldest first."""
        if self._slot.tensor is None:
            return []
        owner = memory_of(self._slot.tensor)
        every = [one for log in logs() for one in log.mutations(owner)]
        saved = -1 if self.versions is None else self.versions[1]
        later = {(one.before, one.after): one for one in every if one.before >= saved}
        return [later[key] for key in sorted(later)]

    def step(self) -> Mutation | None:
        """Return the step of an optimizer that was the first to change the tensor, or None."""
        return next((one for one in self.changes[:1] if one.operation.endswith(".step")), None)

    def is_stepped(self) -> bool:
        """Return whether a step of an optimizer changed the tensor, as far as is known."""
        return self.step() is not None or not (self.changes or not self._optimizer())

    def facts(self) -> Facts:
        change = self.changes[0] if self.changes else None
        if change is None:
            watched = self.saved is not None  # only a tracker knows where the tensor was saved
            unseen = "by something that no tracker saw" if watched else "byname.explaining() remembers the line"
            what = render(f"changed in place afterwards ({unseen})")
        else:
            more = len(self.changes) - 1
            again = f" and {counted(more, 'time')} more" if more else ""
            operation, site = change.operation, change.site
            what = render("changed in place by {by}(){where:at}{again}", by=operation, where=site, again=again)
        return {"saved": Subject(self.name, self.saved), "what": what, "remedy": self._remedy(change)}

    def _remedy(self, change: Mutation | None) -> str:
        """Return advice on the code to write instead of the in-place change."""
        base = self._base()
        if base is not None and _is_trained(base):  # a leaf, so that no changed copy can take its name
            it = self.name.path or "the tensor"
            if change is not None and change.operation.startswith("embedding"):
                used = at(self.saved)
                return f"give {it}.clone() to what uses it{used}: a look-up with max_norm changes rows in place"
            return (
                f"change {it} after the backward, or before the forward: backward needs its values unchanged until then"
            )
        where = None if change is None else change.site
        others = ""
        if base is not self._slot.tensor:
            others = "the tensor that it is a view of then keeps its values"
        elif where is not None and self.saved is not None and where.function != self.saved.function:
            others = "every other variable of this tensor then keeps its values: a hook or helper returns the new ones"
        return out_of_place_advice(
            "" if where is None else where.statement,
            "" if change is None else change.operation,
            self.name.path,
            sets_item=any(one.site == where and one.operation == "__setitem__" for one in self.changes),
            reads_it=where is not None and where == self.saved,
            keeps_graph=base is not None and fact(base, "grad_fn") is not None,
            others=others,
        )

    def facts_of_step(self, others: Sequence[Name]) -> Facts:
        """Return the facts of a step of an optimizer that changed this tensor, and others that the backward needs."""
        step = self.step()
        what = f"it was changed afterwards, most likely by a step of {self._optimizer()}, which has it"
        beside: str = ""
        if others:
            number = counted(len(others), "other tensor")
            beside = render(", and {number} that it needs: {others:3}", number=number, others=tuple(others))
        carried, remedy = "", "call every backward before the step, or compute the forward again after it"
        carrier = self._carrier()
        if carrier is not None:
            carried = render(". {variable} carries the graph of an earlier iteration over", variable=carrier.name)
            remedy = detach_advice(self._context, carrier.name, carrier.made)
            remedy += "; retain_graph=True is not needed then"
        return {
            "tensor": self.name,
            "saved": self.saved,
            "what": what if step is None else f"{step.operation}() changed it",
            "where": None if step is None else step.site,
            "beside": beside,
            "carried": carried,
            "remedy": remedy,
        }

    def _carrier(self) -> CarriedOver | None:
        """Return the variable that carries over the node from an earlier backward call of the same line, if it does."""
        nodes = self._context.walk.nodes
        run = first_run(nodes[self._slot.number])
        if run is None or run.line.site is None or run.line.site != self._context.error_site:
            return None
        earlier = {number for number, node in enumerate(nodes[1:], 1) if first_run(node) is not None}
        return find_carried_over(self._context, self._slot.number, earlier)

    def _base(self) -> torch.Tensor | None:
        return None if self._slot.tensor is None else _base_of(self._slot.tensor)

    def _optimizer(self) -> str:
        """Return the class of the optimizer that has this parameter, by name; empty if none has it."""
        base = self._base()
        every = self._context.optimizers or living(torch.optim.Optimizer)
        owners = (optimizer for optimizer in every if any(one is base for one in parameters_of(optimizer)))
        return next((type(optimizer).__name__ for optimizer in owners), "")


def _changed_leaf(context: FailureContext) -> Iterator[Facts]:
    """Yield the leaf that a statement changes in place though it requires grad."""
    failing = context.failing
    values = [] if failing is None else map(failing.value, _changed_nodes(failing))
    changed = [one for value in values for one in _inside(value) if is_tensor(one)]
    leaf = next((base for base in map(_base_of, changed) if _is_trained(base)), None)
    name = unnamed() if leaf is None else context.name(leaf)
    what = render("{leaf} is a leaf that requires grad, and{noticed:at} it", leaf=name, noticed=context.error_site)
    if not name.path:
        view = "a view of " * ("view of a leaf" in context.message)
        what = render("{view}a leaf that requires grad{noticed:at}", view=view, noticed=context.error_site)
    remedy: str = render(_LEAF, sum=name.path or "new", copy=name.path or "leaf")
    if failing is not None and leaf is not None and isinstance(node := failing.node, ast.AugAssign):
        is_number = fact(leaf, "shape").numel() == 1 and not issubclass(type(leaf), nn.Parameter)
        if is_number and isinstance(node.op, ast.Add) and "grad" not in ast.unparse(node.value):  # total += loss
            remedy = out_of_place_advice(ast.unparse(node), "", name.path)
            remedy += "; and let it begin without requires_grad, since what is added brings its graph along"
    yield {"what": what, "remedy": remedy}


_LEAF = (
    "to set its values, as an initialisation or a step does, run the statement under torch.no_grad(); to compute with "
    "the changed values, make a new tensor: {sum} + ... or {copy}.clone()"
)


def _is_trained(leaf: torch.Tensor) -> bool:
    """Return whether a tensor is a leaf that requires grad."""
    return bool(fact(leaf, "requires_grad")) and fact(leaf, "grad_fn") is None


def _base_of(tensor: torch.Tensor) -> torch.Tensor:
    base = fact(tensor, "_base")
    return tensor if base is None else base


def _changed_nodes(failing: FailingExpression) -> list[ast.expr]:
    """Return the expressions whose values a call or assignment changes; none if the source does not tell."""
    node = failing.node
    if isinstance(node, ast.AugAssign | ast.Subscript):
        return [node.target if isinstance(node, ast.AugAssign) else node.value]
    if not isinstance(node, ast.Call):
        return []
    out = [keyword.value for keyword in node.keywords if keyword.arg == "out"]
    if isinstance(node.func, ast.Attribute) and not out:
        receiver = failing.value(node.func.value)
        if type(receiver) is not ModuleType and not issubclass(type(receiver), nn.Module):  # these change an argument
            return [node.func.value]
    return out or node.args[:1]


def _inside(value: Any) -> list[Any]:
    """Return the items of a list or tuple, the parameters of a module, or else the value itself, as a list."""
    if type(value) in (list, tuple):
        return list(value)
    if issubclass(type(value), nn.Module):
        return list(nn.Module.parameters(value))
    return [value]


class _ChangedVariable(NamedTuple):
    """The variable that a failing expression changes, such as ``t`` of ``t[0] += m``, its value, and advice."""

    name: Name
    value: Any
    advice: str


def _changed_variables(context: FailureContext) -> Iterator[_ChangedVariable]:
    failing, site = context.failing, context.error_site
    for target in _changed_nodes(failing)[:1] if failing is not None and site is not None else ():
        while isinstance(target, ast.Subscript):
            target = target.value
        if failing is not None and site is not None and isinstance(target, ast.Name | ast.Attribute):
            method, path = getattr(getattr(failing.node, "func", None), "attr", ""), ast.unparse(target)
            advice = out_of_place_advice(site.statement, method, path)
            yield _ChangedVariable(Name(path, "local", site.function, exact=False), failing.value(target), advice)


def _changed_view(context: FailureContext) -> Iterator[Facts]:
    """Yield one of several views made by one call, such as ``unbind``, that is changed in place."""
    maker = context.match[1]
    called = f"one call of `{maker.removesuffix('Backward0').lower()}`" if maker else "one call"
    for found in [one for one in _changed_variables(context) if is_tensor(one.value)]:
        yield {"view": found.name, "made": made_at(found.value), "maker": called, "advice": found.advice}


def _hooked_in_place(context: FailureContext) -> Iterator[Facts]:
    """Yield the layer or the line that changes in place what a module with a full backward hook has returned."""
    layer = next((one for one in context.selves(nn.Module) if attributes_of(one).get("inplace")), None)
    found = [*_changed_variables(context)] if layer is None else []
    of = _hooked(context, [one.value for one in found] or [held.get("input") for held in context.frames("forward")])
    if layer is None:
        return ({"target": one.name, "what": "this line", "advice": one.advice, "of": of} for one in found)
    kind = type(layer).__name__
    what, advice = f"a {kind} with inplace=True", f"build the {kind} with inplace=False"
    return iter([{"target": (), "what": what, "advice": advice, "of": of}])


def _hooked(context: FailureContext, values: Iterable[Any]) -> tuple[Name, ...] | str:
    """Return the name of the module with a full backward hook that some values come from, if there is one only."""
    behind = set(map(id, leaf_tensors(nodes_behind([one for one in values if is_tensor(one)]))))
    modules = [one for one in living(nn.Module) if attributes_of(one).get("_is_full_backward_hook")]
    hooked = [mine for one in modules if (mine := own_parameters(one)) and behind.intersection(map(id, mine))]
    names = context.names([hooked[0][0]]) if len(hooked) == 1 else []
    return tuple(replace(one, path=path) for one in names if (path := one.path.rpartition(".")[0])) or "a module"


_CHANGED = any_of(
    Raised(RuntimeError, r"has been modified by an inplace operation"),
    lambda context: context.error is None and bool(suspect_nodes(context.kinds)),
)

# fmt: off
MODIFIED: tuple[Cause[FailureContext], ...] = (
    Cause("modified-in-place", _CHANGED, lambda context: context.once(_changed_in).in_place,
        "autograd saved {saved} for this backward, and it was {what}", "{remedy}"),
    Cause("optimizer-step-between", _CHANGED, lambda context: context.once(_changed_in).by_step,
        "this backward needs {tensor} as it was{saved:at}; {what}{where:at}{beside}{carried}", "{remedy}"),
)
REFUSED_IN_PLACE: tuple[Cause[FailureContext], ...] = (
    Cause("leaf-in-place",
        Raised(RuntimeError, r"leaf Variable that requires grad is being used in an in-place"),
        _changed_leaf,
        "{what} is changed in place",
        "{remedy}"),
    Cause("view-in-place",
        Raised(RuntimeError, r"(?:of (\w+) )?is a view and is being modified inplace.*returns multiple views"),
        _changed_view,
        "{view} is one of the views of a tensor that {maker} made{made:at} (chunk, split, unbind and a loop over a "
        "tensor make several), and it is changed in place{noticed:at}: autograd allows that for single views only",
        "{advice}. The tensor that {view.path} is a part of then keeps its values: collect the new parts and join them "
        "with torch.stack or torch.cat"),
    Cause("view-in-place", Raised(RuntimeError, r"of BackwardHookFunction\w* is a view and is being modified inplace"),
        _hooked_in_place,
        "{target:-}{what}{noticed:at} changes in place what {of}, with a full backward hook, has returned: the hook "
        "needs a view there, and autograd does not allow changing that view in place",
        "{advice}, or hook the tensor in place of the module: output.register_hook(...) in a forward hook"),
    Cause("view-in-place", Raised(RuntimeError, r"(more) than one element of the written-to tensor refers to"),
        _changed_view,
        "several elements of {view} are one number in memory, as expand() makes them{made:at}, and it is changed in "
        "place{noticed:at}", "{advice}"),
)
# fmt: on
