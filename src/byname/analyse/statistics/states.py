"""States: trees of tensors and plain values, copied, compared, packed into bytes and gathered from all ranks.

As bytes a state is safetensors, with one more tensor in which JSON tells what the tensors are parts of. Nothing in them
is ever executed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from byname.errors import BadArgumentError


def copied(value: Any) -> Any:
    """A copy that can be changed in place, also outside of an inference mode in which it is made."""
    with torch.inference_mode(False):
        return mapped(value, lambda tensor: tensor.detach().clone())


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A value with another in the place of each tensor in it."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: mapped(one, change) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(mapped(one, change) for one in value)
    return value


def plain(value: Any) -> Any:
    """A setting as a state can hold it: whatever is no plain value by the name of its function or class.

    >>> plain({"fires": torch.relu, "sizes": (1, 2.5), "dtype": torch.float32})
    {'fires': 'relu', 'sizes': (1, 2.5), 'dtype': 'torch.float32'}
    """
    if value is None or isinstance(value, Tensor | bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, dict):
        return {plain(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(map(plain, value))
    if isinstance(value, torch.dtype | torch.device):
        return str(value)
    return callable_name(value)


def callable_name(value: Any) -> str:
    """What tells a function from another in a state: its name, or that of its class."""
    name = getattr(value, "__name__", None)
    return name if isinstance(name, str) else type(value).__name__


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in a value, however deep in lists and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(one)


def listed(settings: dict[str, Any], names: Iterable[str]) -> str:
    """Some of the settings as they stand in a call; of large tensors the shape."""
    shown = {name: settings[name] for name in names}
    return ", ".join(
        f"{name}=<{tuple(value.shape)} of {value.dtype}>"
        if isinstance(value, Tensor) and value.numel() > 6
        else f"{name}={value!r}"
        for name, value in shown.items()
    )


def told(value: Any) -> str:
    """What was found in the place of something else, shortly."""
    return f"{sorted(map(str, value))!s:.200}" if isinstance(value, dict) else f"{value!r:.200}"


def same(one: Any, other: Any) -> bool:
    """Whether two settings are equal; a tensor has no truth value, and NaN is the same as NaN."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one.cpu(), other.cpu())
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if {type(one), type(other)} == {int, float}:
        return bool(one == other)
    return type(one) is type(other) and (bool(one == other) or bool(one != one and other != other))


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


def states_of_all_ranks(state: dict[str, Any], group: Any = None) -> list[Any]:
    """The states of all ranks of a group in the order of ranks; just this one where there is no group.

    Args:
        state: this rank's, as `packed` takes it.
        group: a process group; the default one if None.

    Raises:
        BadArgumentError: if this rank is not of the group.
    """
    from torch import distributed

    if not distributed.is_available() or not distributed.is_initialized():
        return [state]
    if distributed.get_rank(group) < 0:
        raise BadArgumentError(f"rank {distributed.get_rank()} is not of this group: only ranks that are call it")
    mine = torch.frombuffer(bytearray(packed(state)), dtype=torch.uint8)
    device = _device_of(group)
    size = torch.tensor([len(mine)], device=device)
    sizes = [torch.empty_like(size) for _ in range(distributed.get_world_size(group))]
    distributed.all_gather(sizes, size, group=group)
    room = int(max(sizes))
    sent = torch.zeros(room, dtype=torch.uint8, device=device)
    sent[: len(mine)] = mine.to(device)
    got = [torch.empty_like(sent) for _ in sizes]
    distributed.all_gather(got, sent, group=group)
    return [unpacked(bytes(one[: int(length)].cpu().numpy())) for one, length in zip(got, sizes, strict=True)]


def _device_of(group: Any) -> torch.device:
    """Where a backend wants its tensors: nccl on the current GPU, others on the CPU."""
    from torch import distributed

    on_gpu = distributed.get_backend(group) == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
