"""Not frozen: modules to which ``requires_grad = False`` was assigned, where it is an attribute like any other."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

import torch
from torch import nn

from byname.diagnose.context import FailureContext
from byname.diagnose.finding import Finding, culprits_of, known_sites
from byname.naming.name import at, quote_all
from byname.reading.frames import locals_of
from byname.reading.modules import parameters_in
from byname.reading.objects import attributes_of
from byname.source.code import source_of
from byname.source.location import Site


def not_frozen(modules: Iterable[nn.Module], parameters: Iterable[torch.Tensor], frame: FrameType) -> Iterator[Finding]:
    """Yield a finding for each module that was meant to be frozen.

    Args:
        modules: those that there are.
        parameters: those that a loss reaches.
        frame: the frame that calls backward; the assignment is looked for in its file.
    """
    reached = {id(one): one for one in parameters}
    for module in [one for one in modules if dict.get(attributes_of(one), "requires_grad") is False]:
        theirs = [reached[id(one)] for one in parameters_in(module) if id(one) in reached]
        if theirs:
            yield _finding(module, theirs, _assignment(frame, module))


def _finding(module: nn.Module, parameters: Sequence[torch.Tensor], site: Site | None) -> Finding:
    names = tuple(FailureContext().names(parameters))
    message = (
        f"suspicious: requires_grad = False was assigned to a module ({type(module).__name__}){at(site)}, where it is "
        f"an attribute like any other and freezes nothing: {quote_all(names)} still "
        f"{'gets a gradient' if len(names) == 1 else 'get gradients'}"
    )
    path = "module" if site is None else (site.statement or "").rpartition(".requires_grad")[0]
    return Finding("not-frozen", message, culprits_of(*names), known_sites(site), f"{path}.requires_grad_(False)")


def _assignment(frame: FrameType, module: nn.Module) -> Site | None:
    """Return the line of a statement that assigns False to ``requires_grad`` of a module, or None."""
    source = source_of(frame.f_code)
    nodes = ast.walk(source.tree) if source is not None and source.tree is not None else ()
    variables = {**frame.f_globals, **dict(locals_of(frame))}
    assignments = [one for one in nodes if isinstance(one, ast.Assign) and ast.unparse(one.value) == "False"]
    for node, target in ((one, target) for one in assignments for target in one.targets):
        if isinstance(target, ast.Attribute) and target.attr == "requires_grad":  # noqa: SIM102 - reads better so
            if _value_of(target.value, variables) is module:
                return Site(frame.f_code.co_filename, node.lineno, statement=ast.unparse(node))
    return None


def _value_of(path: ast.expr, variables: dict[str, Any]) -> Any:
    """Return what a path such as ``self.layers[0].norm`` leads to, read without running code of the program."""
    if isinstance(path, ast.Name):
        return variables.get(path.id)
    if isinstance(path, ast.Attribute):
        own = attributes_of(_value_of(path.value, variables))
        return dict.get(own if dict.__contains__(own, path.attr) else _modules_of(own), path.attr)
    if isinstance(path, ast.Subscript) and isinstance(path.slice, ast.Constant):
        return _modules_of(attributes_of(_value_of(path.value, variables))).get(str(path.slice.value))
    return None


def _modules_of(own: dict[str, Any]) -> dict[str, Any]:
    modules = dict.get(own, "_modules")
    return modules if type(modules) is dict else {}
