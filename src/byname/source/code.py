"""Code: the source of a code object, used only if it compiles to the code that ran."""

from __future__ import annotations

import ast
import linecache
import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import islice
from types import CodeType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from torch.utils.weak import WeakIdKeyDictionary

if TYPE_CHECKING:
    import executing

Function = ast.FunctionDef | ast.AsyncFunctionDef
Block = TypeVar("Block", bound=ast.stmt)

HIDDEN = "_byname_"
"""Prefix of the names that byname adds to the code of a function to watch its variables."""

AST_LOCK = threading.RLock()
"""Lock to hold while syntax trees are made.

Python 3.11 counts their depth for all threads together and raises SystemError when two threads make one at once
(python/cpython#106905).
"""


class CodeKey:
    """A code object as a dictionary key, equal only to itself.

    Python's comparison of code objects leaves the file name out, so those of a file and of its copy are equal.
    """

    __slots__ = ("code",)

    def __init__(self, code: CodeType | None) -> None:
        self.code = code

    def __eq__(self, other: object) -> bool:
        return type(other) is CodeKey and other.code is self.code

    def __hash__(self) -> int:
        return id(self.code)


class _OriginalCode(WeakIdKeyDictionary):
    """Map from code objects that byname made to the originals; any other code stands for itself."""

    def __getitem__(self, code: CodeType) -> CodeType:
        own: CodeType = self.get(code, code)  # type: ignore[no-untyped-call]
        return own


original_code = _OriginalCode()
"""Map from code that byname put into a function to the function's own code. Both have the same lines and columns.

The map is process-wide, because code in a frame does not show who put it into its function.
"""


Position = tuple[int | None, int | None, int | None, int | None]


