"""Resolve: the places of a model that a path means: modules first, then parameters, methods, inputs, operations."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator
from functools import cached_property, lru_cache
from itertools import chain
from types import BuiltinFunctionType, FunctionType
from typing import Any

from torch import nn

from byname.errors import BadArgumentError, NoMatchError
from byname.model.called_functions import called_function, functions_called, shadows_an_operation
from byname.model.methods import (
    NOT_CALLABLE,
    Namespace,
    bases_with,
    calls_function,
    function_of,
    method_of,
    methods_of,
    names_reached,
    note_on_function,
)
from byname.model.module_tree import (
    NO_FORWARD,
    REGISTRY,
    Level,
    attributes,
    called_in,
    children_of,
    has_forward,
    is_computed,
    is_script,
    join_path,
    modules_by_path,
    modules_reached,
    names_at,
    own_state,
    parametrizations_of,
    registry_of,
    unseen_in_script,
    unwrap_module,
    with_all_inside,
)
from byname.model.operations import is_leaf_module, is_operation, is_part_of_attention, operations_like
from byname.model.scopes import watchable_variables
from byname.model.spot import Kind, Resolution, Spot, output_of
from byname.place import ANY, ANY_ITEM, Item, NameSegment, Place, Segment, Segments, Slice, ends_of, fits, is_wild, join
from byname.reading.objects import attributes_of, found_in, namespace_of


def resolve(place: Place, model: nn.Module) -> Resolution:
    """Return the places that a path means from a model on.

    Raises:
        NoMatchError: there is none; the message names the closest paths that exist.
        BadArgumentError: the path leads into a scripted module.
    """
    segments = place.segments
    if (spot := _only_module(segments, model)) is not None:
        return Resolution([spot])
    levels, exact = modules_reached(model, segments), not place.wild
    resolution = _resolve(segments, model, levels, exact)
    of_value = Resolution([])
    if segments[-1] == _GRADIENT and len(segments) > 1:
        of_value = _resolve(segments[:-1], model, levels[:-1], exact)
    if resolution.spots:
        if of_value.spots and exact:
            resolution.notes.append(
                f"`{place}` was read as the {_called(resolution.spots[0])}; it could also be the gradient of "
                f"`{join(segments[:-1])}`"
            )
        return resolution
    if of_value.spots:
        return Resolution([spot._replace(gradient=True) for spot in of_value.spots], of_value.notes)
    for module in (module for level in levels for module in level.values()) if exact else ():
        if is_script(module):
            raise BadArgumentError(unseen_in_script(str(place), module))
    raise NoMatchError(_unmatched(place, model))


def _only_module(segments: Segments, module: nn.Module) -> Spot | None:
    """Return the module at an exact path if the path can be read in no other way, as nearly all paths; else None."""
    for segment in segments:
        name = segment.text if type(segment) is NameSegment else ""
        child = children_of(module).get(name)
        if not (isinstance(child, nn.Module) and _is_plain(name)) or unwrap_module(child)[0] is not child:
            return None
        if name in attributes(module) or found_in(type(module), name) is not None or isinstance(module, Namespace):
            return None
        if name in registry_of(module, "_parameters") or name in registry_of(module, "_buffers"):
            return None
        module = child
    if is_operation(_bare(name)) or not has_forward(module):
        return None
    return Spot("module", ".".join([str(one) for one in segments]), module)


@lru_cache(maxsize=4096)
def _bare(name: str) -> str:
    return re.sub(r"_\d+$", "", name)


@lru_cache(maxsize=4096)
def _is_plain(name: str) -> bool:
    """Return whether a path gives a name as it is, and it has no meaning of its own."""
    return (name.isidentifier() or name.isdecimal()) and name not in ("forward", "grad", "input")


_GRADIENT, _INPUT = NameSegment("grad"), NameSegment("input")


def _resolve(segments: Segments, model: nn.Module, levels: list[Level], exact: bool) -> Resolution:
    reached = [(level, segments[at:]) for at, level in enumerate(levels) if level]
    kinds: dict[str, list[Spot]] = {}
    for kind in ("module", "parameter", "method", "input"):
        spots = _spots(kind, reached, model, exact)
        if spots:
            kinds[kind] = spots
            if not exact:  # other readings of a pattern are not noted
                break
    if not kinds:
        last = ("anywhere",) if isinstance(model, Namespace) else ("operation", "anywhere", "function")
        return Resolution(next((spots for kind in last if (spots := _spots(kind, reached, model, exact))), []))
    first, *others = kinds
    notes = [
        f"`{join(segments)}` was read as the {_called(kinds[first][0])}; it could also be the "
        f"{_called(kinds[other][0])}"
        for other in (others if exact else ())
    ]
    if exact and first == "module":
        owners = {path: module for level in levels for path, module in level.items()}
        found = (note_on_function(spot.path, owners, model) for spot in kinds[first])
        notes += [note for note in found if note is not None]
    return Resolution(kinds[first], notes)


def _called(spot: Spot) -> str:
    return f"method {spot.method}" if spot.name == "return" else spot.kind


def _spots(kind: str, reached: list[tuple[Level, Segments]], model: nn.Module, exact: bool) -> list[Spot]:
    """Return the places of one kind, in the order of registration, each once, under its first name."""
    read = _READERS[kind]
    read_at = [spots for level, rest in reached if (spots := [*read(level, rest, exact)])]
    spots = [*chain.from_iterable(read_at)]
    if len(read_at) > 1 and not exact:
        order = {id(module): number for number, module in enumerate(modules_by_path(model).values())}
        spots.sort(key=lambda spot: order.get(id(spot.module), 0))
    if len({id(spot.module) for spot in spots}) == len(spots):
        return spots
    found: dict[object, Spot] = {}
    for one in spots:
        found.setdefault((id(one.module), one.kind, one.name, one.method, one.items, one.nth), one)
    return [*found.values()]


def _outputs(level: Level, rest: Segments, exact: bool) -> Iterator[Spot]:
    if _are_items(rest):
        for path, module in called_in(level):
            if not (rest and names_at(module, children_of(module), rest[0])):
                yield output_of(path, module, exact, rest)


def _inputs(level: Level, rest: Segments, exact: bool) -> Iterator[Spot]:
    """Yield the inputs of modules: the first argument, or those that the items name."""
    if rest and rest[0] == _INPUT and _are_items(rest[1:]):
        for path, module in called_in(level):
            yield Spot("input", join_path(path, "input"), module, items=rest[1:], exact=exact)


def _are_items(segments: Segments) -> bool:
    return all(one is ANY_ITEM or isinstance(one, Item | Slice) for one in segments)


def _states(level: Level, rest: Segments, exact: bool) -> Iterator[Spot]:
    for path, module in level.items() if len(rest) == 1 else ():
        for kind in _KINDS:
            held = registry_of(module, REGISTRY[kind])
            for name in _names_of(module, held, rest[0]):
                if held.get(name) is not None:  # another thread may remove it meanwhile
                    yield Spot(kind, join_path(path, name), module, name, exact=exact)
        for name in _names_of(module, module.__dict__, rest[0]):
            if is_computed(module, name):
                yield Spot("computed", join_path(path, name), module, name, exact=exact)
        for name, made_by in parametrizations_of(module).items():
            if fits(rest[0], NameSegment.of(name)):
                yield Spot("computed", join_path(path, name), made_by, exact=exact)


_KINDS: tuple[Kind, ...] = ("parameter", "buffer")


def _names_of(module: nn.Module, held: dict[str, Any], segment: Segment) -> Collection[str]:
    """Return the names of parameters or buffers that a segment means."""
    if not isinstance(segment, NameSegment):
        return names_at(module, held, segment) if isinstance(module, nn.ParameterList | nn.ParameterDict) else ()
    if segment.wild:
        return [*filter(segment.matches, tuple(held))]
    return (segment.plain,) if segment.plain in held else ()


def _in_methods(level: Level, rest: Segments, exact: bool) -> Iterator[Spot]:
    if not rest or not isinstance(rest[0], NameSegment):
        return
    first, tail = rest[0], rest[1:]
    for path, module in level.items():
        for method in filter(first.matches, methods_of(module)) if first.wild else [first.plain]:
            if not _has_method(module, method):
                continue
            if _are_items(tail):
                yield _returned(path, module, method, tail, exact)
                continue
            found = [*_variables(path, module, method, tail, exact)]
            inherited = bases_with(module, method) if exact and not found and not isinstance(module, Namespace) else ()
            for cls in inherited:  # whose method runs by `super()`; the path stays as it was asked for
                named = f"{cls.__name__}.{method}"
                start, of_base = len(join_path(path, named)), _variables(path, module, named, tail, exact)
                found = found or [one._replace(path=join_path(path, method) + one.path[start:]) for one in of_base]
            yield from found
        named = f"{first.plain}.{tail[0]}" if exact and len(tail) > 1 else ""
        if named and bases_with(module, named):
            yield from _variables(path, module, named, tail[1:], exact)


def _in_functions(level: Level, rest: Segments, exact: bool) -> Iterator[Spot]:
    """Yield variables, operations and return values of functions that modules call."""
    if not rest or not isinstance(rest[0], NameSegment):
        return
    first, tail = rest[0], rest[1:]
    part = tail[0].plain if len(tail) == 1 and isinstance(tail[0], NameSegment) else ""
    for path, module in level.items():
        if is_part_of_attention(first.plain, part):
            yield Spot("operation", join_path(path, f"{first.plain}.{part}"), module, part, first.plain, exact=exact)
            continue
        for name in filter(first.matches, functions_called(module)) if first.wild else [first.plain]:
            function = called_function(module, name)
            if function is None:
                continue
            if _are_items(tail):
                yield _returned(path, module, name, tail, exact)
                continue
            found = [*_variables_of(function, path, module, name, tail, exact)]
            yield from found or _operations({path: module}, tail, exact, name)


def _returned(path: str, module: nn.Module, method: str, items: Segments, exact: bool) -> Spot:
    if method == "forward" and not isinstance(module, Namespace):
        return Spot("module", join_path(path, method), module, items=items, exact=exact)
    return Spot("variable", join_path(path, method), module, "return", method, items, exact=exact)


def _variables(path: str, module: nn.Module, method: str, tail: Segments, exact: bool) -> Iterator[Spot]:
    try:
        function = method_of(module, method)
    except BadArgumentError:
        if exact:
            raise
        return  # a static method, say, that a wildcard met
    if function is not None:
        yield from _variables_of(function, path, module, method, tail, exact)


def _variables_of(
    function: FunctionType, path: str, module: nn.Module, method: str, tail: Segments, exact: bool
) -> Iterator[Spot]:
    names = watchable_variables(function)
    tail, nth = _assignment(tail)
    mark = "" if nth is None else f"@{nth}"
    inner = dict.fromkeys(one.rpartition(".")[0] for one in names if "." in one and tail[-1] == NameSegment("return"))
    found = {name: _left(name, tail) for name in (*names, *(f"{one}.return" for one in inner))}
    owner = () if isinstance(module, Namespace) and names and names[0] not in ("self", "cls") else names[:1]
    whole = [name for name, left in found.items() if () in left and not (name in owner and is_wild(tail[0]))]
    for name in whole:
        yield Spot("variable", f"{join_path(path, method)}.{name}{mark}", module, name, method, exact=exact, nth=nth)
    if whole:
        return
    for name, left in found.items():
        for items in left:
            if items and items[-1] != NameSegment("grad"):
                place = f"{join_path(path, method)}.{name}{mark}"
                yield Spot("variable", place, module, name, method, items, exact=exact, nth=nth)


def _assignment(tail: Segments) -> tuple[Segments, int | None]:
    """Return the path of a variable without ``@``, and the assignment that it means; None for all."""
    for at, one in enumerate(tail):
        found = _NTH.fullmatch(one.text) if isinstance(one, NameSegment) else None
        if found is not None:
            return (*tail[:at], NameSegment(found[1]), *tail[at + 1 :]), int(found[2])
    return tail, None


_NTH = re.compile(r"([^@]+)@(\d+|-1)")


def _left(variable: str, tail: Segments) -> list[Segments]:
    """Return the ends of a pattern after the name of a variable; a nested function's has dots in it."""
    parts = [NameSegment.of(part) for part in variable.split(".")]
    ends = [at for at in range(len(tail) + 1) if len(parts) in ends_of(tail[:at], parts)]
    return [tail[one:] for at in ends for one in ((at - 1, at) if at and tail[at - 1] is ANY else (at,))]


