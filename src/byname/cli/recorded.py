"""How is a program recorded that knows nothing of it? From the first call of the model that fits to its end."""

from __future__ import annotations

import re
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from byname.cli.calls import Calls
from byname.cli.command import CommandError, say
from byname.cli.unnoticed import Watcher, failure, unnoticed, where
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


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be recorded.

    Attributes:
        paths: the places, which are those of one model.
        kind: the name of the model's class, or of one that it derives from; empty for the first model that fits.
        to: the file, as the user calls it.
        file: the file, wherever the program goes.
        options: how `record` is called otherwise.
    """

    paths: tuple[str, ...]
    kind: str
    to: str
    file: Path
    options: dict[str, Any]

    @classmethod
    def of(cls, words: Sequence[str], to: str | None, options: dict[str, Any]) -> Asked:
        """Reads it from the command line.

        Args:
            words: paths, each perhaps after the name of a class: ``"GPT:blocks.*.attn.forward.scores"``.
            to: the file.
            options: more keyword arguments of `record`.

        Raises:
            CommandError: if it means nothing; the program has not been started then.
        """
        if not to:
            raise CommandError("--record needs a file: --to run.h5", exit_code=2)
        found = [_CLASS.match(word) for word in words]
        kinds = {one.group(1): None for one in found if one is not None}
        if len(kinds) > 1:
            raise CommandError(f"one file records one model, and --record names {' and '.join(kinds)}", exit_code=2)
        paths = tuple(word[one.end() :] if one else word for word, one in zip(words, found, strict=True))
        for path in paths:
            try:
                parse(path)
            except BynameError as error:
                raise CommandError(f"--record: {error}", exit_code=2) from None
        _check_file(Path(to), overwrite=bool(options.get("overwrite")))
        return cls(paths, next(iter(kinds), ""), to, Path(to).absolute(), options)


_CLASS = re.compile(r"([^\W\d]\w*):")


def _check_file(file: Path, *, overwrite: bool) -> None:
    """Refuses before the program starts what would be refused at the first call of its model."""
    needs_h5py("--record")  # now, and not when the model is found, which may be hours later
    if not file.parent.is_dir():
        raise CommandError(f"--to {file}: there is no directory {file.parent}", exit_code=2)
    if file.is_dir():
        raise CommandError(f"--to {file}: this is a directory", exit_code=2)
    if file.exists() and not overwrite:
        raise CommandError(f"--to {file}: the file exists; --overwrite replaces it", exit_code=2)


class Recorded(Watcher):
    """Records a program while it runs in the block; what goes wrong with it is told, and the program goes on.

    Args:
        asked: what is to be recorded.
    """

    def __init__(self, asked: Asked) -> None:
        super().__init__(Calls(self._look))
        self._asked = asked
        self._recorder: Recorder | None = None
        self._refused: dict[int, weakref.ref[nn.Module]] = {}
        self._called: dict[str, None] = {}
        self._told: dict[str, None] = {}

    def _look(self, module: nn.Module, outermost: bool) -> bool:
        """Whether a module is the model; then it is recorded from now on."""
        known = self._refused.get(id(module))
        if known is not None and known() is module:
            return False
        model = unwrapped_or_none(module)
        if outermost:
            self._called.setdefault(type(module if model is None else model).__name__)
        if model is None or not (self._is_named(model) if self._asked.kind else outermost and _has_parameters(model)):
            return False
        unnoticed(lambda: self._begin(module, model), say)
        if self._recorder is None:
            self._refused[id(module)] = weakref.ref(module)
        return self._recorder is not None

    def _is_named(self, model: nn.Module) -> bool:
        return any(one.__name__ == self._asked.kind for one in type(model).__mro__)

    def _begin(self, module: nn.Module, model: nn.Module) -> None:
        asked = self._asked
        try:
            recorder = record(module, list(asked.paths), to=asked.file, **asked.options)
        except BynameError as error:
            return self._tell(f"not recorded: {error}")
        recorder.tell(lambda error: self._tell(f"{'' if isinstance(error, Warning) else 'not recorded: '}{error}"))
        self._recorder = recorder
        return self._tell(f"records {type(model).__name__}{where(sys._getframe())} to {asked.to}")

    def _tell(self, words: str) -> None:
        if words not in self._told:
            self._told[words] = None
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
        return self._tell(f"recorded {counted(records, 'record')} of {places}: byname show {self._asked.to}")

    def _why(self) -> str:
        kind, called = self._asked.kind, [*self._called]
        if not called:
            return "the program called no module in this process; those that it starts anew are plain Python"
        seen = f"called were {', '.join(called[:8])}{', ...' if len(called) > 8 else ''}"
        if kind:
            return f"no {kind} was called that the paths fit; {seen}"
        return f"no module with parameters was called that all paths fit; {seen}"


def unwrapped_or_none(module: nn.Module) -> nn.Module | None:
    """The module inside of wrappers, if it can be looked into."""
    try:
        return unwrapped(module)
    except BynameError:
        return None


def _has_parameters(model: nn.Module) -> bool:
    """Whether something in it can learn; a loss, an augmentation or a metric that is called first is no model."""
    return any(attributes_of(one).get("_parameters") for one in modules_in(model))
