"""Ownership: not-in-optimizer, orphaned-parameter, shared-memory, free-leaf.

These findings say which optimizer has the parameters that get a gradient, and whether anything uses the gradient.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from types import GeneratorType
from typing import Any, NamedTuple

import torch
from torch import nn

from byname.autograd.leaves import Leaf, leaves_of
from byname.diagnose.cause import Cause, Facts, is_before_backward, render, variable
from byname.diagnose.causes.cuts import sentence_of
from byname.diagnose.causes.not_reached import MAY_BE, cuts_beside
from byname.diagnose.causes.readers import reads_gradient_of
from byname.diagnose.context import FailureContext, made_at
from byname.diagnose.engine import first_run
from byname.naming.name import Name, quote_all
from byname.reading.modules import (
    modules_in,
    own_parameters,
    parameters_held,
    parameters_in,
    parameters_of,
    plain_containers,
)
from byname.reading.objects import attributes_of, living
from byname.reading.tensor import PLAIN, fact, is_tensor
from byname.source.location import Site, is_library, statements_binding
from byname.table import counted
from byname.text import shape_text
from byname.tracking.log import logs


class _LeftOut(NamedTuple):
    """The parameters that a loss reaches and that no optimizer will change, and the lines that use and make them."""

    names: tuple[Name, ...]
    uses: tuple[Site, ...]
    made: list[Site]
    hidden: dict[int, tuple[str, str]]  # those that PyTorch does not find: where they are, and what to use there
    lost: bool  # no variable and no module holds them any more


def _optimized(context: FailureContext) -> dict[int, torch.Tensor]:
    """Return the parameters of the given optimizers, by ``id``."""
    return {id(one): one for optimizer in context.optimizers for one in parameters_of(optimizer)}


def _leaves(context: FailureContext) -> list[Leaf]:
    """Return the leaves that no other optimizer has, if any leaf or parameter may be worth a finding."""
    optimized = context.once(_optimized)
    free = (one for one in context.leaves if not issubclass(type(one), nn.Parameter))
    unowned = (one for one in context.leaves if id(one) not in optimized) if context.optimizers else free
    if not any(True for _ in unowned) and not context.once(_foreign_parameters):
        return []
    every = {id(one) for other in living(torch.optim.Optimizer) for one in parameters_of(other)}
    found = leaves_of(context.walk, context.models, context.optimizers)
    return [leaf for leaf in found if id(leaf.tensor) not in every - optimized.keys()]


def _foreign_parameters(context: FailureContext) -> list[torch.Tensor]:
    """Return the optimizers' parameters that belong to none of the models and that the loss does not reach."""
    if not context.models or not context.optimizers:
        return []
    reached = set(map(id, context.leaves))
    unreached = {key: one for key, one in context.once(_optimized).items() if key not in reached}
    theirs = {id(one) for model in context.models for one in parameters_in(model)} if unreached else set()
    return [one for key, one in unreached.items() if key not in theirs]


def _left_out_of(context: FailureContext) -> _LeftOut:
    trains = any(issubclass(type(one), nn.Parameter) for one in context.once(_optimized).values())
    leaves = reversed(context.once(_leaves)) if trains else ()  # else an image is optimized, through a fixed model
    mine = [leaf for leaf in leaves if leaf.kind == "parameter" and not leaf.in_optimizer]
    hidden = _hidden(context, mine) if mine else {}
    theirs = {id(one) for model in context.models for one in parameters_in(model)} | hidden.keys()
    if context.models:
        mine = [leaf for leaf in mine if id(leaf.tensor) in theirs or _is_stray(context, leaf)]
    names = tuple([leaf.name for leaf in mine])
    uses = tuple([use.site for leaf in mine for use in leaf.consumers if use.site is not None])
    lost = all(leaf.name.how == "graph" or not leaf.name.path or _is_of_a_call(leaf.name) for leaf in mine)
    made = dict.fromkeys([one.site for one in mine if one.site is not None and not is_library(one.site.file)])
    return _LeftOut(names, uses, [*made][:3], hidden, bool(uses) and lost)


