"""Which colours does a box have? Families of layers look alike in every picture."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FONT", "INK", "LINE", "MARK", "QUIET", "Paint", "paint"]

FONT = "'Helvetica Neue', Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
INK, QUIET, LINE, MARK = "#1f2933", "#52606d", "#7b8794", "#c2185b"


@dataclass(frozen=True, slots=True)
class Paint:
    """Colours of a box: inside and rim."""

    fill: str
    rim: str


_PLAIN = Paint("#ffffff", "#9aa5b1")
_OPERATION = Paint("#f5f7fa", "#9aa5b1")
_FAMILIES: tuple[tuple[Paint, tuple[str, ...]], ...] = (
    (
        Paint("#fff3d6", "#d9a521"),
        ("relu", "gelu", "elu", "silu", "sigmoid", "tanh", "softmax", "softplus", "mish", "swish", "activation"),
    ),
    (Paint("#e3f6e5", "#57a773"), ("norm",)),
    (Paint("#f0e6fb", "#9067c6"), ("attention", "attn", "transformer")),
    (Paint("#dcf3f5", "#3c9ca6"), ("embedding",)),
    (Paint("#fde4dc", "#d9714e"), ("lstm", "gru", "rnn")),
    (Paint("#ececec", "#9a9a9a"), ("dropout", "identity", "flatten")),
    (Paint("#e9efd9", "#8aa34a"), ("pool", "pad", "upsample", "interpolate")),
    (Paint("#dfeafa", "#4a7fc1"), ("linear", "conv", "bilinear", "matmul", "bmm", "addmm", "einsum", "mm")),
)  # fmt: skip
_ENDS = {
    "input": Paint("#323f4b", "#323f4b"),
    "output": Paint("#323f4b", "#323f4b"),
    "parameter": Paint("#ffffff", "#4a7fc1"),
    "constant": Paint("#ffffff", "#9aa5b1"),
    "unseen": Paint("#ffffff", "#c2185b"),
}


def paint(kind: str, operation: str) -> Paint:
    """The colours of a closed box."""
    if kind in _ENDS:
        return _ENDS[kind]
    name = operation.lower()
    for colours, words in _FAMILIES:
        if any(word in name for word in words):
            return colours
    return _OPERATION if kind == "operation" else _PLAIN
