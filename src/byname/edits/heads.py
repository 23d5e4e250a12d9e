"""Heads: how many attention heads the last dimension of a value has, as the module that holds them says."""

from __future__ import annotations

from torch import Tensor, nn

from byname.edits.selection import of_whole
from byname.errors import InterjectionError
from byname.model.families import family_named
from byname.model.feature_dims import FeatureContext, Heads, configs_of, enclosing_paths, head_counts, read_heads
from byname.model.module_tree import join_path, modules_by_path
from byname.model.operations import is_multi_head
from byname.reading.objects import attributes_of
from byname.watch.attachment import Event

_PROJECTIONS = frozenset("c_proj o_proj out_proj out to_out proj_out wo W_O o out_lin dense proj".split())
"""The usual names of the layer that mixes the heads."""


def heads_of(root: nn.Module, event: Event, value: Tensor, around: FeatureContext, dim: int | None) -> int | None:
    """Return how many heads the last dimension of a value has; None where another dimension is that of the heads.

    The modules around the place tell it, unless `dim` was given. It is an error where that is not known, or of another
    number.
    """
    found = _found(root, event)
    path, numbers = event.path, _numbers(root, found)
    mixes = event.kind == "input" and path.split(".")[-2] in _PROJECTIONS
    size = None if isinstance(found, str) else value.shape[-1] // found.number if mixes else found.size
    beside = value.ndim == 4 and event.kind == "module" and value.shape[1] == 1 and 1 not in numbers  # kv_b_proj
    if dim is not None or (value.ndim == 4 and not beside):
        at = 1 if dim is None else dim
        if numbers and -value.ndim <= at < value.ndim and value.shape[at] not in numbers:
            raise _unknown(path, value, numbers, f"dimension {at} is not that of the {max(numbers)} heads", size)
        if dim is None and isinstance(found, str) and around.channels_first(value):
            raise InterjectionError(f"`{path}` has no heads: dimension 1 is that of its channels; use channels=")
        function = path.rpartition(".")[2].rstrip("_0123456789") if event.kind == "operation" else ""
        gives_heads = function in ("flex_attention", "scaled_dot_product_attention")
        if dim is None and not (gives_heads or _in_second(around, value, numbers, found)):
            raise _unknown(path, value, numbers, found if isinstance(found, str) else "more than one fits", size)
        return None
    mixed = _mixing(root, event, found)
    if mixed:
        owner = mixed.rpartition(".")[0]
        multi_head = is_multi_head(modules_by_path(root)[owner])  # which never calls its `out_proj`
        pattern = f'`{join_path(owner, "multi_head_attention_forward.pattern")}` with attention="explicit"'
        use = pattern if multi_head else f"`{mixed}.input`"
        raise InterjectionError(f"`{path}` has no heads: `{mixed}` has mixed them; use {use}")
    if not isinstance(found, Heads):
        raise _unknown(path, value, numbers, found, None)
    if value.ndim not in (2, 3) and not beside:
        raise _unknown(path, value, numbers, f"it has {value.ndim} dimensions", None)
    width = value.shape[-1]
    for count in (found.number, found.keys):
        if count and width % count == 0 and (mixes or _is_size(found, width // count, event)):
            return count
    of = f" of {size} features" if size else ""
    raise _unknown(path, value, numbers, f"{width} features are not {found.number} heads{of}", size)


def _is_size(heads: Heads, size: int, event: Event) -> bool:
    """Return whether a head may have this many features; where that is not known, a layer may have fused several."""
    if heads.size:
        return size in {heads.size, *heads.others}
    width = attributes_of(event.module).get("in_features") if event.kind == "module" else None
    return not width or size * heads.number not in (2 * width, 3 * width)


def _numbers(root: nn.Module, found: Heads | str) -> set[int]:
    """Return the sizes that a dimension of heads may have: of all, of keys, or of several queries that share a key."""
    if isinstance(found, str):
        return {count for one in modules_by_path(root).values() for count in head_counts(one)}
    keys = found.keys or found.number
    return {found.number, keys, found.number // keys if found.number > keys else keys}


def _in_second(around: FeatureContext, value: Tensor, numbers: set[int], found: Heads | str) -> bool:
    """Return whether dimension 1 of four is that of the heads, as far as its size and the modules around it tell."""
    features = around.dim_of(value)
    if features is not None and features.own and features.dim == -1:  # of queries before or after they are transposed
        return value.shape[2] not in numbers
    return not around.channels_first(value) and (isinstance(found, Heads) or features is not None)


def _unknown(path: str, value: Tensor, numbers: set[int], why: str, size: int | None) -> InterjectionError:
    fits = not numbers or (value.ndim > 3 and any(one in numbers for one in value.shape[1:]))
    features = f". Name the features of a head, as features=slice(0, {size})" if size and value.ndim < 4 else ""
    if size == value.shape[-1]:  # the heads are among the samples, as in Bloom
        features = f"; {of_whole(path)}"
    return InterjectionError(
        f"`{path}`: byname cannot tell which dimension of shape {tuple(value.shape)} is that of the heads: {why}"
        + (". Give it as heads=(dim, [indices])" if fits else features)
    )


def _found(root: nn.Module, event: Event) -> Heads | str:
    """Return what the nearest module around a place says of its heads; else why there is none."""
    modules = modules_by_path(root)
    start = next((path for path, one in modules.items() if one is event.module), "")
    way = [path for path in enclosing_paths(start) if path in modules]
    for path in way:
        if heads := _held(path, modules[path]):
            return heads
        inside = _holders_inside(path, modules, way)
        if inside:
            nearest, *others = inside
            mixing = event.kind == "input" and start.rpartition(".")[2] in _PROJECTIONS  # beside the attention: BERT
            if not others and mixing and _is_attention(path, modules[path]) and not _child(nearest, modules):
                return inside[nearest]
            layer = _child(nearest, modules) or _beside(nearest.rpartition(".")[0], modules)
            there = f", side by side in `{layer}.input`" if layer else ""
            return f"the heads nearest to it are those of `{nearest}`{there}"
    for path in way:
        for config in configs_of(modules[path]):
            if heads := read_heads(config):
                return heads
    return "no module around it says how many heads there are (num_heads, config.num_attention_heads)"


def _held(path: str, module: nn.Module) -> Heads | None:
    """Return what a module says itself, or its config where it is an attention by its name."""
    own = read_heads(attributes_of(module), *configs_of(module))
    if own or not _is_attention(path, module):
        return own
    return next((heads for config in configs_of(module) if (heads := read_heads(config))), None)


def _is_attention(path: str, module: nn.Module) -> bool:
    return "att" in f"{type(module).__name__} {path.rpartition('.')[2]}".lower()


def _holders_inside(path: str, modules: dict[str, nn.Module], way: list[str]) -> dict[str, Heads]:
    prefix = f"{path}." if path else ""
    inside = ((one, module) for one, module in modules.items() if one.startswith(prefix) and one not in way)
    return {one: heads for one, module in inside if one and (heads := _held(one, module))}


def _mixing(root: nn.Module, event: Event, found: Heads | str) -> str | None:
    """Return the layer that has mixed the heads of what a module gives, or a dropout gets; it is known by its name."""
    modules, path = modules_by_path(root), event.path.partition("[")[0]
    path = path.removesuffix("input").removesuffix(".") if event.kind == "input" else "" if path == "forward" else path
    if event.kind not in ("module", "input") or modules.get(path) is not event.module:
        return None
    around, _, name = path.rpartition(".")
    if isinstance(found, Heads) and family_named("dropout").has_module(event.module):  # not that of a pattern
        return _child(around, modules)
    if isinstance(found, Heads):
        own = path if name in _PROJECTIONS else _child(path, modules)
        return own if event.kind == "module" else None
    beside = ((one, _beside(one, modules)) for one in enclosing_paths(path))
    return next((layer for one, layer in beside if layer and _follows(path, event.kind, one, layer)), None)


def _follows(path: str, kind: str, attention: str, projection: str) -> bool:
    """Return whether a value of a module in an attention comes after the layer that mixes the heads."""
    if path in (attention, projection):
        return kind == "module"
    around = projection.rpartition(".")[0]
    return path.startswith(f"{around}.") or (path == around and kind == "module")


def _child(path: str, modules: dict[str, nn.Module]) -> str | None:
    """Return the layer in a module that mixes heads, by its name."""
    names = modules[path]._modules if path in modules else ()
    return next((join_path(path, name) for name in names if name in _PROJECTIONS), None)


def _beside(path: str, modules: dict[str, nn.Module]) -> str | None:
    """Return the layer that mixes the heads of the attention inside of a module and is beside it, as in BERT."""
    if path not in modules or not _is_attention(path, modules[path]):
        return None
    inside = [*_holders_inside(path, modules, [path])]
    if len(inside) != 1 or _child(inside[0], modules):
        return None
    others = [one for one in modules if one.startswith(f"{path}.") and not f"{one}.".startswith(f"{inside[0]}.")]
    return next((one for one in others if one.rpartition(".")[2] in _PROJECTIONS), None)
