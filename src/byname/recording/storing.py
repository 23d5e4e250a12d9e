"""What is done with a value that has come? If it has changed, a copy of it is put where the next window takes it."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from byname.errors import NotStorableError
from byname.reading.tensor import PLAIN
from byname.recording.callbacks import callables, values_called
from byname.recording.columns import Column, Record
from byname.recording.options import Options
from byname.recording.processes.shards import is_distributed, local_part
from byname.recording.schedule import Time
from byname.recording.values.change import NOTHING
from byname.recording.values.nested import size_of
from byname.recording.windows import Windows

__all__ = ["Storing"]


class Storing:
    """Has values stored as they are asked for.

    Args:
        options: what is asked.
        windows: where the copies go.
    """

    def __init__(self, options: Options, windows: Windows) -> None:
        self._options = options
        self._schedule = options.schedule
        self._windows = windows
        self._called = bool(callables(options.on_value, "on_value"))
        self._judged: tuple[Time | None, bool] = (None, False)

    def _is_due(self, time: Time) -> bool:
        """Asked once for all places of a forward."""
        known, due = self._judged
        if known is not time:
            due = self._schedule.due(time)
            self._judged = time, due
        return due

    def _record(self, column: Column, time: Time, call: Any, value: Any) -> None:
        shard = None
        if type(value) not in PLAIN and is_distributed(value):
            value, shard = local_part(value)
        last = column.last
        told = values_called(self._options.on_value, column.path, value, time.iteration) if self._called else value
        if last is not None and not last.changed(value, told):
            return
        before = last.copy if last is not None and last.doubtful else NOTHING
        copy = self._windows.copies.take(told if column.form is None else column.form(told), column.path)
        if last is not None:
            last.stored(value, copy)
        column.stored = True
        shard = shard if told is value and column.form is None else None
        column.records.append(Record(time, call, copy, shard, before))
        self._windows.bytes += copy.nbytes if type(copy) is Tensor else size_of(copy)

    def _refuse(self, column: Column, error: NotStorableError, value: Any) -> None:
        """An error, once, where the user asked for this very place and it never could be stored; else a warning.

        A place of which nothing could be stored is refused from then on, and the others go on.
        """
        column.refused = not column.stored
        if column.refused and not column.exact and isinstance(value, nn.Module):
            return  # a wildcard over variables meets `self`
        sentence = f"{error}; it is not recorded" if column.refused else f"{error}; this value is missing"
        if column.exact and column.refused and self._windows.tell is None:
            self._windows.lose(sentence)
            raise error
        self._windows.warn(sentence)
