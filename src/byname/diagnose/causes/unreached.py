"""unused-input, ddp-unused: what does a loss not reach, though somebody expects it to?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from byname.autograd.order import node_of_input
from byname.diagnose.causes.detached import cut_off
from byname.diagnose.context import Scene, message_of
from byname.diagnose.finding import Finding, known_sites
from byname.naming.name import Name, quote_all
from byname.reading.frames import locals_of
from byname.reading.quiet import untouched
from byname.reading.tensor import is_tensor

__all__ = ["ddp_unused", "unreached", "unused_input"]


def unused_input(scene: Scene, error: BaseException) -> Finding | None:
    """Every input of ``autograd.grad`` that the outputs do not depend on."""
    with untouched():
        unused = [one for one in scene.inputs if is_tensor(one) and node_of_input(one) not in scene.walk.numbers]
        if not unused:
            return None
        names = tuple(scene.names(unused))
        named = scene.names([root for root in scene.roots if is_tensor(root)])
    outputs = quote_all([name for name in named if name.path]) or "the outputs"
    message = f"{quote_all(names)} {'is' if len(names) == 1 else 'are'} not used in computing {outputs}"
    remedy = (
        "pass allow_unused=True (their gradient is then None) or materialize_grads=True (it is then zeros), or leave "
        "them out"
    )
    return Finding("unused-input", message, names, known_sites(scene.noticed), remedy)


def ddp_unused(scene: Scene, error: BaseException) -> Finding | None:
    """The parameters for which DistributedDataParallel waits in vain, by the indices in its error."""
    told = re.search(r"did not receive grad for rank \d+: ([\d ]+)", message_of(error))
    found = [
        dict(locals_of(place.frame)).get("self")
        for place in scene.places
        if "distributed" in place.frame.f_code.co_filename
    ]
    wrapper = next((one for one in found if isinstance(one, nn.parallel.DistributedDataParallel)), None)
    if told is None or wrapper is None:
        return None
    every = _reduced(wrapper)
    indices = [int(word) for word in told[1].split()]
    if any(index >= len(every) for index in indices):
        return None
    with untouched():
        names = tuple(scene.names([every[index] for index in indices]))
    return _waiting(names, scene, "the last")


def _reduced(wrapper: nn.Module) -> list[torch.Tensor]:
    """The parameters that a wrapper reduces, in the order of its reducer."""
    ignored: set[str] = getattr(wrapper, "parameters_to_ignore", set())
    found: dict[int, torch.Tensor] = {}
    for prefix, module in wrapper.module.named_modules():  # type: ignore[union-attr]
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad and f"{prefix}.{name}" not in ignored:
                found.setdefault(id(parameter), parameter)
    return list(found.values())


def _waiting(names: tuple[Name, ...], scene: Scene, which: str) -> Finding:
    message = (
        f"{which} loss of this rank does not reach {quote_all(names)}, and DistributedDataParallel waits for "
        "the gradient of every parameter before it starts the next iteration"
    )
    remedy = (
        "use them in the loss, freeze them with requires_grad_(False), or pass find_unused_parameters=True to "
        "DistributedDataParallel, which costs a walk through the graph each step"
    )
    return Finding("ddp-unused", message, names, known_sites(scene.noticed), remedy)


def unreached(scene: Scene, missing: Sequence[torch.Tensor], wrappers: Iterable[nn.Module]) -> list[Finding]:
    """Findings about parameters that a loss does not reach: one for each line that cuts them off, one for the rest."""
    waiting = [wrapper for wrapper in wrappers if not wrapper.find_unused_parameters]
    reduced = {id(one) for wrapper in waiting for one in _reduced(wrapper)}
    theirs = [one for one in missing if id(one) in reduced]
    found = [group.finding(scene) for group in cut_off(scene, [one for one in missing if id(one) not in reduced])]
    return [*([_waiting(tuple(scene.names(theirs)), scene, "the")] if theirs else []), *found]
