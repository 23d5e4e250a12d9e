"""Which Python function runs when a method of a module is called? Behind properties, bound methods and decorators."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from byname.errors import BadArgumentError

__all__ = ["gets_no_owner", "method_of"]


def method_of(module: nn.Module, name: str) -> FunctionType | None:
    """The innermost Python function behind ``module.<name>``; None where the module has no method of that name.

    The module's own ``__dict__`` comes first, then its classes. Bound methods, properties, partial methods and
    decorators are looked through: ``__wrapped__``, or else a function of that name in the decorator's closure. Nothing
    of the user's runs.

    Raises:
        BadArgumentError: what is there has no Python code that gets the module: it is compiled by ``torch.jit``, a
            static or class method, written in C, or another callable object.

    Example:
        >>> method_of(nn.ReLU(), "forward").__qualname__
        'ReLU.forward'
        >>> method_of(nn.ReLU(), "backward") is None
        True
    """
    if isinstance(module, torch.jit.ScriptModule):
        raise _no_python(module, name, "it was compiled by torch.jit")
    raw = _raw(module, name)
    if raw is None:
        return None
    seen: list[Any] = []
    while (inner := _one_inside(raw, name)) is not None and not any(inner is one for one in seen):
        seen.append(raw)
        raw = inner
    if isinstance(raw, FunctionType):
        return raw
    if not callable(raw) and not isinstance(raw, staticmethod | classmethod):
        return None
    raise _no_python(module, name, _why_not(raw))


def gets_no_owner(function: FunctionType, owner: object) -> bool:
    """Whether a function was put on the instance itself, to be called without the instance as first argument."""
    own = vars(owner).values() if isinstance(owner, nn.Module) else ()
    return any(one is function for one in own)


def _raw(module: nn.Module, name: str) -> Any:
    """What the attribute is, unread: neither properties nor ``__getattr__`` run."""
    ofs = [vars(cls)[name] for cls in type(module).__mro__ if name in vars(cls)]
    if ofs and isinstance(ofs[0], property):
        return ofs[0]
    own = vars(module)
    return own[name] if name in own else next(iter(ofs), None)


def _one_inside(raw: Any, name: str) -> Any:
    """The function that a callable is about; None where there is none inside."""
    if isinstance(raw, MethodType):
        return raw.__func__
    if isinstance(raw, property):
        return raw.fget
    if isinstance(raw, staticmethod | classmethod):
        return None
    if (wrapped := _wrapped(raw)) is not None:
        return wrapped
    if isinstance(
        raw, functools.partial | functools.partialmethod | functools.cached_property | functools.singledispatchmethod
    ):
        return raw.func
    if isinstance(raw, FunctionType) and raw.__code__.co_name != name:
        return next(_of_that_name(raw, name), None)
    return None


def _wrapped(raw: Any) -> Any:
    """What `functools.wraps` noted, read past the object's own ``__getattr__``."""
    try:
        return object.__getattribute__(raw, "__dict__").get("__wrapped__")
    except AttributeError:  # an object without __dict__
        return None


def _of_that_name(function: FunctionType, name: str) -> Iterator[Any]:
    """The functions of a name that a decorator without ``functools.wraps`` keeps in its closure."""
    for cell in function.__closure__ or ():
        content = _content(cell)
        inner = content.__func__ if isinstance(content, MethodType) else content
        if isinstance(inner, FunctionType) and inner.__code__.co_name == name:
            yield inner


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell
        return None


def _why_not(raw: Any) -> str:
    if isinstance(raw, staticmethod | classmethod):
        return f"it is a {type(raw).__name__}, which does not get the module"
    if type(raw).__module__.startswith("torch.jit") or isinstance(raw, torch.ScriptFunction):
        return "it was compiled by torch.jit"
    return f"it is of type {type(raw).__name__}, which has no Python code"


def _no_python(module: nn.Module, name: str, why: str) -> BadArgumentError:
    return BadArgumentError(
        f"the variables of {type(module).__name__}.{name} cannot be listened to: {why}. "
        "Watch the module itself, or the operations in it."
    )
