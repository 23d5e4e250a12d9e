"""Which places of a model does a path mean? Modules first, then parameters, methods and their variables, operations."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator
from types import BuiltinFunctionType, FunctionType

from torch import nn

from byname.errors import BadArgumentError, NoMatchError
from byname.model.called_functions import called_function, functions_called
from byname.model.methods import calls_function, function_of, method_of, methods_of, names_reached, note_on_function
from byname.model.module_tree import (
    NEVER_CALLED,
    computed_in,
    is_called,
    is_script,
    modules_by_path,
    state_of,
    under,
    unseen_in_script,
)
from byname.model.operations import is_elementary, is_operation, is_part_of_attention, operations_like
from byname.model.reach import Reached, Segments, follow, is_key, keys_of, modules_reached
from byname.model.scopes import variables_of
from byname.model.spot import Meaning, Spot
from byname.place import ANY, AnyItem, Item, NameSegment, Place, Segment, Slice, begun, fits, is_wild, join
from byname.reading.objects import attributes_of, found_in, namespace_of


def resolve(place: Place, model: nn.Module) -> Meaning:
    """The places of a model that a path means.

    Args:
        place: the path.
        model: the module that the path starts from.

    Raises:
        NoMatchError: if there is none; the message names the closest paths that exist.
        BadArgumentError: if it leads into a scripted module.
    """
    meaning = _meaning(place, model)
    of_value = Meaning([])
    if place.segments[-1] == NameSegment("grad") and len(place.segments) > 1:
        of_value = _meaning(Place(place.segments[:-1]), model)
    if meaning.spots:
        if of_value.spots and not place.wild:
            value = str(Place(place.segments[:-1]))
            meaning.notes.append(
                f"`{place}` was read as the {_called(meaning.spots[0])}; it could also be the gradient of `{value}`"
            )
        return meaning
    if of_value.spots:
        return Meaning([spot.with_gradient() for spot in of_value.spots], of_value.notes)
    for _, module, _ in modules_reached(model, place.segments) if not place.wild else ():
        if is_script(module):
            raise BadArgumentError(unseen_in_script(str(place), module))
    raise NoMatchError(_unmatched(place, model))


def _meaning(place: Place, model: nn.Module) -> Meaning:
    reached = [*modules_reached(model, place.segments)]
    alone = not place.wild
    kinds: dict[str, list[Spot]] = {}
    for kind in ("module", "parameter", "method", "input"):
        spots = _unique(_spots(kind, reached, alone))
        if spots:
            kinds[kind] = spots
            if not alone:  # what else a pattern could be read as is not said
                break
    if not kinds:
        last = ("operation", "anywhere", "function")
        return Meaning(next((spots for kind in last if (spots := _unique(_spots(kind, reached, alone)))), []))
    first, *others = kinds
    notes = [
        f"`{place}` was read as the {_called(kinds[first][0])}; it could also be the {_called(kinds[other][0])}"
        for other in (others if alone else ())
    ]
    if alone and first == "module":
        owners = {path: module for path, module, _ in reached}
        found = (note_on_function(spot.path, owners, model) for spot in kinds[first])
        notes += [note for note in found if note is not None]
    return Meaning(kinds[first], notes)


def _called(spot: Spot) -> str:
    return f"method {spot.method}" if spot.name == "return" else spot.kind


def _unique(spots: Iterable[Spot]) -> list[Spot]:
    """Each place once, under the first of the names that were asked for."""
    found: dict[object, Spot] = {}
    for spot in spots:
        key = (id(spot.module), spot.kind, spot.name, spot.method, spot.items, spot.nth)
        found.setdefault(key, spot)
    return [*found.values()]


def _spots(kind: str, reached: list[Reached], alone: bool) -> Iterator[Spot]:
    read = _READERS[kind]
    for path, module, rests in reached:
        for rest in rests:
            yield from read(path, module, rest, alone)


def _outputs(path: str, module: nn.Module, rest: Segments, alone: bool) -> Iterator[Spot]:
    if is_called(module) and _is_output(module, rest):
        yield Spot("module", path or "forward", module, items=rest, alone=alone)


def _is_output(module: nn.Module, rest: Segments) -> bool:
    return _are_items(rest) and not (rest and _is_child(module, rest[0]))


def _is_child(module: nn.Module, item: Segment) -> bool:
    return any(is_key(item, keys) for keys in keys_of(module, module._modules).values())


def _inputs(path: str, module: nn.Module, rest: Segments, alone: bool) -> Iterator[Spot]:
    """What a module is called with: the first argument, or those that the items name."""
    if rest and rest[0] == _INPUT and is_called(module) and _are_items(rest[1:]):
        yield Spot("input", under(path, "input"), module, items=rest[1:], alone=alone)


_INPUT = NameSegment("input")


def _are_items(segments: Segments) -> bool:
    return all(isinstance(one, Item | AnyItem | Slice) for one in segments)


def _states(path: str, module: nn.Module, rest: Segments, alone: bool) -> Iterator[Spot]:
    if len(rest) == 1:
        of_lists = isinstance(module, nn.ParameterList | nn.ParameterDict)
        keys = keys_of(module, module.__dict__["_parameters"]) if of_lists else {}
        for kind in ("parameter", "buffer"):
            for name in state_of(module, kind):
                if fits(rest[0], NameSegment.of(name)) or is_key(rest[0], keys.get(name, ())):
                    yield Spot(kind, under(path, name), module, name, alone=alone)
        for name, made_by in computed_in(module).items():
            if fits(rest[0], NameSegment.of(name)):
                of, held = (module, name) if made_by is None else (made_by, "")
                yield Spot("computed", under(path, name), of, held, alone=alone)


def _in_methods(path: str, module: nn.Module, rest: Segments, alone: bool) -> Iterator[Spot]:
    if not rest or not isinstance(rest[0], NameSegment):
        return
    first, tail = rest[0], rest[1:]
    for method in [first.plain] if not first.wild else [one for one in methods_of(module) if first.matches(one)]:
        if not _has_method(module, method):
            continue
        if _are_items(tail):
            yield _returned(path, module, method, tail, alone)
        else:
            yield from _variables(path, module, method, tail, alone)


def _in_functions(path: str, module: nn.Module, rest: Segments, alone: bool) -> Iterator[Spot]:
    """Variables, operations and return values of functions that a module calls."""
    if not rest or not isinstance(rest[0], NameSegment):
        return
    first, tail = rest[0], rest[1:]
    if len(tail) == 1 and isinstance(tail[0], NameSegment) and is_part_of_attention(first.plain, part := tail[0].plain):
        yield Spot("operation", under(path, f"{first.plain}.{part}"), module, part, first.plain, alone=alone)
        return
    for name in [first.plain] if not first.wild else [one for one in functions_called(module) if first.matches(one)]:
        function = called_function(module, name)
        if function is None:
            continue
        if _are_items(tail):
            yield _returned(path, module, name, tail, alone)
            continue
        found = [*_variables_of(function, path, module, name, tail, alone)]
        yield from found or _operations(path, module, tail, alone, name)


def _returned(path: str, module: nn.Module, method: str, items: Segments, alone: bool) -> Spot:
    if method == "forward":
        return Spot("module", under(path, method), module, items=items, alone=alone)
    return Spot("variable", under(path, method), module, "return", method, items, alone=alone)


def _variables(path: str, module: nn.Module, method: str, tail: Segments, alone: bool) -> Iterator[Spot]:
    try:
        function = method_of(module, method)
    except BadArgumentError:
        if alone:
            raise
        return  # a static method, say, that a wildcard met
    if function is not None:
        yield from _variables_of(function, path, module, method, tail, alone)


def _variables_of(
    function: FunctionType, path: str, module: nn.Module, method: str, tail: Segments, alone: bool
) -> Iterator[Spot]:
    names = variables_of(function)
    tail, nth = _assignment(tail)
    mark = "" if nth is None else f"@{nth}"
    found = {name: _left(name, tail) for name in names}
    whole = [name for name, left in found.items() if () in left and not (name == names[0] and is_wild(tail[0]))]
    for name in whole:
        yield Spot("variable", f"{under(path, method)}.{name}{mark}", module, name, method, alone=alone, nth=nth)
    if whole:
        return
    for name, left in found.items():
        for items in left:
            if items and items[-1] != NameSegment("grad"):
                place = f"{under(path, method)}.{name}{mark}"
                yield Spot("variable", place, module, name, method, items, alone=alone, nth=nth)


def _assignment(tail: Segments) -> tuple[Segments, int | None]:
    """Return the path of a variable without ``@``, and the assignment that it means; None for each."""
    for at, one in enumerate(tail):
        found = _NTH.fullmatch(one.text) if isinstance(one, NameSegment) else None
        if found is not None:
            return (*tail[:at], NameSegment(found[1]), *tail[at + 1 :]), int(found[2])
    return tail, None


_NTH = re.compile(r"([^@]+)@(\d+|-1)")


def _left(variable: str, tail: Segments) -> set[Segments]:
    """What is left of a pattern after the name of a variable, which has dots in it if it is a nested function's."""
    reached = begun(tail, {0})
    for part in variable.split("."):
        reached = begun(tail, follow(tail, reached, NameSegment.of(part)))
    return {tail[position:] for position in reached}


