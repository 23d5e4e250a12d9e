"""What must two items have in common to be drawn as one, apart from what is in them and how they are wired?"""

from __future__ import annotations

from collections.abc import Hashable
from math import prod

from torch import nn

from byname.drawing.plan import Item, Shape
from byname.reading.modules import parameters_in, registered
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import fact, is_tensor

__all__ = ["elements", "settings", "shape_of", "traits"]


def traits(item: Item) -> Hashable:
    """Class, settings, parameters, shapes and marks of one item."""
    own: Hashable = None
    if item.kind == "module" and item.module is not None:
        with DisableTorchFunction():
            state = [*registered(item.module, "_parameters"), *registered(item.module, "_buffers")]
            own = (type(item.module), settings(item.module), tuple(shape_of(one) for one in state))
    return item.operation, own, item.shapes, tuple(item.marks), item.same is not None


def settings(module: nn.Module) -> str:
    """What PyTorch's own modules print of themselves, such as ``3, 8, kernel_size=(3, 3)``; no other code is run."""
    if not type(module).__module__.startswith("torch.nn."):
        return ""
    try:
        return module.extra_repr()
    except Exception:  # noqa: BLE001 - a module changed by hand may lack what its class prints; it is drawn all the same
        return ""


def shape_of(value: object) -> Shape | None:
    """The sizes of a tensor; None of anything else, and of a parameter that has none yet."""
    if not is_tensor(value):
        return None
    with DisableTorchFunction():
        try:
            return tuple(fact(value, "shape"))  # type: ignore[arg-type]
        except Exception:  # noqa: BLE001 - lazy and nested tensors refuse to say
            return None


def elements(module: nn.Module) -> int:
    """How many numbers the parameters of a module and of all inside it hold, each parameter once."""
    shapes = (shape_of(one) for one in parameters_in(module))
    return sum(prod(shape) for shape in shapes if shape is not None)
