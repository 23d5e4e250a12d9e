"""Tags: the names that the user gave by hand, in a registry that keeps nothing alive."""

from __future__ import annotations

import weakref
from typing import TypeVar

from torch.utils.weak import WeakIdKeyDictionary

from byname.errors import BadArgumentError

T = TypeVar("T")

_TAGS: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""Tag by object. Process-wide because the function `tag` is; an entry goes when its object goes."""


def tag(obj: T, name: str) -> T:
    """Give a tensor a name by hand; or a module or optimizer, and with it everything it owns.

    The tag comes before every other name. It is held weakly: nothing is written on the object and nothing is kept
    alive. A second tag replaces the first.

    Args:
        obj: a tensor, a module, an optimizer, or any object that can be referred to weakly.
        name: what to call it, such as ``"latent"``; what a module owns is then ``latent.fc.weight``.

    Returns:
        `obj` itself, so that the call can stand inside an expression.

    Raises:
        BadArgumentError: the name is empty or no text, or the object cannot be referred to weakly.

    >>> import byname, torch
    >>> noise = [byname.tag(torch.ones(3), "noise")]
    >>> str(byname.name(noise[0]))
    'noise'
    """
    if not issubclass(type(name), str) or not name.strip():
        given = repr(name) if type(name) is str else type(name).__name__
        raise BadArgumentError(f"a tag must be a string that is not blank, but got {given}")
    try:
        weakref.ref(obj)
    except TypeError:
        raise BadArgumentError(
            f"an object of type {type(obj).__name__} cannot be tagged: Python cannot refer to it weakly; "
            "tag the tensors in it one by one"
        ) from None
    _TAGS[obj] = name
    return obj


def tag_of(obj: object) -> str | None:
    """Return the tag of an object, or None."""
    return _TAGS.get(obj) if _TAGS else None  # type: ignore[no-untyped-call]


def tagged() -> list[tuple[str, object]]:
    """Return every tag with its living object."""
    return [(name, obj) for obj, name in list(_TAGS.items())]  # type: ignore[no-untyped-call]
