"""What the tests of watching share: every place of a model, runs that can be compared, and what must not be left."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import Any

import pytest
import torch
from models import Specimen, copied
from torch import nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves

from byname import points

_QUICK = "nanogpt unet dicts streaming decorated checkpointed_not_reentrant twins unrolled attention".split()


def quick_ones(names: Iterable[str]) -> list[Any]:
    """The names of models as parameters of a test that runs quickly on some of them, and slowly on all."""
    return [pytest.param(name, marks=[] if name in _QUICK else [pytest.mark.slow]) for name in names]


def methods(model: nn.Module) -> list[str]:
    """The names of all methods that the model's own classes define and that have variables, and of `forward`."""
    classes = {cls for module in model.modules() for cls in type(module).__mro__ if _is_own(cls)}
    found = {name for cls in classes for name, value in vars(cls).items() if _has_variables(value)}
    return sorted({"forward", *(name for name in found if not name.startswith("_"))})


def _is_own(cls: type) -> bool:
    package, _, rest = cls.__module__.partition(".")
    return package not in ("torch", "builtins") and (package != "transformers" or rest.startswith("models."))


def _has_variables(value: Any) -> bool:
    is_method = not isinstance(value, staticmethod | classmethod)
    return is_method and any(function.__code__.co_nlocals > 1 for function in _functions(value))


def everything(model: nn.Module, args: Any = (), kwargs: Any = None) -> list[str]:
    """Every place of a model: modules, variables, parameters, buffers, the operations of a run, and all gradients."""
    own = [name for name, _ in [*model.named_parameters(), *model.named_buffers()]]
    inside = [f"{path}.*" for path, _ in model.named_modules() if path]  # also what runs inside modules of torch.nn
    ran = [
        one.path
        for one in points(model, ["**.*", *inside], example=(tuple(args), kwargs or {}))
        if one.kind == "operation"
    ]
    places = ["**", *(f"**.{method}.*" for method in methods(model)), *own, *ran]
    return [*places, *(f"{place}.grad" for place in places)]


class Log:
    """A callback that keeps copies of all it sees, in order."""

    def __init__(self) -> None:
        self.seen: list[tuple[tuple[Any, ...], Any]] = []

    def __call__(self, event: Any) -> None:
        key = (event.path, event.iteration, event.call, event.recomputed)
        self.seen.append((key, copied(event.value)))

    @property
    def keys(self) -> list[tuple[Any, ...]]:
        return [key for key, _ in self.seen]

    def values(self, path: str) -> list[Any]:
        return [value for key, value in self.seen if key[0] == path]


@dataclass
class Run:
    """What a forward and a backward pass came to, with the random state and the buffers they left."""

    output: Any
    gradients: dict[str, Any]
    buffers: dict[str, Any]
    random: torch.Tensor


def run(model: nn.Module, args: Any = (), kwargs: Any = None, *, seed: int = 3, backward: bool = True) -> Run:
    """One step of a model, from given random numbers; the loss has another weight for every number of the output."""
    torch.default_generator.manual_seed(seed)
    model.zero_grad(set_to_none=True)
    args = [asking(value) for value in args]
    output = model(*args, **(kwargs or {}))
    loss = loss_of(output)
    if backward and loss is not None:
        loss.backward()
    given = {f"input {number}": value.grad for number, value in enumerate(args) if isinstance(value, torch.Tensor)}
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    buffers = {name: copied(buffer) for name, buffer in model.named_buffers()}
    return Run(copied(output), {**given, **gradients}, buffers, torch.get_rng_state())


@cache
def run_plain(specimen: Specimen, train: bool = True) -> Run:
    """What a model does that nobody watches: the same for all tests."""
    args, kwargs = specimen.inputs()
    return run(specimen.model().train(train), args, kwargs)


