"""Is this tensor nothing but numbers in the CPU's memory, and does nothing in the program listen to what is done to it?

Nearly every tensor is, and then a copy costs little more than PyTorch's own. What is not goes the long way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import PLAIN

__all__ = ["bare", "functions_listen", "is_ordinary", "nothing_listens", "undisturbed"]

bare: Callable[[Any], torch.Tensor] = torch._C.TensorBase.data.__get__  # type: ignore[attr-defined]
"""The tensor without history, neither for backward nor, which ``detach`` would keep, for forward mode."""

functions_listen: Callable[[], int] = torch._C._len_torch_function_stack
"""How many function modes are on; under `DisableTorchFunction` they hear nothing."""

_operators_listen: Callable[[], int] = torch._C._len_torch_dispatch_stack
_transform: Callable[[], object] = torch._C._functorch.peek_interpreter_stack  # type: ignore[attr-defined, unused-ignore]


def nothing_listens() -> bool:
    """Whether no dispatch mode is on, and no transform such as ``vmap`` is at work."""
    return not _operators_listen() and _transform() is None


def _keyset(*names: str) -> torch._C.DispatchKeySet:
    whole = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, names[0]))
    for name in names[1:]:
        whole = whole | torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name))
    return whole


_keys: Callable[[torch.Tensor], torch._C.DispatchKeySet] = torch._C._dispatch_keys
_ORDINARY = frozenset(
    one.raw_repr()
    for one in (_keyset("CPU", "AutogradCPU", "AutocastCPU", "ADInplaceOrView"), _keyset("CPU", "AutocastCPU"))
)
"""What a dense tensor on the CPU has, and one made under ``inference_mode``.

By its keys PyTorch decides how an operator treats a tensor: they tell device, layout, lazy conjugation and wrappers all
at once.
"""


def is_ordinary(tensor: Any) -> bool:
    """Whether a value is a tensor of PyTorch's own class, and dense, whole and on the CPU."""
    return type(tensor) in PLAIN and _keys(tensor).raw_repr() in _ORDINARY


_LISTENERS = _keyset("Python", "PythonTLSSnapshot", "FuncTorchDynamicLayerFrontMode", "FuncTorchDynamicLayerBackMode")


@contextmanager
def undisturbed() -> Iterator[None]:
    """Context in which operators work on tensors themselves: no mode, no subclass and no transform sees them."""
    with DisableTorchFunction(), torch._C._ExcludeDispatchKeyGuard(_LISTENERS):
        yield
