"""Operations: the names of PyTorch functions in paths, ``softmax``, ``matmul``, ``add_``, ``T``; and leaf modules."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from functools import lru_cache
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any

import torch
from torch import nn

from byname.reading.objects import found_in, namespace_of, parents_of

TENSOR_PROPERTIES = frozenset({"T", "mT", "H", "mH", "real", "imag", "data"})
"""Properties of a tensor that return another tensor; reading another property is not an operation."""

_QUIET = frozenset(
    "size stride dim ndimension numel nelement element_size storage_offset data_ptr dim_order get_device has_names "
    "item tolist numpy allclose equal storage untyped_storage storage_type typed_storage register_hook backward "
    "retain_grad register_post_accumulate_grad_hook requires_grad_ share_memory_ result_type can_cast promote_types "
    "_assert _set_grad_enabled set_grad_enabled manual_seed get_default_dtype set_default_dtype broadcast_shapes "
    "__len__ __bool__ __float__ __int__ __index__ __complex__ __contains__ __hash__ __repr__ __str__ __format__ "
    "__dir__ __array__ __dlpack__ __dlpack_device__ __reduce_ex__ __setstate__ __set__ __delete__".split()
)
"""Functions that neither return nor change the values of a tensor."""


def operation_name(function: Any) -> str | None:
    """Return the name of a function in a path; None if a call of it is not an operation.

    A tensor method and the functions of ``torch`` and ``torch.nn.functional`` that do the same have the same name.

    >>> operation_name(torch.nn.functional.softmax), operation_name(torch.Tensor.__rsub__)
    ('softmax', 'rsub')
    >>> operation_name(torch.Tensor.size) is None
    True
    """
    if type(function) not in _PLAIN:  # another callable may define a hash of its own
        return _name_of(function)
    try:
        return _names[function]
    except KeyError:
        name = _name_of(function)
        if is_torch_function(function):
            if len(_names) >= _MOST_NAMES:
                _names.clear()
            _names[function] = name
        return name


def main_result(function: Any, result: Any) -> Any:
    """Return the result of an operation as the program gets it; of ``flex_attention`` only the first item.

    A function mode sees the operator inside of it, which returns a tuple: the result, and figures of its softmax.
    """
    inner = type(result) is tuple and not is_torch_function(function) and operation_name(function) == "flex_attention"
    return result[0] if inner else result


def is_torch_function(function: Any) -> bool:
    """Return whether a function is PyTorch's own; a user's function may hold anything, so it must not enter a cache."""
    kind = type(function)
    if kind is FunctionType:
        return str(function.__globals__.get("__name__")).partition(".")[0] == "torch"
    if kind in _BUILTINS:
        owner = getattr(function, "__self__", None)
        return owner is None or issubclass(type(owner), _OWNERS)
    return False


_MOST_NAMES = 8192
_names: dict[Any, str | None] = {}
"""The names of PyTorch's functions, in one step: function modes ask for each call of the program."""


def _name_of(function: Any) -> str | None:
    name = str(getattr(function, "__name__", type(function).__name__)).partition(".")[0]
    if name == "__get__":
        attribute = str(getattr(getattr(function, "__self__", None), "__name__", ""))
        return attribute if attribute in TENSOR_PROPERTIES else None
    if name in _QUIET or name.startswith("is_"):
        return None
    if name.startswith("__") and name.endswith("__"):
        name = name[2:-2]
    return "".join(mark for mark in name if mark.isalnum() or mark == "_") or None


_BUILTINS = (type(len), type(str.join), type(str.__len__), type("".__len__))
_OWNERS = (type, ModuleType, GetSetDescriptorType, MemberDescriptorType)
"""The types to which PyTorch's own C functions may be bound."""

_PLAIN = frozenset([FunctionType, *_BUILTINS])
"""The types of functions that have Python's own hash."""


MOVES = frozenset(
    """alias as_strided atleast_1d atleast_2d atleast_3d bfloat16 broadcast_to chunk clone contiguous cpu
    cuda detach diagonal double expand expand_as flatten float getitem half movedim moveaxis narrow permute
    reshape reshape_as select split split_with_sizes squeeze swapaxes swapdims t T H mH mT tensor_split to
    transpose type type_as unbind unflatten unsafe_chunk unsafe_split unsqueeze view view_as""".split()
)
"""Functions that give the same elements in another shape, order, precision or place, or some of them."""


ATTENTIONS = ("scaled_dot_product_attention", "multi_head_attention_forward")
"""PyTorch's functions that compute attention in one; the second one is that of `nn.MultiheadAttention`."""

