"""Iterations: backward-twice, graph-grows, graph-in-grad, and the variable that keeps an earlier graph."""

from __future__ import annotations

import ast
import bisect
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from torch import nn

from byname.autograd.slots import slots_of, suspect_nodes
from byname.diagnose.cause import Cause, Facts, Raised, always, any_of, render
from byname.diagnose.context import FailureContext, parsed
from byname.diagnose.engine import BackwardCall, creating_run, first_run, freed_by
from byname.naming.name import Name, at, quote, quote_all
from byname.reading.frames import locals_of
from byname.reading.modules import modules_in, registered
from byname.reading.objects import attributes_of, found_in, snapshot
from byname.reading.tensor import fact, is_tensor
from byname.source.code import returns, statements_of, value_persists
from byname.source.location import Site, assignments_calling
from byname.table import counted
from byname.tracking.log import Call, logs


class CarriedOver(NamedTuple):
    """A variable whose value has a graph that an earlier backward call has run, and the line that made the value."""

    name: Name
    made: Site | None
    join: Site | None  # the line that wrote a part of it in place, and so joined the graph of this iteration to it


def find_carried_over(context: FailureContext, number: int, earlier: Collection[int]) -> CarriedOver | None:
    """Return the variable through which the graph reaches a node; `earlier` are those that an earlier call has run."""
    describer, written = context.describer, None
    for node in _upwards(context, number, earlier):
        later = [user for user in context.walk.users[node] if user and user not in earlier]
        name = describer.living_result(node) if later else None
        if name is not None and not name.relation:
            return CarriedOver(name, context.site(node), None)
        changed = next((user for user in later if context.walk.name(user).startswith("CopySlices")), None)
        name = None if changed is None else describer.living_result(changed)
        if changed is not None and name is not None:
            written = written or CarriedOver(name, None, context.site(changed))
        if later and written is None:
            written = _rebound(context, node, later[0]) or _passed_back(context, node, later[0])
    return written


def _taken_at(context: FailureContext, number: int, earlier: Collection[int]) -> Site | None:
    """Return the line of this iteration that uses what an earlier backward call went through, if it made none of it."""
    nodes = [*_upwards(context, number, earlier)]
    users = [user for node in nodes for user in context.walk.users[node] if user and user not in earlier]
    site = context.site(users[0]) if users else None
    return None if site in map(context.site, nodes) else site


def _rebound(context: FailureContext, node: int, user: int) -> CarriedOver | None:
    """Return the variable of a statement such as ``h = cell(x, h)``, if that made both a node and its user."""
    made, used = context.site(node), _call(context, user)
    if made is None or used is None or used.line.site != made:
        return None
    paths, code = _carried(made.statement), used.line.code
    if code is not None and all(one.code is not code for one in context.passed):  # it has ended: self.h = h carries h
        stores = [one for one in statements_of(code) if isinstance(one, ast.Assign) and ast.unparse(one.value) in paths]
        kept = [one.targets[0] for one in stores if isinstance(one.targets[0], ast.Attribute)]
        paths = list(map(ast.unparse, kept)) or paths
    return _carrier(context, node, paths, made)


def _carrier(context: FailureContext, node: int, paths: Sequence[str], made: Site | None) -> CarriedOver | None:
    known = context.variable(node)
    carried = replace(known, path=", ".join(paths), how="local", exact=False, relation="", distance=0)
    return CarriedOver(carried, made, None) if paths else None


def _passed_back(context: FailureContext, node: int, user: int) -> CarriedOver | None:
    """Return the variable that a statement passes to a module and assigns, if the module returned a node's result.

    Of ``self.h = self.cell(x, self.h)`` in a ``forward`` it is ``self.h``. It is surely carried over: the module
    returned the result as it is, and nothing else binds the variable in between. There is none if several statements
    may be the one. The local variables of a ``forward`` end with it, so of its statements only those count that bind
    an attribute.
    """
    made, used = _call(context, node), _call(context, user)
    module, inner = (None if one is None or one.module is None else one.module() for one in (made, used))
    site = context.site(node)
    if made is None or module is None or site is None or not any(one is inner for one in modules_in(module)):
        return None
    forward = _forward_of(module)
    if forward is None or made.line.code is not forward or not returns(forward, site.target, site.line):
        return None
    found = {
        site: paths
        for code, function, called in _calls_of_modules(context)
        if called is module
        or (type(called).__module__.startswith("torch.") and registered(called, "_modules") == [module])
        for site in assignments_calling(code, function)
        if (paths := [one for one in _carried(site.statement) if value_persists(code, one, site.line)])
        and (all(one.startswith("self.") for one in paths) or any(one.code is code for one in context.passed))
    }
    return _carrier(context, node, *found.popitem()[::-1]) if len(found) == 1 else None


