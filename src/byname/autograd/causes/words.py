"""The few phrases that the findings share."""

from __future__ import annotations

from byname.naming.name import Name
from byname.site import Site

__all__ = ["at", "blamed", "lines", "said"]


def at(site: Site | None) -> str:
    """`` at train.py:12``, or nothing where the line is not known."""
    return "" if site is None else f" at {site}"


def blamed(*names: Name) -> tuple[Name, ...]:
    """The variables to blame, each once; what has no name is not blamed."""
    return tuple(dict.fromkeys(name for name in names if name.path))


def lines(*sites: Site | None) -> tuple[Site, ...]:
    """The lines of a story that are known, in its order."""
    return tuple(site for site in sites if site is not None)


def said(name: Name) -> str:
    """A variable in a sentence."""
    if name.path:
        return f"{f'{name.relation} ' if name.relation else ''}`{name.text or name.path}`"
    return f"what was made at {name.site}" if name.site else "a tensor without a name"
