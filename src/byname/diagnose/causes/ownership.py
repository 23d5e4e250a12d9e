"""Ownership: not-in-optimizer, orphaned-parameter, shared-memory, free-leaf.

These findings tell which optimizer has the parameters that get a gradient, and whether anything uses the gradient.
The source of the program's loaded functions tells whether the program reads it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

import torch
from torch import nn

from byname.autograd.leaves import Leaf
from byname.diagnose.causes.not_reached import MAY_BE, Snip, cuts_beside, why_cut
from byname.diagnose.context import FailureContext, made_at
from byname.diagnose.engine import ENGINE, first_run
from byname.diagnose.finding import Finding, known_sites
from byname.naming.name import Name, at, quote, quote_all, quote_at
from byname.naming.roots import codes_of_the_program
from byname.reading.frames import locals_of, running_frames
from byname.reading.modules import modules_in, parameters_held, parameters_in, plain_containers
from byname.reading.objects import found_in, living
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import PLAIN, fact, is_tensor
from byname.source.code import ThisCode, is_what_ran, source_of, text_of
from byname.source.location import Site, is_library
from byname.table import counted


def left_out(context: FailureContext, leaves: Sequence[Leaf]) -> list[Finding]:
    """Return a finding about the models' parameters that the loss reaches and that no optimizer will change."""
    mine = [leaf for leaf in reversed(leaves) if _is_left_out(leaf)]
    hidden = _hidden(context, mine) if mine else {}
    theirs = {id(one) for model in context.models for one in parameters_in(model)} | hidden.keys()
    names = tuple([leaf.name for leaf in mine if not context.models or id(leaf.tensor) in theirs])
    if not names:
        return []
    gather, it, they = ("gets", "it", "it") if len(names) == 1 else ("get", "them", "they")
    has = "has" if _several(context) else "does not have"
    uses = known_sites(*(use.site for leaf in mine for use in leaf.consumers))
    if uses and all(leaf.name.how == "graph" or not leaf.name.path for leaf in mine):
        once = all(map(_wraps_too_early, uses))
        return [_not_a_leaf(use, names[0]) for use in uses] if once else [_made_anew(context, names, uses)]
    message = f"{quote_all(names)} {gather} a gradient, but {_those(context)} {has} {it}"
    remedy = (
        f"give {it} to the optimizer (optimizer.add_param_group), or build the optimizer when the model is complete; "
        f"if {they} should not learn, requires_grad_(False) also saves computing "
        f"{'its gradient' if it == 'it' else 'their gradients'}"
    )
    if hidden:
        words = dict.fromkeys([f"make `{path}` a {better}" for path, better in hidden.values()])
        remedy = f"{'; '.join(words)}: PyTorch does not look for parameters in a plain list, tuple or dict"
    snip = _other_side(context, leaves)
    if snip is not None:
        place = quote_at(snip.name(context), snip.site)
        message += f". Beside it, {place} {why_cut(snip.cut)}, and comes from others that it has"
        remedy = f"if the cut is on the wrong side, move it to {it}; if not, {remedy}"
    return [Finding("not-in-optimizer", message, names, known_sites(None if snip is None else snip.site), remedy)]


def _other_side(context: FailureContext, leaves: Sequence[Leaf]) -> Snip | None:
    """Return a call that certainly or probably cuts parameters of an optimizer off from a part of the loss."""
    mine = [leaf.tensor for leaf in leaves if leaf.in_optimizer and leaf.tensor is not None]
    return next((Snip(cut) for cut, sure in cuts_beside(context, mine) if sure is not MAY_BE), None)


def _wraps_too_early(use: Site) -> bool:
    """Return whether a statement that runs once keeps what it computes from a new parameter, not the parameter."""
    runs_once = use.function.rpartition(".")[2] in ("__init__", "<module>")
    return runs_once and bool(use.target) and "Parameter(" in use.statement


def _made_anew(context: FailureContext, names: tuple[Name, ...], uses: Sequence[Site]) -> Finding:
    """Return the finding about parameters that no variable and no module holds any more, as of a layer in forward."""
    get, them = ("gets", "it") if len(names) == 1 else ("get", "them")
    message = (
        f"{counted(len(names), 'parameter')} used{at(uses[0])} {get} a gradient, and no variable leads to {them}: "
        f"a module or parameter made in a function is new in each call, and {_those(context)} cannot have {them}"
    )
    remedy = "make it once, in __init__ of the module, and build the optimizer after that"
    return Finding("not-in-optimizer", message, (), tuple(dict.fromkeys(uses))[:1], remedy)


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


def _is_left_out(leaf: Leaf) -> bool:
    return leaf.kind == "parameter" and not leaf.in_optimizer