def asking(value: Any) -> Any:
    """An argument as a new leaf: its gradient is compared as well."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.is_floating_point())
    return value


def loss_of(output: Any) -> torch.Tensor | None:
    parts = [part for part in tensors(output) if part.is_floating_point() and part.requires_grad]
    return sum(((part.float() * _weights(part)).sum() for part in parts), torch.zeros(())) if parts else None


def _weights(part: torch.Tensor) -> torch.Tensor:
    return torch.linspace(-1, 1.5, part.numel()).view(part.shape)


def tensors(value: Any) -> list[torch.Tensor]:
    """Of an output of any form, an object of transformers included."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def differences(one: Run, other: Run) -> list[str]:
    """What is not bit for bit the same."""
    found = [] if same(one.output, other.output) else ["output"]
    for words in ("gradients", "buffers"):
        mine, theirs = getattr(one, words), getattr(other, words)
        found += [f"{words}: {name}" for name in mine if not same(mine[name], theirs[name])]
    return found if torch.equal(one.random, other.random) else [*found, "random state"]


def same(one: Any, other: Any) -> bool:
    """Bit for bit."""
    mine, theirs = tree_leaves(one), tree_leaves(other)
    return len(mine) == len(theirs) and all(_same(*pair) for pair in zip(mine, theirs, strict=True))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and (one is other or bool(one == other))


def close(one: Any, other: Any) -> bool:
    """But for rounding; no gradient is as good as one of zeros."""
    mine, theirs = tensors(one), tensors(other)
    return len(mine) == len(theirs) and all(torch.allclose(*pair, rtol=1e-4, atol=1e-6) for pair in zip(mine, theirs))


def state(model: nn.Module) -> dict[str, Any]:
    """All that must be after removal as it was before; values are compared by identity where they are objects."""
    found: dict[str, Any] = {"modes": _modes(), "state_dict": list(model.state_dict())}
    for name, module in model.named_modules(remove_duplicate=False):
        found[f"{name}: module"] = (id(module), type(module), module.training)
        for key, value in vars(module).items():
            found[f"{name}: __dict__[{key!r}]"] = _contents(value)
        for key, parameter in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            found[f"{name}: {key}"] = (id(parameter), parameter.requires_grad, *_hooks(parameter))
    for cls in {cls for module in model.modules() for cls in type(module).__mro__ if cls is not object}:
        found |= {f"{cls.__qualname__}.{key}": _code(value) for key, value in vars(cls).items()}
    return found


def _modes() -> tuple[Any, ...]:
    hooks = {key: len(value) for key, value in vars(nn.modules.module).items() if key.startswith("_global_") and isinstance(value, dict)}  # fmt: skip
    return (
        len(_get_current_function_mode_stack()),
        len(_get_current_dispatch_mode_stack()),
        hooks,
        sys.gettrace(),
        sys.getprofile(),
        threading.gettrace(),
        torch.is_grad_enabled(),
        nn.Module.__call__,
    )


def _contents(value: Any) -> Any:
    return [(key, id(item)) for key, item in value.items()] if isinstance(value, dict) else id(value)


def _hooks(tensor: torch.Tensor) -> tuple[Any, ...]:
    kept = (tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None))
    return tuple(list(hooks or ()) for hooks in kept) + (sorted(vars(tensor)),)


def _code(value: Any) -> Any:
    return id(value), [(id(function.__code__), _names(function)) for function in _functions(value)]


def _names(function: FunctionType) -> int:
    names = sorted(set(function.__globals__) - {"__warningregistry__"})
    return id(function.__globals__), names, id(function.__defaults__), sorted(vars(function))


def _functions(value: Any) -> list[FunctionType]:
    """The Python functions behind an attribute of a class, also below decorators."""
    parts = [value.fget, value.fset] if isinstance(value, property) else [getattr(value, "__func__", value)]
    found = [part for part in parts if isinstance(part, FunctionType)]
    for function in found:  # grows as it goes
        inside = [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
        found += [part for part in inside if isinstance(part, FunctionType) and part not in found]
    return found


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
