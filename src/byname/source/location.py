"""Location: the file, line, statement and variable in the user's source behind an instruction of a code object."""

from __future__ import annotations

import ast
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from byname.source.code import (
    CodeKey,
    enclosing_statement,
    expression_at,
    names_bound,
    position_of,
    source_of,
    statements_of,
)
from byname.source.tracebacks import is_byname, shown_file
from byname.text import printable

if TYPE_CHECKING:
    import executing


@dataclass(frozen=True, slots=True)
class Site:
    """A line of the source, with its statement and the variable that the statement assigns.

    Attributes:
        file: the full name of the file, as Python knows it.
        line: the line, from 1.
        function: the qualified name of the function, ``<module>`` at the top level of a file.
        statement: the source of the statement on one line; empty if the source is not available.
        target: the source of the variable that the statement assigns (``h``, ``self.state``, ``cache['k']``); None if
            it assigns nothing.
        caller: for a line in a helper, the line of the program that called the helper, if known. Sites that differ only
            in their callers are equal.
    """

    file: str
    line: int
    function: str = ""
    statement: str = ""
    target: str | None = None
    caller: Site | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return printable(f"{shown_file(self.file)}:{self.line}")

    @property
    def with_caller(self) -> str:
        """The line, in a helper with its caller, ``helper.py:3 in update_params, called at train.py:41``."""
        return str(self) if self.caller is None else f"{self} in {self.called_by}"

    @property
    def called_by(self) -> str | None:
        """The helper and its caller of a line in a helper, ``update_params, called at train.py:41``; else None."""
        return None if self.caller is None else f"{self.helper}, called at {self.caller}"

    @property
    def helper(self) -> str:
        """The function's name without the enclosing functions; for a comprehension, the function that contains it."""
        return printable(re.sub(_COMPREHENSIONS, "", self.function).rpartition("<locals>.")[2])


class Located:
    """A row about something that was made, saved or computed at a site."""

    __slots__ = ()
    site: Site | None

    @property
    def made_at(self) -> Site | None:
        """The site, under the name of the table's column."""
        return self.site

    @property
    def statement(self) -> str | None:
        """The statement at the site; None when that is unknown."""
        return None if self.site is None else self.site.statement

    @property
    def caller(self) -> str | None:
        """The helper and its caller of a site in a helper, ``update_params, called at train.py:41``; else None."""
        return None if self.site is None else self.site.called_by


_COMPREHENSIONS = r"(\.<locals>\.<\w+>)+$"


class Expression(NamedTuple):
    """A `Site` and facts about one expression on it.

    Attributes:
        whole: whether the statement assigns exactly this expression's value to ``site.target``.
        in_place: whether the expression changed an existing tensor in place and returned it.
        node: its syntax tree; of an augmented or a whole statement, the statement's; None without the unchanged source.
    """

    site: Site
    whole: bool = False
    in_place: bool = False
    node: ast.AST | None = None

    @property
    def operands(self) -> tuple[str | None, ...]:
        """The source of each operand as PyTorch receives them; None if it is no plain name, attribute or item."""
        node = self.node
        if isinstance(node, ast.BinOp):
            parts: list[ast.expr] = [node.left, node.right]
        elif isinstance(node, ast.AugAssign):
            parts = [node.target, node.value]
        elif isinstance(node, ast.UnaryOp):
            parts = [node.operand]
        elif isinstance(node, ast.Call):
            listed = node.args[0] if node.args else None  # of tensors, as cat and stack take them
            parts = listed.elts if isinstance(listed, ast.List | ast.Tuple) else node.args
        elif isinstance(node, ast.Attribute | ast.Subscript):
            parts = [node.value]
        else:
            parts = []
        return tuple(_path(part) for part in parts)

    @property
    def receiver(self) -> str | None:
        """The source of the object whose method is called, if that is a plain name, attribute or item; else None."""
        is_method = isinstance(self.node, ast.Call) and isinstance(self.node.func, ast.Attribute)
        return _path(self.node.func.value) if is_method else None  # type: ignore[union-attr]

    @property
    def parts(self) -> tuple[str, ...]:
        """The targets of a statement that unpacks the expression's value, such as ``q, k, v = ...``."""
        statement = getattr(self.node, "parent", None)
        if isinstance(statement, ast.Assign) and statement.value is self.node:
            target = statement.targets[0]
            if isinstance(target, ast.Tuple | ast.List) and not any(
                isinstance(one, ast.Starred) for one in target.elts
            ):
                return tuple(ast.unparse(one) for one in target.elts)
        return ()

    @property
    def made_here(self) -> bool:
        """Whether the tensor comes from a constructor that no function mode sees, as ``torch.FloatTensor([1.0])``."""
        node = self.node
        value = node if isinstance(node, ast.Assign | ast.AnnAssign) else getattr(node, "func", None)
        called = getattr(value, "value", None)
        path = _path(called.func) if isinstance(called, ast.Call) else None
        name = (path or "").rpartition(".")[2]
        return name.endswith("Tensor") or name in _HIDDEN_CONSTRUCTORS

    @property
    def reads(self) -> frozenset[str]:
        """The plain variable names that the statement reads; of a statement with a body, those in its head."""
        if self.node is None:
            return frozenset()
        statement = enclosing_statement(self.node)
        heads = [part for part in ast.iter_child_nodes(statement) if not isinstance(part, ast.stmt)]
        names = [node for head in heads for node in ast.walk(head) if isinstance(node, ast.Name)]
        changes = isinstance(statement, ast.AugAssign)
        return frozenset(node.id for node in names if changes or isinstance(node.ctx, ast.Load))


