"""Carrier: the variable that brings the graph of an earlier backward call into the graph of this one."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from types import CodeType, FunctionType
from typing import NamedTuple

from torch import nn

from byname.diagnose.context import FailureContext
from byname.diagnose.failing_expression import value_at
from byname.naming.name import Name
from byname.reading.frames import locals_of
from byname.reading.modules import modules_in, registered
from byname.reading.objects import attributes_of, found_in, snapshot
from byname.reading.quiet import DisableTorchFunction
from byname.source.location import Site, assignments_calling, is_kept, returns
from byname.tracking.call import Call


class Carrier(NamedTuple):
    """A variable whose value has a graph that an earlier backward call has run.

    Attributes:
        name: the variable.
        made: the line that made its value, if known.
        join: the line that wrote a part of it in place, and so joined the graph of this iteration to it; else None.
    """

    name: Name
    made: Site | None
    join: Site | None


def carrier_of(context: FailureContext, number: int, earlier: Collection[int]) -> Carrier | None:
    """Return the variable by which the graph gets at a node of an earlier backward call.

    Args:
        context: the graph.
        number: the node.
        earlier: the nodes that an earlier backward call has run.
    """
    describer, written = context.describer, None
    with DisableTorchFunction():
        for node in _upwards(context, number, earlier):
            later = [user for user in context.walk.users[node] if user and user not in earlier]
            name = describer.living_result(node) if later else None
            if name is not None and not name.relation:
                return Carrier(name, context.site(node), None)
            changed = next((user for user in later if context.walk.name(user).startswith("CopySlices")), None)
            name = None if changed is None else describer.living_result(changed)
            if changed is not None and name is not None:
                written = written or Carrier(name, None, context.site(changed))
            if later and written is None:
                written = _rebound(context, node, later[0]) or _passed_back(context, node, later[0])
    return written


def _rebound(context: FailureContext, node: int, user: int) -> Carrier | None:
    """Return what one statement reads and binds again, if it made both a node and its user: ``h = cell(x, h)``."""
    spot = context.lookup.spot(context.walk.nodes[user]) if context.lookup else None
    made = context.site(node)
    if spot is None or made != spot.site:
        return None
    return _carrier(context, node, _carried(spot.site.statement), made)


def _carrier(context: FailureContext, node: int, paths: Sequence[str], made: Site | None) -> Carrier | None:
    known = context.variable(node)
    carried = replace(known, path=", ".join(paths), how="local", exact=False, relation="", distance=0)
    return Carrier(carried, made, None) if paths else None


def _passed_back(context: FailureContext, node: int, user: int) -> Carrier | None:
    """Return what a statement passes to a module and binds again, if the module returned a node's result.

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
    if forward is None or made.code is not forward or not returns(forward, site.target, site.line):
        return None
    found = {
        site: paths
        for code, function, called in _calls_of_modules(context)
        if called is module
        or (type(called).__module__.startswith("torch.") and registered(called, "_modules") == [module])
        for site in assignments_calling(code, function)
        if (paths := [one for one in _carried(site.statement) if is_kept(code, one, site.line)])
        and all(one.startswith("self.") or _runs(context, code) for one in paths)
    }
    return _carrier(context, node, *found.popitem()[::-1]) if len(found) == 1 else None


def _call(context: FailureContext, number: int) -> Call | None:
    """Return the call that made a node, if it is known."""
    return context.lookup.call(context.walk.nodes[number]) if context.lookup else None


def _forward_of(module: nn.Module) -> CodeType | None:
    forward = found_in(type(module), "forward")
    return forward.__code__ if type(forward) is FunctionType else None


def _calls_of_modules(context: FailureContext) -> Iterator[tuple[CodeType, str, nn.Module]]:
    """Yield modules, each with the code of a function that may call it and the name that it has there."""
    roots: dict[int, nn.Module] = {}
    for place in context.places:
        variables = dict(locals_of(place.frame))
        attributes = attributes_of(variables.get("self"))
        for name, value in [*variables.items(), *((f"self.{name}", value) for name, value in attributes.items())]:
            if issubclass(type(value), nn.Module):
                roots[id(value)] = value
                yield place.frame.f_code, name, value
    for module in {id(one): one for root in roots.values() for one in modules_in(root)}.values():
        code = _forward_of(module)
        children = snapshot(attributes_of(module)["_modules"]) if code is not None else []
        yield from ((code, f"self.{name}", child) for name, child in children if code is not None and child is not None)


def _runs(context: FailureContext, code: CodeType) -> bool:
    return any(place.frame.f_code is code for place in context.places)


def _carried(statement: str) -> list[str]:
    """Return the variables that a statement reads and binds: of ``out, (h, c) = rnn(x, (h, c))`` these are h and c."""
    try:
        parsed = ast.parse(statement).body[0]
    except (SyntaxError, IndexError):  # the head of a block, or a statement too long to be kept whole
        return []
    if not isinstance(parsed, ast.Assign):
        return []
    read = {ast.unparse(part) for part in ast.walk(parsed.value) if isinstance(part, ast.expr)}
    bound = [part for target in parsed.targets for part in _bound(target) if ast.unparse(part) in read]
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


def letting_go(context: FailureContext, name: Name, made: Site | None) -> str:
    """Return how a value that is carried over loses its graph, with a line for the place after the backward."""
    paths = [_from_outside(context, path) for path in name.path.split(", ")]
    if len(paths) > 1 and all(paths):
        return f"put `{', '.join(paths)} = {', '.join(f'{path}.detach()' for path in paths)}` after the backward"
    if not name.path or not paths[0]:
        return "detach it at the beginning of each iteration"
    path = paths[0]
    holder = path[: path.rindex("[")] if path.endswith("]") else path
    kind = type(value_at(context, holder))
    if holder != path and made is not None and f".{holder.rpartition('.')[2]}.append(" in f".{made.statement}":
        return f"empty the list after the backward, `{holder}.clear()`, since it holds what was appended before"
    if kind in (list, tuple):
        parts = f"one.detach() for one in {holder}"
        return f"put `{holder} = {f'[{parts}]' if kind is list else f'tuple({parts})'}` after the backward"
    return f"put `{path} = {path}.detach()` after the backward"


def _from_outside(context: FailureContext, path: str) -> str:
    """Return a path as the line that called backward can write it; empty if that is unknown."""
    here, root = context.variables(), path.split(".")[0].split("[")[0]
    if root in here:
        return path
    names = filter(None, map(context.describer.living_result, context.describer.numbers()))
    ending = path.removeprefix("self")
    return next((name.path for name in names if path.startswith("self.") and name.path.endswith(ending)), "")
