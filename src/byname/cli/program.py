"""How is a program run from inside another one, so that it cannot tell? As ``__main__``, and ended as Python does it.

``runpy.run_path`` and ``run_module`` take ``__main__`` away again after the program's last line, and with it what exit
handlers, threads and worker processes still need. Here it stays until Python ends.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import io
import os
import pkgutil
import runpy
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import NoReturn, Protocol

from byname.source.tracebacks import clean, users_frame


class Program(Protocol):
    """What ``python`` can be told to run."""

    def take_place(self) -> None:
        """Makes `sys.argv`, `sys.path` and ``__main__`` those of the program."""

    def run(self) -> None:
        """Runs it; what it raises comes out."""


class Script:
    """``python script.py``; the script can also be compiled, or a folder or zip file with a ``__main__.py``."""

    def __init__(self, path: str, arguments: Sequence[str]) -> None:
        self._argv = [path, *arguments]
        self._file = str(Path.cwd()) if path == "." else os.path.join(Path.cwd(), path)  # noqa: PTH118 - "./" stays
        self._is_container = pkgutil.get_importer(self._file) is not None
        self._content = b"" if self._is_container else _read(self._file)

    def take_place(self) -> None:
        """A folder or zip file is searched for modules itself; of a script it is the folder it really lies in."""
        sys.argv[:] = self._argv
        if self._is_container:
            _search_first(self._file, always=True)
            _new_main()
        else:
            _search_first(os.path.dirname(os.path.realpath(self._file)))  # noqa: PTH120 - as text, like the others
            vars(_new_main()).update(__loader__=self._loader(), __file__=self._file, __cached__=None)

    def run(self) -> None:
        """Runs it as ``__main__``."""
        if self._is_container:
            _run_as_main("__main__", False)
        else:
            exec(self._code(), vars(sys.modules["__main__"]))

    def _loader(self) -> importlib.machinery.SourceFileLoader | importlib.machinery.SourcelessFileLoader:
        kind = importlib.machinery.SourcelessFileLoader if self._compiled() else importlib.machinery.SourceFileLoader
        return kind("__main__", self._file)

    def _code(self) -> CodeType:
        return self._compiled() or compile(self._content, self._file, "exec", dont_inherit=True)

    def _compiled(self) -> CodeType | None:
        found: CodeType | None = pkgutil.read_code(io.BytesIO(self._content))
        return found


class Module:
    """``python -m module``."""

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        self._name = name
        self._argv = ["-m", *arguments]  # the first becomes the module's file when that is found

    def take_place(self) -> None:
        """Modules are searched in the working folder first."""
        sys.argv[:] = self._argv
        _search_first(str(Path.cwd()))
        _new_main()

    def run(self) -> None:
        """Runs it as ``__main__``."""
        _run_as_main(self._name, True)


def ended_with(program: Program, watchers: Sequence[AbstractContextManager[object]]) -> BaseException | None:
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
        if users_frame(error) is not None or isinstance(error, SyntaxError):  # otherwise byname itself has failed
            clean(error)
        error.__traceback__ = _without_runpy(error.__traceback__)
        return error


def report(error: BaseException) -> int:
    """Ends as Python ends a program that failed: tells `sys.excepthook`, and returns the exit code.

    Raises:
        KeyboardInterrupt: it was that; Python then ends by the signal, and shells stop their loops.
    """
    _flush()
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    _tell_hook(error)
    if type(error) is KeyboardInterrupt:
        _end_interrupted(error)
    return 1


def _read(file: str) -> bytes:
    with io.open_code(file) as stream:
        return stream.read()


def _new_main() -> ModuleType:
    """A ``__main__`` in which nothing has run yet."""
    main = ModuleType("__main__")
    vars(main).update(__annotations__={}, __builtins__=builtins)
    sys.modules["__main__"] = main
    return main


def _search_first(folder: str, always: bool = False) -> None:
    """Puts a folder where Python put that of the command byname; under ``python -P`` it put none."""
    if not sys.flags.safe_path:
        sys.path[0] = folder
    elif always:
        sys.path.insert(0, folder)


def _run_as_main(name: str, is_module: bool) -> None:
    """What ``python -m`` calls, in this way in every version; `runpy.run_module` would end with a cleared module."""
    runpy._run_module_as_main(name, is_module)  # type: ignore[attr-defined]


def _without_runpy(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and traceback.tb_frame.f_code.co_filename == _RUNPY:
        traceback = traceback.tb_next
    return traceback


def _flush() -> None:
    for stream in (sys.stderr, sys.stdout):
        with suppress(OSError, ValueError, AttributeError):  # as Python: closed, gone or replaced, the end comes anyway
            stream.flush()


def _tell_hook(error: BaseException) -> None:
    """Calls the program's hook; one that fails is reported with the error, in the words of Python."""
    hook = getattr(sys, "excepthook", None)
    if hook is None:
        print("sys.excepthook is missing", file=sys.stderr)
        return _show(error)
    try:
        hook(type(error), error, error.__traceback__)
    except SystemExit:
        raise
    except BaseException as another:  # noqa: BLE001 - the program's hook
        clean(another)
        print("Error in sys.excepthook:", file=sys.stderr)
        _show(another)
        print("\nOriginal exception was:", file=sys.stderr)
        _show(error)


def _show(error: BaseException) -> None:
    sys.__excepthook__(type(error), error, error.__traceback__)


def _end_interrupted(error: KeyboardInterrupt) -> NoReturn:
    """Raises the interrupt, which has been reported, past Python's own report."""
    hook, traceback = sys.excepthook, error.__traceback__

    def reported(*_: object) -> None:
        sys.excepthook = hook
        error.__traceback__ = sys.last_traceback = traceback

    sys.excepthook = reported
    raise error


_RUNPY = runpy.run_module.__code__.co_filename
