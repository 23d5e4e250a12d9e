"""What stands for a tensor while a forward is traced? Proxies that leave out nothing of what the program does to it.

The proxies of ``torch.fx`` turn ``x += y`` into ``x = x + y``, refuse ``x[0] = y``, and take ``x.grad = y`` for an
attribute of the proxy (PyTorch 2.13). They cannot say by ``__class__`` that they are tensors: C++ would believe it.
"""

from __future__ import annotations

import dis
import operator
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
from torch import fx

__all__ = ["CHANGES", "REPORTED", "Flag", "Untraceable", "Value"]


class Untraceable(BaseException):
    """A statement cannot be in a graph; the message says why, to follow on the statement.

    No `Exception`, lest the user's code catches it and goes another way than with a tensor.
    """


class Value(fx.Proxy):
    """A value that is known only when the model runs."""

    tracer: Any

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__") and not hasattr(torch.Tensor, name):
            raise AttributeError(name)  # protocols of Python that a tensor does not have
        return Property(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            self.tracer.create_proxy("call_function", setattr, (self, name, value), {})

    def __setitem__(self, key: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", setitem, (self, key, value), {})

    def __delitem__(self, key: Any) -> None:
        self.tracer.create_proxy("call_function", operator.delitem, (self, key), {})

    def __iter__(self) -> Iterator[Any]:
        frame = sys._getframe(1)
        last = next((one for one in dis.get_instructions(frame.f_code) if one.offset == frame.f_lasti), None)
        if last is None or last.opname != "UNPACK_SEQUENCE":
            raise Untraceable("goes through the items of a value, whose number is known only when the model runs")
        return iter([self.tracer.part(self, index) for index in range(last.arg or 0)])

    def __bool__(self) -> bool:
        raise Untraceable("depends on a value that is known only when the model runs")

    def _needed(self) -> NoReturn:
        raise Untraceable("needs a number that is known only when the model runs")

    __index__ = __int__ = __float__ = __complex__ = __len__ = _needed

    def __contains__(self, item: Any) -> bool:
        raise Untraceable("asks what is in a value that is known only when the model runs")

    def __reversed__(self) -> Any:
        raise Untraceable("goes through the items of a value, whose number is known only when the model runs")

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise Untraceable("copies a value by `copy`; its method `clone` can be part of a graph")

    __copy__ = __deepcopy__
    __hash__ = object.__hash__


class Property(Value, fx.proxy.Attribute):
    """An attribute of a value, or one of its methods."""


_OWN = frozenset({"tracer", "node", "root", "attr", "_node"})


class Flag(Value):
    """The ``training`` flag of a module. As an argument it is read whenever the model runs; a decision is noted."""

    def __init__(self, node: fx.Node, tracer: Any, decide: Callable[[], bool]) -> None:
        super().__init__(node, tracer)
        object.__setattr__(self, "_decide", decide)

    def __bool__(self) -> bool:
        return bool(object.__getattribute__(self, "_decide")())

    def __index__(self) -> int:  # type: ignore[override]
        return int(bool(self))

    __int__ = __index__  # type: ignore[assignment]

    def __float__(self) -> float:  # type: ignore[override]
        return float(bool(self))

    def __eq__(self, other: object) -> bool:
        return bool(self) == other

    def __ne__(self, other: object) -> bool:
        return bool(self) != other

    def __and__(self, other: Any) -> Any:
        return bool(self) & other

    def __or__(self, other: Any) -> Any:
        return bool(self) | other

    __rand__, __ror__, __hash__ = __and__, __or__, object.__hash__


def setitem(value: Any, key: Any, item: Any) -> None:
    """Does ``value[key] = item``."""
    value[key] = item


def _changing(name: str) -> Callable[[Any, Any], Any]:
    """A function that does ``a += b``. That of `operator` would be written ``a += b`` in the code of the graph too,
    where ``a`` may be a number that is used once more."""
    change = getattr(operator, name)

    def changed(value: Any, other: Any) -> Any:
        return change(value, other)

    changed.__name__ = changed.__qualname__ = name
    return changed


CHANGES = {
    name: _changing(name)
    for name in "iadd isub imul itruediv ifloordiv imod ipow imatmul ilshift irshift iand ior ixor".split()
}
"""Operators in place, by their names in `operator`."""
globals().update(CHANGES)  # so that pickle finds them


def _operator_in_place(name: str) -> Callable[[Value, Any], Any]:
    def change(self: Value, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", CHANGES[name], (self, other), {})

    return change


for _name in CHANGES:
    setattr(Value, f"__{_name}__", _operator_in_place(_name))

REPORTED = {
    operator.truediv: ("div", "rdiv"),
    operator.sub: ("sub", "rsub"),
    operator.floordiv: ("floordiv", "rfloordiv"),
    operator.mod: ("remainder", "rmod"),
    operator.pow: ("pow", "rpow"),
    operator.matmul: ("matmul", "rmatmul"),
    operator.lshift: ("lshift", "rlshift"),
    operator.rshift: ("rshift", "rrshift"),
    operator.and_: ("and", "bitwise_and"),
    operator.or_: ("or", "bitwise_or"),
    operator.xor: ("xor", "bitwise_xor"),
    operator.pos: ("positive", "positive"),
    CHANGES["iadd"]: ("add_", "add_"),
    CHANGES["isub"]: ("sub_", "sub_"),
    CHANGES["imul"]: ("mul_", "mul_"),
    CHANGES["itruediv"]: ("div_", "div_"),
    CHANGES["ifloordiv"]: ("floor_divide_", "floor_divide_"),
    CHANGES["imod"]: ("remainder_", "remainder_"),
    CHANGES["ipow"]: ("pow_", "pow_"),
}
"""Under which name PyTorch reports an operator, and with a number on the left. Others have the operator's own name."""