def _is_of_a_call(name: Name) -> bool:
    """Return whether a name is that of a variable of a function that has returned, which may run again."""
    function = name.site.function.rpartition(".")[2] if name.site is not None else "<module>"
    return name.how == "local" and not name.exact and function not in ("__init__", "<module>")


def _is_stray(context: FailureContext, leaf: Leaf) -> bool:
    """Return whether no module has a parameter, and nothing reads its gradient: only an optimizer can change it."""
    return id(leaf.tensor) not in context.once(registered_ids) and _is_idle(context, leaf)


def registered_ids(_: object = None) -> set[int]:
    """Return the ids of the parameters of all living modules."""
    return {id(one) for module in living(nn.Module) for one in own_parameters(module)}


def _wrapped_too_early(context: FailureContext) -> Iterator[Facts]:
    names, uses, _, _, lost = context.once(_left_out_of)
    if names and lost and all(map(_wraps_too_early, uses)):
        yield from (_as_target(use, names[0].scope) for use in uses)


def _made_in_forward(context: FailureContext) -> Iterator[Facts]:
    """Yield the parameters that no variable and no module holds any more, as of a layer made in a forward."""
    names, uses, made, _, lost = context.once(_left_out_of)
    if names and lost and not all(map(_wraps_too_early, uses)):
        number = counted(len(names), "parameter")
        yield {"count": len(names), "number": number, "used": uses[0], "made": made, "those": _those(context)}


def _left_out(context: FailureContext) -> Iterator[Facts]:
    names, _, made, hidden, lost = context.once(_left_out_of)
    if not names or lost:
        return
    remedy: str = render(
        "give {names:it|them} to the optimizer (optimizer.add_param_group), or build the optimizer when the model is "
        "complete; if {names:it|they} should not learn, requires_grad_(False) also saves computing "
        "{names:its gradient|their gradients}",
        names=names,
    )
    if hidden:
        words = dict.fromkeys([f"make `{path}` a {better}" for path, better in hidden.values()])
        remedy = f"{'; '.join(words)}: PyTorch does not look for parameters in a plain list, tuple or dict"
    elif any(not group["params"] for optimizer in context.optimizers for group in optimizer.param_groups):
        why = "a group of its parameters is empty: a generator, as net.parameters() is, gives them only once"
        remedy = f"{why}, so keep list(net.parameters()); otherwise {remedy}"
    elif all(re.search(r"target|teacher|momentum|(?<![a-z])ema(?![a-z])", name.path) for name in names):
        follows = "if it only follows another model, as a target does, compute with it under torch.no_grad()"
        remedy = f"{follows}; otherwise {remedy}"
    owned = [one.tensor for one in context.once(_leaves) if one.in_optimizer and one.tensor is not None]
    cut, beside = next((cut for cut, certainty in cuts_beside(context, owned) if certainty is not MAY_BE), None), ""
    if cut is not None:
        beside = f". Beside it, {sentence_of(context, cut)}, and comes from others that it has"
        them = "it" if len(names) == 1 else "them"
        remedy = f"if the cut is on the wrong side, move it to {them}; if not, {remedy}"
    yield {
        "names": names,
        "made": made,
        "lack": f"{_those(context)} {'has' if _several(context) else 'does not have'}",
        "beside": beside,
        "cut": None if cut is None else cut.line.site,
        "remedy": remedy,
    }


def _wraps_too_early(use: Site) -> bool:
    """Return whether a statement that runs once keeps what it computes from a new parameter, not the parameter."""
    runs_once = use.function.rpartition(".")[2] in ("__init__", "<module>")
    return runs_once and bool(use.target) and "Parameter(" in use.statement


def _hidden(context: FailureContext, leaves: Sequence[Leaf]) -> dict[int, tuple[str, str]]:
    """Return those of some leaves that a module holds in a plain list or dict, by ``id``: its path, and what to use."""
    models = context.models or living(torch.nn.Module)
    modules = {id(one): one for model in models for one in modules_in(model)}
    wanted = {id(leaf.tensor): leaf.name.path for leaf in leaves if leaf.tensor is not None}
    found: dict[int, tuple[str, str]] = {}
    for module in modules.values():
        for attribute, _, held, better in plain_containers(module):
            for parameter in parameters_held(held):
                path = wanted.get(id(parameter), "")
                if f".{attribute}[" in path:
                    found[id(parameter)] = f"{path.partition(f'.{attribute}[')[0]}.{attribute}", better
    return found