def orphaned(context: FailureContext, strangers: Sequence[torch.Tensor], newcomers: Sequence[Leaf]) -> list[Finding]:
    """Return a finding about parameters that an optimizer has and that the model no longer has.

    Args:
        context: the context of the question.
        strangers: the optimizer's parameters that are not the model's and that the loss does not reach.
        newcomers: the leaves of the model's parameters that no optimizer has.
    """
    shapes = {leaf.card.shape for leaf in newcomers}
    named = zip(context.names(strangers), strangers, strict=True)
    gone = [(name, one) for name, one in named if ".param_groups[" in name.path or _shape(one) in shapes]
    if not gone:
        return []
    holder = "one of the optimizers" if _several(context) else _those(context)
    old = ", ".join(f"`{name}` ({'×'.join(map(str, _shape(one))) or 'scalar'})" for name, one in gone)
    message = f"{holder} has {old}, which the model does not have and this loss does not reach"
    new = tuple([leaf.name for leaf in reversed(newcomers)])
    if new:
        message += (
            f"; it does not have {quote_all(new)}. It looks as if a part of the model was replaced after the "
            "optimizer was built"
        )
    remedy = (
        "build the optimizer after the last change of the model, or give it the new parameters with add_param_group"
    )
    return [Finding("orphaned-parameter", message, (*(name for name, _ in gone), *new), remedy=remedy)]


def sharing_memory(context: FailureContext, parameters: Iterable[torch.Tensor]) -> Iterator[Finding]:
    """Yield findings about parameters of optimizers, of one model, that are the same numbers at the same place."""
    groups: dict[Any, list[torch.Tensor]] = {}
    with DisableTorchFunction():
        for one in parameters:
            if type(one) in PLAIN and one.layout is torch.strided and (place := one.data_ptr()):  # 0: freed, or meta
                groups.setdefault((place, one.dtype, one.shape, one.stride()), []).append(one)
    for group in [group for group in groups.values() if len(group) > 1]:
        names = tuple(context.names(group))
        variables = {re.split(r"\W", name.path)[0] for name in names}
        if len(variables) > 1 or "" in variables or any(".param_groups[" in name.path for name in names):
            continue
        message = (
            f"{quote_all(names)} share the same memory, and are {len(names)} parameters: each gets a part of the "
            "gradient, and the step changes the same numbers once for each, as if it were all of it"
        )
        tied = "; ".join(f"`{name} = {names[0]}`" for name in names[1:])
        yield Finding("shared-memory", message, names, remedy=f"make them one parameter, before the optimizer: {tied}")


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    with DisableTorchFunction():
        return tuple(fact(tensor, "shape"))


def _several(context: FailureContext) -> bool:
    return len(context.optimizers) > 1


def _those(context: FailureContext) -> str:
    return "none of the optimizers" if _several(context) else f"the optimizer ({type(context.optimizers[0]).__name__})"


def free_leaves(context: FailureContext, leaves: Sequence[Leaf]) -> list[Finding]:
    """Return findings about leaves that are not parameters and get a gradient that nothing reads."""
    idle = [
        leaf for leaf in reversed(leaves) if leaf.kind == "free" and not leaf.in_optimizer and _is_idle(context, leaf)
    ]
    held = [leaf for leaf in idle if leaf.name.exact and not leaf.name.rebound_at]
    together = held if len(held) > 1 else []
    found = [_free(context, leaf) for leaf in idle if leaf not in together]
    return [*([_several_free(together)] if together else []), *found]


def _several_free(leaves: Sequence[Leaf]) -> Finding:
    names = tuple([leaf.name for leaf in leaves])
    message = (
        f"{quote_all(names)} require grad and get a gradient in every backward, but nothing uses these gradients: they "
        "are not parameters of a module, no optimizer changes them and nothing reads or clears their .grad"
    )
    remedy = (
        "make those that should learn an nn.Parameter of the module (a list of them an nn.ParameterList) and give them "
        "to the optimizer; make the others without requires_grad, or detach them where they are used"
    )
    return Finding("free-leaf", message, names, known_sites(*dict.fromkeys([leaf.site for leaf in leaves])), remedy)


def _is_idle(context: FailureContext, leaf: Leaf) -> bool:
    """Return whether a leaf's gradient goes unused, as far as can be seen.

    Without a given optimizer, this is claimed only of a leaf that no variable holds any more.
    """
    tensor = leaf.tensor
    if tensor is None:
        return True
    if any(tensor is root for root in context.roots):  # of a loss that is a leaf something else is said
        return False
    if leaf.site is not None and is_library(leaf.site.file):  # as transformers does, so that checkpoints have gradients
        return False
    if any(use.node == "CheckpointFunctionBackward" for use in leaf.consumers):  # needs it
        return False
    with DisableTorchFunction():
        if fact(tensor, "_backward_hooks") or fact(tensor, "_post_accumulate_grad_hooks"):
            return False
    uses = context.walk.consumers([leaf.number])[leaf.number]
    runs = [first_run(context.walk.nodes[user]) for user, _ in uses]
    if any(run is not None and run.partial for run in runs):  # autograd.grad ran it: of a gradient penalty, of forces
        return False
    if _reads_gradient_of(leaf.names, context.models):
        return False
    is_lost = not leaf.name.exact or leaf.name.rebound_at is not None  # no variable holds it any more
    return is_lost or bool(context.optimizers)