def _in_any_method(level: Level, rest: Segments, exact: bool) -> Iterator[Spot]:
    """Yield variables where ``**`` stands for modules and for the method too."""
    if len(rest) > 1 and rest[0] is ANY:
        for path, module in with_all_inside(level).items():
            for method in methods_of(module):
                if _has_method(module, method):
                    yield from _variables(path, module, method, rest[1:], exact)


def _operations(level: Level, rest: Segments, exact: bool, function: str = "") -> Iterator[Spot]:
    if not rest or not isinstance(rest[0], NameSegment) or not _are_items(rest[1:]):
        return
    name = rest[0]
    if name.wild or is_operation(_bare(name.plain)) or is_operation(name.plain):
        label = f"{function}.{name.text}" if function else name.text
        for path, module in level.items():
            if function or name.wild or not shadows_an_operation(module, name.plain):
                yield Spot("operation", join_path(path, label), module, name.text, function, rest[1:], exact=exact)


_READERS = {
    "module": _outputs,
    "parameter": _states,
    "method": _in_methods,
    "input": _inputs,
    "operation": _operations,
    "anywhere": _in_any_method,
    "function": _in_functions,
}
"""For each kind of place, the function that reads the end of a pattern at the modules that its beginning leads to."""


def _has_method(module: nn.Module, name: str) -> bool:
    if isinstance(module, Namespace):
        return name in module.functions
    found = found_in(type(module), name)
    if name in attributes_of(module) and not isinstance(found, cached_property):
        held = attributes_of(module)[name]
        function = isinstance(held, FunctionType | BuiltinFunctionType)
        of_torch = function and str(held.__module__ or "torch").partition(".")[0] == "torch"  # some in C have no module
        return callable(held) and not of_torch  # `self.softmax = F.softmax` is no method, its calls are operations
    if name == "forward":
        return True
    if found is namespace_of(nn.Module).get(name):  # `to` and `float` are what is called on tensors
        return False
    return callable(found) or (isinstance(found, NOT_CALLABLE) and name not in parametrizations_of(module))


