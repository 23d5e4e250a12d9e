"""Targets: the arguments into which a PyTorch function writes, told by its name, ``inplace=True`` and ``out=``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def is_in_place(name: str) -> bool:
    """Return whether a function of this name changes its first argument.

    Both names of an operator are known, that of the method and that of the operation: ``__setitem__`` and ``setitem``.
    ``__imatmul__`` is not among them: tensors have none.

    >>> [is_in_place(name) for name in ("add_", "_foreach_add_", "__iadd__", "iand", "setitem")]
    [True, True, True, True, True]
    >>> [is_in_place(name) for name in ("add", "__get__", "__imatmul__")]
    [False, False, False]
    """
    return name in _IN_PLACE_NAMES or (name.endswith("_") and not name.endswith("__"))


_OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")
_OPERATIONS = ("setitem", *(f"i{operator}" for operator in _OPERATORS))
_IN_PLACE_NAMES = frozenset({*_OPERATIONS, *(f"__{name}__" for name in _OPERATIONS)})


def first_given(args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Any:
    """Return the first argument of a call; if there are only keywords, ``input``, ``self`` or the first of them."""
    if args:
        return args[0]
    given = kwargs or {}
    return next((given[name] for name in ("input", "self") if name in given), next(iter(given.values()), None))


def target_of(args: Sequence[Any], kwargs: Mapping[str, Any] | None, *, in_place: bool) -> Any:
    """Return the tensor, or the list of tensors, into which a call writes; None if it writes into none.

    That a function returns its argument says nothing: ``x.contiguous()`` and a dropout in eval mode do so too.

    Args:
        args: the positional arguments.
        kwargs: the keyword arguments.
        in_place: whether the name of the function says so, see `is_in_place`; asked once for each function.
    """
    out = kwargs.get("out") if kwargs else None
    if out is not None:
        return out
    if in_place or (kwargs and kwargs.get("inplace") is True):
        return first_given(args, kwargs)
    return None
