"""Graph tracer: a ``torch.fx`` tracer that also records the calls of modules and functions.

``torch.fx`` runs some statements only while it traces: buffer updates, PyTorch's random numbers, ``no_grad``
(PyTorch 2.13). This tracer puts them into the graph, and refuses what a graph cannot express.
"""

from __future__ import annotations

import dataclasses
import operator
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from byname.model.operations import operation_path, taken
from byname.reading.interrupts import defer_signals
from byname.rewriting.clone import HELD, Held, check_contents, contents_of, tensors_of
from byname.rewriting.known_values import QUESTIONS, UNKNOWN, KnownValues, asker, checked, rebuilt
from byname.rewriting.outside import Outside, check_modes, is_leaving, restored, state_of_modes, switched
from byname.rewriting.proxies import Flag, Property, Untraceable, Value, Values, gives_several
from byname.rewriting.specialization import GIVEN, Arguments, is_plain
from byname.rewriting.trace_patches import applied, installed
from byname.rewriting.trace_record import Record, Trace, passed

_TOLD = frozenset({"dtype", "device", "layout", "ndim", "requires_grad", "is_cuda", "is_sparse"})
"""The attributes of a tensor that are told at once if the example tells them. Sizes stay in the graph."""


class Tracer(fx.Tracer):
    """Traces one forward of a model, for one way to call it.

    Args:
        model: the model to trace. Tracing changes it, so it must be a clone, see `mirror`.
        arguments: the arguments of the call.
        training: returns the ``training`` flag of the module at a path.
        is_leaf: returns whether a module stays one call in the graph.
        held: keeps the constants that have no path in the model.
        known: answers what the forward asks of its values; without it no question has an answer.
    """

    def __init__(
        self,
        model: nn.Module,
        arguments: Arguments,
        training: Callable[[str], bool],
        is_leaf: Callable[[nn.Module, str], bool],
        held: Held,
        known: KnownValues | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.arguments = arguments
        self.thread = threading.get_ident()
        self.records: list[Record] = []
        self.running: list[Record] = []
        self.flags: dict[str, bool] = {}
        self.switched = False
        self.paths: dict[int, str] = {id(one): path for path, one in model.named_modules()}
        self._training = training
        self._is_leaf = is_leaf
        self._held = held
        self._known = known
        self._attributes = {id(value) for one in model.modules() for value in one.__dict__.values()}
        self._tensors: dict[int, str] = tensors_of(model)
        self.assigned: dict[tuple[int, str], Any] = {}
        self._reads: set[tuple[int, str]] = set()
        self._waiting: list[Record] = []
        self._switches: list[Value] = []
        self._nodes: dict[str, Value] = {}
        self._values = Values()
        self._state = state_of_modes()
        self._outside = Outside(model.modules())

    def traced(self) -> Trace:
        """Trace the forward and return the trace.

        Raises:
            Untraceable: a statement cannot be in a graph.
        """
        before = contents_of(self.model)
        with defer_signals(), installed(self), self._outside.heard():
            graph = self.trace(self.model)
        check_contents(before, self.model)
        asked = self._known is not None and self._known.asked
        return Trace(graph, self.records, self.flags, self.switched, self._outside.answers, asked)

    # called by torch.fx

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        """Create the placeholders; return the function to trace and its arguments."""
        given: dict[str, Any] = {}
        for name, value in self.arguments.values.items():
            proxy = self.create_proxy("placeholder", name, (), {})
            given[name] = proxy if value is GIVEN else value
        args, kwargs = self.arguments.call(given)
        root = Record(
            "", type(self.model).__name__, "module", self.model, "", None, None, self._written((args, kwargs))
        )
        root.entered = True
        self._begins(root)

        return lambda: self._whole(root, args, kwargs), []

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Return the result of a module call: a node for a leaf module, otherwise the marked result of its forward."""
        if threading.get_ident() != self.thread or self.computing:
            return forward(*args, **kwargs)  # another thread's model: torch.fx patches the class of all modules
        path = self.paths.get(id(m))
        place = path if path is not None else f"{HELD}.{self._held.keep(m)}"
        record = Record(
            place, type(m).__name__, "module", m, place, self.running[-1], inputs=self._written((args, kwargs))
        )
        if path is not None:
            self._begins(record)
        if path is None or self._is_leaf(m, path):
            proxy = self.create_proxy("call_module", place, args, kwargs)
            record.outputs = record.first = proxy.node
            if gives_several(m):
                self._values.several.add(proxy.node)
            return proxy
        record.entered = True
        self.running.append(record)
        result = forward(*args, **kwargs)
        self.running.pop()
        return self._mark(record, result)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: Any) -> Any:
        """Return the attribute's value unchanged: `read` has already answered for the model's modules."""
        return attr_val

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *more: Any, **named: Any) -> Any:
        """Create a node, record it if it is an operation, and return its proxy."""
        check_modes(self._state)
        self._outside.check()
        proxy = super().create_proxy(kind, target, args, kwargs, *more, **named)
        self._has_begun(proxy.node)
        if self._known is not None:
            self._known.learn(proxy.node, self._at)
        if kind in ("call_function", "call_method"):
            self._note(proxy.node)
        return proxy

    def create_arg(self, a: Any) -> Any:
        """Return the form of an argument in the graph."""
        kind = type(a)
        if issubclass(kind, fx.Proxy):
            return a.node
        if kind in (int, bool, float, str, type(None)):
            return a
        if isinstance(a, torch.Tensor):
            return self._of_tensor(a).node
        if isinstance(a, nn.Module):
            return self._of_path(self._path_of(a)).node
        if kind in (list, tuple, dict, slice) or isinstance(a, tuple):
            return super().create_arg(a)
        return self._other(a)

    def proxy(self, node: fx.Node) -> Value:
        """Return the proxy of a node."""
        return Value(node, self)

    @property
    def computing(self) -> bool:
        """Whether the value of a node is being computed, so that nothing of it belongs in the graph."""
        return self._known is not None and self._known.computing

    # called by the proxies

    def answer(self, value: fx.Proxy, question: str, otherwise: str) -> Any:
        """Return what the example answers to a question about a value; a check in the graph asks again on each run.

        Args:
            value: the value.
            question: a key of `QUESTIONS`.
            otherwise: why the statement cannot be in a graph, if there is no answer.
        """
        known = self.known(value)
        if self._known is None or known is UNKNOWN or (isinstance(known, torch.Tensor) and question != "len"):
            raise Untraceable(otherwise)
        answer = QUESTIONS[question](known)
        self._known.asked = True
        super().create_proxy("call_function", checked, (value, question, answer, asker()), {})
        return answer

    def attribute(self, read: Property, name: str) -> Any:
        """Return an attribute of a value: what the example tells of its dtype and device, of which C code asks."""
        if name in _TOLD and isinstance(self.known(read.root), torch.Tensor):
            return self.answer(read, "value", "")
        return read

    def items(self, value: Value, count: int) -> list[Any]:
        """Return the items of a value."""
        whole = value.unbind(0) if isinstance(self.known(value), torch.Tensor) else value
        return [self.part(whole, index) for index in range(count)]

    def known(self, value: fx.Proxy) -> Any:
        """Return what is known of a value: a fake tensor, a plain value, or `UNKNOWN`."""
        return UNKNOWN if self._known is None else self._known.of(value.node)

    # called by the patches while the forward runs

    def read(self, module: nn.Module, name: str, value: Any) -> Any:
        """Return the value that the forward sees when it reads an attribute of a module.

        Args:
            module: a module of the model.
            name: the name of the attribute.
            value: the attribute's real value.
        """
        if name == "training":
            return self._flag(module)
        if isinstance(value, torch.Tensor):
            return self._of_tensor(value)
        self._reads.add((id(module), name))
        self._outside.reads(value)
        return value

    def assign(self, module: nn.Module, name: str, value: Any) -> None:
        """Put the assignment of an attribute into the graph.

        Raises:
            Untraceable: the value is known before the model runs, or the attribute was read before.
        """
        if not self._has_values(value) and not isinstance(value, torch.Tensor):
            if (id(module), name) not in self.assigned and is_plain(value):
                old = module.__dict__.get(name, self)
                if type(old) is type(value) and old == value:
                    return
            raise Untraceable(
                f"sets `{name}` of a module to what is known before the model runs, which would happen once"
            )
        if (id(module), name) in self._reads:
            raise Untraceable(f"sets `{name}` of a module, which was read before: what one call leaves for the next")
        target = self._of_path(self._path_of(module))
        self.create_proxy("call_function", setattr, (target, name, value), {})
        self.assigned[id(module), name] = value

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Put a call of a PyTorch function into the graph and return its proxy."""
        name = str(getattr(function, "__name__", ""))
        if name == "__get__":
            return self.create_proxy("call_function", getattr, (args[0], function.__self__.__name__), {})  # type: ignore[attr-defined]
        if torch.overrides.is_tensor_method_or_property(function):
            return self.create_proxy("call_method", name, args, kwargs)
        return self.create_proxy("call_function", function, args, kwargs)

    def is_instance(self, value: fx.Proxy, kinds: tuple[Any, ...]) -> bool:
        """Return the result of `isinstance` for a proxy in the user's code."""
        if type(value) is Flag:
            return bool in kinds or int in kinds
        known = self.known(value)
        if known is not UNKNOWN and not isinstance(known, torch.Tensor):
            return isinstance(known, kinds)
        if value.node in self._values.several:
            return tuple in kinds or list in kinds
        if value.node in self._values.plain and not all(issubclass(kind, torch.Tensor | nn.Module) for kind in kinds):
            raise Untraceable("asks for the type of a value that is known only when the model runs")
        return value.node not in self._values.plain and any(issubclass(torch.Tensor, kind) for kind in kinds)

    def apply(self, function: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Put a call of a custom autograd function into the graph; it stays one call and keeps its backward."""
        return self.create_proxy("call_function", applied, (self._of_object(function), *args), kwargs)

    def switch(self, enabled: bool) -> None:
        """Put a switch of grad mode, such as ``torch.no_grad()``, into the graph."""
        self.switched = True
        if self._switches and is_leaving():
            self.create_proxy("call_function", restored, (self._switches.pop(),), {})
        else:
            self._switches.append(self.create_proxy("call_function", switched, (enabled,), {}))

    def part(self, value: Value, index: int) -> Any:
        """Return one of the values that a proxy is unpacked into; this does not count as indexing a tensor."""
        self._values.several.add(value.node)
        return self.create_proxy("call_function", operator.getitem, (value, index), {})

    # building the graph

    def _whole(self, root: Record, args: Any, kwargs: Any) -> Any:
        self.running.append(root)
        return self._mark(root, object.__getattribute__(self.model, "forward")(*args, **kwargs))

    def _of_tensor(self, tensor: torch.Tensor) -> Value:
        """Return the proxy of an existing tensor."""
        path = self._tensors.get(id(tensor))
        if path is None:
            path = self._tensors[id(tensor)] = f"{HELD}.{self._held.keep(tensor)}"
        return self._of_path(path)

    def _of_object(self, thing: Any) -> Value:
        """Return the proxy of any object, kept as a constant."""
        return self._of_path(f"{HELD}.{self._held.keep(thing)}")

    def _of_path(self, path: str) -> Value:
        if path not in self._nodes:
            self._nodes[path] = self.create_proxy("get_attr", path, (), {})
        return self._nodes[path]

    def _at(self, path: str) -> Any:
        """Return the object at the path of a node."""
        found: Any = self.model
        for name in path.split("."):
            inner = found.__dict__.get("_modules", {}) if isinstance(found, nn.Module) else {}
            found = self._held if name == HELD else inner[name] if name in inner else getattr(found, name)
        return found

    def _path_of(self, module: nn.Module) -> str:
        path = self.paths.get(id(module))
        if path is None:
            return f"{HELD}.{self._held.keep(module)}"
        return path or f"{HELD}.root"

    def _flag(self, module: nn.Module) -> Flag:
        path = self.paths[id(module)]

        def decide() -> bool:
            return self.flags.setdefault(path, self._training(path))

        target = f"{path}.training" if path else "training"
        return Flag(self._of_path(target).node, self, decide)

    def _other(self, a: Any) -> Any:
        kind = type(a)
        if issubclass(kind, dict):
            return self._mapping(a)
        if callable(a) and not isinstance(a, type) and not isinstance(a, torch._ops.OpOverload):
            raise Untraceable(
                f"hands on a function ({getattr(a, '__name__', kind.__name__)}), which stays out of a graph"
            )
        try:
            return super().create_arg(a)
        except NotImplementedError:
            if isinstance(a, type | torch.Generator) or kind.__module__ == "numpy":
                return self._of_object(a).node
            if id(a) in self._attributes or not _holds_values(a, set()):
                raise Untraceable(f"uses an object of {kind.__name__}, which cannot be part of a graph") from None
            return self._rebuilt(a).node

    def _rebuilt(self, a: Any) -> Any:
        """Return the proxy of an object that the forward made, such as a cache; each run makes it anew."""
        attributes = {
            name: value
            if is_plain(value) or type(value) in (list, tuple, dict) or _holds_values(value, set())
            else self._of_object(value)
            for name, value in vars(a).items()
        }
        return self.create_proxy("call_function", rebuilt, (type(a), attributes), {})

    def _mapping(self, a: Any) -> Any:
        """Return the node of a dict subclass, such as an output of `transformers`."""
        if dataclasses.is_dataclass(a):
            fields = {one.name: getattr(a, one.name) for one in dataclasses.fields(a)}
            return self.create_proxy("call_function", type(a), (), fields).node
        if type(a) is OrderedDict:
            return self.create_proxy("call_function", OrderedDict, ([(key, a[key]) for key in a],), {}).node
        raise Untraceable(f"uses a dict of the class {type(a).__name__}, which cannot be part of a graph")

    def _begins(self, record: Record) -> None:
        self.records.append(record)
        self._waiting.append(record)

    def _has_values(self, value: Any) -> bool:
        return any(issubclass(type(one), fx.Proxy) for one in pytree.tree_leaves(value))

    def _written(self, arguments: tuple[Any, Mapping[str, Any]]) -> tuple[Any, ...]:
        """Return arguments with nodes in place of proxies."""
        args, kwargs = arguments
        return tuple(self._with_nodes(one) for one in (*args, *kwargs.values()))

    def _with_nodes(self, value: Any) -> Any:
        if type(value) is Property or type(value) is Flag or type(value) is Value:
            return value.node
        return pytree.tree_map(lambda one: one.node if issubclass(type(one), fx.Proxy) else one, value)

    def _has_begun(self, node: fx.Node) -> None:
        """Set the first node of the calls that began before it."""
        if node.op != "placeholder":
            for record in self._waiting:
                record.first = node
            self._waiting.clear()

    def _mark(self, record: Record, result: Any) -> Any:
        """End a module call: wrap each returned value in `passed`, so that its caller sees a node of its own."""

        def mark(value: Any) -> Any:
            if not issubclass(type(value), fx.Proxy) or type(value) is Flag:
                return value
            marked = self.proxy(self.graph.create_node("call_function", passed, (value.node,), {}))
            self._has_begun(marked.node)
            self._values.same(marked.node, value.node)
            if self._known is not None:
                self._known.same(marked.node, value.node)
            return marked

        result = mark(result) if issubclass(type(result), fx.Proxy) else pytree.tree_map(mark, result)
        record.outputs = self._with_nodes(result)
        return result

    def _note(self, node: fx.Node) -> None:
        """Record a node as a call if it is an operation."""
        name = self._values.learn(node)
        if name is None or not self.running:
            return
        owner = self.running[-1]
        path = operation_path(owner.path, name, owner.calls[name], taken(owner.module))
        owner.calls[name] += 1
        function = node.target if node.op == "call_function" else getattr(torch.Tensor, str(node.target), None)
        record = Record(path, name, "operation", owner.module, owner.path, owner, function)
        record.inputs = (*node.args, *node.kwargs.values())
        record.outputs = record.first = node
        self.records.append(record)
        node._rename("".join(mark if mark.isalnum() else "_" for mark in path))


def _holds_values(thing: Any, seen: set[int]) -> bool:
    """Return whether an object holds a proxy, in its attributes or in those of the objects that it holds."""
    if issubclass(type(thing), fx.Proxy):
        return True
    if id(thing) in seen or isinstance(thing, nn.Module | type):
        return False
    seen.add(id(thing))
    if isinstance(thing, list | tuple | dict):
        return any(_holds_values(one, seen) for one in (thing.values() if isinstance(thing, dict) else thing))
    return any(_holds_values(one, seen) for one in [*getattr(thing, "__dict__", {}).values()])