def _orphaned(context: FailureContext) -> Iterator[Facts]:
    """Yield the parameters that an optimizer has and that the model no longer has."""
    strangers, outside = context.once(_foreign_parameters), context.once(_left_out_of)
    named = () if outside.lost else outside.names
    newcomers = [leaf for leaf in context.once(_leaves) if leaf.name in named]
    newcomers = [leaf for leaf in newcomers if id(leaf.tensor) in context.once(registered_ids)]
    shapes = {leaf.card.shape for leaf in newcomers}
    found = zip(context.names(strangers), strangers, strict=True) if strangers else ()
    gone = [(name, one) for name, one in found if ".param_groups[" in name.path or _shape(one) in shapes]
    new = tuple([leaf.name for leaf in reversed(newcomers)])
    replaced = (
        f"; it does not have {quote_all(new)}. It looks as if a part of the model was replaced after the optimizer was "
        "built"
    )
    if gone:
        yield {
            "holder": "one of the optimizers" if _several(context) else _those(context),
            "old": ", ".join(f"`{name}` ({shape_text(_shape(one))})" for name, one in gone),
            "replaced": replaced if new else "",
            "names": [*(name for name, _ in gone), *new],
        }


def _sharing_memory(context: FailureContext) -> Iterator[Facts]:
    """Yield the parameters of optimizers, of one model, that are the same numbers at the same place."""
    groups: dict[Any, list[torch.Tensor]] = {}
    for one in context.once(_optimized).values():
        if type(one) in PLAIN and one.layout is torch.strided and (place := one.data_ptr()):  # 0: freed, or meta
            groups.setdefault((place, one.dtype, one.shape, one.stride()), []).append(one)
    for group in [group for group in groups.values() if len(group) > 1]:
        names = tuple(context.names(group))
        variables = {re.split(r"\W", name.path)[0] for name in names}
        if len(variables) == 1 and "" not in variables and not any(".param_groups[" in name.path for name in names):
            tied = "; ".join(f"`{name} = {names[0]}`" for name in names[1:])
            yield {"names": names, "number": len(names), "tied": tied}


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(fact(tensor, "shape"))


def _several(context: FailureContext) -> bool:
    return len(context.optimizers) > 1


def _those(context: FailureContext) -> str:
    return "none of the optimizers" if _several(context) else f"the optimizer ({type(context.optimizers[0]).__name__})"


def _idle(context: FailureContext) -> dict[str, list[Facts]]:
    """Return the facts of the leaves that are no parameters and get a gradient that nothing reads, by their kind."""
    leaves = [one for one in reversed(context.once(_leaves)) if one.kind == "free" and not one.in_optimizer]
    idle = [leaf for leaf in leaves if _is_idle(context, leaf)]
    held = [leaf for leaf in idle if leaf.name.exact and not leaf.name.rebound_at]
    found: dict[str, list[Facts]] = {"together": [], "loss": [], "no leaf": [], "free": []}
    if len(held) > 1:
        idle = [leaf for leaf in idle if leaf not in held]
        made = list(dict.fromkeys(leaf.site for leaf in held))
        found["together"].append({"names": [leaf.name for leaf in held], "made": made})
    for leaf in idle:
        used = next((one.site for one in leaf.consumers if one.site is not None), None)
        is_lost = not leaf.name.exact or leaf.name.rebound_at
        if used is None or not used.target or leaf.name.exact or "requires_grad" not in used.statement:
            lost = "no variable holds it any more, so" if is_lost else "it is not a parameter of a module,"
            found["free"].append({"leaf": leaf.name, "lost": lost, "lines": [leaf.site, leaf.name.rebound_at]})
        elif any(is_tensor(root) and made_at(root) == used for root in context.roots):
            found["loss"].append(_as_target(used, ""))  # as loss = torch.tensor(losses, requires_grad=True).mean()
        else:
            found["no leaf"].append(_as_target(used, leaf.name.scope))  # w = torch.randn(3, requires_grad=True) * 0.1
    return found