def _in_any_method(path: str, module: nn.Module, rest: Segments, alone: bool) -> Iterator[Spot]:
    """Variables where ``**`` stands for the method too."""
    if len(rest) > 1 and rest[0] == ANY:
        for method in methods_of(module):
            if _has_method(module, method):
                yield from _variables(path, module, method, rest[1:], alone)


def _operations(path: str, module: nn.Module, rest: Segments, alone: bool, function: str = "") -> Iterator[Spot]:
    if not rest or not isinstance(rest[0], NameSegment) or not _are_items(rest[1:]):
        return
    name = rest[0]
    if name.wild or is_operation(re.sub(r"_\d+$", "", name.plain)) or is_operation(name.plain):
        label = f"{function}.{name.text}" if function else name.text
        yield Spot("operation", under(path, label), module, name.text, function, rest[1:], alone=alone)


_READERS = {
    "module": _outputs,
    "parameter": _states,
    "method": _in_methods,
    "input": _inputs,
    "operation": _operations,
    "anywhere": _in_any_method,
    "function": _in_functions,
}
"""How the rest of a pattern is read at a module that its beginning leads to."""


def _has_method(module: nn.Module, name: str) -> bool:
    if name in attributes_of(module):
        held = attributes_of(module)[name]
        of_torch = isinstance(held, FunctionType | BuiltinFunctionType) and _is_torchs(held)
        return callable(held) and not of_torch  # `self.softmax = F.softmax` is no method, its calls are operations
    if name == "forward":
        return True
    found = found_in(type(module), name)
    if found is namespace_of(nn.Module).get(name):  # `to` and `float` are what is called on tensors
        return False
    return callable(found) or isinstance(found, property)