def _unmatched(place: Place, model: nn.Module) -> str:
    wanted = str(place)
    if (container := modules_by_path(model).get(wanted)) is not None:
        return never_called(wanted, container)
    known = {str(path): None for path in _all_paths(place, model)}
    named = next((at for at in reversed(range(len(place.segments))) if not _are_items(place.segments[at:])), 0)
    owner, word = place.segments[:named], str(place.segments[named])
    asked = join(owner) if word in _OUTPUTS else wanted
    close = difflib.get_close_matches(asked, known, n=3, cutoff=0.5)
    if not close:
        last = asked.rpartition(".")[2]
        close = [path for path in known if path.rpartition(".")[2] == last][:3]
    hint = f"; close to it: {', '.join(f'`{one}`' for one in close)}" if close else ""
    return (
        f"`{wanted}` matches nothing in this {type(model).__name__}{hint}{_in_other_words(owner, word, model)}. "
        "`byname.points(model)` lists all places"
    )


def never_called(path: str, container: nn.Module) -> str:
    """Return a sentence about a module without a forward."""
    return f"`{path}` is a {type(container).__name__}, which is never called; its children are `{path}.*`"


_OUTPUTS, _GIVEN = frozenset({"output", "outputs", "out"}), frozenset({"input", "inputs", "args"})
"""The words of other libraries for the output of a module, and for its arguments."""


