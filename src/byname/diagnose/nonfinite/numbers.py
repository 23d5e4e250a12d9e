"""Are all numbers of a tensor finite, and which are not? Asked without a trace in the program's modes and graphs."""

from __future__ import annotations

import cmath
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from byname.reading.quiet import untouched
from byname.reading.tensor import PLAIN

__all__ = ["can_look", "is_finite", "kind_of", "looking", "not_finite"]


@contextmanager
def looking() -> Iterator[None]:
    """Context in which tensors are computed with, unseen by modes, graphs and the classes of the tensors."""
    with untouched(), torch.no_grad(), _disable_current_modes():
        yield


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether no number of a tensor is NaN or Inf; True also for one that cannot be looked at."""
    if type(tensor) not in PLAIN and not _has_no_own_code(tensor):
        return True
    with untouched():
        try:
            if _is_usual(tensor) and math.isfinite(tensor.detach().sum().item()):
                return True
            if not can_look(tensor):
                return True
            if torch._C._len_torch_dispatch_stack():
                with _disable_current_modes():
                    return _is_finite(tensor)
            return _is_finite(tensor)
        except Exception:  # noqa: BLE001 - each backend and layout refuses other operations; nothing is claimed of these
            return True


def _is_usual(tensor: torch.Tensor) -> bool:
    """Whether a plain tensor can be read without a further question. To be called inside `untouched`."""
    return (
        tensor.dtype in _USUAL
        and tensor.layout is torch.strided
        and tensor.is_cpu
        and not tensor.is_nested
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch._C._get_tracing_state() is None
        and not torch._C._len_torch_dispatch_stack()
    )


_USUAL = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})


def can_look(tensor: torch.Tensor) -> bool:
    """Whether numbers can be read from a tensor here and now. To be called inside `untouched`."""
    kind = tensor.dtype
    if not (kind.is_floating_point or kind.is_complex) or tensor.is_meta or tensor.is_nested:
        return False
    if torch._C._get_tracing_state() is not None or torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def not_finite(tensor: torch.Tensor) -> torch.Tensor:
    """A mask of the numbers that are NaN or Inf. To be called inside `untouched`."""
    return ~torch.isfinite(_dense(tensor.detach()))


def kind_of(tensor: torch.Tensor) -> str:
    """``NaN``, ``Inf`` or ``NaN and Inf``. To be called inside `untouched`."""
    values = _dense(tensor.detach())
    found = {"NaN": torch.isnan(values).any().item(), "Inf": torch.isinf(values).any().item()}
    return " and ".join(word for word, there in found.items() if there)


def _has_no_own_code(tensor: Any) -> bool:
    return type(tensor).__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl


def _is_finite(tensor: torch.Tensor) -> bool:
    values = _dense(tensor.detach())
    if values.dtype in _NO_SUM:
        return bool(torch.isfinite(values).all().item())
    # A finite sum proves finite parts at a quarter of the cost; a sum can overflow though its parts are finite.
    return cmath.isfinite(values.sum().item()) or bool(torch.isfinite(values).all().item())


_NO_SUM = (torch.complex32,)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """The numbers that a tensor stores."""
    if tensor.layout is torch.sparse_coo:
        return tensor._values()
    if tensor.layout is not torch.strided:
        return tensor.values()
    return tensor.float() if tensor.dtype.itemsize == 1 else tensor