def _call(context: FailureContext, number: int) -> Call | None:
    return context.lookup.call(context.walk.nodes[number]) if context.lookup else None


def _forward_of(module: nn.Module) -> CodeType | None:
    forward = found_in(type(module), "forward")
    return forward.__code__ if type(forward) is FunctionType else None


def _calls_of_modules(context: FailureContext) -> Iterator[tuple[CodeType, str, nn.Module]]:
    """Yield modules, each with the code of a function that may call it and the name that it has there."""
    roots: dict[int, nn.Module] = {}
    for passed in context.passed:
        variables = dict(locals_of(passed.frame))
        attributes = attributes_of(variables.get("self"))
        for name, value in [*variables.items(), *((f"self.{name}", value) for name, value in attributes.items())]:
            if issubclass(type(value), nn.Module):
                roots[id(value)] = value
                yield passed.code, name, value
    for module in {id(one): one for root in roots.values() for one in modules_in(root)}.values():
        code = _forward_of(module)
        children = snapshot(attributes_of(module)["_modules"]) if code is not None else []
        yield from ((code, f"self.{name}", child) for name, child in children if code is not None and child is not None)


def _carried(statement: str) -> list[str]:
    """Return the variables that a statement reads and binds: of ``out, (h, c) = rnn(x, (h, c))`` these are h and c."""
    node = parsed(statement)
    if isinstance(node, ast.AugAssign):
        return [ast.unparse(node.target)]
    if not isinstance(node, ast.Assign):
        return []
    read = {ast.unparse(part) for part in ast.walk(node.value) if isinstance(part, ast.expr)}
    bound = [part for target in node.targets for part in _bound(target) if ast.unparse(part) in read]
    lasting = [part for part in bound if not isinstance(part, ast.Name)]  # x = states[k] = cell(x, states[k])
    return [ast.unparse(part) for part in lasting or bound]


