"""Proxies: objects that replace tensors while a forward is traced; they put every use of a tensor into the graph.

The proxies of ``torch.fx`` turn ``x += y`` into ``x = x + y``, refuse ``x[0] = y``, and treat ``x.grad = y`` as an
attribute of the proxy (PyTorch 2.13). Their ``__class__`` must not be that of a tensor: C++ would rely on it.
"""

from __future__ import annotations

import dis
import linecache
import operator
import os
import sys
from collections.abc import Callable, Iterator, Set
from types import CodeType, FrameType
from typing import Any, NoReturn

import torch
from torch import fx, nn

from byname.errors import RewriteError
from byname.model.operations import operation_name
from byname.source.location import is_torch
from byname.source.tracebacks import shown_file


class Untraceable(BaseException):
    """A statement cannot be in a graph. The message says why; it follows the statement in the sentence of the error.

    It is not an `Exception`, since the user's code might catch that and take another branch than with a tensor.
    """


class Value(fx.Proxy):
    """A value that is known only when the model runs."""

    tracer: Any

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__") and not hasattr(torch.Tensor, name):
            raise AttributeError(name)  # a Python protocol that a tensor does not have
        return self.tracer.attribute(Property(self, name), name)

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
            return iter(self.tracer.items(self, self._ask("len", _ITEMS)))
        return iter([self.tracer.part(self, index) for index in range(last.arg or 0)])

    def __bool__(self) -> bool:
        return bool(self._ask("bool", "depends on a value that is known only when the model runs"))

    def __index__(self) -> int:
        return int(self._ask("index", _NUMBER))

    def __int__(self) -> int:
        return int(self._ask("int", _NUMBER))

    def __float__(self) -> float:
        return float(self._ask("float", _NUMBER))

    def __complex__(self) -> complex:
        return complex(self._ask("complex", _NUMBER))

    def __len__(self) -> int:
        return int(self._ask("len", _NUMBER))

    def _ask(self, question: str, otherwise: str) -> Any:
        return self.tracer.answer(self, question, otherwise)

    def __contains__(self, item: Any) -> bool:
        raise Untraceable("asks what is in a value that is known only when the model runs")

    def __reversed__(self) -> Any:
        return reversed([*self])

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise Untraceable("copies a value by `copy`; its method `clone` can be part of a graph")

    __copy__ = __deepcopy__
    __hash__ = object.__hash__


_NUMBER = "needs a number that is known only when the model runs"
_ITEMS = "goes through the items of a value, whose number is known only when the model runs"


class Property(Value, fx.proxy.Attribute):
    """An attribute or method of a value."""


_OWN = frozenset({"tracer", "node", "root", "attr", "_node"})


class Flag(Value):
    """The ``training`` flag of a module. As an argument it is read on each run; a branch on it is recorded."""

    def __init__(self, node: fx.Node, tracer: Any, decide: Callable[[], bool]) -> None:
        super().__init__(node, tracer)
        object.__setattr__(self, "_decide", decide)

    def __bool__(self) -> bool:
        return bool(object.__getattribute__(self, "_decide")())

    def __index__(self) -> int:
        return int(bool(self))

    __int__ = __index__

    def __float__(self) -> float:
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
    """Set ``value[key] = item``."""
    value[key] = item


def _changing(name: str) -> Callable[[Any, Any], Any]:
    """Return a function for an in-place operator, such as ``a += b``.

    The code of a graph would write `operator.iadd` itself as the statement ``a += b``, and the variable ``a`` may be
    used again for a number.
    """
    change = getattr(operator, name)

    def changed(value: Any, other: Any) -> Any:
        return change(value, other)

    changed.__name__ = changed.__qualname__ = name
    return changed


CHANGES = {
    name: _changing(name)
    for name in "iadd isub imul itruediv ifloordiv imod ipow imatmul ilshift irshift iand ior ixor".split()
}
"""The in-place operators, by their names in `operator`."""
globals().update(CHANGES)  # so that pickle finds them


