"""How is a recorded place asked for? By its path, or several at once by a wildcard."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from byname.errors import BadPathError, NoMatchError
from byname.place import Place, parse
from byname.recording.series import Series
from byname.table import closest, printable

__all__ = ["Results", "asked_for"]


class Results(Mapping[str, Any]):
    """Series by path; a path with wildcards gives a dict of all that fit.

    Args:
        found: what was recorded.
        listened: the places that were listened to, of which some may have told nothing.
    """

    def __init__(self, found: Mapping[str, Series], listened: Collection[str]) -> None:
        self._found = found
        self._listened = listened

    def __getitem__(self, path: str) -> Any:
        nothing = [one for one in self._listened if one not in self._found]
        return asked_for(path, [*self._found, *nothing], self._series)

    def _series(self, path: str) -> Series:
        return self._found[path] if path in self._found else Series(path, [], [], [], [], [], [], [])

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __contains__(self, path: object) -> bool:
        return path in self._found

    def __repr__(self) -> str:
        return (
            f"<Results of {', '.join(f'{path} ({len(series)})' for path, series in self._found.items()) or 'nothing'}>"
        )


def asked_for(path: str, known: Collection[str], get: Callable[[str], Any]) -> Any:
    """What is recorded at a path: what `get` gives, or a dict of that for a path with wildcards.

    Raises:
        NoMatchError: if nothing is, with the closest paths that there are.
    """
    if path in known:
        return get(path)
    asked = parse(path)
    if asked.wild:
        fitting = {one: get(one) for one in known if _fits(asked, one)}
        if fitting:
            return fitting
    for one in (str(asked), path.removesuffix(".forward"), f"{path}.forward"):
        if one in known:
            return get(one)
    there = printable(closest(path, known)) or "nothing at all"
    raise NoMatchError(f"nothing was recorded at `{printable(path)}`; there is {there}")


def _fits(asked: Place, path: str) -> bool:
    try:
        return asked.matches(path)
    except BadPathError:  # a file may have names that are no paths; they are reached as they are
        return False
