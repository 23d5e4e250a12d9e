"""Identity: the name under which a saved state knows its class, and the class that such a name means here.

A bare class name does not do: a program may have a ``Mean`` of its own, and a notebook cell that runs twice makes two
classes of one module and name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

from byname.errors import BadArgumentError

VERSION = 1
"""Of the layout of states. A state with a higher one was written by a newer byname."""

_OURS = "byname.analyse"
_SCRIPT = "__main__"


def name_of(kind: type) -> str:
    """Return the name of a class in saved states: its module and its qualified name.

    >>> from byname.analyse import Mean
    >>> name_of(Mean)
    'byname.analyse:Mean'
    """
    module = kind.__module__
    ours = module == _OURS or module.startswith(f"{_OURS}.")  # a state outlives the file that a class of ours is in
    return f"{_OURS if ours else module}:{kind.__qualname__}"


def is_named(kind: type, name: object) -> bool:
    """Whether a name in a state means this class.

    The program itself is ``__main__`` while it runs and has another name where it is imported, so that ``__main__``
    stands for any module but byname's. A name without a module, as byname once wrote them, means all classes of it.
    """
    if not isinstance(name, str):
        return False
    module, _, qualified = name.rpartition(":")
    mine = name_of(kind)
    if mine == name:
        return True
    if not module:
        return kind.__name__ == name
    own = mine.rpartition(":")[0]
    return kind.__qualname__ == qualified and _SCRIPT in (module, own) and _OURS not in (module, own)


def plain_name(kind: type) -> str:
    """Return what tells a class of byname from others of its name, and stays the same where a program is imported."""
    name = name_of(kind)
    return _dotted(name) if name.startswith(f"{_OURS}:") else kind.__qualname__


def told_apart(one: type | str, other: type | str) -> tuple[str, str]:
    """Return the names of two classes for an error: without their modules, unless they are then the same."""
    names = [each if isinstance(each, str) else name_of(each) for each in (one, other)]
    bare = [name.replace(":", ".").rpartition(".")[2] for name in names]
    mine, others = map(_dotted, names if bare[0] == bare[1] else bare)
    return mine, others


def other_class(mine: type, other: type, does: str) -> BadArgumentError:
    """Return the error for something of another class.

    Args:
        mine: the class that was asked.
        other: the class that was found.
        does: what was asked of it, such as ``"merges"``.
    """
    one, two = told_apart(mine, other)
    if one != two:
        return BadArgumentError(f"a {one} {does} another, not a {two}")
    return BadArgumentError(
        f"there are two classes of the name {one}, as when a notebook cell runs twice, and each {does} its own only. "
        "load_state_dict(other.state_dict()) takes in what one of the other class has seen"
    )


def check_version(state: dict[Any, Any], what: str) -> None:
    """Refuse a state of a newer layout.

    Raises:
        BadArgumentError: if it is one, or its version is no number.
    """
    version = state.get("version", VERSION)
    if type(version) is not int:
        raise BadArgumentError(f"the version of the state of a {what} is a number, not {version!r:.80}")
    if version > VERSION:
        raise BadArgumentError(
            f"this state of a {what} has version {version}, and this byname reads up to {VERSION}: update byname"
        )


def class_named(name: object, base: type, near: Iterable[type] = ()) -> type:
    """Return the class that a name in a state means.

    Args:
        name: from `name_of`.
        base: it is a child of this class.
        near: classes that come first, such as those that an analyser was written with.

    Raises:
        BadArgumentError: if there is none, or several and none is nearer than the others.
    """
    near = [*near]
    exact = [kind for kind in near if name_of(kind) == name][:1]
    if not exact and isinstance(name, str):
        imported = _imported(name)
        exact = [imported] if imported is not None and issubclass(imported, base) else []
    known = [*dict.fromkeys(_children(base))]
    found = (
        exact
        or [kind for kind in known if name_of(kind) == name]
        or [kind for kind in near if is_named(kind, name)][:1]
        or [kind for kind in known if is_named(kind, name)]
    )
    if len(found) == 1:
        return found[0]
    told = _dotted(name) if isinstance(name, str) else f"{name!r:.80}"
    if not found:
        raise BadArgumentError(f"there is no {base.__name__.lower()} '{told}' here: import its module first")
    raise BadArgumentError(
        f"there are {len(found)} classes of the name {told} here, and which of them the state is of cannot be told: "
        "give each another name, or have the analyser's own methods name the class"
    )


def _imported(name: str) -> type | None:
    """The class that its module has under this name now."""
    module, _, qualified = name.rpartition(":")
    if module in ("", _OURS):
        ours = import_module(_OURS)
        found = getattr(ours, qualified) if qualified in ours.__all__ else None
        return found if isinstance(found, type) else None
    found = sys.modules.get(module)
    for part in qualified.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return found if isinstance(found, type) and name_of(found) == name else None


def _children(kind: type) -> Iterator[type]:
    children: list[type] = kind.__subclasses__()
    for child in children:
        yield child
        yield from _children(child)


def _dotted(name: type | str) -> str:
    """A name as a person writes it; what no name has, such as an escape sequence in a file, as `repr` has it."""
    told = (name if isinstance(name, str) else name_of(name)).replace(":", ".")
    return told if len(told) <= 200 and told.isprintable() else f"{told!r:.200}"
