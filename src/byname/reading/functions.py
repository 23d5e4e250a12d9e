"""Functions: the names and kinds of PyTorch's functions, and the tensors that a call of one may change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch

from byname.reading.objects import attributes_of, found_in, namespace_of
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import PLAIN, fact

READ, MAKING, IN_PLACE, SETTER, COMPOSITE, CONVERSION, GRADIENT, METADATA, GRAD_MODE = range(9)
"""Kinds of function: reads a property; makes a new result; changes its first argument; sets ``requires_grad``; may do
anything; converts a tensor to a Python or NumPy value; reads ``.grad``; reads a fact such as a size, or computes none;
switches gradients on or off.
"""

UNSCALE = "_amp_foreach_non_finite_check_and_unscale_"
"""Name of the function by which a ``GradScaler`` divides gradients by its scale, without counting up their versions."""

function_mode_count = torch._C._len_torch_function_stack
"""Returns the number of function modes on the stack; inside a mode's own handler, those below it."""

BUILTINS = (type(torch.add), type(torch.Tensor.add), type(torch.Tensor.__getitem__))
_WRITTEN_IN_C = (*BUILTINS, type("".__len__))
_REQUIRES_GRAD: Any = torch.Tensor.requires_grad
_METADATA_NAMES = frozenset(
    "size dim stride numel is_contiguous is_floating_point is_complex storage_offset element_size get_device "
    "shape dtype device ndim layout is_leaf requires_grad is_cuda is_sparse is_nested "
    "_record_function_enter_new _record_function_exit._RecordFunction".split()
)
_CONVERSION_NAMES = frozenset("item tolist numpy __array__ __float__ __int__ __bool__ __complex__ __index__".split())


def name_of(function: Any) -> str:
    """Return the name of a function; ``?`` for a callable that has none or computes it."""
    if type(function) is FunctionType or type(function) in _WRITTEN_IN_C:
        return str(function.__name__)
    name = attributes_of(function).get("__name__", found_in(type(function), "__name__"))
    return name if type(name) is str else "?"


def is_method(function: Any) -> bool:
    name = name_of(function)
    return any(vars(kind).get(name) is function for kind in (torch.Tensor, torch._C.TensorBase))


def function_kind(function: Any) -> int:
    """Return the kind of a function. One that is not PyTorch's may do anything, whatever its name."""
    if not is_torch_function(function):
        return COMPOSITE
    name = name_of(function)
    if name in ("__get__", "__set__", "__delete__"):
        attribute = getattr(function, "__self__", None)
        if name == "__set__" and attribute is _REQUIRES_GRAD:
            return SETTER
        name = getattr(attribute, "__name__", "") if name == "__get__" else ""
        return GRADIENT if name == "grad" else METADATA if name in _METADATA_NAMES else READ
    if name == "requires_grad_":
        return SETTER
    if name in _CONVERSION_NAMES:
        return CONVERSION
    if name in _METADATA_NAMES:
        return METADATA
    if type(function) not in BUILTINS or name.startswith("_fused"):
        return COMPOSITE
    if name == "_set_grad_enabled":
        return GRAD_MODE
    return IN_PLACE if is_in_place(name) else MAKING


def is_torch_function(function: Any) -> bool:
    """Return whether a function is PyTorch's own or written in C, so that a dict may hold it as a key."""
    if type(function) is FunctionType:
        return str(function.__module__).partition(".")[0] == "torch"
    kind = type(function)
    return kind in _WRITTEN_IN_C or str(namespace_of(kind).get("__module__")).partition(".")[0] == "torch"


def targets_of(kind: int, args: Sequence[Any], kwargs: dict[str, Any] | None) -> list[torch.Tensor] | None:
    """Return the tensors that a call may change; None if it changes none."""
    if kind == COMPOSITE:
        return tensors_among([*args, *(kwargs or {}).values()])
    target = target_of(args, kwargs, in_place=kind in (IN_PLACE, SETTER))
    return None if target is None else tensors_among([target])


def tensors_among(values: Iterable[Any]) -> list[torch.Tensor]:
    """Return the tensors among these values and in the lists and tuples among them."""
    found = []
    for value in values:
        kind = type(value)
        if kind is torch.Tensor:  # the most frequent classes first: asking for subclasses takes several times as long
            found.append(value)
        elif kind is int or kind is float or kind is bool or kind is str or value is None:
            continue
        elif issubclass(kind, torch.Tensor):
            found.append(value)
        elif issubclass(kind, (list, tuple)):
            found += [one for one in value if type(one) is torch.Tensor or issubclass(type(one), torch.Tensor)]
    return found


def versions_of(tensors: Sequence[torch.Tensor]) -> tuple[int | None, ...]:
    """Return the version of each tensor; None for an inference tensor, which has no version counter."""
    if not function_mode_count() and all(map(PLAIN.__contains__, map(type, tensors))):
        try:
            return tuple([tensor._version for tensor in tensors])
        except RuntimeError:  # an inference tensor counts no versions
            return tuple(None if tensor.is_inference() else tensor._version for tensor in tensors)
    with DisableTorchFunction():
        inference = torch._C.TensorBase.is_inference
        return tuple(None if inference(tensor) else fact(tensor, "_version") for tensor in tensors)


def is_in_place(name: str) -> bool:
    """Return whether a function of this name changes its first argument: a method's name or an operation's.

    Tensors have no ``__imatmul__``.

    >>> [is_in_place(name) for name in ("add_", "_foreach_add_", "__iadd__", "iand", "setitem")]
    [True, True, True, True, True]
    >>> [is_in_place(name) for name in ("add", "__get__", "__imatmul__")]
    [False, False, False]
    """
    return name in _IN_PLACE_NAMES or (name.endswith("_") and not name.endswith("__"))


_OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")
_OPERATIONS = ("setitem", *(f"i{operator}" for operator in _OPERATORS))
_IN_PLACE_NAMES = frozenset({*_OPERATIONS, *(f"__{name}__" for name in _OPERATIONS)})


def first_argument(args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Any:
    """Return the first argument of a call; if there are only keywords, ``input``, ``self`` or the first of them."""
    if args:
        return args[0]
    given = kwargs or {}
    return next((given[name] for name in ("input", "self") if name in given), next(iter(given.values()), None))


def target_of(args: Sequence[Any], kwargs: Mapping[str, Any] | None, *, in_place: bool) -> Any:
    """Return the tensor, or the list of tensors, into which a call writes; None if it writes into none.

    A result that is an argument is no sign of it: ``x.contiguous()`` and a dropout in eval mode return theirs too. What
    is `in_place` is judged by the function's name (`is_in_place`).
    """
    out = kwargs.get("out") if kwargs else None
    if out is None and (in_place or (kwargs and kwargs.get("inplace") is True)):
        return first_argument(args, kwargs)
    return out
