"""Context: the graph, the names, the log and the error of a backward call, and the expression that failed."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import CodeType
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn

from byname.autograd.describe import Describer
from byname.autograd.order import engine_order, needed_for
from byname.autograd.walk import Node, Walk, by_kind, has_graph, leaf_tensors, nodes_behind
from byname.diagnose.engine import engine_call
from byname.naming.history import name_around
from byname.naming.name import Name
from byname.naming.names import NameIndex, find
from byname.naming.search import Targets
from byname.reading.frames import Line, frames_of_error, helper_caller, locals_of, variables_of
from byname.reading.objects import attributes_of
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import fact, is_tensor
from byname.source.code import binds_alone, blocks_around
from byname.source.location import Instruction, Site, is_library, is_torch, locate, statements_binding
from byname.source.tracebacks import PassedFrame
from byname.tracking.lookup import site_of_tensor

T = TypeVar("T")


@dataclass(eq=False, repr=False)
class FailureContext:
    """A graph with everything that the program and the log know about it, each looked up on first use.

    It holds nodes and tensors, so it lives only as long as the call that uses it, which holds `DisableTorchFunction`.
    """

    roots: Sequence[Any] = ()  # the tensors that backward is or will be called on
    inputs: Sequence[Any] = ()  # those that gradients are asked for; empty for all leaves
    models: Sequence[nn.Module] = ()  # those that the user gave, as the optimizers
    optimizers: Sequence[Any] = ()
    error: BaseException | None = None
    match: re.Match[str] = field(init=False)  # what the pattern of a cause found in the message of the error

    def __post_init__(self) -> None:
        self.passed = [] if self.error is None else frames_of_error(self.error)  # innermost first
        self._evidence: dict[Any, Any] = {}

    def about(self, models: Sequence[nn.Module] = (), optimizers: Sequence[Any] = ()) -> FailureContext:
        """Return a context of other models and optimizers, with what is known already of the same graph."""
        other = FailureContext(self.roots, self.inputs, models, optimizers, self.error)
        known = {"walk", "nodes", "kinds", "leaves", "needed", "lookup"} & vars(self).keys()
        vars(other).update({name: vars(self)[name] for name in known})
        return other

    def once(self, find: Callable[[FailureContext], T]) -> T:
        """Return what a function finds in this context; several causes that ask for the same share it."""
        if find not in self._evidence:
            self._evidence[find] = find(self)
        found: T = self._evidence[find]
        return found

    @cached_property
    def message(self) -> str:
        """The text of the error, read without running its class's ``__str__``."""
        parts = () if self.error is None else self.error.args
        return " ".join(part for part in parts if type(part) is str)

    @cached_property
    def walk(self) -> Walk:
        """The graph behind those roots that have one."""
        return Walk([root for root in self.roots if has_graph(root)])

    @cached_property
    def nodes(self) -> list[Node]:
        """The nodes of the graph, in a plain list, which is sooner there than a walk."""
        return list(nodes_behind([root for root in self.roots if has_graph(root)]))

    @cached_property
    def kinds(self) -> dict[type, list[Node]]:
        return by_kind(self.nodes)

    @cached_property
    def leaves(self) -> list[torch.Tensor]:
        return leaf_tensors(self.nodes)

    @cached_property
    def needed(self) -> set[int] | None:
        """The nodes that the engine runs if gradients are asked for some inputs only, else None."""
        return needed_for(self.walk, self.inputs)

    def order(self) -> Iterator[int]:
        return engine_order(self.walk, self.needed)

    @cached_property
    def error_site(self) -> Site | None:
        """The user's line at which the error came up; for a failed backward, the line that called it."""
        user = self._users_frame
        return None if user is None else locate(user.code, user.instruction, self._caller(user)).site

    @property
    def known(self) -> dict[str, Any]:
        return {"noticed": self.error_site}

    def _caller(self, passed: PassedFrame) -> Instruction | None:
        """Return the instruction that called the function of a frame; None if that function is not a helper."""
        called = helper_caller(passed.frame)
        outer = self.passed[self.passed.index(passed) + 1 :]
        # not called[1]: a frame that handles the error has gone on since
        calls = ((one.code, one.instruction) for one in outer if called and one.code is called[0])
        return next(calls, None)

    def variables(self) -> dict[str, Any]:
        """Return the variables that the user's line at which the error came up can read; none without an error."""
        return {} if self._users_frame is None else variables_of(self._users_frame.frame)

    def frames(self, *functions: str) -> Iterator[dict[str, Any]]:
        """Yield the variables of each frame of these functions that the error passed."""
        return (dict(locals_of(one.frame)) for one in self.passed if one.code.co_name in functions)

    def selves(self, kind: type[T]) -> Iterator[T]:
        """Yield the objects of a class whose methods the error passed, the innermost first."""
        held: Iterator[Any] = (dict(locals_of(one.frame)).get("self") for one in self.passed)
        return (one for one in held if issubclass(type(one), kind))

    @cached_property
    def _users_frame(self) -> PassedFrame | None:
        """The innermost of the program's frames that the error passed outside of the engine, or else a library's."""
        return next((one for one in self._outside if not is_library(one.file)), self.failing_frame)

    @cached_property
    def failing_frame(self) -> PassedFrame | None:
        """The innermost frame that the error passed outside of the engine and of PyTorch."""
        return next((one for one in self._outside if not _is_torch(one.file)), None)

    @cached_property
    def failing(self) -> FailingExpression | None:
        """The innermost expression of the program that the error passed; None if its source is not at hand."""
        return FailingExpression.of(self.failing_frame)

    def failing_parts(self) -> Iterator[tuple[FailingExpression, Any]]:
        if self.failing is not None:
            yield from ((self.failing, node) for node in ast.walk(self.failing.node))

    def value_at(self, path: str) -> Any:
        """Return the value of an expression at the line of the program where the error came up; None if unknown."""
        try:
            node = ast.parse(path, mode="eval").body
        except SyntaxError:  # the name of a value that no expression reaches
            return None
        return value_of(node, self.variables())

    def can_assign(self, path: str) -> bool:
        """Return whether a path leads to a value at that line, and its function may assign it without ``global``."""
        user = self._users_frame
        if user is None or self.value_at(path) is None:
            return False
        own = (*user.code.co_varnames, *user.code.co_cellvars)
        at_top = user.code.co_name == "<module>"
        return at_top or not path.isidentifier() or path in own or bool(statements_binding(user.code, path))

    def older_than_loop(self, path: str) -> Site | None:
        """Return the line that made a tensor before the innermost loop around that line, if it is unchanged since.

        The loop may be that of a function that has passed the tensor on. None if there is no such loop.
        """
        user, value = self._users_frame, self.value_at(path)
        if user is None or not is_tensor(value) or fact(value, "_version") > 0 or fact(value, "grad_fn") is None:
            return None
        for one in self.passed[self.passed.index(user) :]:
            names = [path] if one is user else [name for name, held in locals_of(one.frame) if held is value]
            path = names[0] if names else ""
            loops = blocks_around(one.code, locate(one.code, one.instruction).site.line, ast.For, ast.While)
            bound = [expr.site for expr in statements_binding(one.code, path)]
            if loops or bound:
                is_older = bool(loops and bound) and bound[-1].line < loops[-1].lineno and binds_alone(one.code, path)
                return bound[-1] if is_older else None
        return None

    @property
    def _outside(self) -> list[PassedFrame]:
        return self.passed[self._engine[-1] :] if self._engine else self.passed

    @cached_property
    def _engine(self) -> list[int]:
        """The positions of the engine's frames among the passed ones."""
        return [at for at, one in enumerate(self.passed) if engine_call(one.frame) is not None]

    def can_fail_at(self, number: int) -> bool:
        """Return whether a node whose saved tensors are gone, or were changed, can be the node that failed.

        A custom function fails only if it asks for its saved tensors. So one is blamed only for an error that came out
        of the backward of one, inside the engine, and PyTorch's own nodes are blamed for all other errors.
        """
        is_custom = issubclass(type(self.walk.nodes[number]), torch._C._FunctionBase)
        inside = self.passed[: self._engine[0] if self._engine else 0]
        return is_custom == any(not _is_torch(one.file) for one in inside)

    def name(self, tensor: torch.Tensor) -> Name:
        return self.names([tensor])[0]

    def names(self, tensors: Sequence[torch.Tensor]) -> list[Name]:
        """Return the best name of each of some tensors, found in one search."""
        with DisableTorchFunction():
            findings = self.find(tensors)
            lookup = self.lookup if self.has_graph else None
            return [base_name(findings.names(tensor, lookup)[0]) for tensor in tensors]

    def find(self, tensors: Iterable[torch.Tensor] = ()) -> NameIndex:
        """Search for tensors from the program's variables: for these, or for all."""
        return find(Targets(tensors), given=[*self.models, *self.optimizers], deep=False)

    @property
    def has_graph(self) -> bool:
        return any(map(has_graph, self.roots))

    @cached_property
    def lookup(self) -> Any:
        """The lookup of the lines of the source that made the nodes."""
        return self.walk.lookup

    @cached_property
    def describer(self) -> Describer:
        return Describer(self.walk, self.find())

    def site(self, number: int) -> Site | None:
        return self.describer.site(number)

    def variable(self, number: int, among: Collection[int] = ()) -> Name:
        """Return the name of a node's result, of what it is part of, or else of one of the nodes in `among`."""
        return self.describer.variable(number, among)


