"""The few phrases that the findings share."""

from __future__ import annotations

from byname.diagnose.finding import said
from byname.naming.name import Name
from byname.source.location import Site

__all__ = ["at", "blamed", "lines", "said", "told"]


def at(site: Site | None) -> str:
    """`` at train.py:12``, or nothing where the line is not known."""
    return "" if site is None else f" at {site}"


def blamed(*names: Name) -> tuple[Name, ...]:
    """The variables to blame, each once; what has no name is not blamed."""
    return tuple(dict.fromkeys(name for name in names if name.path))


def lines(*sites: Site | None) -> tuple[Site, ...]:
    """The lines of a story that are known, in its order."""
    return tuple(site for site in sites if site is not None)


def told(name: Name, site: Site | None) -> str:
    """A variable and the line of it in a sentence."""
    return f"{said(name)}{at(site)}" if name.path or site is None else f"what was made at {site}"
