"""Module tree: the modules of a model by their paths or by a pattern, seen through wrappers, and the state of each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any, TypeAlias

import torch
from torch import nn

from byname.place import ANY, ANY_ITEM, Item, NameSegment, Segment, Slice, parse
from byname.reading.modules import modules_in
from byname.reading.objects import attributes_of, found_in, snapshot
from byname.reading.tensor import is_tensor

_WRAPPERS = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "OptimizedModule": "_orig_mod",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
}


def unwrap_module(module: nn.Module) -> tuple[nn.Module, tuple[str, ...]]:
    """Unwrap DDP, FSDP, DataParallel, checkpoint and compiled modules; return the inner one and the names passed."""
    if type(module).__name__ not in _WRAPPERS:  # the usual case, written out because every walk comes here
        return module, ()
    names: list[str] = []
    while type(module).__name__ in _WRAPPERS and type(module).__module__.partition(".")[0] == "torch":
        name = _WRAPPERS[type(module).__name__]
        inner = module.__dict__["_modules"].get(name)
        if inner is None:
            break
        module = inner
        names.append(name)
    return module, tuple(names)


def is_script(module: Any) -> bool:
    """Return whether a module was scripted or traced; TorchScript runs it, and runs no hooks."""
    return isinstance(module, torch.jit.ScriptModule)


def unseen_in_script(path: str, module: nn.Module) -> str:
    return (
        f"`{path}`: TorchScript runs this {module.original_name}, and byname cannot see inside it; attach to the "
        "module that was scripted or traced, or to the one that calls it"
    )


def notes_on_scripts(model: nn.Module) -> Iterator[str]:
    names = dict.fromkeys(str(one.original_name) for one in modules_in(model) if is_script(one))
    if names:
        yield f"byname cannot see inside scripted or traced modules ({', '.join(names)}): TorchScript runs them"


Level: TypeAlias = dict[str, nn.Module]
"""The modules that the first segments of a pattern lead to, by path, in the order of registration."""


def modules_by_path(model: nn.Module) -> Level:
    """Return every module of a model under its first path; the model's own is empty."""
    return with_all_inside({"": model})


def with_all_inside(level: Level) -> Level:
    """Return these modules and all in them, each under its first path."""
    return {path: module for path, module, _ in _with_all_inside(level)}


def modules_along(model: nn.Module, path: str) -> Level:
    """Return the modules on the way to a place, each under its path; the model's own is empty."""
    names = itertools.takewhile(lambda one: isinstance(one, NameSegment), parse(path).segments)
    return {path: module for level in modules_reached(model, tuple(names)) for path, module in level.items()}


def modules_reached(model: nn.Module, pattern: tuple[Segment, ...]) -> list[Level]:
    """Return the modules that the beginnings of a pattern lead to: with no segment of it, with one, ..., with all."""
    levels: list[Level] = [{"": model}, *({} for _ in pattern)]
    order: dict[int, int] = {}
    for at, segment in enumerate(pattern):  # the wrappers around the model itself, which it was taken out of
        if str(segment) not in _WRAPPERS.values() or str(segment) in children_of(model):
            break
        levels[at + 1][""] = model
    for at, segment in enumerate(pattern):
        entered = _with_all_inside(levels[at]) if segment is ANY else _children(levels[at], segment)
        for path, module, wrappers in entered:
            levels[at + 1].setdefault(path, module)
            passed = at + 1
            for wrapper in wrappers:  # which may be in the path as `named_modules()` gives it
                if passed < len(pattern) and pattern[passed] == NameSegment.of(wrapper):
                    passed += 1
                    levels[passed].setdefault(path, module)
        if segment is ANY and not order and at + 1 < len(pattern):
            order = {id(module): number for number, (_, module, _) in enumerate(entered)}
        elif order:  # children of all these modules come before those of the next ones
            levels[at + 1] = dict(sorted(levels[at + 1].items(), key=lambda found: order.get(id(found[1]), 0)))
    return levels


def modules_by_id(modules: Iterable[nn.Module]) -> dict[int, nn.Module]:
    """Return these modules and all in them, wrappers too, each by its ``id``."""
    found: dict[int, nn.Module] = {}
    waiting = [*modules]
    while waiting:
        module = waiting.pop()
        if id(module) not in found:
            found[id(module)] = module
            waiting += [one for one in tuple(children_of(module).values()) if isinstance(one, nn.Module)]
    return found


_Entered: TypeAlias = list[tuple[str, nn.Module, tuple[str, ...]]]
"""Modules with their paths, and the names inside the wrappers that were around them."""


def _with_all_inside(level: Level) -> _Entered:
    """Return these modules and all in them, in the order of registration, each under its first path."""
    found: _Entered = []
    seen: set[int] = set()
    waiting: _Entered = [(path, module, ()) for path, module in reversed(level.items())]
    while waiting:
        entered = waiting.pop()
        module = entered[1]
        if (key := id(module)) in seen:  # and all that it holds
            continue
        seen.add(key)
        found.append(entered)
        if attributes(module).get("_modules"):
            children = children_of(module)
            waiting += reversed(_entered(entered[0], children, children))
    return found


