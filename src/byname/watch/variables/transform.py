"""Transform: change the syntax tree of a function so that each statement that binds a variable is followed by a report.

``h = f(x)`` becomes::

    h = f(x)
    if _byname_run_0 is not None:
        h = _byname_run_0.report("h", h, "assigned")

where ``_byname_run_0`` is a hidden local variable, None unless this run of the function is observed (see `Run` in
`byname.watch.variables.subscribe`). The user's statements keep their lines and columns. An added statement has the
position of the statement that it reports.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any

from byname.model.scopes import Scope, argument_names, names_in, nested_in, opened_scope
from byname.source.code import HIDDEN, Function, heads, name_of, targets

_VALUE = f"{HIDDEN}value"
_BLOCKS = ("body", "orelse", "finalbody")


def report_variables(node: Function, wanted: Iterable[str], key: int) -> None:
    """Change the tree of a function, in place, so that it reports variables: ``h``, ``inner.u``, ``inner.return``.

    The key is the number that the function passes to ``byname._enter`` to find its subscriptions.
    """
    scope = opened_scope(node, None, 0)
    _Rewriting(scope, frozenset(wanted), key).function(node)


class _Rewriting:
    def __init__(self, scope: Scope, wanted: frozenset[str], key: int, depth: int = 0) -> None:
        self.scope, self.all_wanted, self.key, self.depth = scope, wanted, key, depth
        scope.wanted = {name: scope.path + name for name in (*scope.names, "return") if scope.path + name in wanted}
        self.within = _Expressions(self)
        self.returns = bool(scope.wanted)
        self.bare_returns = False
        self.last: list[str] = []

    # Functions and classes

    def function(self, node: Function) -> None:
        self.bare_returns = isinstance(node, ast.AsyncFunctionDef) and yields(node)
        # Python deletes the names of handlers at their ends; these hold exceptions, not tensors
        unbound = {part.name for part in ast.walk(node) if isinstance(part, ast.ExceptHandler)}
        self.last = [name for name in self.scope.wanted if name != "return" and name not in unbound]
        documented = 1 if ast.get_docstring(node, clean=False) is not None else 0
        start = [*self._entry(node), *self._entered(node)]
        body = self.block(node.body[documented:])
        if self.returns:
            end = ast.copy_location(ast.Return(None), node.body[-1])
            body += self._leaving(end)
        node.body = [*node.body[:documented], *start, *body]

    def _entry(self, node: Function) -> list[ast.stmt]:
        """Return statements that set the hidden variable; a nested function gets it from the run around it."""
        if self.scope.parent is None:
            run = self.scope.run
            text = f"import byname as {run}\n{run} = {run}._enter({self.key}, {first_of(node)})"
        else:
            around = self.scope.parent.run
            text = f"{self.scope.run} = None if {around} is None else {around}.nested()"
        return statements_at(text, first_line_node(node))

    def _entered(self, node: Function) -> Iterator[ast.stmt]:
        places = {arg.arg: arg for arg in ast.walk(node.args) if isinstance(arg, ast.arg)}
        for name in argument_names(node):
            yield from self._report(name, "entry", places[name])

    def _inner(self, node: Function | ast.ClassDef) -> None:
        """Rewrite a nested function or class that has requested variables, or binds or changes one of this scope."""
        scope = opened_scope(node, self.scope, self.depth + 1)
        inner = _Rewriting(scope, self.all_wanted, self.key, self.depth + 1)
        if not self._concerns(node, scope):
            return
        if isinstance(node, ast.ClassDef):
            node.body = inner.block(node.body)
        else:
            inner.function(node)

    def _concerns(self, node: Function | ast.ClassDef, scope: Scope) -> bool:
        if any(name.startswith(scope.path) for name in self.all_wanted):
            return True
        touched = {*names_in(node.body), *map(root_of, ast.walk(node))}
        mine = any(self._wanted(name, scope) for name in touched if name is not None)
        return mine or any(self._concerns(one, opened_scope(one, scope, 0)) for one in nested_in(node.body))

    def _wanted(self, name: str, scope: Scope) -> tuple[str, str] | None:
        """Return the hidden variable of the run that reports a variable, and its name there; None if nobody asks."""
        owner = scope.owner(name)
        return None if owner is None or name not in owner.wanted else (owner.run, owner.wanted[name])

    def bound(self, name: str) -> tuple[str, str] | None:
        """Return what `_wanted` does for a variable that this scope itself binds."""
        return self._wanted(name, self.scope) if self.scope.binds(name) else None

    # Statements

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        return [new for statement in body for new in self.statement(statement)]

    def statement(self, statement: ast.stmt) -> list[ast.stmt]:
        if isinstance(statement, Function | ast.ClassDef):
            return self._definition(statement)
        if isinstance(statement, ast.With | ast.AsyncWith):
            return self._with(statement)
        if isinstance(statement, ast.Return):
            self._expressions(statement)
            return self._leaving(statement) if self.returns else [statement]
        if hasattr(statement, "body") or hasattr(statement, "cases"):
            return self._compound(statement)
        reports = [*self._bound(statement), *self._look(statement)]
        self._expressions(statement)
        return [statement, *reports]

    def _definition(self, statement: Function | ast.ClassDef) -> list[ast.stmt]:
        reports = [*self._report(statement.name, "assigned", first_line_node(statement)), *self._look(statement)]
        self._inner(statement)
        self._expressions(statement)
        return [statement, *reports]

    def _with(self, statement: ast.With | ast.AsyncWith) -> list[ast.stmt]:
        """Split ``with a as x, b as y`` into two statements, since x must be reported before b is evaluated."""
        first, rest = statement.items[0], statement.items[1:]
        if rest and first.optional_vars is not None and any(self._bound(first)):
            inner = ast.copy_location(type(statement)(items=rest, body=statement.body), rest[0].context_expr)
            inner.end_lineno, inner.end_col_offset = statement.end_lineno, statement.end_col_offset
            statement.items, statement.body = [first], [inner]
        return self._compound(statement)

    def _compound(self, statement: Any) -> list[ast.stmt]:
        """Rewrite a statement with blocks; variables that its head binds are reported where its blocks begin."""
        bound = list(self._bound(statement))
        for field in _BLOCKS:
            if block := getattr(statement, field, None):
                start = bound if field == "body" else []
                setattr(statement, field, [*start, *self._look(statement), *self.block(block)])
        for handler in getattr(statement, "handlers", ()):
            self._expressions(handler)
            handler.body = [*self._bound(handler), *self.block(handler.body)]
        for case in getattr(statement, "cases", ()):
            self._case(case, statement)
        self._expressions(statement)
        return [statement, *self._look(statement)]

    def _case(self, case: ast.match_case, statement: ast.stmt) -> None:
        """Rewrite a case; the names that its pattern captures are reported before its guard is evaluated."""
        reports = list(self._bound(case))
        if case.guard is not None and reports:
            names = dict.fromkeys(name_of(one) for one in targets(case) if not isinstance(one, ast.NamedExpr))
            reporting = [self._reporting(name, *found, case.guard) for name in names if (found := self.bound(name))]
            guard = self.within.visit(case.guard)
            case.guard = ast.copy_location(ast.BoolOp(ast.And(), [*reporting, guard]), case.guard)
            reports = []
        elif case.guard is not None:
            case.guard = self.within.visit(case.guard)
        case.body = [*reports, *self._look(statement), *self.block(case.body)]

    def _reporting(self, name: str, run: str, variable: str, place: ast.AST) -> ast.expr:
        """Return an expression that reports a variable and evaluates to True."""
        text = f"({run} is None or (({name} := {run}.report({variable!r}, {name}, 'assigned')), True)[1])"
        return _expression(text, place)

    def _expressions(self, statement: ast.stmt) -> None:
        """Rewrite the ``:=`` in a statement, or in the head of a statement with a body."""
        for head in heads(statement):
            self.within.put(statement, head, self.within.visit(head))

    # Reports

    def _report(self, name: str, moment: str, place: ast.AST) -> list[ast.stmt]:
        found = self._wanted(name, self.scope)
        if found is None:
            return []
        run, variable = found
        call = f"{run}.report({variable!r}, {name}, {moment!r})"
        text = f"{name} = {call}" if self.scope.binds(name) else call
        return statements_at(f"if {run} is not None: {text}", place)

    def _bound(self, statement: Any) -> Iterator[ast.stmt]:
        """Yield reports of the variables that a statement, or its head, binds, stores into and deletes."""
        reported: set[str] = set()
        only_annotated = isinstance(statement, ast.AnnAssign) and statement.value is None
        for part in () if only_annotated else targets(statement):
            if isinstance(part, ast.NamedExpr):  # reports by itself
                continue
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Del):
                yield from self._forget(part)
            elif (root := root_of(part)) is not None:
                if f"{root}." not in reported:
                    reported.add(f"{root}.")
                    yield from self._report(root, "stored", part)
            elif (name := name_of(part)) not in reported and self.scope.binds(name):
                reported.add(name)
                yield from self._report(name, "assigned", part if hasattr(part, "lineno") else statement)

    def _forget(self, target: ast.Name) -> list[ast.stmt]:
        if (found := self.bound(target.id)) is None:
            return []
        run, variable = found
        return statements_at(f"if {run} is not None: {run}.forget({variable!r})", target)

    def _look(self, statement: ast.stmt) -> list[ast.stmt]:
        """Return reports of tensors changed in place, for a statement that may have changed one."""
        run, wanted, names = self.scope.run, self.scope.wanted, self.last
        changing = isinstance(statement, CHANGING_STATEMENTS) or any(may_change(head) for head in heads(statement))
        if not names or not changing:
            return []
        lines = [f"if {run} is not None and {run}.known and {run}.moved():"]
        for name in names:
            variable = repr(wanted[name])
            lines.append(f"  if {run}.has_moved({variable}): {name} = {run}.report({variable}, {name}, 'changed')")
        return statements_at("\n".join(lines), first_line_node(statement))

    def _leaving(self, statement: ast.Return) -> list[ast.stmt]:
        """Return the statements for a ``return``: compute the value; report last changes, last values and the value."""
        run, wanted = self.scope.run, self.scope.wanted
        lines = []
        for name in self.last:
            variable = repr(wanted[name])
            lines.append(f"if {run}.has_moved({variable}): {name}, {_VALUE} = {run}.last({variable}, {name}, {_VALUE})")
        for name in self.last:
            variable = repr(wanted[name])
            lines.append(f"if {run}.exits and {run}.has({variable}): {run}.show({variable}, {name}, 'exit')")
        if "return" in wanted:
            lines.append(f"{_VALUE} = {run}.report({wanted['return']!r}, {_VALUE}, 'returned')")
        reports = "\n  ".join([f"if {run} is not None:", *(lines or ["pass"])])
        value = statement.value or ast.copy_location(ast.Constant(None), statement)
        target = ast.copy_location(ast.Name(_VALUE, ast.Store()), statement)
        made = ast.copy_location(ast.Assign([target], value), statement)
        result = None if self.bare_returns else ast.copy_location(ast.Name(_VALUE, ast.Load()), statement)
        return [made, *statements_at(reports, statement), ast.copy_location(ast.Return(result), statement)]


class _Expressions(ast.NodeTransformer):
    """Rewrites expressions: ``:=`` reports its variable, and ``locals()`` does not show the hidden variables."""

    def __init__(self, rewriting: _Rewriting) -> None:
        self.rewriting = rewriting

    def put(self, owner: ast.AST, old: ast.AST, new: ast.AST) -> None:
        for field, value in ast.iter_fields(owner):
            if value is old:
                setattr(owner, field, new)
            elif isinstance(value, list):
                value[:] = [new if one is old else one for one in value]

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        """Return a lambda unchanged: its body is another scope, without statements that could report."""
        return node

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.AST:
        """Replace ``(h := v)`` by an expression that assigns h, and then reports it if the run is observed."""
        self.generic_visit(node)
        name = node.target.id
        if (found := self.rewriting.bound(name)) is None:
            return node
        run, variable = found
        text = (
            f"{name} if ... is {name} and {run} is None else ({name} := {run}.report({variable!r}, {name}, 'assigned'))"
        )
        choice: Any = _expression(text, node)
        choice.test.values[0].left = node
        return choice  # type: ignore[no-any-return]

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Remove the hidden variables from the results of the user's ``locals()``, ``vars()`` and ``dir()``."""
        self.generic_visit(node)
        plain = isinstance(node.func, ast.Name) and node.func.id in ("locals", "vars", "dir")
        if not plain or node.args or node.keywords:
            return node
        shown: Any = _expression("__import__('byname')._shown(...)", node)
        shown.args = [node]
        return shown  # type: ignore[no-any-return]


