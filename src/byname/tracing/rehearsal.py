"""Rehearsal: a run of a model beside the program, which leaves model, random state and recordings as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from byname.errors import BadArgumentError
from byname.reading.modules import parameters_in
from byname.tracing.muted import told_only_to
from byname.tracing.preserve import kept


@contextmanager
def rehearsal(model: nn.Module, *readers: object) -> Iterator[None]:
    """Run a model inside the block without a trace; callbacks that take part in it run as usual.

    Args:
        model: the model.
        readers: the read-only callbacks that are told of the run; no others are.

    Raises:
        BadArgumentError: at the end, if the forward has changed a parameter in place: its old values are lost.
    """
    with told_only_to(*readers), autocast_keeps_nothing(), kept(model) as before:
        renormed = before.copy_for_a_run()
        others = [one for one in parameters_in(model) if id(one) not in renormed]
        versions = [_version(one) for one in others]
        yield
        if versions != [_version(one) for one in others]:
            raise BadArgumentError(
                f"the forward of this {type(model).__name__} has changed parameters in place, and their old values are "
                "lost: it cannot be run beside the program"
            )


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


@contextmanager
def autocast_keeps_nothing() -> Iterator[None]:
    """What autocast casts under ``no_grad`` would be used in training, without a gradient (pytorch#48049)."""
    enabled = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(enabled)