def _as_target(made: Site, scope: str) -> Facts:
    target = Name(made.target or "", "local", scope, exact=False, site=made)
    return {"target": target, "variable": made.target, "made": made}


def _is_idle(context: FailureContext, leaf: Leaf) -> bool:
    """Return whether nothing uses a leaf's gradient; without an optimizer, only of a leaf that no variable holds."""
    tensor = leaf.tensor
    if tensor is None:
        return True
    if any(tensor is root for root in context.roots):  # a loss that is a leaf is a finding of its own
        return False
    if leaf.site is not None and is_library(leaf.site.file):  # as transformers does, so that checkpoints have gradients
        return False
    if any(use.node == "CheckpointFunctionBackward" for use in leaf.consumers):  # needs it
        return False
    if _is_total(leaf) or any(log.detaches_of(tensor) for log in logs()):  # made from results on purpose
        return False
    if fact(tensor, "_backward_hooks") or fact(tensor, "_post_accumulate_grad_hooks"):
        return False
    uses = context.walk.leaf_uses[leaf.number]
    runs = [first_run(context.walk.nodes[user]) for user, _ in uses]
    if any(run is not None and run.partial for run in runs):  # autograd.grad ran it: of a gradient penalty, of forces
        return False
    if reads_gradient_of(leaf.names, context.models):
        return False
    is_lost = not leaf.name.exact or leaf.name.rebound_at is not None  # no variable holds it any more
    return is_lost or bool(context.optimizers)


def _is_total(leaf: Leaf) -> bool:
    """Return whether a leaf is where a running total begins: ``total = total + ...`` adds to it, and nothing else."""
    sites = [use.site for use in leaf.consumers if use.node == "AddBackward0"]
    targets = {None if site is None else site.target for site in (leaf.site, *sites)}
    return len(sites) == len(leaf.consumers) and len(targets) == 1 and targets.isdisjoint((None, ""))


_NOT_A_LEAF = (
    "{target:-}`{variable}` is not a leaf: the statement at {made} makes a leaf and computes {variable} from it, so "
    "the gradient goes to a tensor that no variable holds",
    "compute the values first: {variable} = (...).requires_grad_(), or wrap them in nn.Parameter(...)",
)


def no_parameters(context: FailureContext) -> Iterator[Facts]:
    """Yield the module, or the exhausted iterator, that gave an optimizer no parameters."""
    parts = [*context.failing_parts()]
    names = [(failing, node.id) for failing, node in parts if isinstance(node, ast.Name)]
    bound = [(failing, expr) for failing, name in names for expr in statements_binding(failing.code, name)]
    parts += [(failing, part) for failing, expr in bound if expr.node is not None for part in ast.walk(expr.node)]
    made = [expr.site for _, expr in bound if "parameters(" in expr.site.statement]
    asked = [(failing, one) for failing, one in parts if isinstance(one, ast.Attribute) and "parameters" in one.attr]
    given = [(ast.unparse(one.value), failing.value(one.value)) for failing, one in asked]
    modules = [(path, module) for path, module in given if issubclass(type(module), nn.Module)]
    learns = any(fact(one, "requires_grad") for _, module in modules for one in parameters_in(module))
    spent = [name for failing, name in names if type(failing.variables.get(name)) in (GeneratorType, filter)]
    for name in spent if learns or not modules else ():
        why = render(": {it} gives its items only once, and has none left, as after a loop over it", it=variable(name))
        remedy = f"make it a list when it is made, {name} = list(...), or call .parameters() anew"
        yield {"why": why, "made": made, "remedy": remedy}
    yield from ({"made": made, **_without_parameters(*one)} for one in modules[:1])


