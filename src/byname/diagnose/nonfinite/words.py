"""The phrases that the findings about NaN and Inf share."""

from __future__ import annotations

from byname.naming.name import Name
from byname.source.location import Site, Spot

__all__ = ["doing", "site_of"]


def doing(operation: str, spot: Spot | None, culprit: Name | None) -> str:
    """An operation with its line and what it made."""
    words = f"`{operation}`"
    if spot is not None:
        words += f" at {spot.site}" + (f" (`{spot.site.statement}`)" if spot.site.statement else "")
    if culprit is not None and culprit.path:
        words += f", which made `{culprit.path}`,"
    return words


def site_of(place: Spot | None) -> Site | None:
    """The line of a place, where the place is known."""
    return None if place is None else place.site
