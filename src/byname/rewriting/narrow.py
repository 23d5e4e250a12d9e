"""Narrow: a forward that turns the function mode on only for the statements in which an operation may be called.

While a function mode is on, PyTorch takes several times as long for each function. Most statements of a forward call
methods of tensors, children of the module and functions of PyTorch by their names, so it can be read in the source that
they call no function of another name. The mode is left off for those, and on for all others.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Collection
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from byname.model.operations import MOVES, TENSOR_PROPERTIES, is_operation
from byname.reading.objects import attributes_of, found_in
from byname.source.code import AST_LOCK, CodeKey, Function, original_code
from byname.watch.variables.compile import NoSourceError, changed_code, with_code

MODE = "_byname_mode"
"""The argument by which a narrowed forward gets the mode."""


def narrowed(module: nn.Module, names: Collection[str]) -> tuple[CodeType, Callable[..., Any]] | None:
    """Return the code of a forward, and the forward that turns a mode on for some statements; None if it saves nothing.

    The mode must see the functions of these names.
    """
    kind = type(module)
    function = found_in(kind, "forward")
    if type(function) is not FunctionType or not all(hasattr(F, one) or not is_operation(one) for one in names):
        return None  # an operator, for example, has no name in the source
    if any(found_in(kind, one) is not found_in(nn.Module, one) for one in ("__getattribute__", "__setattr__")):
        return None
    own, held = original_code[function.__code__], attributes_of(module)  # not that by which its variables are watched
    modules = {name: one for name, one in held["_modules"].items() if isinstance(one, nn.Module)}
    # what hooks call belongs to the module around it
    children = frozenset(name for name, one in modules.items() if not (one._forward_hooks or one._forward_pre_hooks))
    plain = {name for name, value in held.items() if type(value) in _PLAIN} | {*held["_parameters"], *held["_buffers"]}
    computed = frozenset(name for name in own.co_names if hasattr(found_in(kind, name), "__get__"))
    data = frozenset(plain - computed)
    known = frozenset(
        (name, one.__name__) for name, one in function.__globals__.items() if one is torch or one is F or one is math
    )
    hidden = frozenset(_BUILTINS & function.__globals__.keys())
    with AST_LOCK:
        code = _code(CodeKey(own), frozenset(names), children, data, computed, known, hidden)
    if code is None:
        return None
    return own, with_code(function, code)


_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.Tensor, nn.Parameter)
_BUILTINS = frozenset({"float", "int", "bool", "len", "range", "isinstance"})
_METHODS = MOVES - TENSOR_PROPERTIES | {"size", "dim", "numel", "masked_fill", "repeat"}
_ATTRIBUTES = frozenset({"shape", "dtype", "device", "ndim", "T", "mT"})
_DYNAMIC = frozenset({"locals", "vars", "dir", "eval", "exec"})
_OTHER_KINDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@lru_cache(maxsize=256)
def _code(this: CodeKey, *known: Any) -> CodeType | None:
    code = this.code
    assert code is not None
    if code.co_flags & _OTHER_KINDS or _DYNAMIC & {*code.co_names} or not code.co_argcount:
        return None
    reading = _Reading(code, *known)
    try:
        made = changed_code(code, reading.change)
    except NoSourceError:
        return None
    return made if reading.spared else None


class _Reading:
    """Reads a forward, and puts the mode around statements; `spared` is the number of those that run without it.

    Args:
        names: the names of the functions that the mode must see.
        children, data: the children of the module, and its attributes that are tensors and plain values.
        computed: the attributes that its class computes, or does something with.
        libraries: the names that ``torch``, ``torch.nn.functional`` and ``math`` have in the code, each with its own.
        hidden: the builtin functions whose names mean something else there.
    """

    def __init__(
        self,
        code: CodeType,
        names: frozenset[str],
        children: frozenset[str],
        data: frozenset[str],
        computed: frozenset[str],
        libraries: frozenset[tuple[str, str]],
        hidden: frozenset[str],
    ) -> None:
        local = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
        self.own = code.co_varnames[0]
        self.names, self.children, self.data, self.computed = names, children, data, computed
        self.libraries = {name: library for name, library in libraries if name not in local}
        self.builtins = _BUILTINS - hidden - local
        self.spared = 0
        self._asked: list[ast.Call] = []

    def change(self, node: Function) -> None:
        """Put the mode around the statements of a function that may call what it must see."""
        names = [part for part in ast.walk(node) if isinstance(part, ast.Name)]
        stored = {one.id for one in names if not isinstance(one.ctx, ast.Load)}
        if self.own in stored or any(isinstance(part, _LATER) for part in ast.walk(node) if part is not node):
            return
        node.args.kwonlyargs.append(ast.arg(MODE, lineno=node.lineno, col_offset=node.col_offset))
        node.args.kw_defaults.append(None)
        node.body = self._block(node.body)
        ast.fix_missing_locations(node)

    def _block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        done: list[ast.stmt] = []
        around: ast.With | None = None
        for statement in body:
            self._asked.clear()
            if self._reads_through(statement):
                self._hand_over()
                self.spared += 1
                around = None
                done.append(statement)
            elif around is not None:
                around.body.append(statement)
            else:
                done.append(around := _with_mode(statement))
        return done

    def _reads_through(self, statement: ast.stmt) -> bool:
        """Return whether a statement needs no mode, or only for statements inside it, which then have it."""
        if isinstance(statement, ast.If | ast.While):
            through = self._harmless(statement.test)
        elif isinstance(statement, ast.For):
            through = isinstance(statement.target, ast.Name) and self._counts(statement.iter)
        else:
            return self._is_harmless(statement)
        if not through:
            return False
        self._hand_over()
        statement.body, statement.orelse = self._block(statement.body), self._block(statement.orelse)
        return True

    def _hand_over(self) -> None:
        """Have the mode call the functions that it must see, in a statement that calls no others of these names."""
        for call in self._asked:
            where = {"lineno": call.lineno, "col_offset": call.col_offset}
            function = call.func
            call.func = ast.Attribute(ast.Name(MODE, ast.Load(), **where), "run", ast.Load(), **where)
            call.args.insert(0, function)
        self._asked.clear()

    def _counts(self, iterated: ast.expr) -> bool:
        """Return whether a loop goes through a range, or the children of a child."""
        if isinstance(iterated, ast.Call):
            return isinstance(iterated.func, ast.Name) and iterated.func.id == "range" and self._harmless(iterated)
        return isinstance(iterated, ast.Attribute) and self._of_self(iterated) in self.children

    def _is_harmless(self, statement: ast.stmt) -> bool:
        if isinstance(statement, ast.Pass | ast.Break | ast.Continue):
            return True
        if isinstance(statement, ast.Return | ast.Expr):
            return statement.value is None or self._harmless(statement.value)
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign | ast.AugAssign):
            targets = [statement.target]
        else:
            return False
        if isinstance(statement.value, ast.Name) and any(isinstance(one, ast.Tuple | ast.List) for one in targets):
            return False  # it may be a generator
        return all(map(self._stores, targets)) and (statement.value is None or self._harmless(statement.value))

    def _stores(self, target: ast.expr) -> bool:
        if isinstance(target, ast.Tuple | ast.List):
            return all(map(self._stores, target.elts))
        if isinstance(target, ast.Subscript):
            return self._harmless(target.value) and self._harmless(target.slice)
        if isinstance(target, ast.Attribute):
            return self._of_self(target) not in (None, *self.computed)
        return isinstance(target, ast.Name)

    def _harmless(self, node: ast.expr) -> bool:
        """Return whether an expression calls no function of another name than it says; note its calls for the mode."""
        if isinstance(node, ast.Call):
            if not all(self._harmless(one) for one in (*node.args, *(each.value for each in node.keywords))):
                return False
            if isinstance(node.func, ast.Attribute) and node.func.attr in self.names and self._library(node.func):
                self._asked.append(node)
                return True
            return self._calls(node.func)
        if isinstance(node, ast.Attribute):
            if (name := self._of_self(node)) is not None:
                return name in self.data
            return node.attr in _ATTRIBUTES and self._harmless(node.value)
        if isinstance(node, ast.Compare) and any(isinstance(one, ast.In | ast.NotIn) for one in node.ops):
            return False
        if not isinstance(node, _HARMLESS):
            return False
        return all(self._harmless(part) for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr))

    def _calls(self, function: ast.expr) -> bool:
        if isinstance(function, ast.Name):
            return function.id in self.builtins
        if not isinstance(function, ast.Attribute):
            return False
        if (child := self._of_self(function)) is not None:
            return child in self.children
        name = function.attr
        if (library := self._library(function)) is not None:
            return name in _WRITTEN_IN_C[library]
        return name in _METHODS and name not in self.names and self._harmless(function.value)

    def _library(self, node: ast.Attribute) -> str | None:
        return self.libraries.get(node.value.id) if isinstance(node.value, ast.Name) else None

    def _of_self(self, node: ast.Attribute) -> str | None:
        """Return the name of an attribute of the module itself; None for one of something else."""
        return node.attr if isinstance(node.value, ast.Name) and node.value.id == self.own else None


_HARMLESS = (
    ast.Constant, ast.Name, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Subscript, ast.Slice,
    ast.Tuple, ast.List,
)  # fmt: skip
_LATER = (ast.Lambda, ast.GeneratorExp, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.NamedExpr)
_WRITTEN_IN_C = {
    of.__name__: frozenset(name for name in dir(of) if type(getattr(of, name)) is type(torch.add))
    for of in (torch, F, math)
}
"""The functions that are not written in Python, by module: they call no others that a mode would see."""


def _with_mode(first: ast.stmt) -> ast.With:
    line, column = first.lineno, first.col_offset
    mode = ast.Name(MODE, ast.Load(), lineno=line, col_offset=column)
    return ast.With([ast.withitem(mode)], [first], lineno=line, col_offset=column)