def _in_other_words(owner: Segments, word: str, model: nn.Module) -> str:
    """Return a hint at the path to ask for, if a path has a word of another library; else an empty string."""
    if not modules_reached(model, owner)[-1]:
        return ""
    asked = join(owner)
    if word in _OUTPUTS:
        return f"; what {f'`{asked}`' if owner else 'the model'} returns is `{asked or 'forward'}`"
    return f"; its arguments are `{join_path(asked, 'input')}`" if word in _GIVEN else ""


def _all_paths(place: Place, model: nn.Module) -> Iterator[str]:
    """Yield the paths of a model to compare a mistaken one with; a forward may reach each of these places."""
    texts = {one.plain for one in place.segments if isinstance(one, NameSegment)}
    modules = modules_by_path(model)
    reached = names_reached(modules.values())
    yield from _operations_near(place, model, modules, reached)
    yield from _in_functions_near(place, model)
    for path, module in modules.items():
        if found_in(type(module), "forward") is not NO_FORWARD:
            yield path or "forward"
        for kind in ("parameter", "buffer"):
            yield from (join_path(path, name) for name in own_state(module, kind))
        for method in _methods(module, reached):
            near = bool(difflib.get_close_matches(method, texts, n=1, cutoff=0.7))
            yield join_path(path, method)
            for spot in _variables(path, module, method, (NameSegment("*"),), exact=False):
                if near or spot.name in texts:
                    yield spot.path


