"""What does a call in a graph give, and is it an operation? Some give numbers, some several tensors at once."""

from __future__ import annotations

import operator
from collections.abc import Set
from typing import Any

import torch
from torch import fx, nn

from byname.model.operations import operation_name
from byname.rewriting.proxies import REPORTED

__all__ = ["Values", "gives_several"]

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
    """What is known of the values of a graph while it is made.

    Attributes:
        plain: nodes that give a number, a size, a dtype or the like.
        several: nodes that give a tuple or list.
    """

    def __init__(self) -> None:
        self.plain: set[fx.Node] = set()
        self.several: set[fx.Node] = set()

    def learn(self, node: fx.Node) -> str | None:
        """Takes a call of a function; the name of the operation that it is, None if it is none."""
        if gives_several(node):
            self.several.add(node)
        if _gives_plain(node, self.plain):
            self.plain.add(node)
            return None
        return self._operation(node)

    def same(self, new: fx.Node, old: fx.Node) -> None:
        """A node gives what another gives."""
        for kind in (self.plain, self.several):
            if old in kind:
                kind.add(new)

    def _operation(self, node: fx.Node) -> str | None:
        """The name of the operation that a node is, None if it is none."""
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
        """Whether ``a[b]`` picks one of several values, and does not index a tensor."""
        return node.args[0] in self.several or isinstance(node.args[1], str)


def gives_several(call: fx.Node | nn.Module) -> bool:
    """Whether a function or module gives a tuple or list, so that ``[0]`` on it is no indexing of a tensor."""
    if isinstance(call, nn.Module):
        return isinstance(call, _SEVERAL_MODULES)
    name = _name(call)
    if name in _SEVERAL_ALONG:
        along = call.args[1] if len(call.args) > 1 else call.kwargs.get("dim")
        return isinstance(along, int)
    return name in _SEVERAL


def _gives_plain(node: fx.Node, plain: Set[fx.Node]) -> bool:
    """Whether a function gives a number, a size, a dtype or the like, and no tensor.

    Args:
        node: the call.
        plain: the calls before it that do.
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
