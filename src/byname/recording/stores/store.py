"""What does a recorder need of the place where its values go?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from byname.recording.series import Series

__all__ = ["Store"]


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

    def close(self, *, complete: bool = True) -> None:
        """The end; ``complete`` is whether the run came to an end by itself. Once more does nothing."""

    def results(self) -> Mapping[str, Series]:
        """All that was taken so far, by path."""

    def withdraw(self) -> None:
        """Removes what was made, after `close`, where nothing was taken."""