def _free(context: FailureContext, leaf: Leaf) -> Finding:
    made, used = leaf.site, next((one.site for one in leaf.consumers if one.site is not None), None)
    name = leaf.name
    if used is not None and used.target and not name.exact and "requires_grad" in used.statement:
        is_loss = any(is_tensor(root) and made_at(root) == used for root in context.roots)
        return _wrapped_in_loss(used) if is_loss else _not_a_leaf(used, name)
    held = (
        "no variable holds it any more, so"
        if not name.exact or name.rebound_at
        else "it is not a parameter of a module,"
    )
    message = (
        f"{quote(name)} requires grad and gets a gradient in every backward, but nothing uses that gradient: {held} no "
        "optimizer changes it and nothing reads or clears its .grad"
    )
    remedy = (
        "make it an nn.Parameter of the module and give it to the optimizer if it should learn; otherwise make it "
        "without requires_grad, or detach it where it is used"
    )
    return Finding("free-leaf", message, (name,), known_sites(made, name.rebound_at), remedy)


def _not_a_leaf(made: Site, name: Name) -> Finding:
    """Return a finding for ``w = torch.randn(3, requires_grad=True) * 0.1``, where the variable is not the leaf."""
    message = (
        f"`{made.target}` is not a leaf: the statement at {made} makes a leaf and computes {made.target} from it, so "
        "the gradient goes to a tensor that no variable holds"
    )
    remedy = f"compute the values first: {made.target} = (...).requires_grad_(), or wrap them in nn.Parameter(...)"
    target = Name(made.target or "", "local", name.scope, exact=False, site=made)
    return Finding("non-leaf-grad", message, (target,), known_sites(made), remedy)


def _wrapped_in_loss(made: Site) -> Finding:
    """Return a finding for ``loss = torch.tensor(losses, requires_grad=True).mean()``."""
    message = (
        f"`{made.target}` is computed at {made} from a tensor that was given requires_grad in the same statement: no "
        "gradient flows further back than to it, and no variable holds it"
    )
    remedy = (
        "leave out requires_grad, and compute the loss from results of the model as they are: torch.stack joins "
        "several; .item(), float(), torch.tensor() and comparisons cut them off"
    )
    target = Name(made.target or "", "local", exact=False, site=made)
    return Finding("leaf-loss", message, (target,), known_sites(made), remedy)


class _Function(NamedTuple):
    """The names in one function, or in the top level of a file.

    Attributes:
        called: the last part of every name and attribute in it, among them all functions that it may call.
        gradients: the last part of each ``x`` in ``x.grad`` and ``x.register_hook``, and of each expression given to
            ``grad(...)``.
        others: whether it reads the gradient of an argument or a loop variable, or reads ``grad`` by `getattr`, so that
            any tensor may be meant; loops over ``model.parameters()`` do not count.
        asks: whether it reads the gradient of any variable but those of such loops.
    """

    called: frozenset[str]
    gradients: frozenset[str]
    others: bool
    asks: bool


def _reads_gradient_of(names: Sequence[Name], models: Sequence[nn.Module]) -> bool:
    """Return whether the program may read a variable's gradient.

    It may do so under the variable's name in any file, or in a running function or one that such a function may call.
    Unless byname listens to the engine, a model or a function that has ended may have asked for it, too.
    """
    wanted = {name.path.rpartition(".")[2].partition("[")[0] for name in names}
    if any(wanted & function.gradients for function in _of_the_program()):
        return True
    if any(name.exact and name.rebound_at is None for name in names):
        return any(function.others for function in _in_reach(() if ENGINE.listens else models))
    return not ENGINE.listens and any(function.asks for function in _of_the_program())


def reads_gradients() -> bool:
    """Return whether any function of the program reads the gradient of something."""
    return any(function.gradients or function.others for function in _of_the_program())


def _of_the_program() -> Iterator[_Function]:
    """Yield every function of the program's files as it was loaded, even if its file was edited meanwhile."""
    for file, codes in codes_of_the_program().items():
        source = text_of(file)
        if source.tree is not None and all(is_what_ran(source, code) for code in codes):
            yield from _said_in(source).values()
        else:
            yield from filter(None, map(_said_by, codes))


def _said_by(code: CodeType) -> _Function | None:
    """Return the names in one function; None for one without statements, such as a lambda."""
    source = source_of(code)
    return _without_text(code) if source is None else _said_in(source).get(_key(code))


def _without_text(code: CodeType) -> _Function:
    """Return the names in code whose source is not available; if it names a gradient, any of its names may be meant."""
    names = _names_in(code)
    reads = not names.isdisjoint(("grad", "register_hook"))
    return _Function(names, names if reads else frozenset(), reads, "grad" in names)


def _names_in(code: CodeType) -> frozenset[str]:
    """Return every name in some code and its inner functions, and every string, since `getattr` may be given one."""
    inside = [_names_in(const) for const in code.co_consts if isinstance(const, CodeType)]
    texts = [const for const in code.co_consts if type(const) is str]
    return frozenset([*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars, *texts]).union(*inside)


def _in_reach(models: Sequence[nn.Module]) -> Iterator[_Function]:
    """Yield the running functions, those that they may call, and the models' forwards.

    A function may call its globals, and methods of its object's class.
    """
    waiting = [
        (frame.f_code, frame.f_globals, _class_of_self(frame)) for frame, _, foreign in running_frames() if not foreign
    ]
    for kind in {id(type(one)): type(one) for model in models for one in modules_in(model)}.values():
        if type(forward := found_in(kind, "forward")) is FunctionType:
            waiting.append((forward.__code__, forward.__globals__, kind))
    seen = {ThisCode(code) for code, _, _ in waiting}
    while waiting:
        code, variables, owner = waiting.pop()
        function = None if is_library(code.co_filename) else _said_by(code)
        if function is None:
            continue
        yield function
        for called in function.called:
            found = variables.get(called)
            if type(found) is not FunctionType:
                found = found_in(owner, called)
            if type(found) is FunctionType and ThisCode(found.__code__) not in seen:
                seen.add(ThisCode(found.__code__))
                waiting.append((found.__code__, found.__globals__, owner))


def _class_of_self(frame: FrameType) -> type:
    return type(dict(locals_of(frame)).get("self"))


def _key(code: CodeType) -> tuple[str, int]:
    return code.co_name, 0 if code.co_name == "<module>" else code.co_firstlineno


@lru_cache(maxsize=256)
def _said_in(source: Any) -> dict[tuple[str, int], _Function]:
    """Return the functions of a file by name and first line; its top level is ``<module>`` at line 0."""
    tree = source.tree
    found: dict[tuple[str, int], _Function] = {}
    if tree is not None:
        found["<module>", 0] = _function(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([node.lineno, *(mark.lineno for mark in node.decorator_list)])
                found[node.name, first] = _function(node)
    return found


def _function(node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef) -> _Function:
    inside = [part for statement in node.body for part in _own(statement)]
    called = {_last(part) for part in inside if isinstance(part, ast.Name | ast.Attribute)}
    read = [part.value for part in inside if isinstance(part, ast.Attribute) and part.attr in ("grad", "register_hook")]
    for part in inside:
        if isinstance(part, ast.Call) and _last(part.func) == "grad":
            given = [*part.args, *(keyword.value for keyword in part.keywords)]
            read += [one for argument in given for one in ast.walk(argument) if isinstance(one, ast.expr)]
    indirect = any(isinstance(part, ast.Call) and _last(part.func) in ("getattr", "attrgetter") for part in inside)
    of_lambdas = [_arguments(part) for part in inside if isinstance(part, ast.Lambda)]
    theirs = _arguments(node).union(_looped(inside), *of_lambdas)
    variables = {one.id for one in read if isinstance(one, ast.Name)}
    others = not variables.isdisjoint(theirs) or (indirect and _says_grad(inside))
    asks = bool(variables - _looped(inside, over_parameters=True))
    return _Function(frozenset(called), frozenset(map(_last, read)) - {""}, others, asks)


def _own(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield a statement and its parts, without the functions and classes defined in it."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [
            child
            for child in ast.iter_child_nodes(node)
            if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        ]


def _arguments(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Module):
        return set()
    return {one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)}  # type: ignore[attr-defined]


def _looped(inside: Iterable[ast.AST], *, over_parameters: bool = False) -> set[str]:
    """Return the variables of the loops over a module's own parameters, or else those of the other loops."""
    loops = [part for part in inside if isinstance(part, ast.For | ast.comprehension)]
    wanted = [loop for loop in loops if ("parameters()" in ast.unparse(loop.iter)) == over_parameters]
    return {one.id for loop in wanted for one in ast.walk(loop.target) if isinstance(one, ast.Name)}


def _says_grad(inside: Iterable[ast.AST]) -> bool:
    return any(isinstance(part, ast.Constant) and part.value == "grad" for part in inside)


def _last(node: ast.AST) -> str:
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
