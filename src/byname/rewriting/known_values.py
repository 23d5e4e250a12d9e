"""Known values: what the example of a call tells about the values of its graph.

A forward that asks for a shape, a dtype or a device cannot be traced with stand-ins alone. Fake tensors, which have all
of these and no data, are computed beside the graph and answer. A graph that was made with such answers holds for the
metadata of its example, see `metadata_of`, and asks again when it runs, see `checked`.
"""

from __future__ import annotations

import logging
import operator
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.utils import _pytree as pytree

from byname.errors import RewriteError
from byname.rewriting.outside import restored, switched
from byname.source.location import is_torch
from byname.source.tracebacks import is_byname, shown_file


class _Unknown:
    """A value of which the example tells nothing."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Any = _Unknown()

QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "bool": bool,
    "index": operator.index,
    "int": int,
    "float": float,
    "complex": complex,
    "len": len,
    "value": lambda value: value,
}
"""What Python may ask of a value, by name."""


class KnownValues:
    """The values of one trace, computed with fake tensors.

    Args:
        given: the arguments of the call, by the names of their placeholders.

    Attributes:
        computing: whether a value is being computed at this moment; then nothing may go into the graph.
        asked: whether the forward was given an answer.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.computing = False
        self.asked = False
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._values: dict[fx.Node, Any] = {}
        self._given = {name: pytree.tree_map(self._faked, value) for name, value in given.items()}

    def of(self, node: fx.Node) -> Any:
        """Return the value of a node, or UNKNOWN."""
        return self._values.get(node, UNKNOWN)

    def same(self, new: fx.Node, old: fx.Node) -> None:
        """Give a node the value of another."""
        self._values[new] = self.of(old)

    def learn(self, node: fx.Node, read: Callable[[str], Any]) -> None:
        """Compute the value of a node.

        Args:
            node: the node; the nodes that it uses come before it.
            read: returns the object at a path of the model.
        """
        if node.op == "placeholder":
            self._values[node] = self._given[str(node.target)]
        elif node.target not in _WITHOUT_VALUE and all(self.of(one) is not UNKNOWN for one in node.all_input_nodes):
            self._values[node] = self._computed(node, read)

    def _computed(self, node: fx.Node, read: Callable[[str], Any]) -> Any:
        args, kwargs = (fx.node.map_arg(one, self.of) for one in (node.args, node.kwargs))
        self.computing = True
        profile = sys.getprofile()  # it hears what the forward asks for, and this is not the forward
        sys.setprofile(None)
        try:
            with torch._C.DisableTorchFunction(), self._mode, _unlogged():
                return self._called(node, args, kwargs, read)
        except Exception:  # noqa: BLE001 - no kernel for fake tensors, only data can tell, or the program's own mistake
            return UNKNOWN
        finally:
            sys.setprofile(profile)
            self.computing = False

    def _called(self, node: fx.Node, args: Any, kwargs: Any, read: Callable[[str], Any]) -> Any:
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        if node.op == "call_function":
            return node.target(*args, **kwargs)  # type: ignore[operator]
        found = read(str(node.target))
        if node.op == "get_attr":
            return self._faked(found)
        return UNKNOWN if _calls_hooks(found) else self._of_module(found, args, kwargs)

    def _of_module(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Return what a leaf module returns, with fake tensors for its own: batch normalization changes its buffers."""
        held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return functional_call(module, {name: self._mode.from_tensor(one) for name, one in held.items()}, args, kwargs)

    def _faked(self, value: Any) -> Any:
        """Return the fake tensor of a tensor, and UNKNOWN for an object whose methods could change it."""
        if isinstance(value, torch.Tensor):
            try:
                return self._mode.from_tensor(value)
            except Exception:  # noqa: BLE001 - a subclass of tensors that has no fake one
                return UNKNOWN
        plain = (type(None), bool, int, float, complex, str, torch.dtype, torch.device, nn.Module, type)
        return value if isinstance(value, plain) else UNKNOWN


_LOG = logging.getLogger("torch._subclasses.fake_tensor")


@contextmanager
def _unlogged() -> Iterator[None]:
    """Keep PyTorch from logging what fake tensors cannot do; it is the answer UNKNOWN here."""
    before, _LOG.disabled = _LOG.disabled, True
    try:
        yield
    finally:
        _LOG.disabled = before


_WITHOUT_VALUE: tuple[Any, ...] = (setattr, switched, restored)


def _calls_hooks(module: nn.Module) -> bool:
    """Return whether the call of a module would run hooks, which are the user's."""
    return any(one._forward_hooks or one._forward_pre_hooks for one in module.modules())


def checked(value: Any, question: str, answer: Any, statement: str) -> None:
    """Raise RewriteError if a value gives another answer than when the forward was traced.

    Args:
        value: the value that the forward asks.
        question: one of the keys of `QUESTIONS`.
        answer: the answer when the forward was traced.
        statement: where the forward asks.
    """
    now = QUESTIONS[question](value)
    if now != answer:
        raise RewriteError(
            f"{statement} was traced where it got {answer!r}; now it gets {now!r}, because of what an interjection "
            "returned, and the graph holds for the former only. byname.interject(model, where, "
            "interjection) works on the model as it is"
        )


def asker() -> str:
    """Return the place of the user's or a library's code that is running."""
    frame: Any = sys._getframe(1)
    while frame is not None and (is_byname(frame.f_code.co_filename) or is_torch(frame.f_code.co_filename)):
        frame = frame.f_back
    return "the forward" if frame is None else f"{shown_file(frame.f_code.co_filename)}:{frame.f_lineno}"


def rebuilt(kind: type, attributes: Mapping[str, Any]) -> Any:
    """Return a new object of a class with these attributes, as the forward had made it; no code of the class runs."""
    new: Any = object.__new__(kind)
    new.__dict__.update(attributes)
    return new


def metadata_of(values: Mapping[str, Any], model: nn.Module) -> Hashable:
    """Return what a graph that was made with answers depends on: all but the data of the arguments and of the model.

    Args:
        values: the arguments of a call, by name.
        model: the model.
    """
    leaves, structure = pytree.tree_flatten(dict(values))
    modules = [*model.modules()]
    held = {(one.dtype, one.device) for module in modules for one in _tensors(module)}
    return repr(structure), tuple(_metadata(one) for one in leaves), frozenset(held)


def _tensors(module: nn.Module) -> list[torch.Tensor]:
    return [one for one in (*module._parameters.values(), *module._buffers.values()) if one is not None]


def _metadata(value: Any) -> Hashable:
    if isinstance(value, torch.Tensor):
        strides = value.stride() if value.layout is torch.strided else ()
        return type(value), value.shape, strides, value.dtype, value.device, value.requires_grad, value.layout
    kind: type = type(value)
    plain = isinstance(value, (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device))
    return (kind, value) if plain else kind