_HIDDEN_CONSTRUCTORS = frozenset({"Parameter", "Buffer", "from_numpy", "frombuffer", "from_dlpack", "load"})
"""Constructors beside ``torch.Tensor`` and ``torch.FloatTensor`` whose calls no function mode sees."""

Instruction: TypeAlias = tuple[CodeType, int]
"""A code object and the byte offset of an instruction in it."""


def locate(code: CodeType, instruction: int, caller: Instruction | None = None) -> Expression:
    """Find the statement and the expression of an instruction, whose function was called at `caller` if it is a helper.

    The source is used only if it compiles to the code that ran, and an expression only if its columns are exactly those
    that the compiler recorded for the instruction. A file edited since it was loaded thus gives no statement rather
    than a wrong one.
    """
    expr = _located(CodeKey(code), instruction)
    return expr if caller is None else expr._replace(site=replace(expr.site, caller=locate(*caller).site))


@lru_cache(maxsize=8192)
def _located(this: CodeKey, instruction: int) -> Expression:
    code = this.code
    assert code is not None
    position = position_of(code, instruction)
    source = None if position[0] is None else source_of(code)
    node = None if source is None else expression_at(source, position)
    line = code.co_firstlineno if position[0] is None else position[0]
    if source is None or node is None:
        return Expression(Site(code.co_filename, line, code.co_qualname))
    statement = enclosing_statement(node)
    target, whole = _assigned(statement, node)
    site = Site(code.co_filename, line, code.co_qualname, _text(source, statement), target)
    return Expression(site, whole, node=node)


def changed_by(code: CodeType, instruction: int, operation: str) -> str | None:
    """Return the source of the tensor that an in-place operation changes.

    That is ``h`` in ``h[0] = 1``, in ``h.add_(1)`` and in ``relu_(h)``; None if the instruction has no such expression.
    """
    node = locate(code, instruction).node
    if isinstance(node, ast.Subscript) and operation == "__setitem__":
        return ast.unparse(node.value)
    if isinstance(node, ast.AugAssign):
        return ast.unparse(node.target)
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute) and node.func.attr == operation:
        owner = node.func.value
        if not (isinstance(owner, ast.Name) and owner.id in ("torch", "F")):
            return ast.unparse(owner)
    named = {keyword.arg: keyword.value for keyword in node.keywords}
    changed = named.get("out") or next(iter(node.args), None) or named.get("input") or named.get("self")
    return None if changed is None else ast.unparse(changed)


def statements_binding(code: CodeType, variable: str) -> list[Expression]:
    """Return the statements of a function or module body, without nested ones, that assign a plain variable."""
    return [
        Expression(site_of(code, statement, variable, code.co_qualname), node=statement)
        for statement in statements_of(code)
        if variable in names_bound(statement)
    ]


def assignments_calling(code: CodeType, function: str) -> list[Site]:
    """Return the assignments of a function or module body that call a function such as ``self.cell``, in order."""
    return [
        site_of(code, statement, None, code.co_qualname)
        for statement in statements_of(code)
        if isinstance(statement, ast.Assign)
        and any(isinstance(part, ast.Call) and _path(part.func) == function for part in ast.walk(statement.value))
    ]


def site_of(code: CodeType, node: ast.stmt | ast.ExceptHandler | ast.pattern, target: str | None, name: str) -> Site:
    """Return the site of a statement, an ``except`` or a pattern; its statement is empty without the source.

    Args:
        target: the variable that it assigns, if any.
        name: the qualified name of the function around it.
    """
    source = source_of(code)
    return Site(code.co_filename, node.lineno, name, "" if source is None else _text(source, node), target)


def assignments(code: CodeType | None) -> Sequence[tuple[Site, ast.Assign]]:
    """Return the assignments in the file of some code, with their lines."""
    source = None if code is None else source_of(code)
    return () if code is None or source is None else _assignments(source, code.co_filename)


@lru_cache(maxsize=64)
def _assignments(source: Any, file: str) -> list[tuple[Site, ast.Assign]]:
    nodes = [node for node in ast.walk(source.tree) if isinstance(node, ast.Assign)]
    return [(Site(file, node.lineno, statement=_text(source, node)), node) for node in nodes]


def short_names(sites: Iterable[Site]) -> dict[Site, str]:
    """Return each site as ``net.py:2``, with the folders that distinguish files of one name."""
    every = list(dict.fromkeys(sites))
    shown = _shortest_names({site.file for site in every})
    return {site: f"{shown[site.file]}:{site.line}" for site in every}


