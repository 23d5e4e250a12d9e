"""Recorded: values of an unchanged program, recorded from the first call of its model to its end."""

from __future__ import annotations

import inspect
import re
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CellType, CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from torch import nn

from byname.cli.command import CommandError, say
from byname.cli.program import Program, codes_of
from byname.cli.watcher import Calls, Watcher, call_guarded, failure, where
from byname.errors import BynameError
from byname.model.methods import Namespace
from byname.model.where import unwrapped
from byname.place import NameSegment, Place, is_wild, parse
from byname.reading.modules import modules_in
from byname.reading.objects import attributes_of
from byname.recording.program_functions import ProgramFunctions
from byname.recording.record import record
from byname.recording.recording_file import needs_h5py, target
from byname.source.code import definition_of, original_code
from byname.table import counted
from byname.text import printable
from byname.undo import Patch, Undo

if TYPE_CHECKING:
    from byname.recording.recorder import Recorder


class Recorded(Watcher):
    """Recording of a program from the first call of its model; errors are reported, and the program goes on.

    What cannot be recorded raises a `CommandError` before the program has been started.

    Args:
        words: paths of one model, each perhaps after the name of its class: ``"GPT:blocks.*.attn.forward.scores"``.
        to, options: the file, as the user calls it, and more keyword arguments of `record`.
        program: it has not begun; paths that name variables of its functions are these, and no places of a model.
    """

    def __init__(self, words: Sequence[str], to: str | None, options: dict[str, Any], program: Program) -> None:
        if not to:
            raise CommandError("--record needs a file: --to run.h5", exit_code=2)
        found = [_CLASS.match(word) for word in words]
        kinds = {one.group(1): None for one in found if one is not None}
        if len(kinds) > 1:
            raise CommandError(f"one file records one model, but --record names {' and '.join(kinds)}", exit_code=2)
        self._kind = next(iter(kinds), "")  # of the model or of a class that it derives from
        self._paths = [word[one.end() :] if one else word for word, one in zip(words, found, strict=True)]
        try:
            places = [parse(path) for path in self._paths]
        except BynameError as error:
            raise CommandError(f"--record: {error}", exit_code=2) from None
        needs_h5py("--record")  # now, and not when the model is found, which may be hours later
        try:
            self.file = target(to, overwrite=bool(options.get("overwrite")))
        except BynameError as error:
            words = str(error).replace("overwrite=True", "--overwrite")
            raise CommandError(f"--to: {words}", exit_code=2) from None
        self._near: list[str] = []
        self._functions = None if self._kind else self._find_functions(program, places)
        super().__init__((self._functions or Calls(self._look)).begin)
        self._to, self._options = to, options
        self._recorder: Recorder | None = None
        self._refused: dict[int, weakref.ref[nn.Module]] = {}
        self._called: dict[str, None] = {}
        self._said: dict[str, None] = {}

    def __enter__(self) -> None:
        super().__enter__()
        if (functions := self._functions) is not None:
            call_guarded(lambda: self._begin(functions.root, None), say)

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
        call_guarded(lambda: self._begin(module, model), say)
        if self._recorder is None:
            self._refused[id(module)] = weakref.ref(module)
        return self._recorder is not None

    def _fits(self, model: nn.Module, outermost: bool) -> bool:
        if self._kind:
            return any(one.__name__ == self._kind for one in type(model).__mro__)
        # A loss, an augmentation or a metric that is called first has none, and is no model.
        return outermost and any(attributes_of(one).get("_parameters") for one in modules_in(model))

    def _begin(self, module: nn.Module, model: nn.Module | None) -> None:
        try:
            recorder = record(module, self._paths, to=self.file, **self._options)
        except BynameError as error:
            return self._say_once(f"not recorded: {error}")
        recorder.report_errors_to(
            lambda error: self._say_once(f"{'' if isinstance(error, Warning) else 'not recorded: '}{error}")
        )
        self._recorder = recorder
        what = "variables of functions" if model is None else f"{type(model).__name__}{where(sys._getframe())}"
        return self._say_once(f"records {what} to {self._to}")

    def _say_once(self, words: str) -> None:
        if words not in self._said:
            self._said[words] = None
            say(printable(words))

    def at_end(self, error: BaseException | None) -> None:
        if self._recorder is None:
            return self._say_once("; ".join([f"nothing was recorded: {self._why_no_model()}", *self._near]))
        failed = failure(error)
        try:
            self._recorder.__exit__(None if failed is None else type(failed), failed, None)
        except BynameError as wrong:
            return self._say_once(str(wrong))
        found = self._recorder.results
        records = sum(len(series) for series in found.values())
        places = counted(len(found), "place")
        return self._say_once(f"recorded {counted(records, 'record')} of {places}: byname show {self._to}")

    def _why_no_model(self) -> str:
        called = [*self._called]
        if not called:
            return "the program called no module in this process; new processes that it starts run plain Python"
        seen = f"called were {', '.join(called[:8])}{', ...' if len(called) > 8 else ''}"
        kind = f"no {self._kind} that was called has these" if self._kind else "no module that was called has all"
        return f"{kind} paths; {seen}"

    def _find_functions(self, program: Program, places: Sequence[Place]) -> FunctionTemplates | None:
        """Return what has the functions of a program report variables; None if no path names one."""
        functions = FunctionTemplates(program, places)
        lacking = {str(place): why for place in places if (why := functions.why_missing(place))}
        self._near = [why.partition(". ")[0] for why in lacking.values() if "close to it" in why]
        others = [*lacking]
        if not 0 < len(others) < len(places):
            return None if others else functions
        raise CommandError(
            f"--record: {', '.join(others)} is not a variable of a function, but the other paths are: a file has "
            "either variables of functions or places of a model",
            exit_code=2,
        )