def position_of(code: CodeType, instruction: int) -> Position:
    """Return the first and last line, and first and last column, of an instruction's expression; None where unknown."""
    return next(islice(code.co_positions(), max(instruction, 0) // 2, None), (None, None, None, None))


def source_of(code: CodeType) -> executing.Source | None:
    """Return the source of a code object if it still compiles to that code, else None."""
    if not linecache.getlines(code.co_filename):  # as of ``python -c``
        return None
    with AST_LOCK:
        source = parsed_file(code.co_filename)
        return source if source.tree is not None and compiles_to(source, code) else None


def parsed_file(file: str) -> executing.Source:
    """Return the present source of a file or notebook cell, as far as it can be read.

    An unchanged file always gives the same `executing.Source` object, so results can be cached by it.
    """
    import executing  # here, because most calls of byname read no source

    with unshown_warnings():
        return executing.Source.for_filename(file)


@contextmanager
def unshown_warnings() -> Iterator[None]:
    """Hold `AST_LOCK`, and show no warnings of a file that is parsed or compiled again: Python showed them before.

    After ``catch_warnings()`` Python would show warnings of the program again that it shows once. It is used only where
    a filter makes errors of warnings.
    """
    with AST_LOCK:
        if any(action == "error" for action, *_ in warnings.filters):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
            return
        shows = warnings.showwarning
        try:
            warnings.showwarning = lambda *_, **__: None
            yield
        finally:
            warnings.showwarning = shows


def compiles_to(source: executing.Source, code: CodeType) -> bool:
    """Return whether a source, which must have been parsed, compiles to this code."""
    code = original_code[code]
    if not os.path.exists(code.co_filename) and code.co_name == "<module>":  # noqa: PTH110
        # Compare only the names in a cell: its last statement compiles differently, since its value is displayed.
        return set(code.co_names) <= _identifiers(source)
    if any(name.startswith("@py") for name in code.co_names):  # pytest rewrites functions with assertions
        return True
    key = code.co_qualname, code.co_firstlineno
    return any(_same_code(one, code) for single in (False, True) for one in _codes(source, single).get(key, ()))


def _same_code(one: CodeType, other: CodeType) -> bool:
    plain = [[const for const in code.co_consts if type(const) is not CodeType] for code in (one, other)]
    same_names = (one.co_names, one.co_varnames) == (other.co_names, other.co_varnames)
    return same_names and one.co_code == other.co_code and repr(plain[0]) == repr(plain[1])


@lru_cache(maxsize=64)
def _identifiers(source: Any) -> frozenset[str]:
    nodes = list(ast.walk(source.tree))
    found = [
        name
        for node in nodes
        for field in ("id", "attr", "name", "arg", "asname")
        for name in [getattr(node, field, 0)]
    ]
    modules = [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    return frozenset(str(part) for name in (*found, *modules) for part in (name, *str(name).split(".")))


@lru_cache(maxsize=128)
def _codes(source: Any, single: bool) -> dict[tuple[str, int], list[CodeType]]:
    """Return the code objects that a file compiles to now, by qualified name and first line.

    With `single` each statement is compiled by itself, as in a notebook: CPython compiles ``torch.relu(x)`` differently
    where the same unit imports ``torch``.
    """
    found: dict[tuple[str, int], list[CodeType]] = {}
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT  # as in a notebook; it changes no other code
    waiting = []
    for unit in [ast.Module([one], []) for one in source.tree.body] if single else [source.text]:
        with suppress(SyntaxError):  # some text parses but does not compile: a return outside of a function
            waiting.append(compile(unit, source.filename, "exec", flags, dont_inherit=True))
    while waiting:
        code = waiting.pop()
        found.setdefault((code.co_qualname, code.co_firstlineno), []).append(code)
        waiting += [const for const in code.co_consts if type(const) is CodeType]
    return found


@lru_cache(maxsize=64)
def _nodes(source: Any) -> tuple[dict[Position, ast.AST], dict[tuple[int | None, int | None], list[ast.Call]]]:
    """Return two indexes of a file: expressions by their four coordinates, and calls by their end."""
    exact: dict[Position, ast.AST] = {}
    calls: dict[tuple[int | None, int | None], list[ast.Call]] = {}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.expr | ast.AugAssign | ast.For):
            exact.setdefault((node.lineno, node.end_lineno, node.col_offset, node.end_col_offset), node)
        if isinstance(node, ast.Call):
            calls.setdefault((node.end_lineno, node.end_col_offset), []).append(node)
    return exact, calls


def expression_at(source: executing.Source, position: Position) -> ast.AST | None:
    """Return the expression at these coordinates, or else the one call that ends there; None without either."""
    exact, calls = _nodes(source)
    node = exact.get(position)
    if node is None:
        # The compiler locates a method call over several lines from the method's name on, not from its object.
        ending = [one for one in calls.get((position[1], position[3]), []) if one.lineno <= (position[0] or 0)]
        node = ending[0] if len(ending) == 1 else None
    return node


def copied_in(node: Any) -> Any:
    """Return what an expression gives without a copy of its values: a shallow copy of a module, ``.detach()``."""
    function: Any = node.func if isinstance(node, ast.Call) else None
    if function is not None and ast.unparse(function) in ("copy.copy", "copy") and node.args:
        return node.args[0]
    return function.value if getattr(function, "attr", "") == "detach" else node


def enclosing_statement(node: ast.AST) -> ast.stmt:
    while not isinstance(node, ast.stmt):
        node = node.parent  # type: ignore[attr-defined]  # set by executing
    return node


def bound_by(statement: ast.AST) -> Iterator[str]:
    """Yield the names that a statement, without the blocks in it, binds or deletes in its own scope."""
    yield from filter(None, map(name_of, targets(statement)))


def targets(statement: ast.AST) -> Iterator[Any]:
    """Yield what a statement, without the blocks in it, binds, deletes or stores into, in the order of the source.

    These are names, items, attributes, ``:=``, patterns, imports, handlers and definitions.
    """
    if isinstance(statement, Function | ast.ClassDef | ast.ExceptHandler):
        yield statement
    for head in heads(statement):
        yield from _targets_in(head)


def heads(statement: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a statement that are evaluated in its own scope and are not statements themselves."""
    for part in ast.iter_child_nodes(statement):
        if part in (getattr(statement, "returns", None), *getattr(statement, "type_params", ())):
            continue
        if not isinstance(part, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield part


def _targets_in(node: Any) -> Iterator[Any]:
    """Yield the targets in an expression, target or pattern, except in scopes that it opens itself."""
    itself = isinstance(node, ast.NamedExpr | ast.alias) or not isinstance(getattr(node, "ctx", _LOAD), ast.Load)
    if itself and not isinstance(node, ast.Tuple | ast.List | ast.Starred):
        yield node
    inner = () if isinstance(node, ast.Lambda) else ast.iter_child_nodes(node)
    for part in inner:
        if part is not getattr(node, "target", None):  # of a comprehension, or of `:=`
            yield from _targets_in(part)
    if isinstance(node, ast.pattern) and name_of(node):
        yield node


_LOAD = ast.Load()


def name_of(target: Any) -> str:
    """Return the name that a target from `targets` binds; empty if there is none."""
    match target:
        case ast.Name():
            return target.id
        case ast.NamedExpr():
            return target.target.id
        case ast.alias():
            return target.asname or target.name.partition(".")[0].strip("*")
        case ast.MatchMapping():
            return target.rest or ""
    return getattr(target, "name", None) or ""


Statement: TypeAlias = ast.stmt | ast.ExceptHandler | ast.match_case


def statements_in(body: Sequence[Statement]) -> Iterator[Statement]:
    """Yield every statement of a body in source order, including nested blocks, but not functions or classes."""
    for statement in body:
        yield statement
        for block in () if isinstance(statement, Function | ast.ClassDef) else _BLOCKS:
            yield from statements_in(getattr(statement, block, ()))


_BLOCKS = ("body", "handlers", "cases", "orelse", "finalbody")


def names_bound(statement: ast.AST) -> set[str]:
    """Return the names, attributes and items that a statement binds or deletes: in its handlers, not in its blocks."""
    parts = (statement, *getattr(statement, "handlers", ()), *getattr(statement, "cases", ()))
    found = (one for part in parts for one in targets(part))
    return {name_of(one) or (ast.unparse(one) if isinstance(one, ast.expr) else "") for one in found}


def names_read(statement: ast.stmt) -> set[str]:
    names = [one for one in ast.walk(statement) if isinstance(one, ast.Name)]
    return {one.id for one in names if isinstance(one.ctx, ast.Load) or isinstance(statement, ast.AugAssign)}


def definition_of(code: CodeType) -> Function | None:
    """Return the syntax tree of the function with this code; None if the source is missing, changed or ambiguous."""
    source = source_of(code)
    found = [] if source is None else _definitions(source).get((code.co_name, code.co_firstlineno), [])
    return found[0] if len(found) == 1 else None


@lru_cache(maxsize=64)
def _definitions(source: Any) -> dict[tuple[str, int], list[Function]]:
    """Return the functions that a file defines, by name and first line (that of the first decorator, if any)."""
    found: dict[tuple[str, int], list[Function]] = {}
    for node in ast.walk(source.tree):
        if isinstance(node, Function):
            line = min([node.lineno, *(mark.lineno for mark in node.decorator_list)])
            found.setdefault((node.name, line), []).append(node)
    return found


def value_persists(code: CodeType, path: str, line: int) -> bool:
    """Return whether the value that a statement gives to a variable, attribute or item stays until it runs again.

    A variable must stay from one round to the next of the outermost loop around the line, an attribute or item from one
    call to the next. Only this body is read.
    """
    body = [*statements_of(code)]
    if path.isidentifier():
        loops = blocks_around(code, line, ast.For, ast.While)
        body = [one for one in body if loops and _spans(loops[0], one.lineno)]
    others = [one for one in body if one.lineno != line]
    return bool(body) and not any(path in names_bound(one) for one in others)


def blocks_around(code: CodeType, line: int, *kinds: type[Block]) -> list[Block]:
    """Return the blocks around a line of a function or module body that are of some kinds, the outermost first."""
    return [one for one in statements_of(code) if isinstance(one, kinds) and _spans(one, line)]


def _spans(block: ast.stmt, line: int) -> bool:
    return block.lineno <= line <= (block.end_lineno or 0)


def returns(code: CodeType, variable: str | None, line: int) -> bool:
    """Return whether a function returns a value unchanged: by the ``return`` at that line, or as that variable."""
    values = [(one.lineno, one.value) for one in statements_of(code) if isinstance(one, ast.Return) and one.value]
    parts = [(at, part) for at, value in values for part in getattr(value, "elts", [value])]
    return any(at == line or (isinstance(part, ast.Name) and part.id == variable) for at, part in parts)


def statements_of(code: CodeType) -> Iterator[ast.stmt]:
    """Yield the statements of a function or module body in source order; none if the source is missing."""
    node: Any = definition_of(code)
    if code.co_name == "<module>" and (source := source_of(code)) is not None:
        node = source.tree
    return (one for one in statements_in([] if node is None else node.body) if isinstance(one, ast.stmt))


def binds_alone(code: CodeType, variable: str) -> bool:
    """Return whether only statements of this function or module body can bind one of its variables.

    An argument, a variable shared with a nested function, and one that some function declares ``global`` can be bound
    elsewhere.
    """
    shared = variable in code.co_cellvars or variable in code.co_freevars
    arguments = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    if shared or variable in code.co_varnames[:arguments]:
        return False
    if code.co_name != "<module>":
        return variable in code.co_varnames
    source: Any = source_of(code)
    declared = () if source is None else (one for one in ast.walk(source.tree) if isinstance(one, ast.Global))
    return source is not None and not any(variable in one.names for one in declared)
