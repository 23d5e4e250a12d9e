"""Does looking at this model make PyTorch choose another kernel?"""

from __future__ import annotations

from collections.abc import Container, Iterator

from torch import nn

from byname.model.module_tree import modules_by_path
from byname.reading.modules import modules_in

__all__ = ["notes_on_fast_paths"]

_FAST = (nn.TransformerEncoderLayer, nn.TransformerEncoder, nn.MultiheadAttention)


def notes_on_fast_paths(model: nn.Module, hooked: Container[int], *, mode: bool) -> Iterator[str]:
    """What to tell about the fast path of attention, which PyTorch leaves where hooks or a function mode are.

    Args:
        model: the watched model.
        hooked: the modules with hooks, by ``id``.
        mode: whether a function mode will be on.
    """
    for path, module in modules_by_path(model).items():
        if isinstance(module, _FAST) and (mode or any(id(inner) in hooked for inner in modules_in(module))):
            yield (
                f"`{path or 'forward'}`: in evaluation without gradients PyTorch would run {type(module).__name__} by "
                "its fast path; while it is observed it runs module by module, and the last digits may differ"
            )