def _is_torchs(function: FunctionType | BuiltinFunctionType) -> bool:
    """Whether a function is one of PyTorch's; some of those in C do not say so."""
    return str(function.__module__ or "torch").partition(".")[0] == "torch"


def _unmatched(place: Place, model: nn.Module) -> str:
    wanted = str(place)
    container = modules_by_path(model).get(wanted)
    if container is not None:
        return never_called(wanted, container)
    known = {str(path): None for path in _all_paths(place, model)}
    close = difflib.get_close_matches(wanted, known, n=3, cutoff=0.5)
    if not close:
        last = wanted.rpartition(".")[2]
        close = [path for path in known if path.rpartition(".")[2] == last][:3]
    hint = f"; close to it: {', '.join(f'`{one}`' for one in close)}" if close else ""
    return (
        f"`{wanted}` matches nothing in this {type(model).__name__}{hint}{_in_other_words(place, model)}. "
        "`byname.points(model)` lists what there is"
    )


def never_called(path: str, container: nn.Module) -> str:
    """What to say of a module without a forward."""
    return f"`{path}` is a {type(container).__name__}, which is never called; what it holds is `{path}.*`"


_OUTPUTS, _GIVEN = frozenset({"output", "outputs", "out"}), frozenset({"input", "inputs", "args"})
"""What other libraries call what a module returns, and what it is given."""


