"""Module tree: the modules of a model by their paths, seen through wrappers, what each has, and what cannot be seen."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import Any

import torch
from torch import nn

from byname.place import NameSegment
from byname.reading.modules import modules_in
from byname.reading.objects import found_in
from byname.reading.tensor import is_tensor

_WRAPPERS = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "OptimizedModule": "_orig_mod",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
}


def inside_of(module: nn.Module) -> tuple[nn.Module, tuple[str, ...]]:
    """The module inside of wrappers for several processes or devices, and of compiled ones; the names on the way."""
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
    """Whether a module was scripted or traced: TorchScript runs it, and knows no hooks."""
    return isinstance(module, torch.jit.ScriptModule)


def unseen_in_script(path: str, module: nn.Module) -> str:
    """What to say of a place in a scripted module."""
    return (
        f"`{path}`: TorchScript runs this {module.original_name}, and what happens in it cannot be seen; attach to the "
        "module that was scripted or traced, or to the one that calls it"
    )


def notes_on_scripts(model: nn.Module) -> Iterator[str]:
    """What to tell about scripted and traced modules."""
    names = dict.fromkeys(str(one.original_name) for one in modules_in(model) if is_script(one))
    if names:
        yield f"nothing can be seen inside of scripted or traced modules ({', '.join(names)}): TorchScript runs them"


def modules_by_path(model: nn.Module) -> dict[str, nn.Module]:
    """Return every module of a model under its first path; the model's own is empty.

    It is one loop, for most attachments walk the model once: a walk takes as long as it would take to find out whether
    the result of an earlier one still holds, and is never out of date.
    """
    found: dict[str, nn.Module] = {}
    seen: set[int] = set()
    waiting = [("", model)]
    while waiting:
        path, module = waiting.pop()
        if id(module) in seen:  # and all that it holds
            continue
        seen.add(id(module))
        found[path] = module
        children = _attributes(module).get("_modules")
        if children:
            prefix = f"{path}." if path else ""
            for name, child in reversed(tuple(children.items())):
                if isinstance(child, nn.Module):
                    text = name if name.isidentifier() or name.isdecimal() else NameSegment.of(name).text
                    waiting.append((prefix + text, inside_of(child)[0]))
    return found


_attributes: Callable[[nn.Module], dict[str, Any]] = nn.Module.__dict__["__dict__"].__get__
"""What `byname.reading.objects.attributes_of` gives for a module, without a search for it in every class."""


def is_called(module: nn.Module) -> bool:
    """Whether a module has a forward: a ``ModuleList`` has none."""
    return "forward" in _attributes(module) or found_in(type(module), "forward") is not NEVER_CALLED


NEVER_CALLED = nn.Module.__dict__["forward"]
"""The forward of containers such as ``ModuleList``."""


def state_of(module: nn.Module, kind: str) -> dict[str, Any]:
    """A module's own parameters or buffers, by name."""
    held: dict[str, Any] = module.__dict__.get(
        "_parameters" if kind == "parameter" else "_buffers", {}
    )  # not in scripts
    return {name: one for name, one in held.items() if one is not None}


def computed_in(module: nn.Module) -> dict[str, nn.Module | None]:
    """The names of tensors that are computed from parameters and used instead of one, as pruned or normed weights are.

    Each has the module that computes it, `torch.nn.utils.parametrize`'s, or None for a hook of the module.
    """
    held, parameters = module.__dict__, [*state_of(module, "parameter")]
    made = {name for name, one in held.items() if is_tensor(one) and any(p.startswith(f"{name}_") for p in parameters)}
    modules = held.get("_modules")  # of a module in TorchScript it is no dict
    around = modules.get("parametrizations") if isinstance(modules, dict) else None
    return {**dict.fromkeys(made), **({} if around is None else around.__dict__["_modules"])}


def under(path: str, name: str) -> str:
    """A path one name further."""
    return f"{path}.{name}" if path else name


_FAST = (nn.TransformerEncoderLayer, nn.TransformerEncoder, nn.MultiheadAttention)


def notes_on_fast_paths(model: nn.Module, hooked: Container[int], *, mode: bool) -> Iterator[str]:
    """What to tell about the fast path of attention, which PyTorch leaves where hooks or a function mode are.

    Args:
        model: the watched model.
        hooked: the modules with hooks, by ``id``.
        mode: whether a function mode will be on.
    """
    for path, module in modules_by_path(model).items():
        if isinstance(module, _FAST) and (mode or any(id(inner) in hooked for inner in modules_in(module))):
            yield (
                f"`{path or 'forward'}`: in evaluation without gradients PyTorch would run {type(module).__name__} by "
                "its fast path; while it is observed it runs module by module, and the last digits may differ"
                f"{_PADDED if isinstance(module, nn.TransformerEncoder) else ''}"
            )


_PADDED = (
    ", as may all of a position that src_key_padding_mask= hides, which is zero if the layers run on nested tensors"
)
