"""What is the group of a place called? As the place, with the two characters escaped that HDF5 and the escape need."""

from __future__ import annotations

from urllib.parse import unquote

__all__ = ["ASKED", "FORMAT", "VERSION", "group_name", "place_of"]

FORMAT, VERSION = "byname recording", 1
ASKED = {"dtype": "converted_to"}
"""Attributes with other names than what was asked has: the attribute `dtype` says what the values are."""
_TAKEN = (".", "byname")
"""Names that HDF5 gives a meaning, or the journal (see `byname.recording.stores.journal.journal`)."""


def group_name(path: str) -> str:
    """The name of a group for a place.

    Examples:
        >>> group_name("forward.x['a/b']")
        "forward.x['a%2Fb']"
    """
    safe = path.replace("%", "%25").replace("/", "%2F").replace("\0", "%00")
    return f"%{ord(safe[0]):02X}{safe[1:]}" if safe in _TAKEN else safe


def place_of(group: str) -> str:
    """The place that a group is named by."""
    return unquote(group)
