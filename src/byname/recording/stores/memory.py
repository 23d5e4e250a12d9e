"""Memory: a store that keeps the windows of a recording in memory, and what every store does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Protocol

from torch import Tensor

from byname.recording.series import Series, concatenated


class Store(Protocol):
    """Takes windows of values, in order.

    What goes wrong with the outside (a full disk, a lost file) is no error of the recorded program: a store warns once
    and takes no more; `flush` and `close` then raise `RecordingError`.
    """

    @property
    def failed(self) -> bool:
        """Whether it can take no more."""

    def append(self, window: Mapping[str, Series]) -> None:
        """Takes the values that came since the last window; they are copies that nothing else changes."""

    def flush(self) -> None:
        """Makes what was appended outlive a kill of the process, and seen by readers."""

    def lose(self, sentence: str) -> None:
        """Notes in words that something is missing in the recording."""

    def end(self, path: str, times: Sequence[tuple[str, int]]) -> None:
        """Notes from which iterations on, one of each mode, nothing stands at a place."""

    def close(self, *, complete: bool = True) -> None:
        """The end; ``complete`` is whether the run came to an end by itself. Once more does nothing."""

    def results(self) -> Mapping[str, Series]:
        """All that was taken so far, by path."""

    def withdraw(self) -> None:
        """Removes what was made, after `close`, where nothing was taken."""


class MemoryStore:
    """Keeps the windows of a run; `byname.recording.stores.memory.Store` says what its methods do."""

    def __init__(self) -> None:
        self._windows: dict[str, list[Series]] = {}
        self._ends: dict[str, list[tuple[str, int]]] = {}

    failed = False
    """Memory takes all."""

    def append(self, window: Mapping[str, Series]) -> None:
        """Keeps a window. Many short ones become a long one, which takes less room; stacked values stay as they are."""
        for path, series in window.items():
            several = self._windows.setdefault(path, [])
            several.append(series)
            if len(several) > _SEVERAL and not isinstance(series.values, Tensor):
                several[:] = [concatenated(several)]

    def flush(self) -> None:
        """Nothing is buffered."""

    def lose(self, sentence: str) -> None:
        """The recorder's notes have it already."""

    def end(self, path: str, times: Sequence[tuple[str, int]]) -> None:
        """Notes it for the results."""
        self._ends.setdefault(path, []).extend(times)

    def close(self, *, complete: bool = True) -> None:
        """What is kept stays."""

    def withdraw(self) -> None:
        """There is no file."""

    def results(self) -> Mapping[str, Series]:
        """The windows of each place so far, put together when the place is asked for."""
        return _Kept(self._windows, self._ends)


class _Kept(Mapping[str, Series]):
    """The series of a store as they are when this is made.

    Args:
        windows: of each place; those that have been put together are one from then on.
        ends: of places.
    """

    def __init__(self, windows: dict[str, list[Series]], ends: Mapping[str, Sequence[tuple[str, int]]]) -> None:
        self._windows = windows
        self._ends = {path: tuple(times) for path, times in ends.items()}
        self._sizes = {path: sum(map(len, several)) for path, several in windows.items()}

    def __getitem__(self, path: str) -> Series:
        size, several = self._sizes[path], self._windows[path]
        several[:] = [concatenated(several)]
        own = _with_own_lists(several[0] if len(several[0]) == size else several[0][:size])
        return replace(own, ends=self._ends.get(path, ()))

    def __contains__(self, path: object) -> bool:
        return path in self._sizes

    def __iter__(self) -> Iterator[str]:
        return iter(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)


_SEVERAL = 64


def _with_own_lists(series: Series) -> Series:
    """What the user does to a result is not done to what goes on being recorded."""
    lists: dict[str, Any] = {
        one.name: [*column] for one in fields(series) if type(column := getattr(series, one.name)) is list
    }
    return replace(series, **lists)