def _shortest_names(files: Collection[str]) -> dict[str, str]:
    """Return for each file the shortest end of its full name that no other file shares."""
    found = {file: shown for file in files if (shown := shown_file(file)) not in file}
    waiting, length = {file: re.split(r"[\\/]", file) for file in files if file not in found}, 1
    while waiting:
        ends = {file: "/".join(parts[-length:]) for file, parts in waiting.items()}
        common = Counter(ends.values())
        found |= {file: end for file, end in ends.items() if common[end] == 1 or length > len(waiting[file])}
        waiting = {file: parts for file, parts in waiting.items() if file not in found}
        length += 1
    return found


def scope_of(code: CodeType) -> str:
    """Return the name of a function as the scope of a variable: ``train (train.py:14)``."""
    return f"{code.co_qualname} ({shown_file(code.co_filename)}:{code.co_firstlineno})"


def is_torch(filename: str) -> bool:
    """Return whether a file is part of PyTorch or byname."""
    return FILE_ORIGIN[filename] == TORCH


def is_library(filename: str) -> bool:
    """Return whether a file is installed (standard library, site-packages) rather than written by the user."""
    return filename.startswith(_TORCH) or FILE_ORIGIN[filename] != PROGRAM  # most files of a process are PyTorch's


TORCH, LIBRARY, PROGRAM = range(3)


class _FileOrigin(dict[str, int]):
    """Map from a file to whether it is PyTorch's or byname's, another library's, or the program's."""

    def __missing__(self, filename: str) -> int:
        if filename.startswith(_TORCH) or is_byname(filename):
            by = TORCH
        elif filename.startswith(_INSTALLED) or _in_packages(filename):
            by = LIBRARY
        else:
            by = PROGRAM
        self[filename] = by
        return by


FILE_ORIGIN = _FileOrigin()
"""The files seen so far: every recorded call reads this map."""


def _in_packages(file: str) -> bool:
    """Return whether a file is in a folder into which pip or Debian installs: of the user, an environment or Python."""
    parts = f"/{file}/".replace("\\", "/")
    return "/site-packages/" in parts or "/dist-packages/" in parts


_TORCH = str(Path(torch.__file__).parent) + os.sep
_BESIDE = Path(torch.__file__).parent.parent
_IS_A_TARGET = not _in_packages(str(_BESIDE)) and any(_BESIDE.glob("torch-*.dist-info"))  # of `pip install --target`
_FOLDERS = Path(ast.__file__).parent, *[_BESIDE] * _IS_A_TARGET
_INSTALLED = ("<frozen", *(f"{folder}{os.sep}" for folder in _FOLDERS))
"""Beginnings of the files of the standard library (found faster than by `sysconfig`), and of ``pip install --target``.
"""


def _assigned(statement: Any, node: ast.AST) -> tuple[str | None, bool]:
    """Return the source of the variable that a statement assigns, and whether its value is exactly `node`'s."""
    parent: Any = getattr(node, "parent", None)
    if isinstance(parent, ast.NamedExpr) and parent.value is node:
        return parent.target.id, True
    while node is not statement and parent is not statement:
        if isinstance(parent, ast.Lambda):
            return None, False
        parent = parent.parent
    if isinstance(statement, ast.AugAssign):
        return ast.unparse(statement.target), node is statement
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        return ast.unparse(statement.target), node is statement.value
    if isinstance(statement, ast.Assign):
        return _assigned_by(statement, node)
    return None, False


def _assigned_by(statement: ast.Assign, node: ast.AST) -> tuple[str, bool]:
    target, value = statement.targets[0], statement.value
    pairs = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts)
    if pairs and not any(isinstance(part, ast.Starred) for part in [*target.elts, *value.elts]):  # type: ignore[attr-defined]
        for one, its_value in zip(target.elts, value.elts, strict=True):  # type: ignore[attr-defined]
            if its_value is node:
                return ast.unparse(one), True
    if isinstance(target, ast.Tuple | ast.List):
        return ", ".join(map(ast.unparse, target.elts)), False
    return ast.unparse(target), node is value


def _path(node: ast.expr) -> str | None:
    """Return the source of ``a``, ``a.b`` or an item such as ``a['k']`` and ``a.b[i][-1]``; else None."""
    start = node
    while isinstance(start, ast.Attribute) or (isinstance(start, ast.Subscript) and _is_key(start.slice)):
        start = start.value
    return ast.unparse(node) if isinstance(start, ast.Name) else None


def _is_key(node: ast.expr) -> bool:
    """Return whether an index or key is a constant or a plain name, which give equal values each time they are read."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant | ast.Name)


def _text(source: executing.Source, node: Any, limit: int = 160) -> str:
    """Return the source of a node on one line; for a statement with a body, only its head."""
    first, last = node.lineno, node.end_lineno
    end = node.end_col_offset
    body = getattr(node, "body", None)
    if isinstance(body, list) and body:
        last, end = (body[0].lineno, body[0].col_offset) if body[0].lineno == first else (body[0].lineno - 1, None)
    lines = [line.encode() for line in source.lines[first - 1 : last]]
    if not lines:
        return ""
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][node.col_offset :]
    text = " ".join(b" ".join(lines).decode(errors="replace").split())
    return text if len(text) <= limit else text[: limit - 1] + "…"
