"""Memory: the interface of stores, and the store that keeps a recording in memory."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from torch import Tensor

from byname.recording.series import Series, concatenated

Ends = Mapping[str, Sequence[tuple[str, int]]]
"""For places that ended before the run did, the modes and iterations from which on nothing stands there."""


class SeriesOnDemand(Mapping[str, Series]):
    """The series of places, each made by `make` when it is asked for."""

    def __init__(self, paths: Iterable[str], make: Callable[[str], Series], ends: Ends | None = None) -> None:
        self._paths = dict.fromkeys(paths)
        self._make = make
        self._ends = ends or {}

    def __getitem__(self, path: str) -> Series:
        if path not in self._paths:
            raise KeyError(path)
        series = self._make(path)
        return series.replace(ends=self._ends[path]) if path in self._ends else series

    def __contains__(self, path: object) -> bool:
        return path in self._paths

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


class Store:
    """Takes windows of values, in order; the methods here do nothing.

    What goes wrong with the outside (a full disk, a lost file) is no error of the recorded program: a store warns once
    and takes no more; `flush` and `close` then raise `RecordingError`.
    """

    @property
    def failed(self) -> bool:
        """Whether it can take no more."""
        return False

    def append(self, window: Mapping[str, Series]) -> None:
        """Take the values that came since the last window; they are copies that nothing else changes."""

    def forget(self) -> None:
        """Forget all values so far; only later ones stay."""

    def note(self, name: str, fact: str) -> None:
        """Note a fact of the run."""

    def flush(self) -> None:
        """Write the appended values, so that readers see them and they outlive a kill of the process."""

    def note_missing(self, sentence: str) -> None:
        """Note in words that something is missing in the recording."""

    def end(self, path: str, times: Sequence[tuple[str, int]]) -> None:
        """Note from which iterations on, one of each mode, nothing stands at a place."""

    def close(self, *, complete: bool = True) -> None:
        """Take no more; ``complete`` is whether no error ended the run. A second call does nothing."""

    def results(self) -> Mapping[str, Series]:
        """Return everything taken so far, by path."""
        return {}

    def withdraw(self) -> None:
        """Remove the file, after `close`, if nothing was appended."""


class MemoryStore(Store):
    """Keeps the windows of a run; the recorder's notes name missing values."""

    def __init__(self) -> None:
        self._windows: dict[str, list[Series]] = {}
        self._ends: dict[str, list[tuple[str, int]]] = {}

    def append(self, window: Mapping[str, Series]) -> None:
        """Keep a window. Many short ones become a long one, which takes less room; stacked values stay as they are."""
        for path, series in window.items():
            several = self._windows.setdefault(path, [])
            several.append(series)
            if len(several) > _SEVERAL and not isinstance(series.values, Tensor):
                several[:] = [_together(several)]

    def forget(self) -> None:
        """Forget the windows; results that were asked for have them."""
        self._windows = {}

    def end(self, path: str, times: Sequence[tuple[str, int]]) -> None:
        self._ends.setdefault(path, []).extend(times)

    def results(self) -> Mapping[str, Series]:
        """Return the windows of each place so far, put together when the place is asked for."""
        windows = self._windows
        sizes = {path: sum(map(len, several)) for path, several in windows.items()}

        def made(path: str) -> Series:
            windows[path][:] = [_together(windows[path])]
            found = windows[path][0].picked(slice(sizes[path]))  # with a list of its own, which the user may change
            return found.replace(values=found.values.tolist()) if isinstance(found.values, array) else found

        return SeriesOnDemand(sizes, made, {path: tuple(times) for path, times in self._ends.items()})


def _together(several: Sequence[Series]) -> Series:
    """Return windows as one; floats alone, and integers that fit, take 8 bytes each there instead of 32."""
    whole = concatenated(several)
    kinds = {*map(type, whole.values)} if isinstance(whole.values, list) else set()
    code = {float: "d", int: "q"}.get(kinds.pop()) if len(kinds) == 1 else None
    with suppress(OverflowError):
        return whole.replace(values=array(code, whole.values)) if code else whole
    return whole


_SEVERAL = 64
