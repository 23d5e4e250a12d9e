"""What does an analyser keep of a place? Statistics, in dicts that may lie in each other."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any, TypeAlias

from byname.analyse.statistics.statistic import Statistic
from byname.errors import BadArgumentError

__all__ = ["Kept", "described", "made", "merged"]

Kept: TypeAlias = "Statistic | dict[Any, Kept]"


def merged(mine: Kept, other: Kept) -> Kept:
    """What both have seen; the first is changed, the second is not."""
    if isinstance(mine, dict) and isinstance(other, dict):
        for key, kept in other.items():
            mine[key] = merged(mine[key], kept) if key in mine else made(described(kept))
        return mine
    if isinstance(mine, Statistic) and isinstance(other, Statistic):
        return mine.merge(other)
    raise BadArgumentError(f"a {type(mine).__name__} cannot be merged with a {type(other).__name__}")


def described(kept: Kept) -> dict[str, Any]:
    """Tensors and plain values from which it can be made again."""
    if isinstance(kept, Statistic):
        return kept.described()
    return {"parts": [[key, described(one)] for key, one in kept.items()]}


def made(state: dict[str, Any]) -> Kept:
    """What was described."""
    if "parts" in state:
        return {key: made(one) for key, one in state["parts"]}
    ours = import_module("byname.analyse")
    if state["statistic"] in ours.__all__:  # its module is imported with the first of its kind, which may be elsewhere
        getattr(ours, state["statistic"])
    for kind in _kinds(Statistic):  # type: ignore[type-abstract]
        if kind.__name__ == state["statistic"]:
            return kind.made(state)
    raise BadArgumentError(f"there is no statistic {state['statistic']!s:.80} here: import its module first")


def _kinds(kind: type[Statistic]) -> Iterator[type[Statistic]]:
    for child in kind.__subclasses__():
        yield child
        yield from _kinds(child)
