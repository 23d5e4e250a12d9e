"""What was recorded when no file was asked for? All windows, kept in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from byname.recording.series import Series, concatenated

__all__ = ["MemoryStore"]


class MemoryStore:
    """Keeps the windows of a run; `byname.recording.stores.store.Store` says what its methods do."""

    def __init__(self) -> None:
        self._windows: dict[str, list[Series]] = {}

    failed = False
    """Memory takes all."""

    def append(self, window: Mapping[str, Series]) -> None:
        """Keeps a window."""
        for path, series in window.items():
            self._windows.setdefault(path, []).append(series)

    def flush(self) -> None:
        """Nothing is buffered."""

    def lose(self, sentence: str) -> None:
        """The recorder's notes have it already."""

    def close(self, *, complete: bool = True) -> None:
        """What is kept stays."""

    def results(self) -> Mapping[str, Series]:
        """The windows of each place put together, in lists of their own."""
        for windows in self._windows.values():
            windows[:] = [concatenated(windows)]
        return {path: _with_own_lists(windows[0]) for path, windows in self._windows.items()}


def _with_own_lists(series: Series) -> Series:
    """What the user does to a result is not done to what goes on being recorded."""
    lists: dict[str, Any] = {
        one.name: [*column] for one in fields(series) if type(column := getattr(series, one.name)) is list
    }
    return replace(series, **lists)