def made_at(tensor: torch.Tensor) -> Site | None:
    """Return the line that made a tensor, if a tracker saw it or its node knows.

    If a library's line did, as where a trainer divides the loss, this is the line that made what the library was given.
    """
    made = site_of_tensor(tensor)
    node = fact(tensor, "grad_fn")
    if node is None or not (made is None or is_library(made.file)):
        return made
    context = FailureContext([tensor])
    sites, numbers = [made or context.site(1)], context.walk.numbers
    while len(below := [one for one, _ in node.next_functions if one is not None]) == 1 and below[0] in numbers:
        node = below[0]  # as long as each is computed from a single one
        sites.append(context.site(numbers[node]))
    return next((site for site in sites if site is not None and not is_library(site.file)), sites[0])


def base_name(name: Name) -> Name:
    """Return the name of the base tensor for the name of a view, and any other name as it is."""
    return replace(name, relation="") if name.relation == "view of" else name


def _is_torch(file: str) -> bool:
    """Return whether a file is PyTorch's or that of context managers, where the user looks for no mistake."""
    return is_torch(file) or file.startswith("<frozen") or file == contextlib.__file__


def context_of(error: BaseException, models: Sequence[nn.Module], optimizers: Sequence[Any]) -> FailureContext:
    """Return the context of an error, with the graph that the engine was working on, as read from the traceback."""
    calls = (engine_call(one.frame) for one in frames_of_error(error))
    roots, inputs = next((call for call in calls if call is not None), ((), ()))
    return FailureContext(roots, inputs, models, optimizers, error)


