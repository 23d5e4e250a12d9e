"""States: the parameters and buffers of a model that a selector means, and the paths of those that are given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from torch import nn

from byname.errors import BadArgumentError, NoMatchError
from byname.model.call_graph import ModelCall
from byname.model.module_tree import REGISTRY, is_computed, join_path, modules_by_path, own_state
from byname.model.predicates import Predicate, State, Where
from byname.model.selectors import OPERATORS, Indexed, Not, Pair, Selector, subselectors
from byname.model.spot import Resolution, Spot, note_on_name
from byname.naming.name import quote
from byname.reading.tensor import is_tensor
from byname.table import listed


class HeldState(NamedTuple):
    """A parameter or buffer under one of its names, or the gradient of a parameter.

    Attributes:
        calls: a call that stands for it where a selector asks for one, then the modules around it, the innermost first.
    """

    spot: Spot
    tensor: Any
    calls: tuple[ModelCall, ...]

    @property
    def key(self) -> tuple[int, bool]:
        """A key that is equal for all its names."""
        return id(self.tensor), self.spot.gradient


def states_of(selector: Selector, model: nn.Module, *, reads: bool) -> Resolution:
    """Return the places of the parameters and buffers that a selector means, with notes on those with several names.

    If they are only read, one with several selected names, as tied weights have, is reported under the first one;
    otherwise under all, since each may be replaced.
    """
    held = [*_held(model)] if selector.about_states else []
    found = sorted(_found(selector, held)) if held else []
    if not found and selector.only_states:
        raise NoMatchError(_unmatched(selector, model, held))
    firsts: dict[tuple[int, bool], Spot] = {}
    resolution = Resolution([])
    for one in (held[at] for at in found):
        first = firsts.setdefault(one.key, one.spot)
        if first is one.spot or not (reads or one.spot.gradient):
            resolution.spots.append(one.spot)
        else:
            resolution.notes.append(note_on_name(one.spot, first))
    return resolution


def _held(model: nn.Module) -> Iterator[HeldState]:
    """Yield the parameters, each with its gradient, then the buffers; each under every name, in the model's order."""
    around: dict[str, tuple[ModelCall, ...]] = {}
    modules = modules_by_path(model)
    for path, module in modules.items():
        call = ModelCall(path, type(module).__name__, "module", module)
        around[path] = (call, *(around[path.rpartition(".")[0]] if path else ()))
    for kind in REGISTRY:
        for path, module in modules.items():
            for name, tensor in own_state(module, kind).items():
                spot = Spot(kind, join_path(path, name), module, name, exact=False)  # type: ignore[arg-type]
                calls = (ModelCall(spot.path, "", kind, module), *around[path])
                yield HeldState(spot, tensor, calls)
                if kind == "parameter":
                    yield HeldState(spot._replace(gradient=True), tensor, calls)


def _found(selector: Selector, held: list[HeldState]) -> set[int]:
    match selector:
        case State(kind, gradient):
            return {at for at, one in enumerate(held) if one.spot.kind == kind and one.spot.gradient == gradient}
        case Not() if selector.about_states:
            asked = (one for one in subselectors(selector) if isinstance(one, State))
            return set().union(*(_found(one, held) for one in asked)) - _found(selector.inner, held)
        case Pair("&", left, right) if left.about_states is not right.about_states:
            states, modules = (left, right) if left.about_states else (right, left)
            return {at for at in _found(states, held) if _fits(modules, held[at].calls)}
        case Pair(sign, left, right):
            joined: set[int] = OPERATORS[sign](_found(left, held), _found(right, held))
            return joined
        case Indexed():
            backwards = sorted(_found(selector.inner, held), reverse=True)
            each = {held[at].key: at for at in backwards}  # by its first name
            return {*selector.of(sorted(each.values()))}
    if selector.about_states:
        raise BadArgumentError(f"{selector}: parameters and buffers are not part of the data flow between calls")
    return set()


def _fits(selector: Selector, calls: tuple[ModelCall, ...]) -> bool:
    """Return whether a selector of modules means a state by its own path, or a module around it."""
    match selector:
        case Not():
            return not _fits(selector.inner, calls)
        case Pair(sign, left, right):
            return bool(OPERATORS[sign](_fits(left, calls), _fits(right, calls)))
        case Where():
            return bool(selector.function(calls[0]))
        case Predicate():
            return any(map(selector._takes, calls))
    raise BadArgumentError(
        f"{selector} depends on how the model runs; to find parameters in a module, give its path, class or family"
    )


def _unmatched(selector: Selector, model: nn.Module, held: list[HeldState]) -> str:
    asked = [one for one in subselectors(selector) if isinstance(one, State)]
    wanted = sorted({one.kind for one in asked})
    there = [f"`{one.spot.path}`" for one in held if one.spot.kind in wanted and not one.spot.gradient]
    hint = "; buffers have no gradient" * any(one.kind == "buffer" and one.gradient for one in asked)
    known = f"it has {listed(there, 6) if there else 'none'}{hint}"
    return f"{selector} matches no {' and no '.join(wanted)} of this {type(model).__name__}; {known}"


def with_paths(where: Any, model: nn.Module) -> Any:
    """Return a ``where`` with the path of each parameter or buffer in its place, and a tuple for an iterator."""
    if isinstance(where, Iterator):
        where = tuple(where)
    several = isinstance(where, list | tuple | set | frozenset | Mapping)
    each: Iterable[Any] = where if several else (where,)
    if not any(map(is_tensor, each)):
        return where
    paths = _paths(model)
    if isinstance(where, Mapping):
        return {_path(one, paths, model): options for one, options in where.items()}
    found = [_path(one, paths, model) for one in each]
    return found if several else found[0]


def _paths(model: nn.Module) -> dict[int, str]:
    """Return the first path of each parameter and buffer, and of tensors that hooks compute from one, by ``id``."""
    paths: dict[int, str] = {}
    for one in _held(model):
        paths.setdefault(id(one.tensor), one.spot.path)
    for path, module in modules_by_path(model).items():
        computed = (name for name in module.__dict__ if is_computed(module, name))
        paths.update((id(module.__dict__[name]), join_path(path, name)) for name in computed)
    return paths


def _path(one: Any, paths: dict[int, str], model: nn.Module) -> Any:
    if not is_tensor(one):
        return one
    if id(one) in paths:
        return paths[id(one)]
    from byname.naming.names import name  # only the error needs it

    raise NoMatchError(
        f"{quote(name(one))} is not a parameter or buffer of this {type(model).__name__}; for a gradient, or a tensor "
        "computed in each forward, give its path, such as 'fc.weight.grad'"
    )
