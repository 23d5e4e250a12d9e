"""Awaited: ddp-unused. DistributedDataParallel waits for gradients of parameters that a loss does not reach."""

from __future__ import annotations

import re

import torch
from torch import nn

from byname.diagnose.context import FailureContext, message_of
from byname.diagnose.finding import Finding, known_sites
from byname.naming.name import Name, quote_all
from byname.reading.frames import locals_of
from byname.reading.quiet import DisableTorchFunction


def ddp_unused(context: FailureContext, error: BaseException) -> Finding | None:
    """Return a finding about the parameters that DistributedDataParallel lacks, by the indices in its error."""
    told = re.search(r"did not receive grad for rank \d+: ([\d ]+)", message_of(error))
    found = [
        dict(locals_of(place.frame)).get("self")
        for place in context.places
        if "distributed" in place.frame.f_code.co_filename
    ]
    wrapper = next((one for one in found if isinstance(one, nn.parallel.DistributedDataParallel)), None)
    if told is None or wrapper is None:
        return None
    every = reduced_by(wrapper)
    indices = [int(word) for word in told[1].split()]
    if any(index >= len(every) for index in indices):
        return None
    with DisableTorchFunction():
        names = tuple(context.names([every[index] for index in indices]))
    return awaited(names, context, "the last")


def reduced_by(wrapper: nn.Module) -> list[torch.Tensor]:
    """Return the parameters that a wrapper reduces, in the order of its reducer."""
    ignored: set[str] = getattr(wrapper, "parameters_to_ignore", set())
    found: dict[int, torch.Tensor] = {}
    for prefix, module in wrapper.module.named_modules():  # type: ignore[union-attr]
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad and f"{prefix}.{name}" not in ignored:
                found.setdefault(id(parameter), parameter)
    return list(found.values())


def awaited(names: tuple[Name, ...], context: FailureContext, which: str) -> Finding:
    """Return the finding about parameters whose gradients a wrapper waits for."""
    message = (
        f"{which} loss of this rank does not reach {quote_all(names)}, and DistributedDataParallel waits for "
        "the gradient of every parameter before it starts the next iteration"
    )
    remedy = (
        "use them in the loss, freeze them with requires_grad_(False), or pass find_unused_parameters=True to "
        "DistributedDataParallel, which costs a walk through the graph each step"
    )
    return Finding("ddp-unused", message, names, known_sites(context.noticed), remedy)
