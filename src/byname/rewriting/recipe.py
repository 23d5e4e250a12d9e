"""How is a graph of a rewritten model made? What to trace, what stays one call, and which interjections go where."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import nn

from byname.rewriting.call_arguments import Arguments, generalised
from byname.rewriting.clone import mirror
from byname.rewriting.graph_tracer import Tracer
from byname.rewriting.held import HELD, Held
from byname.rewriting.insert import Insertion
from byname.rewriting.interjected import Inserted
from byname.rewriting.proxies import Untraceable
from byname.rewriting.trace_records import Trace
from byname.rewriting.untraceable import untraceable
from byname.rewriting.variant import Variant

__all__ = ["Interjections", "Recipe"]


@dataclass(slots=True)
class Interjections:
    """One interjection and its places.

    Attributes:
        names: the paths of the calls, each with the name of the place.
        interjection: shared by all of them.
    """

    names: dict[str, str]
    interjection: Any


@dataclass
class Recipe:
    """What a rewritten model is made of.

    Attributes:
        root: a mirror of the model; its modules and parameters are those of the rewritten model.
        leaf_classes: the classes whose modules stay one call.
        leaf_paths: the modules that do so.
        depends: the arguments on whose plain values a graph may depend.
        interjections: all of them, the first inserted first.
    """

    root: nn.Module
    leaf_classes: tuple[type[nn.Module], ...] = ()
    leaf_paths: frozenset[str] = frozenset()
    depends: frozenset[str] = frozenset()
    interjections: list[Interjections] = field(default_factory=list)

    @cached_property
    def signature(self) -> inspect.Signature:
        """Of the forward, without ``self``, and without annotations."""
        signature = inspect.signature(self.root.forward)
        plain = [one.replace(annotation=one.empty) for one in signature.parameters.values()]
        return signature.replace(parameters=plain, return_annotation=signature.empty)

    @property
    def fixed(self) -> bool:
        """Whether there is but one way to call the forward: with one argument, which is needed."""
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
        parameters = list(self.signature.parameters.values())
        plain = all(one.kind in kinds and one.default is one.empty for one in parameters)
        return len(parameters) < 2 and plain and not self.depends

    def trace(self, arguments: Arguments, training: Callable[[str], bool], held: Held) -> Trace:
        """Traces the forward.

        Args:
            arguments: of one call.
            training: tells the ``training`` flag of the module of a path.
            held: keeps what the graph needs.

        Raises:
            RewriteError: if that cannot be done.
        """
        tracer = Tracer(mirror(self.root), generalised(arguments, self.depends), training, self.is_leaf, held)
        try:
            return tracer.traced()
        except (Untraceable, Exception) as error:  # whatever the user's forward raises where it is given no tensors
            raise untraceable(self.root, error) from error

    def is_leaf(self, module: nn.Module, path: str) -> bool:
        """Whether a module stays one call: those of PyTorch do, those with hooks, and those that were asked for."""
        if path in self.leaf_paths or isinstance(module, self.leaf_classes) or _hooked(module):
            return True
        of_torch = type(module).__module__.startswith(("torch.nn", "torch.ao.nn"))
        return of_torch and not isinstance(module, nn.Sequential)

    def variant(self, model: nn.Module, arguments: Arguments, training: Callable[[str], bool]) -> Variant:
        """One more graph of a rewritten model."""
        held: Held = model.__dict__[HELD]
        trace = self.trace(arguments, training, held)
        return self.finished(model, arguments, trace)

    def finished(self, model: nn.Module, arguments: Arguments, trace: Trace) -> Variant:
        """The graph of a trace, with the interjections in it."""
        held: Held = model.__dict__[HELD]
        insertion = Insertion(trace, held.keep)
        for one in self.interjections:
            for record in [record for record in trace.records if record.path in one.names]:
                module = model.get_submodule(record.path) if record.kind == "module" else None
                insertion.insert(record, Inserted(one.names[record.path], module, one.interjection))
        graph = insertion.finish()
        return Variant(generalised(arguments, self.depends), trace.flags, graph, trace.switches, trace.answers)


def _hooked(module: nn.Module) -> bool:
    """Whether hooks belong to each call of a module: they must run when the model runs, not while it is traced."""
    registries = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(module.__dict__.get(registry) for registry in registries)
