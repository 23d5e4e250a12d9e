"""Trace patches: the parts of PyTorch and Python that are patched while a forward is traced."""

from __future__ import annotations

import builtins
import functools
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


class Listener(Protocol):
    """The methods and attributes of the tracer that the patches use.

    Attributes:
        paths: the paths of the model's modules, by id.
        thread: the thread that traces.
        assigned: the attributes that the forward has set, by the module's id and the name.
    """

    paths: dict[int, str]
    thread: int
    assigned: dict[tuple[int, str], Any]

    @property
    def computing(self) -> bool:
        """Whether the model runs for the tracer's own questions, and nothing of it belongs in the graph."""

    def read(self, module: nn.Module, name: str, value: Any) -> Any:
        """Return the value that the forward gets when it reads an attribute."""

    def assign(self, module: nn.Module, name: str, value: Any) -> None:
        """Record that the forward sets an attribute."""

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of a call of a PyTorch function."""

    def apply(self, function: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of a call of a custom autograd function."""

    def switch(self, enabled: bool) -> None:
        """Record that the forward switches grad mode."""

    def is_instance(self, value: fx.Proxy, kinds: tuple[Any, ...]) -> bool:
        """Return the result of ``isinstance``."""


_one_at_a_time = threading.RLock()
"""Tracing patches classes of PyTorch, so only one thread may trace at a time."""


@contextmanager
def installed(tracer: Listener) -> Iterator[None]:
    """Report attributes, calls and types in this thread's forward to the tracer, inside the block."""
    with _one_at_a_time:
        with _attributes(tracer), _autograd_functions(tracer), _factories(tracer), _types(tracer), _Functions(tracer):
            yield


@contextmanager
def _attributes(tracer: Listener) -> Iterator[None]:
    """Patch reading and setting of attributes on `nn.Module`, as ``torch.fx`` patches its ``__call__``."""
    thread, ours = threading.get_ident(), tracer.paths
    set_attribute = nn.Module.__setattr__

    def read(self: nn.Module, name: str) -> Any:
        if id(self) not in ours or name in _INNER or threading.get_ident() != thread or tracer.computing:
            return object.__getattribute__(self, name)
        if (id(self), name) in tracer.assigned:
            return tracer.assigned[id(self), name]
        held = object.__getattribute__(self, "__dict__")
        for registry in (held["_parameters"], held["_buffers"]):
            if name in registry:
                return tracer.read(self, name, registry[name])
        return tracer.read(self, name, object.__getattribute__(self, name))

    def assign(self: nn.Module, name: str, value: Any) -> None:
        computed = isinstance(getattr(type(self), name, None), property)  # its setter sets other attributes
        if id(self) in ours and not computed and threading.get_ident() == thread and not tracer.computing:
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
    """Patch ``Function.apply``: ``torch.fx`` keeps the forward of a custom autograd function but loses its backward."""
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
def _factories(tracer: Listener) -> Iterator[None]:
    """Patch the functions that make a tensor from numbers: with sizes that are proxies they refuse to be called."""

    def recording(original: Any) -> Any:
        @functools.wraps(original)
        def make(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == tracer.thread and not tracer.computing and _has_proxies((args, kwargs)):
                return tracer.call(original, args, kwargs)
            return original(*args, **kwargs)

        return make

    originals = {name: getattr(torch, name) for name in _FACTORIES}
    for name, original in originals.items():
        setattr(torch, name, recording(original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(torch, name, original)


_FACTORIES = (
    "arange as_tensor empty eye full linspace logspace ones rand randint randn randperm scalar_tensor tensor "
    "tril_indices triu_indices zeros"
).split()


@contextmanager
def _types(tracer: Listener) -> Iterator[None]:
    """Patch ``isinstance``: in the user's code a proxy must count as a tensor; otherwise the wrong branch would run."""
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
    """Apply an autograd function."""
    return function.apply(*args, **kwargs)


class _Functions(TorchFunctionMode):
    """Records calls without a proxy argument: random numbers, new tensors, and calls on these."""

    def __init__(self, tracer: Listener) -> None:
        super().__init__()
        self._tracer = tracer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record a call and return its proxy; run it if it is not an operation and has no proxy argument."""
        kwargs = kwargs or {}
        if func is torch._C._set_grad_enabled:
            self._tracer.switch(bool(args[0]))
            return func(*args)
        if not _has_proxies((args, kwargs)) and operation_name(func) is None:
            return func(*args, **kwargs)
        return self._tracer.call(func, args, kwargs)


def _has_proxies(values: Any) -> bool:
    return any(issubclass(type(one), fx.Proxy) for one in pytree.tree_leaves(values))
