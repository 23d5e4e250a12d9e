"""Out of place: the line to write instead of one that changed a tensor in place, made from its own source."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from byname.diagnose.context import parsed as parsed_of


def out_of_place_advice(
    statement: str,  # the source; empty if it is unknown
    operation: str,  # the function that it calls, such as ``add_``
    variable: str,  # the name of the tensor that autograd had saved; empty if it has none
    *,
    sets_item: bool = False,  # it is known to assign an item of a tensor, not of a list
    reads_it: bool = False,  # autograd saved the tensor during the same statement
    keeps_graph: bool = False,  # the changed tensor is the result of an operation since
    others: str = "",  # what becomes of all else that has the changed values; empty if nothing is known to have them
) -> str:
    """Return advice on what to write instead of a statement that changes a tensor in place."""
    parsed = parsed_of(statement)
    target = None if parsed is None else _target(parsed, operation)
    part = target is not None and _is_part(target, variable, sets_item)
    whole = _whole(target, variable) if part and target is not None else target
    if parsed is None or target is None or whole is None:
        return (
            f"change a copy instead: take {variable or 'the tensor'}.clone() before the change, or use an operation "
            "that returns a new tensor (no trailing underscore, inplace=False, no out=; torch.where to change some "
            "elements)"
        )
    if not part:
        plain = _rewritten(parsed, operation)
        if variable and isinstance(target, ast.Name) and target.id != variable:
            others = f"`{variable}` then keeps its values"
        kept = f"; {others}" if others else ""
        return f"write it out of place: {plain}{kept}" if plain else _on_a_copy(target, statement)
    reading = _reading_copies(parsed, ast.unparse(whole)) if reads_it else None
    if reading is not None:
        return (
            f"let it read a copy of what it changes: {reading}; or collect the parts in a list, and join them at the "
            "end with torch.stack"
        )
    advice, path = _on_a_copy(whole, statement), ast.unparse(whole)
    if keeps_graph and isinstance(whole, ast.Attribute) and isinstance(parsed, ast.Assign):
        advice += f". If a later iteration reads `{path}`, put `{path} = {path}.detach().clone()` there, and write "
        advice += f"without the graph: {ast.unparse(parsed.targets[0])} = ({ast.unparse(parsed.value)}).detach()"
    return advice


def data_edit_advice(statement: str, operation: str) -> tuple[str, str]:
    """Return what a statement changes through ``.data``, empty if it does not tell, and what to write instead.

    The operation is the function that it calls, or ``data`` for an assignment.

    >>> path, advice = data_edit_advice("h.data.clamp_(0, 1)", "clamp_")
    >>> path, advice.partition(";")[0]
    ('h', 'so that autograd sees it, write h = h.clamp(0, 1)')
    """
    parsed = parsed_of(statement)
    parts = () if parsed is None else ast.walk(parsed)
    edited = next((one for one in parts if isinstance(one, ast.Attribute) and one.attr == "data"), None)
    if parsed is None or edited is None or not _is_path(edited.value):
        return "", "do without .data, and write it out of place, so that autograd sees it"
    path = ast.unparse(edited.value)
    seen = _WithoutData(path).visit(parsed)
    whole = ast.unparse(seen)
    plain = whole if operation == "data" and isinstance(seen, ast.Assign) else _rewritten(seen, operation)
    if plain is None or not plain.startswith(f"{path} = "):
        return path, f"do without .data, so that autograd sees it, and {_on_a_copy(edited.value, whole)}"
    value = plain.removeprefix(f"{path} = ")
    return path, (
        f"so that autograd sees it, write {plain}; if the gradient is to pass as if nothing had changed "
        f"(straight-through), write {path} = {path} + ({value} - {path}).detach()"
    )


class _WithoutData(ast.NodeTransformer):
    """Transformer that writes a tensor in place of its ``.data``."""

    def __init__(self, path: str) -> None:
        self._path = path

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        inside = ast.unparse(node.value)
        if node.attr == "data" and inside == self._path:
            return node.value
        self.generic_visit(node)
        return node


def _target(parsed: ast.stmt, operation: str) -> ast.expr | None:
    """Return the variable, attribute or item that a statement changes; None if its source does not tell."""
    target: ast.expr | None = None
    if isinstance(parsed, ast.AugAssign):
        target = parsed.target
    elif isinstance(parsed, ast.Assign) and len(parsed.targets) == 1 and isinstance(parsed.targets[0], ast.Subscript):
        target = parsed.targets[0]
    elif isinstance(parsed, ast.Expr):
        target = _receiver(parsed.value, operation)
    return target if target is not None and _is_path(target) else None


def _receiver(call: ast.expr, operation: str) -> ast.expr | None:
    """Return ``h`` of ``h.relu_()``, also where more calls follow: ``h.sub_(m).div_(s)``."""
    while isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
        if any(keyword.arg == "out" for keyword in call.keywords):
            return None
        receiver = call.func.value
        if call.func.attr == operation and operation.endswith("_"):
            return None if ast.unparse(receiver).rpartition(".")[2] in _NAMESPACES else receiver
        call = receiver
    return None


_NAMESPACES = frozenset("torch F functional nn init special linalg fft".split())
_NO_PLAIN_FORM = frozenset("copy zero fill set normal uniform random bernoulli exponential requires_grad".split())
"""In-place methods without a counterpart that has no underscore and computes the same values."""


def _is_path(node: ast.expr) -> bool:
    """Return whether an expression is a variable, or an attribute or item of one."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return isinstance(node, ast.Name)


