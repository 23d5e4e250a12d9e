"""Check: the problems of a backward call, found before it runs, and of a model that is run on an example."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from byname.autograd.walk import as_sequence, has_graph, is_node
from byname.diagnose.cause import Cause, Facts
from byname.diagnose.causes.in_place import MODIFIED
from byname.diagnose.causes.iterations import BACKWARD_TWICE, GRAPH_GROWS, GRAPH_IN_GRAD
from byname.diagnose.causes.not_reached import DDP_UNUSED, DETACHED, NO_GRAD_PATH
from byname.diagnose.causes.ownership import OWNERSHIP
from byname.diagnose.context import FailureContext
from byname.diagnose.finding import Finding
from byname.diagnose.handbook import filter_ignored, known_causes
from byname.errors import BadArgumentError, NotATensorError
from byname.model.items import tensors_in
from byname.model.operations import operation_name
from byname.reading.modules import models_of, modules_in, optimizers_of
from byname.reading.objects import attributes_of
from byname.reading.quiet import DisableTorchFunction, collection_paused
from byname.reading.tensor import is_tensor
from byname.source.location import Instruction, locate
from byname.text import note_on
from byname.tracing.eager import EAGERLY
from byname.tracing.muted import mute_all
from byname.tracing.preserve import arguments_of, copied_arguments, restored
from byname.tracing.tracer import call_model, model_instruction


def check(
    loss: Any, *, model: Any = None, optimizer: Any = None, example: Any = None, ignore: str | Iterable[str] = ()
) -> list[Finding]:
    """Return the problems that a backward call will have; call it before ``loss.backward()``.

    It compares the graph with the model and the optimizer, and finds: parameters that the loss does not reach, that no
    optimizer has, that an optimizer has and the model no longer does, or that share memory; leaves whose gradient
    nothing uses; saved tensors that are freed or were changed; a graph that carries earlier iterations along. Under
    `track` or `explaining` it also knows the lines. It only reads: no hook is called, nothing is computed.

    With an `example` it runs the model on it, in evaluation mode, and finds an output that depends on other samples,
    with the operation where they mix, or on no input at all. Model, random state and example stay as they were.

    Args:
        loss: the tensor to call backward on, or a list, tuple or set of tensors.
        model: the model (or models) whose parameters should all learn from this loss.
        optimizer: the optimizer (or optimizers) that should update them.
        example: a batch for the model: a tensor; a tuple of positional arguments; a dict of keyword arguments; or
            ``(args, kwargs)``. Its samples lie along the first dimension of each tensor.
        ignore: a cause, or several, to report nothing about. A comment ``# byname: ignore[cause]`` at the end of a
            line does the same for findings that show this line.

    Returns:
        A list of `Finding`, empty when all is well.

    Raises:
        NotATensorError: `loss` is not a tensor.
        NoGraphError: `loss` is an empty sequence.
        NotAModuleError, NotAnOptimizerError: `model` or `optimizer` is of another type.
        BadArgumentError: `ignore` has a word that is no cause; the message names the closest. Or there is an `example`,
            and not one model to run it.
        BadExampleError: `example` is not one of these forms.

    >>> import byname, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    >>> loss = model[1](model[0](torch.ones(1, 2)).detach()).sum()
    >>> for finding in byname.check(loss, model=model):
    ...     print(finding.cause, [str(name) for name in finding.culprits])
    detached-parameter ['model[0].weight', 'model[0].bias']
    """
    roots, ignored = as_sequence(loss), known_causes(ignore)
    for root in roots:
        if not is_tensor(root) and not is_node(root) and type(root) is not torch.autograd.graph.GradientEdge:
            raise NotATensorError(f"check() expects the loss, a tensor, but got {type(root).__name__}")
    context = FailureContext(roots, (), models_of(model), optimizers_of(optimizer))
    runs = None if example is None else TwoRuns(context.models, example)
    with DisableTorchFunction(), collection_paused():
        found = problems(context)
    found += [one for cause in OF_AN_EXAMPLE for one in cause.findings(runs)] if runs is not None else []
    return [one for finding in found for one in filter_ignored(finding, ignored)]


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

_MOST_NUMBERS = 1 << 26
"""The numbers of the outputs of operations that are kept for comparison, at most."""


class Computed(NamedTuple):
    """The output of one operation, with its name and line."""

    operation: str
    line: Instruction | None
    output: torch.Tensor


class _OutputRecorder(TorchFunctionMode):
    """Keeps the outputs of all operations."""

    def __init__(self) -> None:
        self.computed: list[Computed] = []
        self._left = _MOST_NUMBERS

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = operation_name(func)
        for _, tensor in tensors_in(result) if name is not None else ():
            self._left -= tensor.numel()
            if self._left > 0:
                line = model_instruction(sys._getframe(1))
                self.computed.append(Computed(str(name), line, tensor.detach().clone()))
        return result


class TwoRuns:
    """Two runs of a model in evaluation mode: on an example, and on it with another sample in place of sample 0."""

    known: Facts = {"noticed": None}

    def __init__(self, models: Sequence[nn.Module], example: Any) -> None:
        args, kwargs = arguments_of(example)
        if len(models) != 1:
            raise BadArgumentError("check(example=...) needs one model=, which runs it")
        self.model = models[0]
        given = list(args), kwargs
        self._inputs = [one for _, one in tensors_in([*given])]
        sizes = {len(one) if one.dim() else 0 for one in self._inputs}
        self.count = sizes.pop() if len(sizes) == 1 else 0  # of samples; 0 if the example does not show what they are
        others = [at for at in range(1, self.count) if any(not torch.equal(one[0], one[at]) for one in self._inputs)]
        self._other = others[0] if others else 0
        dims = (None, 0, 1) if self.has_samples else ()
        runs = [self._run(*given, dim) for dim in dims]
        self._outputs = {dim: outputs for dim, (outputs, _) in zip(dims, runs, strict=True)}
        self._computed = [computed for _, computed in runs[:2]]

    def _run(
        self, args: list[Any], kwargs: dict[str, Any], dim: int | None
    ) -> tuple[list[torch.Tensor], list[Computed]]:
        """Return the output, and that of each operation; along `dim` the first entry of each input is another one."""
        modules = modules_in(self.model)
        with mute_all(), restored(self.model), EAGERLY.held(), torch.no_grad(), _OutputRecorder() as mode:
            args, kwargs = copied_arguments((args, kwargs), self.model, modules)
            for _, tensor in tensors_in([args, kwargs]):
                if dim is not None and tensor.dim() > dim:
                    tensor.select(dim, 0).copy_(tensor.select(dim, self._other if dim == 0 else -1).clone())
            mode.computed.clear()
            for module in modules:
                attributes_of(module)["training"] = False
            try:
                result = call_model(self.model, tuple(args), kwargs)
            except Exception as error:
                note_on(error, "byname: raised while the model ran the given example=")
                raise
            return [one.detach().clone() for _, one in tensors_in(result)], mode.computed

    @property
    def has_samples(self) -> bool:
        return self._other > 0

    def mixes(self, dim: int) -> bool:
        """Return whether entries of the output along a dimension depend on other entries of the input."""
        sizes = {one.shape[dim] for one in self._inputs if one.dim() > dim}
        pairs = zip(self._outputs[None], self._outputs[dim], strict=False)
        return len(sizes) == 1 and any(_mixed(before, after, *sizes) for before, after in pairs)

    def mixing(self) -> Iterator[Facts]:
        """Yield the first operation that mixes samples; nothing where the second dimension may be the batch."""
        lengths = {one.shape[1] for one in self._inputs if one.dim() > 1}
        has_lengths = any(not lengths.isdisjoint(one.shape) for one in self._outputs[None])
        if self.mixes(0) and not (has_lengths and not self.mixes(1)):
            pairs = zip(*self._computed, strict=False)
            first = next((one for one, other in pairs if _mixed(one.output, other.output, self.count)), None)
            site = None if first is None or first.line is None else locate(*first.line).site
            what = "" if first is None else f": they mix first in {first.operation}"
            yield {"model": type(self.model).__name__, "count": self.count, "what": what, "noticed": site}

    def without_effect(self) -> Iterator[Facts]:
        """Yield the model, if its output has the same bits with another sample in place of sample 0."""
        pairs = [*zip(self._outputs[None], self._outputs[0], strict=False)]
        if pairs and all(one.shape == other.shape and torch.equal(one, other) for one, other in pairs):
            yield {"model": type(self.model).__name__}


def _mixed(before: torch.Tensor, after: torch.Tensor, count: int) -> bool:
    """Return whether entries after the first differ, along each dimension of this size."""
    dims = [dim for dim, size in enumerate(before.shape) if size == count]
    if before.shape != after.shape or not dims:
        return False
    changed = before.ne(after) if not before.is_floating_point() else ~torch.isclose(before, after, equal_nan=True)
    return all(bool(changed.narrow(dim, 1, count - 1).any()) for dim in dims)


# fmt: off
OF_AN_EXAMPLE: tuple[Cause[TwoRuns], ...] = (
    Cause("samples-mix", lambda case: case.has_samples, TwoRuns.mixing,
        "suspicious: in evaluation mode the output of {model} for one of the {count} samples depends on others{what}"
        "{noticed:at}",
        "compute along the other dimensions, and swap dimensions by transpose(), not by view() or reshape(); it is "
        "right where the rows are no samples, as the nodes of one graph"),
    Cause("input-without-effect", lambda case: case.has_samples, TwoRuns.without_effect,
        "in evaluation mode the output of {model} does not change in one bit when sample 0 of the example is replaced "
        "by another: it does not depend on the input",
        "look for where the input is dropped: an overwritten variable, dead units, or a mask that leaves out all"),
)
"""The causes that two runs of a model on an example show."""
# fmt: on
