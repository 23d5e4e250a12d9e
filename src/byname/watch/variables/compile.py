"""Compile: code of a function that reports its variables, from its rewritten source; or tracing, if it has no source.

A function without source gets code of the same signature that passes the call on to byname. A copy of the function then
runs its own code under a trace function, which looks at this one frame. The trace function also calls the one that was
set before, such as that of a debugger or a coverage tool. Runs of other instances, and other threads, are not traced.

The tracer reads the variables between two lines. So it misses an assignment of the very object that the variable had
before, and all but the last assignment in one line. It replaces nothing and does not see nested functions.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from types import CellType, CodeType, FrameType, FunctionType
from typing import Any

from byname.reading.tensor import version_of
from byname.source.code import AST_LOCK, CodeKey, Function, definition_of, original_code, unshown_warnings
from byname.watch.variables.transform import first_line_node, report_variables, statements_at

_FUTURE = 0
for _name in __future__.all_feature_names:
    _FUTURE |= getattr(__future__, _name).compiler_flag

_SHELL = "_byname_shell"
"""The name of a function around the recompiled one, if that has free variables."""


def recompiled(code: CodeType, wanted: Iterable[str], key: int) -> CodeType | None:
    """Return code that reports these variables; None if the source is missing or may not be that of the code.

    The new code has the file name, lines, columns, name and free variables of the original, so that it can replace it
    in a function. It is cached, since compiling takes milliseconds and an attachment may be disabled and enabled often.
    """
    try:
        with AST_LOCK:
            made = _recompiled(CodeKey(code), frozenset(wanted))
    except NoSourceError:  # not cached, since the source may be found later
        return None
    consts = [key if type(const) is int and const == _KEY else const for const in made.co_consts]
    fitted = made.replace(co_consts=tuple(consts))
    _note(fitted, code)
    return fitted


_KEY = 0x6279_6E61_6D65_0001
"""A placeholder for the key in cached code."""


class NoSourceError(Exception):
    """The source is missing, or may not be that of the code."""


@lru_cache(maxsize=256)
def _recompiled(this: CodeKey, wanted: frozenset[str]) -> CodeType:
    """Return the code that reports these variables, with the placeholder instead of its key."""
    assert this.code is not None
    return changed_code(this.code, lambda node: report_variables(node, wanted, _KEY))


def changed_code(code: CodeType, change: Callable[[Function], None]) -> CodeType:
    """Return the code of a function whose syntax tree was changed; `change` gets a copy of the tree."""
    definition = definition_of(code)
    if definition is None:
        raise NoSourceError
    node = _copy(definition)
    _without_signature(node)
    change(node)
    tree = _in_its_shell(node, code, _class_around(definition))
    with unshown_warnings():
        try:
            made: Any = compile(tree, code.co_filename, "exec", flags=code.co_flags & _FUTURE, dont_inherit=True)
        except SyntaxError as error:  # too many nested blocks
            raise NoSourceError from error
    inner = _find(made, code)
    if inner is None or inner.co_freevars != code.co_freevars:
        raise NoSourceError
    return _fitted(inner, code)


def _note(made: CodeType, original: CodeType) -> None:
    """Note in ``stands_for`` the original of the new code, and the originals of the functions inside it."""
    original_code[made] = original
    inside = {(one.co_name, one.co_firstlineno): one for one in original.co_consts if isinstance(one, CodeType)}
    for one in (const for const in made.co_consts if isinstance(const, CodeType)):
        if (own := inside.get((one.co_name, one.co_firstlineno))) is not None:
            _note(one, own)


def _copy(node: Any) -> Any:
    """Return a copy of a syntax tree without the attributes that other code has set on its nodes."""
    if isinstance(node, list):
        return [_copy(part) for part in node]
    if not isinstance(node, ast.AST):
        return node
    new = type(node)(**{name: _copy(value) for name, value in ast.iter_fields(node)})
    return ast.copy_location(new, node)


def _without_signature(node: Function) -> None:
    """Remove defaults and annotations, which a definition evaluates; keep decorators, which have the first line."""
    node.args.defaults = []
    node.args.kw_defaults = [None] * len(node.args.kwonlyargs)
    node.returns = None
    for part in ast.walk(node.args):
        if isinstance(part, ast.arg):
            part.annotation = None
    if hasattr(node, "type_params"):
        node.type_params = []


def _class_around(node: Any) -> str | None:
    """Return the name of the class around a function, for its private names and ``super()``; None without a class."""
    while not isinstance(node, ast.Module):
        node = node.parent
        if isinstance(node, ast.ClassDef):
            return node.name
    return None


def _in_its_shell(node: Function, code: CodeType, owner: str | None) -> ast.Module:
    body: list[ast.stmt] = [node]
    place = first_line_node(node)
    if owner is not None:
        body = [_around(f"class {owner}: pass", body, place)]
    outside = [name for name in code.co_freevars if name != "__class__"]
    if outside:
        names = statements_at("\n".join(f"{name} = None" for name in outside), place)
        body = [_around(f"def {_SHELL}(): pass", [*names, *body], place)]
    return ast.Module(body, [])


def _around(text: str, body: list[ast.stmt], place: ast.AST) -> ast.stmt:
    statement: Any = statements_at(text, place)[0]
    statement.body = body
    return statement  # type: ignore[no-any-return]


def _find(made: CodeType, original: CodeType) -> CodeType | None:
    for inner in (const for const in made.co_consts if isinstance(const, CodeType)):
        if inner.co_name == original.co_name and inner.co_flags & inspect.CO_OPTIMIZED:
            return inner
        if (found := _find(inner, original)) is not None:
            return found
    return None


def _fitted(made: CodeType, original: CodeType) -> CodeType:
    """Return the new code with the qualified name of the original; functions inside it are renamed accordingly."""
    nested = (made.co_flags & ~inspect.CO_NESTED) | (original.co_flags & inspect.CO_NESTED)
    return _renamed(made, made.co_qualname, original.co_qualname).replace(co_flags=nested)


def _renamed(code: CodeType, old: str, new: str) -> CodeType:
    consts = tuple(_renamed(one, old, new) if isinstance(one, CodeType) else one for one in code.co_consts)
    name = new + code.co_qualname.removeprefix(old) if code.co_qualname.startswith(old) else code.co_qualname
    return code.replace(co_consts=consts, co_qualname=name)


# Without source

Trace = Callable[[FrameType, str, Any], Any]


def can_be_traced(code: CodeType) -> bool:
    """Return whether the whole run happens during the call; a generator or a coroutine runs later."""
    later = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    return not code.co_flags & later


def with_code(function: FunctionType, code: CodeType) -> FunctionType:
    """Return a copy of a function with this code, its own."""
    copy = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def forwarding_code(code: CodeType, key: int) -> CodeType:
    """Return code that calls ``byname._traced``; its signature and free variables are those of `code`."""
    outside = code.co_freevars
    signature = inspect.signature(FunctionType(code, {}, None, None, tuple(CellType() for _ in outside)))
    passed: dict[bool, str] = {True: "", False: ""}
    for one in signature.parameters.values():
        passed[one.kind < one.KEYWORD_ONLY] += f"{_PASSED[one.kind].format(one.name)}, "
    shell = "\n".join(
        [
            "def _byname_shell():",
            *(f"  {name} = None" for name in outside),
            f"  def {code.co_name if code.co_name.isidentifier() else '_byname_function'}{signature}:",
            f"    if 0: {', '.join(outside) or 'pass'}",
            "    import byname as _byname_run_0",
            f"    return _byname_run_0._traced({key}, ({passed[True]}), dict({passed[False]}))",
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
    original_code[made] = code
    return made  # type: ignore[no-any-return]


_PASSED = ("{0}", "{0}", "*{0}", "{0}={0}", "**{0}")
"""How an argument is passed on, by the kinds of `inspect.Parameter`."""


def traced(function: FunctionType, run: Any, wanted: Sequence[str], arguments: Any, keywords: Any) -> Any:
    """Call a function, the copy from `with_code`, and report its variables in this order; return its result."""
    tracer = _Tracer(function.__code__, run, wanted)
    sys.settrace(tracer.called)
    try:
        return function(*arguments, **keywords)
    finally:
        if sys.gettrace() == tracer.called:  # otherwise the function has set another trace function, as a debugger does
            sys.settrace(tracer.before)


class _Tracer:
    """Reports the variables of one frame, and also calls the trace function that was set before."""

    def __init__(self, code: CodeType, run: Any, wanted: Sequence[str]) -> None:
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