def _methods(module: nn.Module, reached: Collection[str]) -> list[str]:
    """Return the methods of a module that a forward may reach, without static ones, which are no places."""
    if found_in(type(module), "forward") is NO_FORWARD:
        return []
    names = [name for name in methods_of(module) if name in reached and not is_leaf_module(module)]
    return ["forward", *(name for name in names if function_of(module, name) is not None)]


def _in_functions_near(place: Place, model: nn.Module) -> Iterator[str]:
    """Yield the functions that modules on the way of a path call, and the variables of the function that it names."""
    levels = [] if place.wild else modules_reached(model, place.segments)
    for level, first, after in zip(levels, place.segments, (*place.segments[1:], None), strict=False):
        for path, module in level.items():
            if not isinstance(first, NameSegment) or is_leaf_module(module):
                continue
            yield from (join_path(path, name) for name in functions_called(module))
            if after and (function := called_function(module, first.plain)) is not None:
                yield from (f"{join_path(path, first.plain)}.{name}" for name in watchable_variables(function))


def _operations_near(
    place: Place, model: nn.Module, modules: dict[str, nn.Module], reached: Collection[str]
) -> Iterator[str]:
    """Yield operations with names like the last one of a path, called where its beginning leads, or nearly leads."""
    names = operations_like(str(place.segments[-1]))
    owner = place.segments[:-1]
    asked = [(join(owner), module) for module in modules_reached(model, owner)[-1].values()]
    if not asked:
        near = difflib.get_close_matches(join(owner), modules, n=3, cutoff=0.6)
        asked = [(path, modules[path]) for path in near]
    for path, module in asked:
        methods = _methods(module, reached)
        yield from (
            join_path(path, name) for name in names if any(calls_function(module, name, one) for one in methods)
        )
