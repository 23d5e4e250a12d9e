"""Trace patches: what is replaced in PyTorch and Python while a forward is traced."""

from __future__ import annotations

import builtins
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from byname.model.operations import operation_name
from byname.source.location import is_torch

__all__ = ["Listener", "applied", "installed"]


class Listener(Protocol):
    """Who is told: the tracer.

    Attributes:
        paths: the modules that are watched, by identity.
        thread: the one in which they are.
        assigned: the attributes that the forward has set, by the module's identity and the name.
    """

    paths: dict[int, str]
    thread: int
    assigned: dict[tuple[int, str], Any]

    def read(self, module: nn.Module, name: str, value: Any) -> Any:
        """What reading an attribute gives."""

    def assign(self, module: nn.Module, name: str, value: Any) -> None:
        """An attribute is set."""

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What calling a function of PyTorch gives."""

    def apply(self, function: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What applying an autograd function gives."""

    def switch(self, enabled: bool) -> None:
        """The recording of gradients is switched."""

    def is_instance(self, value: fx.Proxy, kinds: tuple[Any, ...]) -> bool:
        """What ``isinstance`` says of a value."""


_one_at_a_time = threading.RLock()
"""Tracing patches classes of PyTorch, which two threads must not do at once."""


@contextmanager
def installed(tracer: Listener) -> Iterator[None]:
    """While inside, what this thread does with the modules of the tracer's model is told to the tracer."""
    with _one_at_a_time:
        with _attributes(tracer), _autograd_functions(tracer), _types(tracer), _Functions(tracer):
            yield


@contextmanager
def _attributes(tracer: Listener) -> Iterator[None]:
    """Reading and setting attributes of modules; as ``torch.fx`` does with calls, by patching their class."""
    thread, ours = threading.get_ident(), tracer.paths
    set_attribute = nn.Module.__setattr__

    def read(self: nn.Module, name: str) -> Any:
        if id(self) not in ours or name in _INNER or threading.get_ident() != thread:
            return object.__getattribute__(self, name)
        if (id(self), name) in tracer.assigned:
            return tracer.assigned[id(self), name]
        held = object.__getattribute__(self, "__dict__")
        for registry in (held["_parameters"], held["_buffers"]):
            if name in registry:
                return tracer.read(self, name, registry[name])
        return tracer.read(self, name, object.__getattribute__(self, name))

    def assign(self: nn.Module, name: str, value: Any) -> None:
        computed = isinstance(getattr(type(self), name, None), property)  # its setter sets what it is made of
        if id(self) in ours and not computed and threading.get_ident() == thread:
            tracer.assign(self, name, value)
        else:
            set_attribute(self, name, value)

    nn.Module.__getattribute__ = read  # type: ignore[method-assign, assignment]
    nn.Module.__setattr__ = assign  # type: ignore[method-assign]
    try:
        yield
    finally:
        del nn.Module.__getattribute__
        nn.Module.__setattr__ = set_attribute  # type: ignore[method-assign]


_INNER = frozenset({"__dict__", "__class__", "_modules", "_parameters", "_buffers"})


@contextmanager
def _autograd_functions(tracer: Listener) -> Iterator[None]:
    """Calls of autograd functions of the user, of which ``torch.fx`` keeps the forward and loses the backward."""
    original = torch.autograd.Function.__dict__["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == tracer.thread and _has_proxies((args, kwargs)):
            return tracer.apply(cls, args, kwargs)
        return original.__get__(None, cls)(*args, **kwargs)

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        torch.autograd.Function.apply = original  # type: ignore[method-assign]


@contextmanager
def _types(tracer: Listener) -> Iterator[None]:
    """What ``isinstance`` tells the user's code of a value: else it is no tensor, which chooses the wrong branch."""
    original = builtins.isinstance

    def told(thing: Any, kind: Any) -> bool:
        if original(thing, kind) or not issubclass(type(thing), fx.Proxy) or threading.get_ident() != tracer.thread:
            return original(thing, kind)
        code = sys._getframe(1).f_code
        if is_torch(code.co_filename) and code.co_name != "is_tensor":
            return False
        return tracer.is_instance(thing, kind if type(kind) is tuple else (kind,))

    builtins.isinstance = told
    try:
        yield
    finally:
        builtins.isinstance = original


def applied(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Applies an autograd function."""
    return function.apply(*args, **kwargs)


class _Functions(TorchFunctionMode):
    """Functions without a proxy among their arguments: random numbers, new tensors, and what is made of them."""

    def __init__(self, tracer: Listener) -> None:
        super().__init__()
        self._tracer = tracer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What becomes of one call."""
        kwargs = kwargs or {}
        if func is torch._C._set_grad_enabled:
            self._tracer.switch(bool(args[0]))
            return func(*args)
        if not _has_proxies((args, kwargs)) and operation_name(func) is None:
            return func(*args, **kwargs)
        return self._tracer.call(func, args, kwargs)


def _has_proxies(values: Any) -> bool:
    return any(issubclass(type(one), fx.Proxy) for one in pytree.tree_leaves(values))
