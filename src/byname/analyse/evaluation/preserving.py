"""How is the training as before after a pass? What the pass may change is put back.

`byname.tracing.preserve` puts back the model and the random state. Here is what a pass over a loader changes
beside these: gradients, which are taken off and put on again and so cost no copy; weights that a forward renormalises;
the generators of the loader; and what autocast keeps of weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from byname.autograd.walk import leaf_tensors, nodes_behind
from byname.errors import BadArgumentError
from byname.tracing.preserve import Kept, kept
from byname.tracing.rehearsal import autocast_keeps_nothing


class Preserved:
    """What is watched over while a pass is on."""

    def __init__(self, model: nn.Module, before: Kept) -> None:
        self._before = before
        self._renormed = {id(one) for one in _renormed(model)}
        self._versions = [(name, one, _version(one)) for name, one in model.named_parameters()]

    def clear_gradients(self) -> None:
        """Has the next backward begin without gradients."""
        self._before.clear_gradients()

    def check(self) -> None:
        """Makes sure that nobody has trained the model meanwhile.

        Raises:
            BadArgumentError: if a parameter was changed in place: its old values are lost.
        """
        changed = [
            name for name, one, version in self._versions if _version(one) != version and id(one) not in self._renormed
        ]
        if changed:
            raise BadArgumentError(
                f"the pass has changed {len(changed)} parameters in place, such as {changed[0]}, and their old values "
                "are lost. Does `backward` step an optimizer, or a hook of a parameter? A snapshot has to leave the "
                "parameters alone"
            )


@contextmanager
def preserved(model: nn.Module, generators: list[torch.Generator], *, backward: bool) -> Iterator[Preserved]:
    """Puts everything back that a pass changes, also after an exception.

    Args:
        model: the model that runs.
        generators: other generators than those of the process and of the model.
        backward: whether gradients are computed.
    """
    with ExitStack() as stack:
        for generator in generators:
            stack.callback(generator.set_state, generator.get_state())
        before = stack.enter_context(kept(model))
        stack.enter_context(autocast_keeps_nothing())
        for weight in _renormed(model):
            stack.callback(_write, weight, weight.detach().clone())
        if backward:
            for parameter in model.parameters():
                _silence(parameter, stack)
        yield Preserved(model, before)


@contextmanager
def gradients_kept(loss: Tensor) -> Iterator[None]:
    """Has a backward leave the gradients alone that leaves have now: those outside of the model, as of a loss's own."""
    before = [(leaf, leaf.grad) for leaf in leaf_tensors(nodes_behind([loss]))]
    for leaf, _ in before:
        leaf.grad = None
    try:
        yield
    finally:
        for leaf, grad in before:
            leaf.grad = grad


def _renormed(model: nn.Module) -> list[Tensor]:
    """The weights that a forward changes: embeddings with a largest norm."""
    kinds = (nn.Embedding, nn.EmbeddingBag)
    return [one.weight for one in model.modules() if isinstance(one, kinds) and one.max_norm is not None]


def _write(weight: Tensor, values: Tensor) -> None:
    with torch.inference_mode(False), torch.no_grad():
        weight.copy_(values)


def _silence(parameter: Any, stack: ExitStack) -> None:
    """Takes off what a program does whenever a gradient has come, which may be a step of an optimizer."""
    hooks = parameter._post_accumulate_grad_hooks
    if hooks and not any(str(getattr(one, "__module__", "")).startswith("torch.") for one in hooks.values()):
        stack.callback(setattr, parameter, "_post_accumulate_grad_hooks", hooks)
        parameter._post_accumulate_grad_hooks = None


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
