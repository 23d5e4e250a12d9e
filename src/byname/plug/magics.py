"""Magics: ``%load_ext byname`` gives a notebook, or IPython, ``%%explain``, ``%%check`` and ``%census``."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from inspect import CO_COROUTINE
from types import CodeType
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class

from byname.diagnose.explaining import Explaining, explaining
from byname.diagnose.finding import Finding
from byname.memory.census import Census, census
from byname.source.tracebacks import shown_file, walk_frames
from byname.text import printable_lines


def load_ipython_extension(shell: Any) -> None:
    """Give a shell the magics; IPython calls this for ``%load_ext byname``."""
    shell.register_magics(BynameMagics)
    shell.input_transformers_post.append(partial(_awaited_if_it_awaits, shell))


_CELL_MAGIC = re.compile(r"get_ipython\(\)\.run_cell_magic(\('(?:explain|check)', .*\))\n?", re.DOTALL)


def _awaited_if_it_awaits(shell: Any, lines: list[str]) -> list[str]:
    """Return the code that IPython runs in place of a cell; where the cell awaits, its magic is awaited."""
    call = _CELL_MAGIC.fullmatch("".join(lines))
    if call is None:
        return lines
    _, _, cell = ast.literal_eval(call[1])
    awaits = shell.should_run_async(cell, transformed_cell=shell.transform_cell(cell))
    return [f"await {line}" if number == 0 else line for number, line in enumerate(lines)] if awaits else lines


@magics_class
class BynameMagics(Magics):
    """The magics. A cell runs as it would without them: same variables, same output, same error."""

    @cell_magic
    def explain(self, line: str, cell: str) -> Any:
        """Run the cell, and explain in the words of the program what autograd refuses."""
        __tracebackhide__ = True  # of the frames that IPython shows
        _no_arguments("%%explain", line)
        return _run(self.shell, cell, explaining())

    @cell_magic
    def check(self, line: str, cell: str) -> Any:
        """Run the cell, explain errors as %%explain does, and tell what raises no error and is wrong.

        That is what will silently do nothing, such as parameters that no optimizer has, and operations that turn finite
        numbers into infinite ones or NaN.
        """
        __tracebackhide__ = True
        _no_arguments("%%check", line)
        found: list[str] = []

        def report_finding(finding: Finding) -> None:
            found.append(str(finding))
            _say(found[-1])

        def end() -> None:
            if not found:
                _say("no finding; only backward calls in this cell were checked")

        return _run(self.shell, cell, Explaining(checked=report_finding, non_finite=report_finding), end)

    @line_magic
    def census(self, line: str) -> Census:
        """Return every living tensor, one row a storage, with its name, kind, bytes and what holds it."""
        _no_arguments("%census", line)
        return census()


def _say(message: str) -> None:
    print(f"byname: {printable_lines(message)}", file=sys.stderr, flush=True)


def _no_arguments(magic: str, line: str) -> None:
    if line.strip():
        raise UsageError(f"{magic} takes no arguments, but was given {line.strip()!r}")


def _number(shell: Any) -> int:
    """Return the number of the cell with the magic; the shell's own count may be that of the next one."""
    files = (shown_file(frame.f_code.co_filename) for frame in walk_frames(sys._getframe()))
    cells = (re.fullmatch(r"In\[(\d+)\]", file) for file in files)
    return next((int(cell[1]) for cell in cells if cell is not None), int(shell.execution_count))


def _run(shell: Any, cell: str, context: AbstractContextManager[object], end: Callable[[], None] = lambda: None) -> Any:
    """Run a cell within a context, in the user's variables; return the value of its last expression.

    Of a cell that awaits, return a coroutine that does so.
    """
    __tracebackhide__ = True
    statements, value = _compiled(shell, cell)
    if (statements.co_flags | (0 if value is None else value.co_flags)) & CO_COROUTINE:
        return _run_awaiting(shell, statements, value, context, end)
    with context:
        exec(statements, shell.user_global_ns, shell.user_ns)
        result = None if value is None else eval(value, shell.user_global_ns, shell.user_ns)
    end()
    return result


async def _run_awaiting(
    shell: Any,
    statements: CodeType,
    value: CodeType | None,
    context: AbstractContextManager[object],
    end: Callable[[], None],
) -> Any:
    __tracebackhide__ = True
    result = None
    with context:
        for code in (statements, value):
            if code is not None:
                result = eval(code, shell.user_global_ns, shell.user_ns)
                result = await result if code.co_flags & CO_COROUTINE else result
    end()
    return result


def _compiled(shell: Any, cell: str) -> tuple[CodeType, CodeType | None]:
    """Return the code of a cell, and that of its last expression if its value is shown.

    The first line of the cell is that of the magic, so its code begins on the second one.
    """
    source = "\n" + shell.transform_cell(cell)
    name = shell.compile.cache(source, _number(shell), raw_code="\n" + cell)
    with shell.compile.extra_flags(ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if shell.autoawait else 0):
        tree = shell.transform_ast(shell.compile.ast_parse(source, filename=name))
        shown = tree.body and isinstance(tree.body[-1], ast.Expr) and not cell.rstrip().endswith(";")
        last = tree.body.pop() if shown else None
        statements = shell.compile(tree, name, "exec")
        return statements, None if last is None else shell.compile(ast.Expression(last.value), name, "eval")
