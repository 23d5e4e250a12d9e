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
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from byname.cli.command import CommandError
from byname.source.tracebacks import clean


@dataclass(frozen=True, slots=True)
class Program:
    """A script, folder, zip file or module, which ``python`` could run.

    Attributes:
        argv: `sys.argv`.
        folder: where its modules are searched first.
        run: runs it as ``__main__``, in which nothing has run yet; what it raises comes out.
        is_folder: whether it is the folder, or zip file, in which its modules are searched also under ``python -P``.
    """

    argv: list[str]
    folder: str
    run: Callable[[], object]
    is_folder: bool = False

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
        return Program(argv, file, partial(_run_as_main, "__main__", False), is_folder=True)
    with io.open_code(file) as stream:
        source = stream.read()
    if source.startswith(MAGIC_NUMBER):
        raise CommandError(f"{path} is compiled, and byname runs source; python {path} runs it", exit_code=2)
    folder = os.path.dirname(os.path.realpath(file))  # noqa: PTH120 - as text, like the others
    return Program(argv, folder, partial(_run_source, source, file))


def module(name: str, arguments: Sequence[str]) -> Program:
    """Return the program of ``python -m module``."""
    argv = ["-m", *arguments]  # the first becomes the module's file when that is found
    return Program(argv, str(Path.cwd()), partial(_run_as_main, name, True))


def _run_source(source: bytes, file: str) -> None:
    variables = vars(sys.modules["__main__"])
    variables.update(__loader__=SourceFileLoader("__main__", file), __file__=file, __cached__=None)
    exec(compile(source, file, "exec", dont_inherit=True), variables)


_run_as_main: Any = runpy._run_module_as_main  # type: ignore[attr-defined]
"""What ``python -m`` calls, in this way in every version; `runpy.run_module` would end with a cleared module."""


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
        from byname.source.location import failing_frame  # here, since a command's help does not need PyTorch

        if failing_frame(error) is not None or isinstance(error, SyntaxError):  # otherwise byname itself has failed
            clean(error)
        while error.__traceback__ is not None and error.__traceback__.tb_frame.f_code.co_filename == _RUNPY:
            error.__traceback__ = error.__traceback__.tb_next
        return error


def report(error: BaseException) -> int:
    """Report the error of a program as Python does, to `sys.excepthook`, and return the exit code.

    Raises:
        KeyboardInterrupt: it was that; Python then ends by the signal, and shells stop their loops.
    """
    for stream in (sys.stderr, sys.stdout):
        with suppress(OSError, ValueError, AttributeError):  # as Python: closed, gone or replaced, the end comes anyway
            stream.flush()
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    _tell_hook(error)
    if type(error) is KeyboardInterrupt:
        _end_interrupted(error)
    return 1


def _tell_hook(error: BaseException) -> None:
    """Call the program's `sys.excepthook`; if it fails, report both errors in the words of Python."""
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
    """Raise an interrupt that was reported, so that Python does not report it again."""
    hook, traceback = sys.excepthook, error.__traceback__

    def reported(*_: object) -> None:
        sys.excepthook = hook
        error.__traceback__ = sys.last_traceback = traceback

    sys.excepthook = reported
    raise error


_RUNPY = runpy.run_module.__code__.co_filename
