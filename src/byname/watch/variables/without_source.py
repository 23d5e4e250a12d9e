"""Without source: the variables of a function without source, read by tracing its observed runs.

The function gets code of the same signature that passes the call on to byname. A copy of the function then runs its own
code under a trace function, which looks at this one frame. The trace function also calls the one that was set before,
such as that of a debugger or a coverage tool. Runs of other instances, and other threads, are not traced.

The tracer reads the variables between two lines. So it misses an assignment of the very object that the variable had
before, and all but the last assignment in one line. It replaces nothing and does not see nested functions.
"""

from __future__ import annotations

import ast
import inspect
import sys
import weakref
from collections.abc import Callable, Sequence
from types import CodeType, FrameType, FunctionType
from typing import Any

from byname.source.code import stands_for
from byname.watch.variables.activation import Run, version_of

Trace = Callable[[FrameType, str, Any], Any]


def can_be_traced(code: CodeType) -> bool:
    """Return whether the whole run happens during the call; a generator or a coroutine runs later."""
    later = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    return not code.co_flags & later


def bare(function: FunctionType, code: CodeType) -> FunctionType:
    """Return a copy of a function with this code, its own."""
    copy = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def handing_over(code: CodeType, key: int) -> CodeType:
    """Return code that calls ``byname._traced``; its signature and free variables are those of `code`."""
    positional, keywords = _arguments(code)
    outside = code.co_freevars
    shell = "\n".join(
        [
            "def _byname_shell():",
            *(f"  {name} = None" for name in outside),
            f"  def {_a_name(code.co_name)}({_signature(code)}):",
            f"    if 0: {', '.join(outside) or 'pass'}",
            "    import byname as _byname_run_0",
            f"    return _byname_run_0._traced({key}, ({positional}), dict({keywords}))",
        ]
    )
    tree = ast.parse(shell)
    for node in ast.walk(tree):
        if "lineno" in node._attributes:
            vars(node).update(
                lineno=code.co_firstlineno, end_lineno=code.co_firstlineno, col_offset=0, end_col_offset=0
            )
    made: Any = compile(tree, code.co_filename, "exec", dont_inherit=True)
    for _ in range(2):
        made = next(const for const in made.co_consts if isinstance(const, CodeType))
    made = made.replace(co_name=code.co_name, co_qualname=code.co_qualname)
    stands_for[made] = code
    return made  # type: ignore[no-any-return]


def _a_name(name: str) -> str:
    return name if name.isidentifier() else "_byname_function"


def _split(code: CodeType) -> tuple[list[str], list[str], list[str], list[str]]:
    """Return the names of the positional arguments, the keyword-only ones, ``*args`` and ``**kwargs``."""
    names, at = list(code.co_varnames), code.co_argcount
    positional, only = names[:at], names[at : at + code.co_kwonlyargcount]
    rest = names[at + code.co_kwonlyargcount :]
    star = [rest.pop(0)] if code.co_flags & inspect.CO_VARARGS else []
    stars = [rest.pop(0)] if code.co_flags & inspect.CO_VARKEYWORDS else []
    return positional, only, star, stars


def _signature(code: CodeType) -> str:
    positional, only, star, stars = _split(code)
    if code.co_posonlyargcount:
        positional.insert(code.co_posonlyargcount, "/")
    middle = [f"*{name}" for name in star] or ["*"] * bool(only)
    return ", ".join([*positional, *middle, *only, *(f"**{name}" for name in stars)])


def _arguments(code: CodeType) -> tuple[str, str]:
    positional, only, star, stars = _split(code)
    keywords = [*(f"{name}={name}" for name in only), *(f"**{name}" for name in stars)]
    return "".join(f"{name}, " for name in [*positional, *(f"*{name}" for name in star)]), ", ".join(keywords)


def traced(function: FunctionType, run: Run, wanted: Sequence[str], arguments: Any, keywords: Any) -> Any:
    """Call a function and report its variables; return its result.

    Args:
        function: the copy from `bare`.
        run: the observed run, to which the variables are reported.
        wanted: the names of the variables, in the order of the reports.
        arguments, keywords: the arguments of the call.
    """
    tracer = _Tracer(function.__code__, run, wanted)
    sys.settrace(tracer.called)
    try:
        return function(*arguments, **keywords)
    finally:
        if sys.gettrace() == tracer.called:  # otherwise the function has set another trace function, as a debugger does
            sys.settrace(tracer.before)


class _Tracer:
    """Reports the variables of one frame, and also calls the trace function that was set before."""

    def __init__(self, code: CodeType, run: Run, wanted: Sequence[str]) -> None:
        self.code, self.run, self.wanted = code, run, wanted
        self.before: Any = sys.gettrace()
        self.frame: FrameType | None = None
        self.failing = False
        self.seen: dict[str, tuple[Any, int | None]] = {}

    def called(self, frame: FrameType, event: str, value: Any) -> Trace | None:
        """Trace a call; the first call of the function's code is the observed frame."""
        theirs = self.before(frame, event, value) if self.before is not None else None
        if self.frame is not None or frame.f_code is not self.code:
            self._stay()
            return theirs
        self.frame = frame
        self._look(frame, "entry")

        def happened(frame: FrameType, event: str, value: Any) -> Any:
            nonlocal theirs
            theirs = theirs(frame, event, value) if theirs is not None else None
            self._happened(frame, event, value)
            self._stay()
            return happened

        self._stay()
        return happened

    def _stay(self) -> None:
        """Set this trace function again: some trace functions written in C set themselves when they are called."""
        if self.before is not None and sys.gettrace() == self.before:
            sys.settrace(self.called)

    def _happened(self, frame: FrameType, event: str, value: Any) -> None:
        if event == "exception":
            self.failing = True
        elif event == "line":
            self.failing = False
            self._look(frame, "assigned")
        elif event == "return" and not self.failing:
            self._look(frame, "assigned")
            self._leave(frame, value)

    def _leave(self, frame: FrameType, value: Any) -> None:
        now = frame.f_locals
        for name in self.wanted:
            if name in now:
                self.run.show(name, now[name], "exit")
        if "return" in self.wanted:
            self.run.show("return", value, "returned")

    def _look(self, frame: FrameType, moment: str) -> None:
        now = frame.f_locals
        for name in self.wanted:
            if name not in now:
                self.seen.pop(name, None)
                continue
            value = now[name]
            version = version_of(value)
            known, its_version = self.seen.get(name, (_NOTHING, None))
            if version is not None and known is not _NOTHING:
                known = known() if isinstance(known, weakref.ref) else known
            if known is not value:
                self.run.show(name, value, moment)
            elif version != its_version:
                self.run.show(name, value, "changed")
            # A tensor is held weakly. Another value must be held, since a new object could get its address.
            self.seen[name] = (value if version is None else weakref.ref(value), version_of(value))


_NOTHING = object()