def _children(level: Level, segment: Segment) -> _Entered:
    """Return the children that a segment means, of each of these modules; for a plain name, only it is looked up."""
    found: _Entered = []
    for path, module in level.items():
        if not attributes(module).get("_modules"):
            continue
        children = children_of(module)
        if not isinstance(segment, NameSegment):
            found += _entered(path, children, names_at(module, children, segment))
        elif segment.wild:
            found += _entered(path, children, [*filter(segment.matches, tuple(children))])
        elif segment.plain in children:
            found += _entered(path, children, [segment.plain])
    return found


def _entered(path: str, children: dict[str, Any], names: Iterable[str]) -> _Entered:
    """Return the children of these names, each with its path and out of its wrappers."""
    prefix = f"{path}." if path else ""
    found: _Entered = []
    for name in tuple(names):
        child = children.get(name)  # another thread may change them meanwhile
        if isinstance(child, nn.Module):
            path = prefix + (name if name.isidentifier() or name.isdecimal() else NameSegment.of(name).text)
            found.append((path, *unwrap_module(child)) if type(child).__name__ in _WRAPPERS else (path, child, ()))
    return found


def children_of(module: nn.Module) -> dict[str, Any]:
    held = attributes(module).get("_modules")
    return held if type(held) is dict else registry_of(module, "_modules")  # the usual case first


def registry_of(module: nn.Module, name: str) -> dict[str, Any]:
    """Return one of a module's registries: ``_modules``, ``_parameters`` or ``_buffers``."""
    held = attributes(module).get(name)
    return held if isinstance(held, dict) else {} if held is None else dict(held.items())  # of scripts


def names_at(module: nn.Module, held: dict[str, Any], item: Segment) -> list[str]:
    """Return the names that ``module[item]`` means in a list or dict of modules or parameters, which are `held`."""
    if isinstance(module, nn.Sequential | nn.ModuleList):
        numbered, size = dict(enumerate(held)), len(held)
    elif isinstance(module, nn.ModuleDict | nn.ParameterDict | nn.ParameterList):
        numbered = {int(name): name for name in tuple(held) if name.isdecimal()}
        size = attributes_of(module).get("_size", 0)  # a ParameterList may hold other things than parameters, too
    else:
        return []
    if isinstance(item, Slice):
        return [numbered[at] for at in sorted(item.positions(size)) if at in numbered]
    if isinstance(item, Item):
        key = item.counted(size).key
        name = numbered.get(key, key)  # type: ignore[call-overload]
        return [name] if name in held else []
    return [*held] if item is ANY_ITEM else []


attributes: Callable[[nn.Module], dict[str, Any]] = nn.Module.__dict__["__dict__"].__get__
"""Returns the ``__dict__`` of a module, as `byname.reading.objects.attributes_of` does, without a search."""


def has_forward(module: nn.Module) -> bool:
    """Return whether a module has a forward; a ``ModuleList`` has none."""
    return "forward" in attributes(module) or found_in(type(module), "forward") is not NO_FORWARD


def called_in(level: Level) -> list[tuple[str, nn.Module]]:
    """Return the modules that have a forward, each with its path; each class is searched once."""
    classes = {type(module) for module in level.values()}
    lacking = {kind for kind in classes if found_in(kind, "forward") is NO_FORWARD}
    if not lacking:
        return [*level.items()]
    return [one for one in level.items() if type(one[1]) not in lacking or has_forward(one[1])]


NO_FORWARD = nn.Module.__dict__["forward"]
"""The forward of containers such as ``ModuleList``."""


def own_state(module: nn.Module, kind: str) -> dict[str, Any]:
    return {name: one for name, one in snapshot(registry_of(module, REGISTRY[kind])) if one is not None}


REGISTRY = {"parameter": "_parameters", "buffer": "_buffers"}
"""The registry of a module that holds each kind of state."""


def is_computed(module: nn.Module, name: str) -> bool:
    """Return whether a hook of a module computes an attribute from a parameter, as pruned and normed weights are."""
    parameters = registry_of(module, "_parameters")
    return is_tensor(module.__dict__.get(name)) and any(one.startswith(f"{name}_") for one in tuple(parameters))


def parametrizations_of(module: nn.Module) -> dict[str, nn.Module]:
    """Return the modules of `torch.nn.utils.parametrize` that compute parameters of a module, by their names."""
    around = children_of(module).get("parametrizations")
    return {} if around is None else children_of(around)


def join_path(path: str, name: str) -> str:
    """Return a path one name further."""
    return f"{path}.{name}" if path else name


_FAST = (nn.TransformerEncoderLayer, nn.TransformerEncoder, nn.MultiheadAttention)


def notes_on_fast_paths(model: nn.Module, hooked: Container[int], *, mode: bool) -> Iterator[str]:
    """Yield notes on the fast path of attention, which PyTorch does not take where hooks or a function mode are."""
    for path, module in modules_by_path(model).items():
        if isinstance(module, _FAST) and (mode or any(id(inner) in hooked for inner in modules_in(module))):
            yield (
                f"`{path or 'forward'}`: in evaluation without gradients PyTorch would run {type(module).__name__} on "
                "its fast path; while observed it runs module by module, and the last digits may differ"
                f"{_PADDED if isinstance(module, nn.TransformerEncoder) else ''}"
            )


_PADDED = ", as may the whole output at positions that src_key_padding_mask= hides, which the fast path may set to zero"