def _is_part(target: ast.expr, variable: str, sets_item: bool) -> bool:
    """Return whether a path is a part of a tensor: ``y[..., :2]`` is, and ``states[0]`` if the tensor is ``states``."""
    if not isinstance(target, ast.Subscript):
        return False
    if sets_item or isinstance(target.slice, ast.Slice | ast.Tuple):
        return True
    if isinstance(target.slice, ast.Constant) and target.slice.value is Ellipsis:
        return True
    return any(_is_called(one, variable) for one in _holding(target))


def _whole(part: ast.expr, variable: str) -> ast.expr | None:
    """Return ``y`` of ``y[0][:, 1]`` if the tensor has that name, or ``y["h"]`` of ``y["h"][0]``; None if unclear."""
    holding = list(_holding(part))
    named = [one for one in holding if _is_called(one, variable) or _is_value_of_dict(one)]
    return named[0] if named else holding[0] if len(holding) == 1 else None


def _holding(path: ast.expr) -> Iterator[ast.expr]:
    """Yield ``y[0]`` and ``y`` of ``y[0][:, 1]``."""
    while isinstance(path, ast.Subscript):
        path = path.value
        yield path


def _is_called(path: ast.expr, variable: str) -> bool:
    return ast.unparse(path).rpartition(".")[2] == variable.rpartition(".")[2]


def _is_value_of_dict(path: ast.expr) -> bool:
    """Return whether a path ends with a text in brackets, which no tensor takes as an index."""
    return isinstance(path, ast.Subscript) and isinstance(path.slice, ast.Constant) and type(path.slice.value) is str


def _rewritten(parsed: ast.stmt, operation: str) -> str | None:
    """Return ``h += b`` as ``h = h + b`` and ``h.relu_()`` as ``h = h.relu()``; None for anything less plain."""
    if isinstance(parsed, ast.AugAssign):
        value = ast.BinOp(ast.parse(ast.unparse(parsed.target), mode="eval").body, parsed.op, parsed.value)
        return f"{ast.unparse(parsed.target)} = {ast.unparse(value)}"
    call = parsed.value if isinstance(parsed, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr != operation:
        return None
    receiver, method = ast.unparse(call.func.value), operation.removesuffix("_")
    if method in _NO_PLAIN_FORM:
        return None
    call.func.attr = method
    return f"{receiver} = {ast.unparse(call)}"


def _reading_copies(parsed: ast.stmt, whole: str) -> str | None:
    """Return ``h[t + 1] = f(h[t])`` as ``h[t + 1] = f(h[t].clone())``; None if the value does not read the tensor."""
    if not isinstance(parsed, ast.Assign | ast.AugAssign):
        return None
    before = ast.unparse(parsed)
    value: ast.expr = _Copies(whole).visit(parsed.value)  # type: ignore[assignment]
    parsed.value = value
    after = ast.unparse(parsed)
    return None if after == before else after


class _Copies(ast.NodeTransformer):
    """Transformer that adds ``.clone()`` where a part of one tensor is read."""

    def __init__(self, whole: str) -> None:
        self._whole = whole

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Attribute) and node.attr in ("shape", "size", "dtype", "device", "ndim", "clone"):
            return node
        if isinstance(node, ast.expr) and any(ast.unparse(one) == self._whole for one in (node, *_holding(node))):
            return ast.Call(ast.Attribute(node, "clone", ast.Load()), [], [])
        return self.generic_visit(node)


def _on_a_copy(target: ast.expr, statement: str) -> str:
    path = ast.unparse(target)
    return f"change a copy instead: put `{path} = {path}.clone()` on the line before `{statement}`"
