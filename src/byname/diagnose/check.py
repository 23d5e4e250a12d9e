"""Check: the problems of a backward call, found before it runs."""

from __future__ import annotations

from itertools import islice
from typing import Any

import torch

from byname.autograd.walk import as_sequence, has_graph, is_node
from byname.diagnose.cause import Cause
from byname.diagnose.causes.in_place import MODIFIED
from byname.diagnose.causes.iterations import BACKWARD_TWICE, GRAPH_GROWS, GRAPH_IN_GRAD
from byname.diagnose.causes.not_reached import DDP_UNUSED, DETACHED, NO_GRAD_PATH
from byname.diagnose.causes.ownership import OWNERSHIP
from byname.diagnose.context import FailureContext
from byname.diagnose.finding import Finding
from byname.errors import NotATensorError
from byname.reading.modules import models_of, optimizers_of
from byname.reading.quiet import DisableTorchFunction, collection_paused
from byname.reading.tensor import is_tensor


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
    with DisableTorchFunction(), collection_paused():
        return problems(context)


def problems(context: FailureContext) -> list[Finding]:
    """Return the problems that a backward call on the roots of a context will have."""
    if not all(map(has_graph, context.roots)):
        return [*islice((finding for cause in NO_GRAD_PATH for finding in cause.findings(context)), 1)]
    return [finding for cause in GRAPH for finding in cause.findings(context)]


GRAPH: tuple[Cause[FailureContext], ...] = (
    *BACKWARD_TWICE,
    *MODIFIED,
    GRAPH_IN_GRAD,
    GRAPH_GROWS,
    DDP_UNUSED,
    DETACHED,
    *OWNERSHIP,
)
"""The causes that a graph shows before a backward call runs."""
