"""Rewritten: the model that runs the graphs, the spec from which it traces them, and their serialization."""

from __future__ import annotations

import copy
import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import fx, nn
from torch.fx.graph_module import _forward_from_src
from torch.utils import _pytree as pytree

from byname.errors import RewriteError
from byname.reading.quiet import dynamo_skip
from byname.rewriting.clone import HELD, Held, mirror
from byname.rewriting.graph_tracer import Tracer
from byname.rewriting.insert import Inserted, Insertion
from byname.rewriting.known_values import KnownValues, metadata_of
from byname.rewriting.proxies import Untraceable, untraceable
from byname.rewriting.specialization import Arguments, Variant, generalised, of_call
from byname.rewriting.trace_record import Trace

MOST = 64
"""The largest number of graphs of one model; more are taken for a mistake."""


class Rewritten(fx.GraphModule):
    """A model with interjections in its graph; made by `byname.rewrite`.

    It has its own modules, of the same classes, which share the parameters and buffers of the original model. If the
    forward branches on ``self.training``, on a mode such as ``torch.is_grad_enabled()``, or on an argument that is not
    a tensor, there is a graph for each case; ``graph`` is the graph for the present flags and modes.
    """

    _byname_recipe: Recipe
    _byname_variants: list[Variant]

    def __init__(self, recipe: Recipe, held: Held) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(_PRIVATE())
        self._adopt(recipe, held, [])

    def _adopt(self, recipe: Recipe, held: Held, variants: list[Variant]) -> None:
        """Take over the modules, parameters, attributes and hooks of the spec's clone."""
        type(self).__name__ = type(recipe.root).__name__
        self.__dict__.update(recipe.root.__dict__)
        self.__dict__.pop("forward", None)  # a forward set on the instance is in the graph
        held.__dict__["root"] = self
        self.__dict__.update({"_byname_recipe": recipe, HELD: held, "_byname_variants": variants})

    @property
    def graph(self) -> fx.Graph:
        """The graph for the present training flags and modes."""
        return self._present().graph

    @graph.setter
    def graph(self, graph: fx.Graph) -> None:
        self._present().graph = graph
        self.recompile()

    @property
    def graphs(self) -> tuple[fx.Graph, ...]:
        """The graphs traced so far, one for each way to run the model."""
        return tuple(variant.graph for variant in self._byname_variants)

    @property
    def code(self) -> str:
        """The code of `graph`."""
        return self.graph.python_code("self").src

    def recompile(self) -> Any:
        """Compile the graphs into the forward again, after they were changed."""
        codes = [variant.graph.python_code("self") for variant in self._byname_variants]
        for variant, code in zip(self._byname_variants, codes, strict=True):
            variant.graph.owning_module = self
            variant.run = _forward_from_src(code.src, code.globals)
        first = self._byname_variants[0]
        conditions = first.flags or first.switches or first.answers or first.metadata
        always = self._byname_recipe.fixed and not conditions
        forward = first.run if always else self._dispatching()
        type(self).forward = forward
        shown = codes[self._byname_variants.index(self._present())]
        own = {"_code": shown.src, "_lineno_map": shown._lineno_map, "_prologue_start": shown._prologue_start}
        self.__dict__.update(own)  # torch.compile reads these
        return shown

    def add(self, variant: Variant) -> None:
        """Add a graph."""
        self._byname_variants.append(variant)
        self.recompile()

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the state dict of the original class."""
        return self._byname_recipe.root.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load a state dict as the original class does."""
        return self._byname_recipe.root.load_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any) -> None:
        self._byname_recipe.root._load_from_state_dict(*args)

    def _present(self) -> Variant:
        return next((one for one in self._byname_variants if one.fits(self)), self._byname_variants[0])

    def _dispatching(self) -> Callable[..., Any]:
        signature = self._byname_recipe.signature

        def forward(self: Rewritten, *args: Any, **kwargs: Any) -> Any:
            call = of_call(signature, args, kwargs)
            for variant in self._byname_variants:
                if variant.arguments.fits(call) and variant.fits(self) and variant.holds(self, call):
                    return variant(self, call)
            return self._one_more(call)(self, call)

        forward.__signature__ = _with_self(signature)  # type: ignore[attr-defined]
        return forward

    @dynamo_skip
    def _one_more(self, call: Arguments) -> Variant:
        """Trace the model for a new way to call it."""
        variant = self._byname_recipe.variant(self, call, lambda path: self.get_submodule(path).training)
        for one in self._byname_variants:
            if one.take_over(variant):
                return one
        if len(self._byname_variants) >= MOST:
            raise RewriteError(
                f"this {type(self).__name__} was called in {MOST} ways, each with a graph of its own: {call}. An "
                "argument that takes many values should be a tensor"
            )
        self.add(variant)
        return variant

    def _state(self) -> dict[str, Any]:
        held: Held = self.__dict__[HELD]
        own = {key: value for key, value in self.__dict__.items() if key not in self._byname_recipe.root.__dict__}
        for key in ("_byname_recipe", "_byname_variants", HELD):
            own.pop(key)
        return {
            "own": own,
            "training": self.training,
            "recipe": self._byname_recipe,
            "held": held.things(),
            "variants": [
                (one.arguments, dict(one.flags), written(one.graph), one.switches, dict(one.answers), one.metadata)
                for one in self._byname_variants
            ],
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        held = Held()
        held.__dict__.update(state["held"])
        self.__dict__.update(state["own"])
        variants = [Variant(one[0], one[1], read(one[2]), *one[3:]) for one in state["variants"]]
        self._adopt(state["recipe"], held, variants)
        self.training = state["training"]
        self.recompile()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _empty, (), self._state()

    __reduce__ = None  # type: ignore[assignment]

    def __deepcopy__(self, memo: dict[int, Any]) -> Rewritten:
        new = memo[id(self)] = _empty()
        new.__setstate__(copy.deepcopy(self._state(), memo))
        return new

    def __copy__(self) -> Rewritten:
        new = _empty()
        new.__setstate__(self._state())
        return new


def _empty() -> Rewritten:
    return Rewritten.__new__(Rewritten)


def _PRIVATE() -> dict[str, Any]:
    """Return the attributes that a `GraphModule` has besides those of a module."""
    return {
        "_tracer_cls": None,
        "_tracer_extras": {},
        "meta": {},
        "_replace_hooks": [],
        "_create_node_hooks": [],
        "_erase_node_hooks": [],
        "_deepcopy_hooks": [],
        "shape_env": None,
    }


def _with_self(signature: inspect.Signature) -> inspect.Signature:
    self = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return signature.replace(parameters=[self, *signature.parameters.values()])


@dataclass(slots=True)
class Interjections:
    """One interjection and its places.

    Attributes:
        names: the paths of the calls, each with the name of the place.
        interjection: shared by all places.
    """

    names: dict[str, str]
    interjection: Any


@dataclass
class Recipe:
    """The spec of a rewritten model: everything that is needed to trace it again.

    Attributes:
        root: a clone of the model; the rewritten model has its modules and parameters.
        leaf_classes: the classes of leaf modules.
        leaf_paths: the paths of leaf modules.
        depends: the names of the arguments on whose plain values a graph may depend.
        interjections: the interjections, in the order of insertion.
    """

    root: nn.Module
    leaf_classes: tuple[type[nn.Module], ...] = ()
    leaf_paths: frozenset[str] = frozenset()
    depends: frozenset[str] = frozenset()
    interjections: list[Interjections] = field(default_factory=list)

    @cached_property
    def signature(self) -> inspect.Signature:
        """The signature of the forward, without ``self`` and annotations."""
        signature = inspect.signature(self.root.forward)
        plain = [one.replace(annotation=one.empty) for one in signature.parameters.values()]
        return signature.replace(parameters=plain, return_annotation=signature.empty)

    @property
    def fixed(self) -> bool:
        """Whether there is only one way to call the forward: at most one argument, which is required."""
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
        parameters = list(self.signature.parameters.values())
        plain = all(one.kind in kinds and one.default is one.empty for one in parameters)
        return len(parameters) < 2 and plain and not self.depends

    def trace(self, arguments: Arguments, training: Callable[[str], bool], held: Held) -> Trace:
        """Trace the forward.

        Args:
            arguments: the arguments of one call.
            training: returns the ``training`` flag of the module at a path.
            held: keeps the constants of the graph.

        A forward that cannot be traced with stand-ins alone is traced again with what the arguments tell, if they are
        known.

        Raises:
            RewriteError: the forward cannot be traced.
        """
        try:
            return self._tracer(arguments, training, held).traced()
        except (Untraceable, Exception) as error:  # the user's forward may raise anything when given proxies
            if not any(isinstance(one, torch.Tensor) for one in pytree.tree_leaves(dict(arguments.values))):
                raise untraceable(self.root, error, "example=") from error
        try:
            return self._tracer(arguments, training, held, KnownValues(arguments.values)).traced()
        except (Untraceable, Exception) as error:
            raise untraceable(self.root, error) from error

    def _tracer(self, arguments: Arguments, training: Callable[[str], bool], held: Held, *known: KnownValues) -> Tracer:
        wanted = generalised(arguments, self.depends)
        return Tracer(mirror(self.root), wanted, training, self.is_leaf, held, *known)

    def is_leaf(self, module: nn.Module, path: str) -> bool:
        """Return whether a module is a leaf module: one of PyTorch, one with hooks, or one that the user named."""
        if path in self.leaf_paths or isinstance(module, self.leaf_classes) or _hooked(module):
            return True
        of_torch = type(module).__module__.startswith(("torch.nn", "torch.ao.nn"))
        return of_torch and not isinstance(module, nn.Sequential)

    def variant(self, model: nn.Module, arguments: Arguments, training: Callable[[str], bool]) -> Variant:
        """Return a new specialization of a rewritten model."""
        held: Held = model.__dict__[HELD]
        trace = self.trace(arguments, training, held)
        return self.finished(model, arguments, trace)

    def finished(self, model: nn.Module, arguments: Arguments, trace: Trace) -> Variant:
        """Return the specialization of a trace, with the interjections inserted."""
        held: Held = model.__dict__[HELD]
        traced = written(trace.graph) if trace.asked else None
        insertion = Insertion(trace, held.keep)
        for one in self.interjections:
            for record in [record for record in trace.records if record.path in one.names]:
                module = model.get_submodule(record.path) if record.kind == "module" else None
                insertion.insert(record, Inserted(one.names[record.path], module, one.interjection))
        graph = insertion.finish()
        new = Variant(generalised(arguments, self.depends), trace.flags, graph, trace.switches, trace.answers)
        if trace.asked:
            new.metadata, new.traced = {metadata_of(arguments.values, model)}, traced
        return new


def _hooked(module: nn.Module) -> bool:
    """Return whether a module has hooks; they must run when the model runs, not while it is traced."""
    registries = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(module.__dict__.get(registry) for registry in registries)


@dataclass(frozen=True, slots=True)
class _Reference:
    """Another node of the same graph, by its position."""

    number: int


@dataclass(frozen=True, slots=True)
class _Function:
    """A function by its module and name; some, such as ``max_pool2d`` of PyTorch 2.13, have another ``__name__``."""

    module: str
    name: str

    @classmethod
    def of(cls, target: Any) -> Any:
        """Return the reference to a function; the function itself if its name does not lead to it."""
        module, name = getattr(target, "__module__", None), getattr(target, "__name__", None)
        if isinstance(module, str) and isinstance(name, str) and getattr(sys.modules.get(module), name, None) is target:
            return cls(module, name)
        return target

    def itself(self) -> Any:
        """Return the function."""
        return getattr(importlib.import_module(self.module), self.name)


Line = tuple[str, str, Any, Any, Any]


def written(graph: fx.Graph) -> list[Line]:
    """Return a graph as plain data: the kind, name, target and arguments of each node."""
    numbers = {node: number for number, node in enumerate(graph.nodes)}

    def refer(value: Any) -> Any:
        return _Reference(numbers[value]) if isinstance(value, fx.Node) else value

    def line(node: fx.Node) -> Line:
        given = (_plain(fx.node.map_aggregate(one, refer)) for one in (node.args, node.kwargs))
        return (node.op, node.name, _Function.of(node.target), *given)

    return [line(node) for node in graph.nodes]


def read(lines: list[Line]) -> fx.Graph:
    """Return the graph that `written` serialized."""
    graph = fx.Graph()
    nodes: list[fx.Node] = []

    def referred(value: Any) -> Any:
        return nodes[value.number] if isinstance(value, _Reference) else value

    for op, name, target, args, kwargs in lines:
        function = target.itself() if isinstance(target, _Function) else target
        given = fx.node.map_aggregate(args, referred), fx.node.map_aggregate(kwargs, referred)
        nodes.append(graph.create_node(op, function, *given, name=name))
    return graph


def _plain(value: Any) -> Any:
    """Return a value without the containers of ``torch.fx``, which cannot be copied."""
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(_plain(one) for one in value)
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return value
