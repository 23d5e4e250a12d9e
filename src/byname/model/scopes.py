"""Scopes: the variables of a function and of the functions inside it, read from its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType, FunctionType

from byname.source.code import CodeKey, Function, bound_by, definition_of, original_code, statements_in
from byname.source.location import Site, site_of


@dataclass(slots=True)
class Scope:
    """A function, or a class inside a function, as a scope in which names are looked up.

    Attributes:
        path: the prefix of the names of its variables: ``""``, ``"inner."``, ``"inner.deeper."``.
        names: its local variables; a class has none.
        outside: the names that it declares ``global``.
        enclosing: the names that it declares ``nonlocal``.
        parent: the scope around it; None for the outermost function.
        run: the name of the variable in which rewritten code keeps the run of the innermost function around it.
        wanted: the watched variables of the scope; empty until the rewriting fills it in.
    """

    path: str
    names: tuple[str, ...]
    outside: frozenset[str]
    enclosing: frozenset[str]
    parent: Scope | None
    run: str
    wanted: dict[str, str] = field(default_factory=dict)

    def owner(self, name: str) -> Scope | None:
        """Return the scope of the function that owns the variable; None for a global or a name from further outside."""
        if name in self.outside:
            return None
        if name in self.names:
            return self
        return None if self.parent is None else self.parent.owner(name)

    def binds(self, name: str) -> bool:
        """Return whether an assignment here binds a function's variable, not a name of a class or module."""
        return name in self.names or name in self.enclosing


def opened_scope(node: Function | ast.ClassDef, parent: Scope | None, number: int) -> Scope:
    path = "" if parent is None else f"{parent.path}{node.name}."
    declared = [one for one in statements_in(node.body) if isinstance(one, ast.Global | ast.Nonlocal)]
    outside = frozenset(name for one in declared if isinstance(one, ast.Global) for name in one.names)
    enclosing = frozenset(name for one in declared if isinstance(one, ast.Nonlocal) for name in one.names)
    if isinstance(node, ast.ClassDef):
        assert parent is not None
        return Scope(path, (), outside, enclosing, parent, parent.run)
    bound = dict.fromkeys([*argument_names(node), *names_in(node.body)])
    names = tuple(name for name in bound if name not in outside and name not in enclosing)
    return Scope(path, names, outside, enclosing, parent, f"_byname_run_{number}")


def _variables(node: Function | ast.ClassDef, parent: Scope | None) -> Iterator[str]:
    """Yield the variables of a function, in order; those of functions inside it as ``inner.u``."""
    scope = opened_scope(node, parent, 0)
    yield from (scope.path + name for name in scope.names)
    for inner in nested_in(node.body):
        yield from _variables(inner, scope)


def nested_in(body: list[ast.stmt]) -> Iterator[Function | ast.ClassDef]:
    for statement in statements_in(body):
        if isinstance(statement, Function | ast.ClassDef):
            yield statement


def argument_names(node: Function) -> list[str]:
    one = node.args
    stars = [[star] if star else [] for star in (one.vararg, one.kwarg)]
    return [part.arg for part in [*one.posonlyargs, *one.args, *stars[0], *one.kwonlyargs, *stars[1]]]


def names_in(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that a body binds in its own scope, in the order of the source."""
    for statement in statements_in(body):
        yield from bound_by(statement)


def watchable_variables(function: FunctionType) -> tuple[str, ...]:
    """Return the variables of a function that can be watched: arguments, locals, and ``inner.u`` of inner functions.

    Without source: the arguments and locals that the code object names.

    Example:
        >>> def f(x, *, k=1):
        ...     for i in range(k):
        ...         x += i
        ...     return x
        >>> watchable_variables(f)
        ('x', 'k', 'i')
    """
    return _variables_of(CodeKey(original_code[function.__code__]))


@lru_cache(maxsize=1024)
def _variables_of(this: CodeKey) -> tuple[str, ...]:
    code = this.code
    assert code is not None
    definition = definition_of(code)
    names = [*code.co_varnames, *code.co_cellvars] if definition is None else _variables(definition, None)
    return tuple(dict.fromkeys(names))


def variable_sites(function: FunctionType) -> Mapping[str, Site]:
    """Return where each variable of a function is first assigned, and each argument defined; empty without source."""
    return _sites_of(CodeKey(original_code[function.__code__]))


@lru_cache(maxsize=1024)
def _sites_of(this: CodeKey) -> dict[str, Site]:
    code = this.code
    assert code is not None
    definition = definition_of(code)
    found: dict[str, Site] = {}
    for name, site in () if definition is None else _sites_in(definition, None, code, code.co_qualname):
        found.setdefault(name, site)
    return found


def _sites_in(
    node: Function | ast.ClassDef, parent: Scope | None, code: CodeType, name: str
) -> Iterator[tuple[str, Site]]:
    """Yield the variables of a function and of those inside it, at each place that binds them, in source order."""
    scope = opened_scope(node, parent, 0)
    within = f"{name}." if isinstance(node, ast.ClassDef) else f"{name}.<locals>."
    if isinstance(node, Function):
        head = site_of(code, node, None, name)
        yield from ((scope.path + argument, head) for argument in argument_names(node))
    for statement in statements_in(node.body):
        if isinstance(node, Function):
            part = statement.pattern if isinstance(statement, ast.match_case) else statement
            for variable in bound_by(statement):
                owner = scope.owner(variable)
                if owner is not None:
                    yield owner.path + variable, site_of(code, part, variable, name)
        if isinstance(statement, Function | ast.ClassDef):
            yield from _sites_in(statement, scope, code, within + statement.name)
