"""How is a tensor copied that is more than numbers in the CPU's memory? Sparse, nested, wrapped, lazy, elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import PLAIN, fact, parts_of
from byname.recording.processes.shards import is_distributed, local_part
from byname.recording.values.kinds import Refused
from byname.recording.values.nested import has_numbers
from byname.recording.values.ordinary import bare, undisturbed

__all__ = ["check_dtype", "inner", "numbers", "part_copied"]


def part_copied(tensor: torch.Tensor, fetch: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The copy of any tensor, or `Refused`; `fetch` brings dense ones from other devices."""
    tensor = inner(tensor)
    with DisableTorchFunction():
        layout, is_nested = fact(tensor, "layout"), fact(tensor, "is_nested")
    if is_nested:
        return [part_copied(one, fetch) for one in _nested_parts(tensor)]
    if layout is not torch.strided:
        return _sparse(tensor, layout, fetch)
    with undisturbed():
        dense = numbers(tensor)
        return dense.clone(memory_format=torch.contiguous_format) if dense.device.type == "cpu" else fetch(dense)


def inner(tensor: torch.Tensor) -> torch.Tensor:
    """This process's own part of a tensor, outside of the wrappers of a transform."""
    kind = type(tensor)
    if kind in PLAIN or not kind.__module__.startswith("torch.distributed."):
        return _unwrapped(tensor)
    part: Any = tensor
    if is_distributed(part):
        part = local_part(part)[0]
    if type(part).__name__ == "AsyncCollectiveTensor":  # a result on its way from the other ranks
        part = part.trigger_wait()
    local: torch.Tensor = part
    return local


def numbers(tensor: torch.Tensor) -> torch.Tensor:
    """A dense tensor without history, class and lazy operations, on its own device. Call it inside `undisturbed`."""
    _check(tensor)
    return bare(tensor).resolve_conj().resolve_neg()


def _unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """What is inside the wrappers that ``torch.func.grad`` and ``jvp`` put around a tensor; it has the same values."""
    inside = torch._C._functorch
    while inside.is_functorch_wrapped_tensor(tensor):
        if inside.is_batchedtensor(tensor):
            raise Refused(
                "is a part of a batch inside `torch.vmap` (a BatchedTensor), and has no values of its own there. "
                "Record a value outside of the transformed function"
            )
        if not inside.is_gradtrackingtensor(tensor):
            raise Refused(
                "is wrapped by `torch.func.functionalize`. Record a value outside of the transformed function"
            )
        tensor = inside.get_unwrapped(tensor)
    return tensor


def _check(tensor: torch.Tensor) -> None:
    """Refuses a tensor behind which there are no numbers."""
    name = type(tensor).__name__
    if fact(tensor, "is_meta") or issubclass(type(tensor), torch._subclasses.FakeTensor):
        raise Refused(
            f"is a {'meta' if type(tensor) in PLAIN else name} tensor of shape {list(fact(tensor, 'shape'))}, and has "
            "no values. Record while the model runs on a real device"
        )
    if torch._C.TensorBase.__dict__["is_quantized"].__get__(tensor):
        raise Refused("is a quantized tensor. Let `on_value` return its `int_repr()` or `dequantize()`")
    check_dtype(fact(tensor, "dtype"))
    if torch._is_functional_tensor(tensor) or not _has_numbers(tensor):
        raise Refused(
            f"is of type {name}, which stands for other tensors and has no memory of its own. Let `on_value` return "
            "the tensor in it that is wanted"
        )


def check_dtype(dtype: torch.dtype) -> None:
    """Refuses a dtype that PyTorch knows by name alone: it could neither be printed nor read out of a file."""
    if not has_numbers(dtype):
        raise Refused(
            f"is a tensor of {dtype}, whose elements PyTorch cannot read. Let `on_value` return its bytes: "
            "`value.view(torch.uint8)`"
        )


def _has_numbers(tensor: torch.Tensor) -> bool:
    if type(tensor) in PLAIN:
        return True
    storage = torch._C.TensorBase.untyped_storage(tensor)
    try:
        return storage.nbytes() == 0 or storage.data_ptr() != 0
    except RuntimeError:  # PyTorch's answer for a wrapper
        return False


def _nested_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors of a nested one. The jagged kind is a class of PyTorch's, which has to run to give them."""
    if type(tensor) not in PLAIN and not type(tensor).__module__.startswith("torch.nested."):
        raise Refused(f"is a nested tensor of type {type(tensor).__name__}. Let `on_value` return its `unbind()`")
    with torch.no_grad():
        return list(tensor.detach().unbind())


def _sparse(tensor: torch.Tensor, layout: torch.layout, fetch: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    parts = parts_of(tensor)
    if not parts:
        raise Refused(
            f"is a {type(tensor).__name__} of layout {layout}. Let `on_value` return a dense one (`to_dense()`)"
        )
    copied = {method.lstrip("_"): part_copied(part, fetch) for method, part in parts.items()}
    return {"layout": str(layout).removeprefix("torch."), "shape": tuple(tensor.shape), **copied}
