"""Under which name does a call of a PyTorch function appear in a path? ``softmax``, ``matmul``, ``add_``, ``T``."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from functools import lru_cache
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any

import torch
from torch import nn

from byname.reading.objects import found_in, namespace_of, parents_of

__all__ = [
    "PLAIN_FUNCTIONS",
    "is_elementary",
    "is_operation",
    "is_torchs",
    "operation_name",
    "operation_path",
    "operations_like",
    "taken",
]

COMPUTED = frozenset({"T", "mT", "H", "mH", "real", "imag", "data"})
"""Properties of a tensor that give another tensor; reading any other property is no operation."""

_QUIET = frozenset(
    "size stride dim ndimension numel nelement element_size storage_offset data_ptr dim_order get_device has_names "
    "item tolist numpy allclose equal storage untyped_storage storage_type typed_storage register_hook backward "
    "retain_grad register_post_accumulate_grad_hook requires_grad_ share_memory_ result_type can_cast promote_types "
    "_assert _set_grad_enabled set_grad_enabled manual_seed get_default_dtype set_default_dtype broadcast_shapes "
    "__len__ __bool__ __float__ __int__ __index__ __complex__ __contains__ __hash__ __repr__ __str__ __format__ "
    "__dir__ __array__ __dlpack__ __dlpack_device__ __reduce_ex__ __setstate__ __set__ __delete__".split()
)
"""Functions that neither give nor change the values of a tensor."""


def operation_name(function: Any) -> str | None:
    """The name that stands for a function in a path; None when a call of it is no operation.

    A method, a function of ``torch`` and one of ``torch.nn.functional`` that do the same bear the same name.

    >>> operation_name(torch.nn.functional.softmax), operation_name(torch.Tensor.__rsub__)
    ('softmax', 'rsub')
    >>> operation_name(torch.Tensor.size) is None
    True

    Args:
        function: what a function mode is given: a function, a method, or the ``__get__`` of a property.
    """
    return _known(function) if is_torchs(function) else _name_of(function)


def is_torchs(function: Any) -> bool:
    """Whether a function is PyTorch's own; one of the user's may hold anything, and must not be kept in a cache."""
    kind = type(function)
    if kind is FunctionType:
        return str(function.__globals__.get("__name__")).partition(".")[0] == "torch"
    if kind in _BUILTINS:
        owner = getattr(function, "__self__", None)
        return owner is None or issubclass(type(owner), _OWNERS)
    return False


@lru_cache(maxsize=8192)
def _known(function: Any) -> str | None:
    return _name_of(function)


def _name_of(function: Any) -> str | None:
    name = str(getattr(function, "__name__", type(function).__name__)).partition(".")[0]
    if name == "__get__":
        attribute = str(getattr(getattr(function, "__self__", None), "__name__", ""))
        return attribute if attribute in COMPUTED else None
    if name in _QUIET or name.startswith("is_"):
        return None
    if name.startswith("__") and name.endswith("__"):
        name = name[2:-2]
    return "".join(mark for mark in name if mark.isalnum() or mark == "_") or None


_BUILTINS = (type(len), type(str.join), type(str.__len__), type("".__len__))
_OWNERS = (type, ModuleType, GetSetDescriptorType, MemberDescriptorType)
"""What a function of C may be bound to that is no value of the user's."""

PLAIN_FUNCTIONS = frozenset([FunctionType, *_BUILTINS])
"""The types of functions whose hash is Python's own."""


def operation_path(owner: str, name: str, count: int, names_taken: Collection[str] = ()) -> str:
    """The path of an operation: that of the module which runs it, the function's name, and a number from the second on.

    >>> operation_path("layers.0", "softmax", 0), operation_path("layers.0", "softmax", 1)
    ('layers.0.softmax', 'layers.0.softmax_1')
    >>> operation_path("", "relu", 0, {"relu"}), operation_path("", "relu", 1, {"relu_1"})
    ('relu_0', 'relu_01')

    Args:
        owner: the module's path, empty for the model itself.
        name: as `operation_name` gives it.
        count: how many calls of a function of that name this call of the module has made before.
        names_taken: what else may stand after the module's path, see `taken`. Where the name is among them the number
            gets a leading zero, so that every place has a path of its own.
    """
    plain = f"{name}_{count}" if count else name
    if plain in names_taken:
        plain = f"{name}_0{count or ''}"
    return f"{owner}.{plain}" if owner else plain


def taken(module: nn.Module) -> frozenset[str]:
    """The names after a module's path that mean something else than an operation.

    They are its children, parameters and buffers, and the methods of its class; not those that every module has, such
    as ``float``.
    """
    held = object.__getattribute__(module, "__dict__")
    registries = ("_modules", "_parameters", "_buffers")
    names = {name for registry in registries for name in tuple(held.get(registry) or ())}
    for kind in parents_of(type(module)):
        if kind not in (nn.Module, object):
            names.update(tuple(namespace_of(kind)))
    return frozenset(names)


def is_elementary(module: nn.Module) -> bool:
    """Whether a module is one step as a whole: it runs code of ``torch.nn`` and no other module.

    What happens inside is an operation that can be asked for by its path, and is no place of its own otherwise.

    >>> is_elementary(nn.ReLU()), is_elementary(nn.MultiheadAttention(4, 1)), is_elementary(nn.Sequential(nn.ReLU()))
    (True, True, False)
    """
    kind: type = type(module)
    if not _runs_own_code(kind):
        return False
    children = object.__getattribute__(module, "__dict__").get("_modules")
    return not children or found_in(kind, "forward") is found_in(nn.MultiheadAttention, "forward")


@lru_cache(maxsize=4096)
def _runs_own_code(kind: type) -> bool:
    """Whether the ``forward`` of a class was written by PyTorch."""
    owner = next((parent for parent in parents_of(kind) if "forward" in namespace_of(parent)), nn.Module)
    written_by = str(namespace_of(owner).get("__module__"))
    return owner is not nn.Module and written_by.startswith(("torch.nn.", "torch.ao.nn."))


@lru_cache(maxsize=4096)
def is_operation(name: str) -> bool:
    """Whether PyTorch has a function or a tensor method of that name, so that a path may mean it.

    >>> is_operation("softmax"), is_operation("matmul"), is_operation("sofmax")
    (True, True, False)
    """
    owners = (torch.Tensor, torch, torch.nn.functional, torch.special, torch.linalg, torch.fft)
    if name in COMPUTED:
        return True
    found = [getattr(owner, written, None) for owner in owners for written in (name, f"__{name}__")]
    if any(callable(one) and not isinstance(one, type | ModuleType) for one in found):
        return True
    return any(full.partition("::")[2].partition(".")[0] == name for full in torch._C._dispatch_get_all_op_names())


def operations_like(name: str) -> list[str]:
    """Names of operations that are spelled nearly like this one.

    >>> operations_like("sofmax")[0]
    'softmax'
    """
    known = {one for owner in (torch.Tensor, torch.nn.functional) for one in dir(owner) if not one.startswith("_")}
    return [one for one in difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.7) if is_operation(one)]