def _operator_in_place(name: str) -> Callable[[Value, Any], Any]:
    def change(self: Value, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", CHANGES[name], (self, other), {})

    return change


for _changed in CHANGES:
    setattr(Value, f"__{_changed}__", _operator_in_place(_changed))

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
"""The names by which PyTorch reports an operator: usually, and with a number on the left. Others keep their name."""


_SEVERAL = frozenset(
    "chunk split split_with_sizes tensor_split hsplit vsplit dsplit unbind sort topk var_mean std_mean aminmax cummax "
    "cummin kthvalue svd qr eigh eig slogdet meshgrid broadcast_tensors lstm gru rnn_tanh rnn_relu unsafe_chunk "
    "unsafe_split multi_head_attention_forward max_pool1d_with_indices max_pool2d_with_indices "
    "max_pool3d_with_indices frexp lu_factor".split()
)
_SEVERAL_ALONG = frozenset({"max", "min", "median", "nanmedian", "mode"})
_SEVERAL_MODULES = (nn.RNNBase, nn.MultiheadAttention, nn.LSTMCell)
_PLAIN_PROPERTIES = frozenset(
    "shape ndim dtype device layout requires_grad is_cuda is_sparse is_leaf itemsize nbytes names grad_fn "
    "output_nr is_meta is_quantized".split()
)
_PLAIN_METHODS = frozenset(
    "size stride dim ndimension numel nelement element_size storage_offset item tolist get_device data_ptr "
    "has_names __len__ type".split()
)


class Values:
    """The kinds of values in a graph, collected while it is built.

    Attributes:
        plain: nodes whose value is a number, a size, a dtype or the like.
        several: nodes whose value is a tuple or list.
    """

    def __init__(self) -> None:
        self.plain: set[fx.Node] = set()
        self.several: set[fx.Node] = set()

    def learn(self, node: fx.Node) -> str | None:
        """Note the kind of a function's result; return the name of the operation, or None if it is not an operation."""
        if gives_several(node):
            self.several.add(node)
        if _gives_plain(node, self.plain):
            self.plain.add(node)
            return None
        return self._operation(node)

    def same(self, new: fx.Node, old: fx.Node) -> None:
        """Give a node the kind of another node."""
        for kind in (self.plain, self.several):
            if old in kind:
                kind.add(new)

    def _operation(self, node: fx.Node) -> str | None:
        """Return the name of the operation at a node; None if it is not an operation."""
        target: Any = node.target
        if node.op == "call_method":
            method = getattr(torch.Tensor, target, None)
            return None if method is None else operation_name(method)
        if target is getattr:
            return operation_name(_Read(str(node.args[1])))
        if target is operator.delitem or (target is operator.getitem and self._picks(node)):
            return None
        if target in REPORTED:
            first = node.args[0]
            return REPORTED[target][not isinstance(first, fx.Node) or first in self.plain]
        module = str(getattr(target, "__module__", None) or "torch")
        if module in ("_operator", "byname.rewriting.proxies"):
            return str(target.__name__).strip("_")
        return operation_name(target) if module.partition(".")[0] == "torch" else None

    def _picks(self, node: fx.Node) -> bool:
        """Return whether ``a[b]`` picks one of several values, rather than indexing a tensor."""
        return node.args[0] in self.several or isinstance(node.args[1], str)


def gives_several(call: fx.Node | nn.Module) -> bool:
    """Return whether a function or module returns a tuple or list, so that ``[0]`` on it does not index a tensor."""
    if isinstance(call, nn.Module):
        return isinstance(call, _SEVERAL_MODULES)
    name = _name(call)
    if name in _SEVERAL_ALONG:
        along = call.args[1] if len(call.args) > 1 else call.kwargs.get("dim")
        return isinstance(along, int)
    return name in _SEVERAL


def _gives_plain(node: fx.Node, plain: Set[fx.Node]) -> bool:
    """Return whether a function returns a number, a size, a dtype or the like, rather than a tensor.

    Args:
        node: the call.
        plain: the earlier calls that return such values.
    """
    if node.op == "call_method":
        name = str(node.target)
        return name in _PLAIN_METHODS or name.startswith("is_") or node.args[0] in plain
    if node.target is getattr:
        return node.args[1] in _PLAIN_PROPERTIES or node.args[0] in plain
    if getattr(node.target, "__module__", None) in ("_operator", "math", "builtins", "byname.rewriting.proxies"):
        return bool(node.all_input_nodes) and all(one in plain for one in node.all_input_nodes)
    return node.op == "call_function" and operation_name(node.target) is None and torch.is_tensor is not node.target


def _name(node: fx.Node) -> str:
    return str(node.target if node.op == "call_method" else getattr(node.target, "__name__", "")).strip("_")


class _Read:
    """Stands for the ``__get__`` of a property in `operation_name`."""

    __name__ = "__get__"

    def __init__(self, attribute: str) -> None:
        self.__self__ = type(attribute, (), {})


_MODULES = os.path.join(os.path.dirname(nn.__file__), "modules", "")  # noqa: PTH118, PTH120 - as code objects have it
_INSTEAD = "byname.interject(model, where, interjection) works on the model as it is"


def untraceable(model: nn.Module, error: BaseException, option: str = "") -> RewriteError:
    """Return the error that says why a forward could not be traced.

    Args:
        model: the model to rewrite.
        error: the error that tracing raised.
        option: an option of `byname.rewrite` that may help.
    """
    where = _statement(error)
    if isinstance(error, Untraceable):
        reason = str(error)
    elif isinstance(error, AttributeError | TypeError) and "Proxy" in str(error):
        reason = f"needs more of a value than a graph can tell before the model runs ({error})"
    else:
        reason = f"raises {type(error).__name__} where its values are not known yet: {error}"
    helps = (
        f"If it asks for a shape, dtype or device, give {option}, the arguments of a call; otherwise " if option else ""
    )
    return RewriteError(f"{type(model).__name__} cannot be rewritten: {where} {reason}. {helps}{_INSTEAD}")


def _of_python(frame: FrameType) -> bool:
    """Return whether the code belongs to Python or NumPy, so that the user cannot change it."""
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    return package in sys.stdlib_module_names or package == "numpy"


def _statement(error: BaseException) -> str:
    """Return the last statement of the user, or of ``torch.nn`` if there is none, with its place.

    For example ``` `if x.sum() > 0:` in Model.forward (model.py:14)```.
    """
    found: tuple[CodeType, int] | None = None
    inside: tuple[CodeType, int] | None = None
    trace: Any = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not is_torch(code.co_filename) and not _of_python(trace.tb_frame):
            found = code, trace.tb_lineno
        elif code.co_filename.startswith(_MODULES):
            inside = code, trace.tb_lineno
        trace = trace.tb_next
    found = found or inside
    if found is None:
        return "its forward"
    code, line = found
    text = linecache.getline(code.co_filename, line).strip()
    place = f"{code.co_qualname} ({shown_file(code.co_filename)}:{line})"
    return f"`{text}` in {place}" if text else place