def _in_other_words(place: Place, model: nn.Module) -> str:
    """What to ask for where the path has the words of another library."""
    owner, word = place.segments[:-1], str(place.segments[-1])
    module = (
        next((module for _, module, rests in modules_reached(model, owner) if () in rests), None) if owner else model
    )
    if module is None:
        return ""
    asked = join(owner)
    if word in _OUTPUTS:
        return f"; what {f'`{asked}`' if owner else 'the model'} returns is `{asked or 'forward'}`"
    return f"; what it is called with is `{under(asked, 'input')}`" if word in _GIVEN else ""


def _all_paths(place: Place, model: nn.Module) -> Iterator[str]:
    """The paths of a model to compare a mistaken one with: each is a place that a forward may come to."""
    texts = {one.plain for one in place.segments if isinstance(one, NameSegment)}
    modules = modules_by_path(model)
    reached = names_reached(modules.values())
    yield from _operations_near(place, model, modules, reached)
    yield from _in_functions_near(place, model)
    for path, module in modules.items():
        if found_in(type(module), "forward") is not NEVER_CALLED:
            yield path or "forward"
        for kind in ("parameter", "buffer"):
            yield from (under(path, name) for name in state_of(module, kind))
        for method in _methods(module, reached):
            near = bool(difflib.get_close_matches(method, texts, n=1, cutoff=0.7))
            yield under(path, method)
            for spot in _variables(path, module, method, (NameSegment("*"),), alone=False):
                if near or spot.name in texts:
                    yield spot.path


def _methods(module: nn.Module, reached: Collection[str]) -> list[str]:
    """The methods of a module that a forward may come to; not static ones, which are no places."""
    if found_in(type(module), "forward") is NEVER_CALLED:
        return []
    names = [name for name in methods_of(module) if name in reached and not is_elementary(module)]
    return ["forward", *(name for name in names if function_of(module, name) is not None)]


def _in_functions_near(place: Place, model: nn.Module) -> Iterator[str]:
    """Functions that the modules call to which a path leads, and variables of the function that it names."""
    for path, module, rests in modules_reached(model, place.segments) if not place.wild else ():
        for rest in rests:
            if not rest or not isinstance(rest[0], NameSegment) or is_elementary(module):
                continue
            yield from (under(path, name) for name in functions_called(module))
            if len(rest) > 1 and (function := called_function(module, rest[0].plain)) is not None:
                yield from (f"{under(path, rest[0].plain)}.{name}" for name in variables_of(function))


def _operations_near(
    place: Place, model: nn.Module, modules: dict[str, nn.Module], reached: Collection[str]
) -> Iterator[str]:
    """Operations spelled nearly like the last name that modules call to which the rest leads, or nearly leads."""
    names = operations_like(str(place.segments[-1]))
    owner = place.segments[:-1]
    owners = [(path, module) for path, module, rests in modules_reached(model, owner) if () in rests] if owner else []
    if owners or not owner:
        asked = [(join(owner), module) for _, module in owners] or [("", model)]
    else:
        near = difflib.get_close_matches(join(owner), modules, n=3, cutoff=0.6)
        asked = [(path, modules[path]) for path in near]
    for path, module in asked:
        methods = _methods(module, reached)
        yield from (under(path, name) for name in names if any(calls_function(module, name, one) for one in methods))