_CLASS = re.compile(r"([^\W\d]\w*):")


_LOADER: Any = next(one for one in SourceFileLoader.__mro__ if "get_code" in vars(one))


class FunctionTemplates:
    """The functions that a program will define, read from the code of its script and of the modules that paths name.

    Each has a template, a function with its code that never runs. What observes the template changes its code, and from
    `begin` on that is the code that the program's own function is made with. The templates are in `root`, which
    `record` takes in the place of a model.
    """

    def __init__(self, program: Program, places: Iterable[Place]) -> None:
        self.root = Namespace()
        self._templates: dict[tuple[str, str, int], FunctionType] = {}
        self._program = program
        self._patch = Patch(_LOADER, "get_code", self._loading)
        main = None
        with suppress(SyntaxError, ValueError):  # which are seen when it runs
            main = program.code()
        if main is not None:
            self._fill(self.root, main)
        for names in [[one.plain for one in place.segments if isinstance(one, NameSegment)] for place in places]:
            if main is not None and names and names[0] in ("__main__", Path(main.co_filename).stem):
                self._fill(self.root.child(names[0]), main)
                continue
            for name, code in codes_of(names, [program.folder, *sys.path]):
                if name in sys.modules:  # its functions are made
                    break
                self._fill(self.root.child(*name.split(".")), code)

    def why_missing(self, place: Place) -> str:
        """Return why a path names no variable of these functions, with the closest that do; "" if it names some."""
        if is_wild(place.segments[0]):
            return "it begins with a wildcard, and so names places of a model"
        try:
            ProgramFunctions(self.root).find(place)
        except BynameError as error:
            return str(error)
        return ""

    def begin(self, undo: Undo) -> None:
        """Have functions made with the code of their templates."""
        undo.add(self._patch.remove)
        self._patch.install()
        undo.add(self._program.changes.clear)
        self._program.changes.append(self._changed)

    def _loading(self, before: Callable[..., Any]) -> Callable[..., Any]:
        def get_code(loader: Any, name: str) -> Any:
            code = before(loader, name)
            return self._changed(code) if isinstance(code, CodeType) else code

        return get_code

    def _changed(self, code: CodeType) -> CodeType:
        """Return the code of a module or a class with that of the templates in it."""
        template = self._templates.get(_key(code))
        if template is not None:
            return template.__code__
        consts = tuple(self._changed(one) if isinstance(one, CodeType) else one for one in code.co_consts)
        if all(one is other for one, other in zip(consts, code.co_consts, strict=True)):
            return code
        made = code.replace(co_consts=consts)
        original_code[made] = code
        return made

    def _fill(self, node: Namespace, code: CodeType) -> None:
        """Put the functions and classes that the code of a module or class defines there."""
        for one in code.co_consts:
            if not isinstance(one, CodeType) or one.co_name.startswith("<"):
                continue
            if not one.co_flags & inspect.CO_OPTIMIZED:
                self._fill(node.child(one.co_name), one)
            elif definition_of(one) is not None:
                cells = tuple(CellType() for _ in one.co_freevars)
                template = FunctionType(one, {}, one.co_name, None, cells)
                node.functions[one.co_name] = self._templates.setdefault(_key(one), template)


def _key(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno
