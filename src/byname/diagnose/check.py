"""Check: the problems of a backward call, found before it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from byname.autograd.leaves import Leaf, leaves_of
from byname.autograd.slots import doubtful
from byname.autograd.walk import as_sequence, by_kind, has_graph, is_node, leaf_tensors, nodes_behind, opaque_reason
from byname.diagnose.causes.in_place import modified
from byname.diagnose.causes.iterations import backward_twice, graph_grows, graph_in_grad
from byname.diagnose.causes.not_reached import no_grad_path, unreached
from byname.diagnose.causes.ownership import free_leaves, left_out, orphaned, sharing_memory
from byname.diagnose.context import FailureContext
from byname.diagnose.finding import Finding
from byname.errors import NotATensorError
from byname.naming.children.torch import gathered_parameters, is_sharded
from byname.reading.arguments import models_of, optimizers_of, parameters_of
from byname.reading.modules import modules_in, parameters_in
from byname.reading.objects import living
from byname.reading.quiet import DisableTorchFunction, collection_paused
from byname.reading.tensor import fact, is_tensor


def check(loss: Any, *, model: Any = None, optimizer: Any = None) -> list[Finding]:
    """Return the problems that a backward call will have; call it before ``loss.backward()``.

    It compares the graph with the model and the optimizer, and finds: parameters that the loss does not reach, that no
    optimizer has, that an optimizer has and the model no longer does, or that share memory; leaves whose gradient
    nothing uses; saved tensors that are freed or were changed; a graph that carries earlier iterations along. Under
    `track` or `explaining` it also knows the lines. It only reads: no hook is called, nothing is computed.

    Args:
        loss: the tensor to call backward on, or a list, tuple or set of tensors.
        model: the model (or models) whose parameters should all learn from this loss.
        optimizer: the optimizer (or optimizers) that should update them.

    Returns:
        A list of `Finding`, empty when all is well.

    Raises:
        NotATensorError: `loss` is not a tensor.
        NoGraphError: `loss` is an empty sequence.
        NotAModuleError, NotAnOptimizerError: `model` or `optimizer` is of another type.

    >>> import byname, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    >>> loss = model[1](model[0](torch.ones(1, 2)).detach()).sum()
    >>> for finding in byname.check(loss, model=model):
    ...     print(finding.cause, [str(name) for name in finding.culprits])
    detached-parameter ['model[0].weight', 'model[0].bias']
    """
    roots = as_sequence(loss)
    for root in roots:
        if not is_tensor(root) and not is_node(root) and type(root) is not torch.autograd.graph.GradientEdge:
            raise NotATensorError(f"check() expects the loss, a tensor, but got {type(root).__name__}")
    context = FailureContext(roots, (), models_of(model), optimizers_of(optimizer))
    with collection_paused():
        if not all(map(has_graph, roots)):
            return [finding] if (finding := no_grad_path(context)) is not None else []
        return _Check(context).findings()


class _Check:
    """One check of a graph. It searches for names only if there is something to report."""

    def __init__(self, context: FailureContext) -> None:
        self._context = context
        with DisableTorchFunction():
            self._nodes = nodes_behind(context.roots)
            self._kinds = by_kind(self._nodes)
            self._tensors = leaf_tensors(self._nodes)
        self._reached = {id(tensor) for tensor in self._tensors}
        self._optimized = {id(one): one for optimizer in context.optimizers for one in parameters_of(optimizer)}

    def findings(self) -> list[Finding]:
        context = self._context
        grown = graph_grows(context, self._nodes)
        found = [*self._spoilt(bool(grown)), *graph_in_grad(context, self._tensors), *grown]
        missing = self._missing()
        if missing:
            wrappers = [one for one in context.models if type(one) is nn.parallel.DistributedDataParallel]
            found += unreached(context, missing, wrappers)
        return [*found, *sharing_memory(context, self._optimized.values()), *self._unowned()]

    def _spoilt(self, is_grown: bool) -> list[Finding]:
        """Return findings about saved tensors that this backward call needs and that were freed or changed.

        If the graph grows, freed tensors are left out: the failing backward of a running total follows from the
        growth.
        """
        with DisableTorchFunction():
            if not doubtful(self._kinds):
                return []
        twice = None if is_grown else backward_twice(self._context)
        return [*([twice] if twice is not None else []), *modified(self._context)]

    def _missing(self) -> list[torch.Tensor]:
        """Return the model's parameters that require grad and that the loss does not reach.

        The list is empty if a node hides its part of the graph, since nobody knows which parameters that part reaches.
        """
        if any("parameters used in it" in opaque_reason(same[0]) for same in self._kinds.values()):
            return []
        with DisableTorchFunction():
            wanted = {id(one): one for model in self._context.models for one in _learning(model)}
            return [one for key, one in wanted.items() if key not in self._reached]

    def _unowned(self) -> list[Finding]:
        """Return findings about gradients that no optimizer uses, and parameters that an optimizer has in vain."""
        context = self._context
        if not any(self._is_unowned(tensor) for tensor in self._tensors) and not self._strangers():
            return []
        optimized = {id(one) for other in living(torch.optim.Optimizer) for one in parameters_of(other)}
        elsewhere = optimized - self._optimized.keys()
        leaves = [leaf for leaf in self._leaves() if id(leaf.tensor) not in elsewhere]
        outside = left_out(context, leaves) if context.optimizers else []
        newcomers = [leaf for leaf in leaves if leaf.name in {name for one in outside for name in one.culprits}]
        return [*outside, *orphaned(context, self._strangers(), newcomers), *free_leaves(context, leaves)]

    def _leaves(self) -> Sequence[Leaf]:
        return leaves_of(self._context.walk, self._context.models, self._context.optimizers)

    def _is_unowned(self, tensor: torch.Tensor) -> bool:
        """Return whether a leaf is in no optimizer; without optimizers, whether it is no parameter."""
        if self._context.optimizers:
            return id(tensor) not in self._optimized
        return not issubclass(type(tensor), nn.Parameter)

    def _strangers(self) -> list[torch.Tensor]:
        """Return the optimizers' parameters that belong to none of the models and that the loss does not reach."""
        context = self._context
        if not context.models or not context.optimizers:
            return []
        unreached = {key: one for key, one in self._optimized.items() if key not in self._reached}
        theirs = {id(one) for model in context.models for one in parameters_in(model)} if unreached else set()
        return [one for key, one in unreached.items() if key not in theirs]


def _learning(model: nn.Module) -> list[torch.Tensor]:
    """Return the parameters of a model that require grad; for a sharded module, those that its forward used."""
    modules = modules_in(model)
    kinds = set(filter(is_sharded, set(map(type, modules))))
    sharded = [module for module in modules if type(module) in kinds] if kinds else []
    gathered = {id(one.sharded): one.gathered for module in sharded for one in gathered_parameters(module)}
    return [gathered.get(id(one), one) for one in parameters_in(model) if fact(one, "requires_grad")]
