"""How does a state become bytes, and bytes a state, without anything in them being executed?

Tensors go into the safetensors format; what they are parts of is told in JSON, in one more tensor.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from byname.errors import BadArgumentError

__all__ = ["packed", "unpacked"]

_OUTLINE = "byname"


def packed(state: dict[str, Any]) -> bytes:
    """A state of tensors, numbers, texts, None, and lists, tuples and dicts of these, as bytes.

    >>> unpacked(packed({"count": 2, "mean": torch.zeros(2)}))
    {'count': 2, 'mean': tensor([0., 0.])}
    """
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    outline = json.dumps(_outlined(state, tensors)).encode()
    tensors[_OUTLINE] = torch.frombuffer(bytearray(outline), dtype=torch.uint8)
    return save(tensors)


def unpacked(content: bytes, *, source: str = "this") -> Any:
    """The state that was packed; tensors are on the CPU.

    Args:
        content: what `packed` gave.
        source: what the bytes are called in an error.

    Raises:
        BadArgumentError: if they are no packed state.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(content)
        outline = json.loads(bytes(tensors.pop(_OUTLINE).numpy()))
        return _filled(outline, tensors)
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise BadArgumentError(f"{source} is no saved statistic: {error!r:.200}") from None


def _outlined(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(value, dict):
        return {"dict": [[_outlined(key, tensors), _outlined(one, tensors)] for key, one in value.items()]}
    if isinstance(value, list | tuple):
        return {"list" if isinstance(value, list) else "tuple": [_outlined(one, tensors) for one in value]}
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise TypeError(f"a state holds tensors and plain values, not {type(value).__name__}")


def _filled(outline: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(outline, dict):
        return outline
    ((kind, content),) = outline.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {_filled(key, tensors): _filled(one, tensors) for key, one in content}
    if kind in ("list", "tuple"):
        return (list if kind == "list" else tuple)(_filled(one, tensors) for one in content)
    raise ValueError(f"unknown part {kind!r:.40}")