def _without_parameters(path: str, module: nn.Module) -> Facts:
    """Return the facts of a module that gave no parameters, with the tensors and containers that should be some."""
    whose = f": `{path}` ({type(module).__name__})"
    if own := parameters_in(module):
        lack, remedy = "none requires grad", f"unfreeze what should learn: {path}.requires_grad_(True)"
        if any(fact(one, "requires_grad") for one in own):
            lack, remedy = "the condition leaves out all", f"print the names in {path}.named_parameters()"
        facts = {"whose": whose, "number": counted(len(own), "parameter"), "lack": lack, "it": variable(path)}
        return {"why": render("{whose} has {number}, and {lack}{it:-}", **facts), "remedy": remedy}
    every = [(key, one, it) for one in modules_in(module) for key, it in attributes_of(one).items()]
    for key, one, held in every:
        if is_tensor(held) and fact(held, "requires_grad"):
            why = f"{whose} has registered none. `{key}` of {type(one).__name__} is a plain tensor with requires_grad"
            return {"why": why, "remedy": f"make it a parameter in __init__: self.{key} = nn.Parameter(...)"}
    found = [(f"{path}.{name}", kind, len(held), better) for name, kind, held, better in plain_containers(module)]
    if not found:
        why = render("{whose} has none, and none of its modules has any{it:-}", whose=whose, it=variable(path))
        remedy = "build its layers in __init__ and assign them to attributes of self, before the optimizer is built"
        return {"why": why, "remedy": remedy}
    words = ", ".join(f"{count} in `{where}`, a plain {kind}" for where, kind, count, _ in found)
    hidden = [Name(where, "attribute", exact=False) for where, _, _, _ in found]
    says = "{whose} has registered none. It holds modules or parameters where PyTorch does not look: {words}{hidden:-}"
    why = render(says, whose=whose, words=words, hidden=hidden)
    remedy = "; ".join(dict.fromkeys(f"make `{where}` a {better}" for where, _, _, better in found))
    return {"why": why, "remedy": remedy}


# fmt: off
LEFT_OUT: Cause[FailureContext] = Cause("not-in-optimizer", is_before_backward, _left_out,
    "{names:-}{made:-}{names} {names:gets|get} a gradient, but {lack} {names:it|them}{beside}{cut:-}", "{remedy}")
OWNERSHIP: tuple[Cause[FailureContext], ...] = (
    Cause("shared-memory", is_before_backward, _sharing_memory,
        "{names:-}{names} share the same memory, and are {number} parameters: each gets a part of the gradient, and "
        "the step changes the same numbers once for each, as if it were all of it",
        "make them one parameter, before the optimizer: {tied}"),
    Cause("non-leaf-grad", is_before_backward, _wrapped_too_early, *_NOT_A_LEAF),
    Cause("not-in-optimizer", is_before_backward, _made_in_forward,
        "{made:-}{number} used{used:at} {count:gets|get} a gradient, and no variable leads to {count:it|them}: a "
        "module or parameter made in a function is new in each call, and {those} cannot have {count:it|them}",
        "make it once, in __init__ of the module, and build the optimizer after that"),
    LEFT_OUT,
    Cause("orphaned-parameter", is_before_backward, _orphaned,
        "{names:-}{holder} has {old}, which the model does not have and this loss does not reach{replaced}",
        "build the optimizer after the last change of the model, or give it the new parameters with add_param_group"),
    Cause("free-leaf", is_before_backward, lambda context: context.once(_idle)["together"],
        "{names:-}{names} require grad and get a gradient in every backward, but nothing uses these gradients: they "
        "are not parameters of a module, no optimizer changes them and nothing reads or clears their .grad{made:-}",
        "make those that should learn an nn.Parameter of the module (a list of them an nn.ParameterList) and give them "
        "to the optimizer; make the others without requires_grad, or detach them where they are used"),
    Cause("leaf-loss", is_before_backward, lambda context: context.once(_idle)["loss"],
        "{target:-}`{variable}` is computed at {made} from a tensor that was given requires_grad in the same "
        "statement: no gradient flows further back than to it, and no variable holds it",
        "leave out requires_grad, and compute the loss from results of the model as they are: torch.stack joins "
        "several; .item(), float(), torch.tensor() and comparisons cut them off"),
    Cause("non-leaf-grad", is_before_backward, lambda context: context.once(_idle)["no leaf"], *_NOT_A_LEAF),
    Cause("free-leaf", is_before_backward, lambda context: context.once(_idle)["free"],
        "{leaf:-}{leaf} requires grad and gets a gradient in every backward, but nothing uses that gradient: {lost} no "
        "optimizer changes it and nothing reads or clears its .grad{lines:-}",
        "make it an nn.Parameter of the module and give it to the optimizer if it should learn; otherwise make it "
        "without requires_grad, or detach it where it is used"),
)
