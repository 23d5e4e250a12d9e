"""Program: a script or a module, run as ``__main__`` inside this Python, which ends as ``python`` would end it.

``runpy.run_path`` and ``run_module`` take ``__main__`` away again after the program's last line, and with it what exit
handlers, threads and worker processes still need. Here it stays until Python ends.
"""

from __future__ import annotations

import builtins
import io
import os
import pkgutil
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.machinery import PathFinder, SourceFileLoader
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any, NoReturn

from byname.cli.command import CommandError
from byname.source.tracebacks import frames, strip_byname_frames


@dataclass(frozen=True, slots=True)
class Program:
    """A script, folder, zip file or module, which ``python`` could run, and its `sys.argv`.

    Attributes:
        folder: where its modules are searched first; also under ``python -P`` if the program `is_folder`.
        run: runs it as ``__main__``, in which nothing has run yet; what it raises comes out.
        code: returns the code of its script or main module, None if it is not known; raises what compiling it raises.
        changes: what its script's code goes through before it runs.
    """

    argv: list[str]
    folder: str
    run: Callable[[], object]
    is_folder: bool = False
    code: Callable[[], CodeType | None] = lambda: None
    changes: list[Callable[[CodeType], CodeType]] = field(default_factory=list)

    def take_place(self) -> None:
        """Make `sys.argv`, `sys.path` and ``__main__`` those of the program."""
        sys.argv[:] = self.argv
        if not sys.flags.safe_path:  # where Python put the folder of the command byname; under `python -P` it put none
            sys.path[0] = self.folder
        elif self.is_folder:
            sys.path.insert(0, self.folder)
        sys.modules["__main__"] = main = ModuleType("__main__")
        vars(main).update(__annotations__={}, __builtins__=builtins)


def script(path: str, arguments: Sequence[str]) -> Program:
    """Return the program of ``python script.py``, which can also be a folder or zip file with a ``__main__.py``.

    Raises:
        OSError: it cannot be read.
        CommandError: it is compiled.
    """
    argv = [path, *arguments]
    file = str(Path.cwd()) if path == "." else os.path.join(Path.cwd(), path)  # noqa: PTH118 - "./" stays
    if pkgutil.get_importer(file) is not None:
        code = partial(_code_of, "__main__", file)
        return Program(argv, file, partial(_run_as_main, "__main__", False), True, code)
    with io.open_code(file) as stream:
        source = stream.read()
    if source.startswith(MAGIC_NUMBER):
        raise CommandError(f"{path} is compiled, but byname runs only source; python {path} runs it", exit_code=2)
    folder = os.path.dirname(os.path.realpath(file))  # noqa: PTH120 - as text, like the others
    changes: list[Callable[[CodeType], CodeType]] = []
    compiled: Callable[[], CodeType] = partial(compile, source, file, "exec", dont_inherit=True)
    return Program(argv, folder, partial(_run_source, compiled, file, changes), False, compiled, changes)


def module(name: str, arguments: Sequence[str]) -> Program:
    """Return the program of ``python -m module``."""
    argv = ["-m", *arguments]  # the first becomes the module's file when that is found
    folder = str(Path.cwd())
    return Program(argv, folder, partial(_run_as_main, name, True), False, partial(_code_of, name, folder))


def _code_of(name: str, folder: str) -> CodeType | None:
    """Return the code of a main module, or of the ``__main__`` of a package."""
    found = dict(codes_of([*name.split("."), "__main__"], [folder, *sys.path]))
    return found.get(f"{name}.__main__", found.get(name))


def codes_of(parts: Sequence[str], folders: Sequence[str]) -> Iterator[tuple[str, CodeType]]:
    """Yield the names and the code of the modules that the parts of a name lead through; nothing is imported for it."""
    path: Sequence[str] | None = folders
    for number, part in enumerate(parts, 1):
        spec = None if path is None else PathFinder.find_spec(part, path)
        if spec is None:
            return
        if isinstance(spec.loader, SourceFileLoader):  # a folder without `__init__.py` has another, or none
            try:
                code = spec.loader.get_code(part)
            except (SyntaxError, OSError):  # which are seen when it is imported
                return
            assert code is not None, "it has source"
            yield ".".join(parts[:number]), code
        path = spec.submodule_search_locations


def _run_source(compiled: Callable[[], CodeType], file: str, changes: Sequence[Callable[[CodeType], CodeType]]) -> None:
    variables = vars(sys.modules["__main__"])
    variables.update(__loader__=SourceFileLoader("__main__", file), __file__=file, __cached__=None)
    code = compiled()
    for change in changes:
        code = change(code)
    exec(code, variables)


_run_as_main: Any = runpy._run_module_as_main  # type: ignore[attr-defined]
"""What ``python -m`` calls, in this way in every version; `runpy.run_module` would end with a cleared module."""


def run_to_end(program: Program, watchers: Sequence[AbstractContextManager[object]]) -> BaseException | None:
    """Run a program inside contexts, the outermost first, and return the error, in its own words, that it failed with.

    Raises:
        SystemExit: the program asked for its end.
    """
    try:
        with ExitStack() as stack:
            for watcher in watchers:
                stack.enter_context(watcher)
            program.run()
        return None
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - the program's, and reported as Python does it
        from byname.source.location import is_torch  # here, since a command's help does not need PyTorch

        passed_the_program = any(not is_torch(one.file) for one in frames(error))
        if passed_the_program or isinstance(error, SyntaxError):  # otherwise byname itself has failed
            strip_byname_frames(error)
        while error.__traceback__ is not None and error.__traceback__.tb_frame.f_code.co_filename == _RUNPY:
            error.__traceback__ = error.__traceback__.tb_next
        return error


def end_with(error: BaseException) -> NoReturn:
    """Raise the error that a program failed with: Python reports it, with the traceback it has now, and ends by it."""
    for stream in (sys.stderr, sys.stdout):
        with suppress(OSError, ValueError, AttributeError):  # as Python: closed, gone or replaced, the end comes anyway
            stream.flush()
    hook, traceback = getattr(sys, "excepthook", _hook_missing), error.__traceback__

    def report(*_: object) -> None:
        sys.excepthook = hook
        sys.last_traceback = error.__traceback__ = traceback
        try:
            hook(type(error), error, traceback)
        except BaseException as another:  # reported as the program's own hook's
            strip_byname_frames(another)
            raise

    sys.excepthook = report
    raise error


def _hook_missing(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    print("sys.excepthook is missing", file=sys.stderr)
    sys.__excepthook__(kind, error, traceback)


_RUNPY = runpy.run_module.__code__.co_filename