def _bound(target: ast.expr) -> list[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        return [one for part in target.elts for one in _bound(part)]
    return [target]


def _upwards(context: FailureContext, number: int, earlier: Collection[int]) -> Iterator[int]:
    """Yield a node and those of the earlier call that use it, the nearest first."""
    waiting, seen = [number], {number}
    for node in waiting:
        yield node
        users = [user for user in context.walk.users[node] if user in earlier and user not in seen]
        seen.update(users)
        waiting += users


def detach_advice(context: FailureContext, name: Name, made: Site | None) -> str:
    """Return how to detach a value that is carried over; with a line to write after the backward, if one is certain."""
    paths = [_from_outside(context, path) for path in name.path.split(", ")]
    if not all(paths):
        return _DETACH
    if len(paths) > 1:
        return f"put `{', '.join(paths)} = {', '.join(f'{path}.detach()' for path in paths)}` after the backward"
    path = paths[0]
    holder, owner = path[: path.rindex("[")] if path.endswith("]") else path, path.rpartition(".")[0]
    held = context.value_at(holder)
    if type(held) is list and made is not None and f".{holder.rpartition('.')[2]}.append(" in f".{made.statement}":
        return f"empty the list after the backward, `{holder}.clear()`, since it holds what was appended before"
    if type(held) is list and all(map(is_tensor, held)):
        return f"put `{holder}[:] = [one.detach() for one in {holder}]` after the backward"
    if type(held) is tuple and all(map(is_tensor, held)) and context.can_assign(holder):
        return f"put `{holder} = tuple(one.detach() for one in {holder})` after the backward"
    fixed = any(issubclass(type(one), tuple) for one in (held, context.value_at(owner)))
    if fixed or not is_tensor(context.value_at(path)):
        return _DETACH
    return f"put `{path} = {path}.detach()` after the backward"


_DETACH = "detach it at the beginning of each iteration"


def _from_outside(context: FailureContext, path: str) -> str:
    """Return a path as the line that called backward can assign it; empty if that is unknown."""
    names = filter(None, map(context.describer.living_result, sorted(context.describer.living)))
    ending = path.removeprefix("self")
    inside = (name.path for name in names if path.startswith("self.") and name.path.endswith(ending))
    return next(filter(context.can_assign, (path, *inside)), "")


_SAME_LINE = (
    "if {it} is carried over from an earlier iteration, {detach}; if it depends on parameters, compute it inside the "
    "iteration. retain_graph=True would keep every earlier iteration in memory"
)
_IN_LOOP = "{it} is computed once, before the loop, and each round goes through it: {detach}"
_ONCE = "add the losses and call backward once, after the loop; or, "
_OF_ONE_FORWARD = (
    "add the losses and call backward once: they come from one forward and share {it}. retain_graph=True in all calls "
    "but the last would keep all saved tensors until then"
)
_CONSTANT = (
    "compute it in the loop; or, if it is constant there, as data or old log-probabilities of PPO, put `{path} = "
    "{path}.detach()` before the loop"
)
_IN_INIT = (
    "{it} is computed once, in {function}, and each iteration goes through it: compute it anew in each, as in forward"
)
_IN_CLOSURE = (
    "compute {it} in the closure: {kind}.step() calls it several times, and each call needs a forward of its own"
)
_SAME_ROOT = (
    "compute {it} anew before this backward, in a forward of its own: an earlier backward has already gone through it. "
    "retain_graph=True in that one is right only if nothing that the graph needs is changed in between, as by a step"
)
_BY_LIBRARY = (
    "leave out `{freed.statement}`{freed:at}: the library that the program calls here calls backward itself, once, on "
    "the loss that it is given"
)
_OTHER_LINE = (
    "add the losses and call backward once, or compute {it} anew for the second, or detach it there. retain_graph=True "
    "in the first backward keeps all saved tensors in memory until the second, and allows no optimizer step in between"
)


class _Freed(NamedTuple):
    """The nodes that may be the one that cannot run, as its saved tensors are freed, and those run by earlier calls."""

    possible: list[int]
    stamped: set[int]


def _freed_in(context: FailureContext) -> _Freed | None:
    """Return the first node, in engine order, that cannot run; several if each of them may be the one that failed."""
    if not context.has_graph:
        return None
    gone = {slot.number for slot in slots_of(context.walk) if slot.state == "freed"}
    gone = {number for number in gone if context.can_fail_at(number)}
    if not gone:
        return None
    stamped = {number for number, node in enumerate(context.walk.nodes[1:], 1) if freed_by(node) is not None}
    if not context.passed:  # nothing has run yet: the first freed node is the one that will fail
        return _Freed([number for number in context.order() if number in gone][:1], stamped)
    return _Freed(list(_possible(context, gone, stamped)), stamped)


def _possible(context: FailureContext, gone: set[int], stamped: set[int]) -> Iterator[int]:
    """Yield the nodes that may be the one that failed.

    The engine stops at the first node that was freed before this backward call. It has run the nodes before that one,
    and freed them itself. A node that was made under a tracker and has no mark of an earlier call can only have been
    freed in this way; for any other node that is not known.
    """
    live = {slot.number for slot in slots_of(context.walk) if slot.state != "freed"}
    for number in context.order():
        if number in gone and number in stamped:
            yield number
            return
        if number in gone and (not context.lookup or context.lookup.call(context.walk.nodes[number]) is None):
            yield number
        elif number in live:
            return


def _freed(context: FailureContext) -> Iterator[Facts]:
    found = context.once(_freed_in)
    if found is None or len(found.possible) != 1:
        return
    number, stamped = found.possible[0], found.stamped
    carrier = find_carried_over(context, number, stamped)
    detach = _DETACH if carrier is None else detach_advice(context, carrier.name, carrier.made)
    variable, made, join = carrier or (context.variable(number, stamped), context.site(number), None)
    run = freed_by(context.walk.nodes[number])
    freed = None if run is None else run.line.site
    where = "" if join is None else f", which is written{at(join)} and carries the graph on,"
    if made is not None and variable.path:
        where = f", made at {made},"
    remedy = _SAME_LINE if freed is not None and freed == context.error_site else _OTHER_LINE
    taken = _taken_at(context, number, stamped) if remedy is _SAME_LINE and carrier is None else None
    detach = detach if taken is None else f"detach what carries it at {taken}"
    steps = [step.number for log in logs() if run is not None and log.thread == run.thread for step in log.steps]
    stepped = run is not None and any(number >= run.sequence for number in steps)
    if run is not None and remedy is _SAME_LINE and (older := context.older_than_loop(variable.path)):
        remedy, detach = _IN_LOOP, render(_CONSTANT if stepped else _ONCE + _CONSTANT, path=older.target)
        taken = older
    if remedy is _SAME_LINE and made is not None and made.function.endswith(".__init__"):
        remedy = _IN_INIT
    users = {user for one in (*context.walk.leaf_numbers, *stamped) for user in context.walk.users[one] if user}
    begun = [context.walk.nodes[user]._sequence_nr() for user in users]  # none goes on since that backward
    if run is not None and remedy is _SAME_LINE and not stepped and max(begun, default=0) < run.sequence:
        remedy = _OF_ONE_FORWARD
    closed = [found for found in context.frames("step") if found.get("closure") is not None]
    function = "" if context.error_site is None else context.error_site.function  # around which others may be
    around = function.rpartition(".<locals>.")[0] or "<module>"
    is_outside = made is not None and made.function == around and not _carried(made.statement)
    if stamped.issuperset(context.walk.roots) or (closed and is_outside and remedy is not _OTHER_LINE):
        remedy = _IN_CLOSURE if closed else _SAME_ROOT
    elif remedy is _OTHER_LINE and _is_backward(freed) and context.error_site and not _is_backward(context.error_site):
        remedy = _BY_LIBRARY
    yield {
        "variable": quote(variable),
        "each": tuple(dict.fromkeys(replace(variable, path=path) for path in variable.path.split(", ") if path)),
        "lines": [made, taken or join, freed],
        "where": where,
        "by": "an earlier backward freed them" if run is None else f"the backward{at(freed)} freed them",
        "remedy": render(
            remedy,
            it=f"`{variable.path}`" if variable.path else "it",
            detach=detach,
            function="" if made is None else made.function,
            kind=type(closed[0].get("self")).__name__ if closed else "",
            freed=freed,
        ),
    }


def _is_backward(site: Site | None) -> bool:
    """Return whether a line calls backward itself, and not a library that does."""
    return site is not None and (not site.statement or "backward" in site.statement)


def _perhaps_freed(context: FailureContext) -> Iterator[Facts]:
    """Yield every variable whose node may be the one that failed."""
    found = context.once(_freed_in)
    if found is None or len(found.possible) == 1:
        return
    possible: dict[str, tuple[Name, Site | None]] = {}
    for number in found.possible:
        name = context.variable(number, range(len(context.walk.nodes)))
        if name.path:
            possible.setdefault(name.path, (name, context.site(number)))
    names, sites = tuple([name for name, _ in possible.values()]), [site for _, site in possible.values()]
    who = quote_all(names) or "a tensor without a name"
    yield {
        "names": names,
        "lines": sites if len(sites) == 1 else [],
        "who": who if len(names) < 2 else f"one of {who}",
        "remedy": render(_OTHER_LINE, it=f"`{names[0].path}`" if len(names) == 1 else "the shared part"),
    }


def _may_be_freed(context: FailureContext) -> bool:
    """Return whether saved tensors may be freed, and that does not follow from a graph that grows."""
    return context.error is None and bool(suspect_nodes(context.kinds)) and not context.once(_grown)


def _grown(context: FailureContext) -> list[Facts]:
    """Return the facts of a graph that reaches back through several iterations, each with a backward of its own."""
    earlier = list(map(first_run, context.nodes))
    is_iteration = next((one for one in (_iterations, _repetitions) if len(one(earlier)) > 1), None)
    if is_iteration is None:
        return []
    passed = is_iteration(earlier)
    spans = [(len(is_iteration(join.runs)), join) for join in _joins(context)]
    most, join = max(spans, key=lambda one: one[0], default=(0, _Join()))
    if most < 2:
        return []
    unit = "iteration" if is_iteration is _iterations else "backward call"
    how = "{variable} joins them{joined:at}. If every {unit} adds one, the graph grows without end"
    if join.is_chain:
        how = "{variable} carries it from one {unit} to the next{joined:at}, so the graph takes more memory and more "
        how += "time with every iteration" if unit == "iteration" else "time with each of them, until that is detached"
    said = render(how, variable=context.variable(join.carrier), joined=join.site, unit=unit)
    return [{"passed": counted(len(passed), f"earlier {unit}"), "how": said}]


@dataclass
class _Join:
    """A line at which nodes of one iteration use nodes of earlier ones, and the node whose result is carried over."""

    site: Site | None = None
    carrier: int = 0
    runs: set[BackwardCall] = field(default_factory=set)  # of the earlier iterations that are reached there
    is_chain: bool = False  # each iteration has used the one before it in this way


def _joins(context: FailureContext) -> Iterable[_Join]:
    runs, found = [None, *map(first_run, context.walk.nodes[1:])], dict[Site | None, _Join]()
    for user, row in enumerate(context.walk.rows):
        mine, before = runs[user], [(below, run) for below in row if below and (run := runs[below]) is not None]
        older = [(below, run) for below, run in before if mine is None or run.number < mine.number]
        if older:
            site = context.site(user)
            adds_up = site is not None and any(context.site(below) == site for below in row if below)
            join = found.setdefault(site, _Join(site, user if adds_up else older[0][0]))
            join.is_chain = join.is_chain or adds_up or mine is not None
            join.runs.update(run for _, run in older)
    return found.values()


def _iterations(runs: Iterable[BackwardCall | None]) -> set[Any]:
    """Return the iterations that some backward calls belong to; a step of an optimizer separates two iterations."""
    found = set()
    for run in {run for run in runs if run is not None}:
        steps = [step.number for log in logs() if log.thread == run.thread for step in log.steps]
        found.add((run.thread, bisect.bisect_left(steps, run.sequence)))
    return found


def _repetitions(runs: Iterable[BackwardCall | None]) -> set[Any]:
    """Return the backward calls of the line that made most of them; those for some inputs, as in MAML, do not count."""
    lines: dict[Any, set[int]] = {}
    for run in runs:
        if run is not None and run.line.code is not None and not (run.partial or run.creates):
            lines.setdefault(run.line.place, set()).add(run.number)
    return set(max(lines.values(), key=len, default=()))


def _gradients_with_graph(context: FailureContext) -> Iterator[Facts]:
    """Yield the leaves whose ``.grad`` is itself part of a graph."""
    graded = [(leaf, gradient) for leaf in context.leaves if (gradient := fact(leaf, "grad")) is not None]
    held = [leaf for leaf, gradient in graded if fact(gradient, "grad_fn") is not None]
    runs = [creating_run(fact(leaf, "grad")) for leaf in held]
    if held:
        names = tuple(context.names(held[::-1]))
        lines = list(dict.fromkeys(run.line.site for run in runs if run is not None))
        yield {"names": names, "quoted": quote_all(map(str, names)), "lines": lines}


_FREED = Raised(RuntimeError, r"backward through the graph a second time|saved tensors after they have")

# fmt: off
BACKWARD_TWICE: tuple[Cause[FailureContext], ...] = (
    Cause("backward-twice", any_of(_FREED, _may_be_freed), _freed,
        "{each:-}{lines:-}this backward{noticed:at} goes through {variable}{where} but the tensors that autograd saved "
        "there are gone: {by}", "{remedy}"),
    Cause("backward-twice", any_of(_FREED, _may_be_freed), _perhaps_freed,
        "{names:-}{lines:-}this backward{noticed:at} goes through {who}, but an earlier backward freed the tensors "
        "that autograd saved there. byname.explaining() around the program remembers which backward that was",
        "{remedy}"),
)
GRAPH_GROWS: Cause[FailureContext] = Cause("graph-grows", always, lambda context: context.once(_grown),
    "the graph of this loss reaches back through {passed}: {how}",
    "for a running total, add loss.item() or loss.detach(); for a state that is carried over, detach it at the "
    "beginning of each iteration")
GRAPH_IN_GRAD: Cause[FailureContext] = Cause("graph-in-grad", always, _gradients_with_graph,
    "{names:-}{lines:-}the .grad of {quoted} holds a graph: a backward with create_graph=True left it there, and "
    "parameter and gradient keep each other alive",
    "take such gradients with torch.autograd.grad(..., create_graph=True), or set .grad to None after use "
    "(optimizer.zero_grad() does)")
