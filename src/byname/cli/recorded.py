"""Recorded: values of an unchanged program, recorded from the first call of its model to its end."""

from __future__ import annotations

import re
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from byname.cli.command import CommandError, say
from byname.cli.watcher import Calls, Watcher, failure, unnoticed, where
from byname.errors import BynameError
from byname.model.where import unwrapped
from byname.place import parse
from byname.reading.modules import modules_in
from byname.reading.objects import attributes_of
from byname.recording.record import record
from byname.recording.stores.target import needs_h5py
from byname.table import counted
from byname.text import printable

if TYPE_CHECKING:
    from byname.recording.recorder import Recorder


class Recorded(Watcher):
    """Recording of a program from the first call of its model; errors are reported, and the program goes on.

    Args:
        words: paths of one model, each perhaps after the name of its class: ``"GPT:blocks.*.attn.forward.scores"``.
        to: the file, as the user calls it.
        options: more keyword arguments of `record`.

    Raises:
        CommandError: they mean nothing, or the file cannot be written; the program has not been started then.
    """

    def __init__(self, words: Sequence[str], to: str | None, options: dict[str, Any]) -> None:
        if not to:
            raise CommandError("--record needs a file: --to run.h5", exit_code=2)
        found = [_CLASS.match(word) for word in words]
        kinds = {one.group(1): None for one in found if one is not None}
        if len(kinds) > 1:
            raise CommandError(f"one file records one model, and --record names {' and '.join(kinds)}", exit_code=2)
        self._kind = next(iter(kinds), "")  # of the model or of a class that it derives from
        self._paths = [word[one.end() :] if one else word for word, one in zip(words, found, strict=True)]
        try:
            for path in self._paths:
                parse(path)
        except BynameError as error:
            raise CommandError(f"--record: {error}", exit_code=2) from None
        _check_file(Path(to), overwrite=bool(options.get("overwrite")))
        super().__init__(Calls(self._look))
        self.file = Path(to).absolute()  # wherever the program goes
        self._to, self._options = to, options
        self._recorder: Recorder | None = None
        self._refused: dict[int, weakref.ref[nn.Module]] = {}
        self._called: dict[str, None] = {}
        self._said: dict[str, None] = {}

    def _look(self, module: nn.Module, outermost: bool) -> bool:
        """Return whether a module is the model; then it is recorded from now on."""
        known = self._refused.get(id(module))
        if known is not None and known() is module:
            return False
        try:
            model = unwrapped(module)
        except BynameError:  # it cannot be looked into
            model = None
        if outermost:
            self._called.setdefault(type(module if model is None else model).__name__)
        if model is None or not self._fits(model, outermost):
            return False
        unnoticed(lambda: self._begin(module, model), say)
        if self._recorder is None:
            self._refused[id(module)] = weakref.ref(module)
        return self._recorder is not None

    def _fits(self, model: nn.Module, outermost: bool) -> bool:
        if self._kind:
            return any(one.__name__ == self._kind for one in type(model).__mro__)
        # A loss, an augmentation or a metric that is called first has none, and is no model.
        return outermost and any(attributes_of(one).get("_parameters") for one in modules_in(model))

    def _begin(self, module: nn.Module, model: nn.Module) -> None:
        try:
            recorder = record(module, self._paths, to=self.file, **self._options)
        except BynameError as error:
            return self._tell(f"not recorded: {error}")
        recorder.tell(lambda error: self._tell(f"{'' if isinstance(error, Warning) else 'not recorded: '}{error}"))
        self._recorder = recorder
        return self._tell(f"records {type(model).__name__}{where(sys._getframe())} to {self._to}")

    def _tell(self, words: str) -> None:
        if words not in self._said:
            self._said[words] = None
            say(printable(words))

    def at_end(self, error: BaseException | None) -> None:
        """Close the recording, and say how much is in it."""
        if self._recorder is None:
            return self._tell(f"nothing was recorded: {self._why()}")
        failed = failure(error)
        try:
            self._recorder.__exit__(None if failed is None else type(failed), failed, None)
        except BynameError as wrong:
            return self._tell(str(wrong))
        found = self._recorder.results
        records = sum(len(series) for series in found.values())
        places = counted(len(found), "place")
        return self._tell(f"recorded {counted(records, 'record')} of {places}: byname show {self._to}")

    def _why(self) -> str:
        called = [*self._called]
        if not called:
            return "the program called no module in this process; those that it starts anew are plain Python"
        seen = f"called were {', '.join(called[:8])}{', ...' if len(called) > 8 else ''}"
        kind = f"no {self._kind} was called that the" if self._kind else "no module with parameters was called that all"
        return f"{kind} paths fit; {seen}"


_CLASS = re.compile(r"([^\W\d]\w*):")


def _check_file(file: Path, *, overwrite: bool) -> None:
    """Raise the errors of the file before the program starts, and not at the first call of its model."""
    needs_h5py("--record")  # now, and not when the model is found, which may be hours later
    if not file.parent.is_dir():
        raise CommandError(f"--to {file}: there is no directory {file.parent}", exit_code=2)
    if file.is_dir():
        raise CommandError(f"--to {file}: this is a directory", exit_code=2)
    if file.exists() and not overwrite:
        raise CommandError(f"--to {file}: the file exists; --overwrite replaces it", exit_code=2)
