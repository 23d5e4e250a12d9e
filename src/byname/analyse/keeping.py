"""What does an analyser keep of a place? Statistics, in dicts that may lie in each other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from byname.analyse.statistics.identity import class_named
from byname.analyse.statistics.states import told
from byname.analyse.statistics.statistic import Statistic
from byname.errors import BadArgumentError

Kept: TypeAlias = "Statistic | dict[Any, Kept]"


def merged(mine: Kept, other: Kept) -> Kept:
    """What both have seen; the first is changed, the second is not."""
    if isinstance(mine, dict) and isinstance(other, dict):
        for key, kept in other.items():
            mine[key] = merged(mine[key], kept) if key in mine else twin(kept)
        return mine
    if isinstance(mine, Statistic) and isinstance(other, Statistic):
        return mine.merge(other)
    raise BadArgumentError(f"a {type(mine).__name__} cannot be merged with a {type(other).__name__}")


def described(kept: Kept) -> dict[str, Any]:
    """Tensors and plain values from which it can be made again."""
    if isinstance(kept, Statistic):
        return kept.described()
    return {"parts": [[key, described(one)] for key, one in kept.items()]}


def twin(kept: Kept) -> Kept:
    """Another of the same, of the same classes."""
    return {key: twin(one) for key, one in kept.items()} if isinstance(kept, dict) else kept.twin()


def classes_in(kept: Kept) -> dict[type[Statistic], None]:
    """The classes of the statistics, each once."""
    if isinstance(kept, dict):
        return {kind: None for one in kept.values() for kind in classes_in(one)}
    return {type(kept): None}


def notes_in(kept: Kept) -> dict[str, None]:
    """What is to be said beside the figures, each sentence once."""
    if isinstance(kept, dict):
        return {note: None for one in kept.values() for note in notes_in(one)}
    return {kept.note: None} if isinstance(kept, Statistic) and kept.note is not None else {}


def made(state: Any, near: Iterable[type[Statistic]] = ()) -> Kept:
    """What was described.

    Args:
        state: from `described`.
        near: classes that come first where a name means several.

    Raises:
        BadArgumentError: if it is something else, or a class is not here.
    """
    if isinstance(state, dict) and "parts" in state:
        try:
            parts = [(key, one) for key, one in state["parts"]]
        except (TypeError, ValueError):
            raise BadArgumentError(f"this is not the state of an analyser: {told(state)}") from None
        return {key: made(one, near) for key, one in parts}
    if not isinstance(state, dict) or "statistic" not in state:
        raise BadArgumentError(f"this is not the state of an analyser: {told(state)}")
    kind: type[Statistic] = class_named(state["statistic"], Statistic, near)
    return kind.made(state)