# Making nodes


def first_line_node(node: Any) -> ast.AST:
    """Return a node that has the position of the first line of a definition or statement."""
    place = ast.Constant(None)
    place.lineno = place.end_lineno = node.lineno
    place.col_offset = node.col_offset
    place.end_col_offset = node.end_col_offset if node.end_lineno == node.lineno else node.col_offset
    return place


def statements_at(text: str, place: ast.AST) -> list[ast.stmt]:
    """Return the statements in a text, at a position of the source."""
    return [_moved_to(statement, place) for statement in ast.parse(text).body]


def _expression(text: str, place: ast.AST) -> ast.expr:
    made: ast.expr = _moved_to(ast.parse(text, mode="eval").body, place)
    return made


def _moved_to(node: Any, place: Any) -> Any:
    """Set the position of all nodes of a new tree. Much of the time of a rewriting is spent here."""
    place_of = {name: getattr(place, name) for name in ("lineno", "col_offset", "end_lineno", "end_col_offset")}
    waiting = [node]
    while waiting:
        part = waiting.pop()
        for field in part._fields:  # not its __dict__: all trees share context nodes, on which other code may set any
            value = getattr(part, field)
            if isinstance(value, list):
                waiting += [one for one in value if isinstance(one, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                waiting.append(value)
        if part._attributes:
            part.__dict__.update(place_of)
    return node


def root_of(part: ast.AST) -> str | None:
    """Return the variable whose item or attribute is assigned or deleted: ``cache`` of ``cache['k'].x = 1``."""
    if not isinstance(part, ast.Attribute | ast.Subscript) or isinstance(part.ctx, ast.Load):
        return None
    node: ast.expr = part
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


_CHANGING = (ast.Call, ast.AugAssign, ast.Await, ast.Yield, ast.YieldFrom)


def may_change(head: ast.AST) -> bool:
    """Return whether evaluating a node may change a tensor in place: it contains a call or stores into an object."""
    if isinstance(head, ast.Lambda):
        return False
    stores = isinstance(head, ast.Attribute | ast.Subscript) and not isinstance(head.ctx, ast.Load)
    return stores or isinstance(head, _CHANGING) or any(may_change(part) for part in ast.iter_child_nodes(head))


CHANGING_STATEMENTS = (ast.AugAssign, ast.For, ast.AsyncFor, ast.With, ast.AsyncWith)


def yields(node: Function) -> bool:
    """Return whether a function is a generator; a ``yield`` in a nested function does not count."""
    waiting: list[ast.AST] = [*node.body]
    while waiting:
        part = waiting.pop()
        if isinstance(part, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(part, Function | ast.ClassDef | ast.Lambda):
            waiting += ast.iter_child_nodes(part)
    return False


def first_of(node: Function) -> str:
    """Return an expression, as text, for the first argument of a function."""
    one = node.args
    positional = [*one.posonlyargs, *one.args]
    if positional:
        return positional[0].arg
    return f"{one.vararg.arg}[0] if {one.vararg.arg} else None" if one.vararg else "None"