PARTS_OF_ATTENTION = ("scores", "pattern")
"""The steps of a call of attention that have places where it runs step by step: before and after its softmax."""


def is_part_of_attention(function: str, name: str) -> bool:
    """Return whether a name after that of a function means a step of attention.

    >>> is_part_of_attention("scaled_dot_product_attention_1", "pattern"), is_part_of_attention("softmax", "pattern")
    (True, False)
    """
    return name in PARTS_OF_ATTENTION and _ATTENTION.fullmatch(function) is not None


_ATTENTION = re.compile(rf"({'|'.join(ATTENTIONS)})(_\d+)?")


def operation_path(owner: str, name: str, count: int, names_taken: Collection[str] = ()) -> str:
    """Return the path of an operation: its module's path, the function's name, and from the second call on a number.

    >>> operation_path("layers.0", "softmax", 0), operation_path("layers.0", "softmax", 1)
    ('layers.0.softmax', 'layers.0.softmax_1')
    >>> operation_path("", "relu", 0, {"relu"}), operation_path("", "relu", 1, {"relu_1"})
    ('relu_0', 'relu_01')

    `count` is the number of earlier calls of that name in this call of the module. If a name is taken by something else
    in the module, the number gets a leading zero, so that every place has a path of its own.
    """
    plain = f"{name}_{count}" if count else name
    if plain in names_taken:
        plain = f"{name}_0{count or ''}"
    return f"{owner}.{plain}" if owner else plain


def taken(module: nn.Module) -> frozenset[str]:
    """Return the names after a module's path that do not mean an operation.

    These are its children, parameters and buffers, and the attributes of its classes below `nn.Module`; not those of
    every module, such as ``float``.
    """
    held = object.__getattribute__(module, "__dict__")
    registries = ("_modules", "_parameters", "_buffers")
    names = {name for registry in registries for name in tuple(held.get(registry) or ())}
    for kind in parents_of(type(module)):
        if kind not in (nn.Module, object):
            names.update(tuple(namespace_of(kind)))
    return frozenset(names)


def is_leaf_module(module: nn.Module) -> bool:
    """Return whether a module is a leaf module: PyTorch wrote its forward, and it has no children.

    `nn.MultiheadAttention` is one too. An operation inside a leaf module is found by its own path only.

    >>> is_leaf_module(nn.ReLU()), is_leaf_module(nn.MultiheadAttention(4, 1)), is_leaf_module(nn.Sequential(nn.ReLU()))
    (True, True, False)
    """
    kind: type = type(module)
    if not _runs_own_code(kind):
        return False
    children = object.__getattribute__(module, "__dict__").get("_modules")
    return not children or is_multi_head(module)


def is_multi_head(module: nn.Module) -> bool:
    """Return whether a module runs the forward of `nn.MultiheadAttention`."""
    return found_in(type(module), "forward") is found_in(nn.MultiheadAttention, "forward")


@lru_cache(maxsize=4096)
def _runs_own_code(kind: type) -> bool:
    """Return whether PyTorch wrote the ``forward`` of a class."""
    owner = next((parent for parent in parents_of(kind) if "forward" in namespace_of(parent)), nn.Module)
    written_by = str(namespace_of(owner).get("__module__"))
    return owner is not nn.Module and written_by.startswith(("torch.nn.", "torch.ao.nn."))


@lru_cache(maxsize=4096)
def is_operation(name: str) -> bool:
    """Return whether PyTorch has a function or a tensor method of that name, so that a path may mean it.

    >>> is_operation("softmax"), is_operation("matmul"), is_operation("sofmax")
    (True, True, False)
    """
    owners = (torch.Tensor, torch, torch.nn.functional, torch.special, torch.linalg, torch.fft)
    if name in TENSOR_PROPERTIES:
        return True
    found = [getattr(owner, written, None) for owner in owners for written in (name, f"__{name}__")]
    if any(callable(one) and not isinstance(one, type | ModuleType) for one in found):
        return True
    return any(full.partition("::")[2].partition(".")[0] == name for full in torch._C._dispatch_get_all_op_names())


def operations_like(name: str) -> list[str]:
    """Return the names of up to three operations with a similar spelling, the closest first.

    >>> operations_like("sofmax")[0]
    'softmax'
    """
    known = {one for owner in (torch.Tensor, torch.nn.functional) for one in dir(owner) if not one.startswith("_")}
    return [one for one in difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.7) if is_operation(one)]
