"""What to say of a function that a model does not call, where another that it calls has it inside."""

from __future__ import annotations

from collections.abc import Sequence

from byname.model.call_graph import Call, is_place
from byname.model.families import family_named

__all__ = ["inside_of_others"]

_INSIDE = {
    "softmax": ("attention",),
    "dropout": ("attention",),
    "matmul": ("attention", "linear"),
    "log_softmax": ("loss",),
    "sigmoid": ("recurrent",),
    "tanh": ("recurrent",),
}
"""The families whose functions do in one step what these do, too."""


def inside_of_others(name: str, calls: Sequence[Call]) -> str:
    """A sentence that names the call in which a kind of function is hidden; empty where none is known.

    Args:
        name: of a family, or of a function.
        calls: what the model calls.
    """
    for family in _INSIDE.get(name, ()):
        within = family_named(family)
        for call in calls:
            found = within.has_module(call.module) if call.kind == "module" else within.has_operation(call.operation)
            if found and is_place(call):
                remedy = ', or attn_implementation="eager" for a model of transformers' if family == "attention" else ""
                return f"the {name} is inside `{call.operation}`: select.{family}{remedy}"
    return ""