def value_of(node: ast.AST, variables: Mapping[str, Any]) -> Any:
    """Return the value of an expression such as ``self.layers[0].norm``; None if it is unknown.

    An item of a tensor, and the result of a method of one, such as ``w.view(-1)``, counts as the tensor itself.
    """
    if isinstance(node, ast.Name):
        return variables.get(node.id)
    if isinstance(node, ast.Attribute):
        return _attribute(value_of(node.value, variables), node.attr)
    if isinstance(node, ast.Subscript):
        holder = value_of(node.value, variables)
        key = node.slice.value if isinstance(node.slice, ast.Constant) else value_of(node.slice, variables)
        return holder if is_tensor(holder) else _item(holder, key)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        made_of = value_of(node.func.value, variables)  # w.view(-1), w.T.reshape(...): a view of w
        return made_of if is_tensor(made_of) else None
    return None


def _attribute(holder: Any, name: str) -> Any:
    if is_tensor(holder):
        return holder if name in ("T", "mT", "H", "mH", "data") else None
    if holder is None:
        return None
    own = attributes_of(holder)
    spaces = [own, *(_registry(own, key) for key in ("_parameters", "_buffers", "_modules"))]
    return next((dict.get(space, name) for space in spaces if dict.__contains__(space, name)), None)


def _registry(own: dict[str, Any], key: str) -> dict[str, Any]:
    found = dict.get(own, key)
    return found if type(found) is dict else {}


def _item(holder: Any, key: Any) -> Any:
    if issubclass(type(holder), nn.Module):
        own = attributes_of(holder)
        inside = _registry(own, "_modules") or _registry(own, "_parameters")
        holder = inside if type(key) is str else list(inside.values())
    if type(holder) is dict and type(key) in (str, int):
        return holder.get(key)
    if type(holder) in (list, tuple) and type(key) is int and -len(holder) <= key < len(holder):
        return holder[key]
    return None


class FailingExpression(NamedTuple):
    """The expression of the program at which an error came up: its syntax tree, its code, and what it can read."""

    node: ast.AST
    code: CodeType
    variables: dict[str, Any]

    @classmethod
    def of(cls, passed: PassedFrame | None) -> FailingExpression | None:
        """Return the expression that a frame was computing; None if its source is not at hand."""
        node = None if passed is None else locate(passed.code, passed.instruction).node
        return None if passed is None or node is None else cls(node, passed.code, variables_of(passed.frame))

    def value(self, node: ast.AST) -> Any:
        """Return the value of one of its parts; None if it is unknown."""
        return value_of(node, self.variables)


def node_of(line: Line) -> Any:
    """Return the syntax tree of the expression on a line; None without its source."""
    return getattr(line.expr, "node", None)


def enclosing(node: Any, *kinds: type) -> Any:
    """Return a part of the source, or the innermost around it, that is of some kinds; None if there is none."""
    while node is not None and not isinstance(node, kinds):
        node = getattr(node, "parent", None)
    return node


def assigned_on(line: Line) -> Name | None:
    """Return the variable that the statement on a line assigns, as the name of what is computed there."""
    expr, code = line.expr, line.code
    return None if expr is None or code is None else name_around(expr, code)


def parsed(statement: str) -> ast.stmt | None:
    try:
        return ast.parse(statement).body[0]
    except (SyntaxError, IndexError):  # the head of a block, or a statement too long to be kept whole
        return None


def callee_text(line: Line) -> str:
    """Return the expression that is called on a line, such as ``self.model``, or an empty string."""
    called = getattr(node_of(line), "func", None)
    return ast.unparse(called) if isinstance(called, ast.Name | ast.Attribute) else ""
