"""Are these one pattern? A container whose entries have texts as keys, new ones all the time, is taken for one.

``cache['request 1']``, ``cache['request 2']`` and so on are ``cache[*]``, while ``'loss'`` and ``'accuracy'`` in
``history[*]`` stay two: they are the same in every entry.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

__all__ = ["Key", "widened"]

_TEXT_KEY = re.compile(r"""\[(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\]""")
_MANY = 3
"""How many new keys of one place make a pattern."""


class Key(NamedTuple):
    """What the names of a group have in common, and the scope in which they hold."""

    pattern: str
    scope: str


def _form_of(key: Key) -> Key:
    """A pattern with every text key held open."""
    return Key(_TEXT_KEY.sub("[*]", key.pattern), key.scope)


def widened(known: Iterable[Key], fresh: Iterable[Key], gone: Iterable[Key]) -> Mapping[Key, Key]:
    """The wider pattern of each pattern that has one.

    Args:
        known: all patterns there have been.
        fresh: those that were not there at first.
        gone: those that are not there any more.
    """
    new, former = _by_form(fresh), _by_form(gone)
    places = ((form, _open_place([*keys, *former.get(form, ())], form in former)) for form, keys in new.items())
    wide = {form: place for form, place in places if place is not None}
    found = {}
    for key in known:
        place = wide.get(_form_of(key)) if _TEXT_KEY.search(key.pattern) else None
        if place is not None:
            found[key] = _opened(key, place)
    return found


def _by_form(keys: Iterable[Key]) -> dict[Key, list[Key]]:
    found: dict[Key, list[Key]] = {}
    for key in keys:
        if _TEXT_KEY.search(key.pattern):
            found.setdefault(_form_of(key), []).append(key)
    return found


def _opened(key: Key, place: int) -> Key:
    found = list(_TEXT_KEY.finditer(key.pattern))[place]
    return Key(f"{key.pattern[: found.start()]}[*]{key.pattern[found.end() :]}", key.scope)


def _open_place(keys: list[Key], replaced: bool) -> int | None:
    """The first place at which these patterns have many keys, not inside of another; None where there is none.

    Args:
        keys: patterns of one form.
        replaced: whether some of them went as others came; then two are many.
    """
    texts = [_TEXT_KEY.findall(key.pattern) for key in keys]
    for place in range(len(texts[0])):
        different = len({each[place] for each in texts})
        if different >= (2 if replaced else _MANY) and not any(_is_within_another(key, place) for key in keys):
            return place
    return None


def _is_within_another(key: Key, place: int) -> bool:
    """Whether a key stands inside an entry of another container, as the fields of a record do."""
    return "[*]" in key.pattern[: list(_TEXT_KEY.finditer(key.pattern))[place].start()]
