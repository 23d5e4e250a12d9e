"""Watch: the operation that first turned finite numbers into NaN or Inf, in the forward pass or in backward.

In the forward pass a function mode follows such values from the call that made them. In backward a hook on every node
finds the first whose incoming gradients are finite and whose outgoing ones are not.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from byname.autograd.slots import slots_in
from byname.autograd.walk import Walk, node_name
from byname.diagnose.engine import safely
from byname.diagnose.finding import Finding, culprits_of, quote_operation, site_of
from byname.diagnose.nonfinite.backward import WatchedRun, of_backward
from byname.diagnose.nonfinite.origins import Origin, Origins, OriginsMode
from byname.diagnose.nonfinite.reasons import is_finite, kind_of, largest_of, looking, not_finite
from byname.errors import NoGraphError, NotATensorError
from byname.naming.history import name_at
from byname.naming.name import Name, quote
from byname.naming.names import find
from byname.naming.search import Targets
from byname.reading.frames import caller, programs_frame
from byname.reading.modules import parameters_of
from byname.reading.quiet import DisableTorchFunction, dynamo_skip
from byname.reading.tensor import fact
from byname.source.location import Expression, Site, locate
from byname.undo import Undo


class FiniteWatch:
    """Reports each operation that first turned finite numbers into NaN or Inf, once for each line.

    Args:
        report: called with each finding, in the thread that ran backward.
    """

    def __init__(self, report: Callable[[Finding], None]) -> None:
        self._report = report
        self._origins = Origins()
        self._told: set[tuple[Any, ...]] = set()
        self._spoilt: dict[int, weakref.ref[torch.Tensor]] = {}
        self._local = threading.local()

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Follow the computations of this thread inside the context."""
        mode = self.following()
        try:
            mode.start()
            yield
        finally:
            mode.stop()

    def following(self) -> OriginsMode:
        """Return a mode that follows the computations of this thread from its ``start()`` to its ``stop()``."""
        return OriginsMode(self._origins)

    def before_backward(self, roots: Sequence[Any], inputs: Any = None) -> None:
        """Watch the backward call that this thread is about to make; report at once if a root is not finite.

        Each call must be followed by a call of `after_backward`.
        """
        runs = self._runs()
        runs.append(None)
        walk = _walk(roots)
        if walk is None:
            return
        frame = programs_frame(caller())
        place = None if frame is None else locate(frame.f_code, frame.f_lasti)
        bad = [root for root in walk.tensors if not is_finite(root)]
        if bad:
            if not self._is_consequence(walk):
                self._tell(*of_forward(walk, bad[0], self._origins, place))
                self._spoil(walk)
        else:
            runs[-1] = WatchedRun(walk, place)
            if (origin := self._origins.overflow) is not None:
                self._tell((origin.code, origin.instruction, "forward"), _turned_in_forward(origin, place, hidden=True))
        self._origins.overflow = None

    def begin(self, block: Undo) -> None:
        """Look at the parameters around each step of an optimizer until the block is left."""
        block.register(register_optimizer_step_pre_hook, partial(safely, self._before_step))
        block.register(register_optimizer_step_post_hook, partial(safely, self._after_step))

    @dynamo_skip
    def _before_step(self, optimizer: Any, *_: Any) -> None:
        with DisableTorchFunction():
            fine = [one for one in parameters_of(optimizer) if is_finite(one) and _has_finite_gradient(one)]
        self._local.fine = list(map(weakref.ref, fine))

    @dynamo_skip
    def _after_step(self, optimizer: Any, *_: Any) -> None:
        """Report a parameter that a step has made NaN or Inf, though it and its gradient were finite."""
        fine = [one for reference in vars(self._local).pop("fine", ()) if (one := reference()) is not None]
        spoilt = next((one for one in fine if not is_finite(one)), None)
        if spoilt is not None and (frame := caller()) is not None:
            self._spoilt.update((id(one), weakref.ref(one)) for one in fine)
            self._tell(*_spoilt_by(optimizer, spoilt, locate(frame.f_code, frame.f_lasti).site))

    def after_backward(self) -> None:
        """Remove the hooks, and report the gradient that is not finite, if they saw one."""
        run = self._runs().pop()
        if run is None:
            return
        run.remove_hooks()
        if run.offence is None:
            self._forget(run.walk)
        else:
            self._spoil(run.walk)
            for outer in self._runs():
                if outer is not None:
                    outer.done = True
            self._tell(*of_backward(run, run.offence))

    def _spoil(self, walk: Walk) -> None:
        """Note the leaves into which a step may now carry the gradients that are not finite."""
        self._spoilt.update((id(leaf), weakref.ref(leaf)) for leaf in _leaves(walk))

    def _forget(self, walk: Walk) -> None:
        """Forget leaves that finite gradients reach: what spoils them later is another event."""
        for leaf in _leaves(walk) if self._spoilt else ():
            self._spoilt.pop(id(leaf), None)

    def _is_consequence(self, walk: Walk) -> bool:
        """Return whether a leaf holds NaN or Inf that gradients, of which a finding was told, have left in it."""
        known = [leaf for leaf in _leaves(walk) if (one := self._spoilt.get(id(leaf))) is not None and one() is leaf]
        return not all(map(is_finite, known))

    def _tell(self, key: tuple[Any, ...], finding: Finding) -> None:
        if key not in self._told:
            self._told.add(key)
            self._report(finding)

    def _runs(self) -> list[WatchedRun | None]:
        if not hasattr(self._local, "runs"):
            self._local.runs = []
        runs: list[WatchedRun | None] = self._local.runs
        return runs


def _has_finite_gradient(parameter: torch.Tensor) -> bool:
    gradient = fact(parameter, "grad")
    return gradient is not None and is_finite(gradient)


def _spoilt_by(optimizer: Any, parameter: torch.Tensor, site: Site) -> tuple[tuple[Any, ...], Finding]:
    """Return a key and a finding for a parameter that a step has made NaN or Inf."""
    named = find(Targets([parameter])).names(parameter)[0]
    with looking():
        mask, kind = not_finite(parameter), kind_of(parameter)
        eps = [group["eps"] for group in optimizer.param_groups if type(group.get("eps")) is float]
        lost = [one for one in eps if one and not torch.tensor(one, dtype=parameter.dtype).item()]
    message = (
        f"the step of {type(optimizer).__name__} at {site} turned finite numbers of {quote(named)} into {kind} "
        f"({int(mask.sum().item())} of {mask.numel()}), and its gradient is finite"
    )
    remedy = "lower the learning rate, and look at what the optimizer keeps in its state"
    if lost:
        message += f": eps={lost[0]:g} is 0 in {str(parameter.dtype).removeprefix('torch.')}, and 0 / 0 is NaN"
        remedy = "keep the parameters in float32 and compute under torch.autocast, or pass a larger eps, such as 1e-4"
    return ("step", site), Finding("non-finite-gradient", f"{message}.", culprits_of(named), (site,), remedy)


def _leaves(walk: Walk) -> list[torch.Tensor]:
    with DisableTorchFunction():
        return [walk.nodes[number].variable for number in walk.leaf_numbers()]


def _walk(roots: Sequence[Any]) -> Walk | None:
    compiled = sys.modules.get("torch._dynamo.compiled_autograd")
    if compiled is not None and compiled.compiled_autograd_enabled:
        return None  # hooks would be compiled into the graph
    try:
        return Walk(tuple(roots))
    except (NoGraphError, NotATensorError):  # the engine raises an error of its own, which says it better
        return None


def of_forward(
    walk: Walk, root: torch.Tensor, origins: Origins, place: Expression | None
) -> tuple[tuple[Any, ...], Finding]:
    """Return a key and a finding for a root that is not finite itself."""
    origin = origins.of(root)
    if origin is None:
        tensor, origin = _earliest(walk, root, origins)
    else:
        tensor = None if origin.source is None else origin.source()
    if origin is not None and origin.turned:
        return (origin.code, origin.instruction, "forward"), _turned_in_forward(origin, place, _grown(walk, origin))
    return _was_there(walk, tensor, origin, place)


def _earliest(walk: Walk, root: torch.Tensor, origins: Origins) -> tuple[torch.Tensor | None, Origin | None]:
    """Return the first tensor in the graph that is not finite, and its origin, for a root of unknown origin."""
    order = sorted(range(1, len(walk.nodes)), key=lambda number: walk.nodes[number]._sequence_nr())
    leaves = set(walk.leaf_numbers())
    with DisableTorchFunction():
        held = [walk.nodes[number].variable for number in sorted(leaves)]
        saved = (slot.tensor for number in order if number not in leaves for slot in slots_in(walk.nodes[number]))
        for tensor in (*held, *saved, root):
            if tensor is not None and not is_finite(tensor):
                return tensor, origins.of(tensor)
    return None, None


def _grown(walk: Walk, origin: Origin) -> tuple[torch.Tensor, float] | None:
    """Return a leaf with far larger numbers than training needs, and the largest, if an operation overflowed."""
    if origin.kind != "Inf" or origin.was != "finite numbers":
        return None
    with looking():
        sizes = [(leaf, largest) for leaf in _leaves(walk) if (largest := largest_of(leaf)) > _GROWN]
    return max(sizes, key=lambda found: found[1], default=None)


_GROWN = 1e6


def _turned_in_forward(
    origin: Origin, place: Expression | None, grown: tuple[torch.Tensor, float] | None = None, hidden: bool = False
) -> Finding:
    spot = None if origin.code is None else locate(origin.code, origin.instruction)
    culprit = _called(origin, spot)
    message = (
        f"{quote_operation(origin.operation, spot, culprit)} turned {origin.was} into {origin.kind} in the forward "
        f"pass ({origin.count} of {origin.of})" + (f": {origin.why}." if origin.why else ".")
    )
    sites = tuple(one for one in (site_of(spot), site_of(place)) if one is not None)
    culprits, remedy = () if culprit is None else (culprit,), origin.remedy
    message += " The root is finite again, as 1 / Inf is 0." if hidden else ""
    if grown is not None:
        leaf = find(Targets([grown[0]])).names(grown[0])[0]
        message += f" {quote(leaf)} holds numbers up to {grown[1]:.1e} by then: most likely, training diverges."
        culprits, remedy = (*culprits, *culprits_of(leaf)), _DIVERGING
    return Finding("non-finite-gradient", message, culprits, sites, remedy)


_DIVERGING = "lower the learning rate, normalise the inputs and targets, or clip the gradients before each step"


def _called(origin: Origin, spot: Expression | None) -> Name | None:
    """Return the name of the call's result."""
    result = None if origin.result is None else origin.result()
    if result is not None:
        named = find(Targets([result]), deep=False).own_names(result)
        if named:
            return named[0]
    return None if spot is None or origin.code is None else name_at(spot, origin.code)


def _was_there(
    walk: Walk, tensor: torch.Tensor | None, origin: Origin | None, place: Expression | None
) -> tuple[tuple[Any, ...], Finding]:
    """Return a key and a finding for values that were not finite before any operation that was seen."""
    spot = None if origin is None or origin.code is None else locate(origin.code, origin.instruction)
    used = (
        f", first used by {quote_operation(origin.operation, spot, None)}"
        if origin is not None and spot is not None
        else ""
    )
    sites = tuple(one for one in (site_of(spot), site_of(place)) if one is not None)
    key: tuple[Any, ...]
    if tensor is None and origin is not None and origin.source is None:
        return (origin.code, origin.instruction, "given"), _given(origin, spot, sites)
    if tensor is None:
        kind = origin.kind if origin is not None else "NaN or Inf"
        message = f"the root holds {kind}, but byname does not know which operation produced it{used}."
        key = (None if origin is None else (origin.code, origin.instruction), site_of(place))
        return key, Finding("non-finite-gradient", message, (), sites, _UNKNOWN)
    named = find(Targets([tensor])).names(tensor)[0]
    with looking():
        mask, kind, node = not_finite(tensor), kind_of(tensor), fact(tensor, "grad_fn")
        is_leaf = node is None and fact(tensor, "requires_grad")
    numbers = f"{kind} ({int(mask.sum().item())} of {mask.numel()})"
    whose = f"`{named.path}`" if named.path else f"a tensor without a name, of shape {tuple(mask.shape)},"
    if node is not None:
        message = (
            f"{whose}, the result of {node_name(node)}, holds {numbers}{used}; what happened inside it was not seen."
        )
        remedy = f"look into the forward of {node_name(node).removesuffix('Backward')}: its operations are hidden"
    elif is_leaf:
        message = f"{whose} holds {numbers} already{used}: no operation of this forward pass produced it."
        remedy = "look at an earlier optimizer step, at what was loaded into it, or at how it was initialised"
    else:
        message = f"{whose} holds {numbers} already{used}: it is in the data, no operation seen here produced it."
        remedy = "look at where the data comes from; torch.nan_to_num or a mask removes such values"
    key = ("there", named.path, named.scope) if named.path else ("there", spot and spot.site, site_of(place))
    return key, Finding("non-finite-gradient", message, (named,) if named.path else (), sites, remedy)


def _given(origin: Origin, spot: Expression | None, sites: tuple[Site, ...]) -> Finding:
    """Return the finding for numbers that the program itself wrote or read as NaN or Inf."""
    culprit = _called(origin, spot)
    message = (
        f"{quote_operation(origin.operation, spot, culprit)} was given {origin.kind} ({origin.count} of {origin.of}), "
        "and this reached the root: no operation produced it."
    )
    remedy = "look at where these numbers come from; torch.nan_to_num or a mask removes them"
    return Finding("non-finite-gradient", message, () if culprit is None else (culprit,), sites, remedy)


_UNKNOWN = "byname run --non-finite follows the operations of the forward pass too"
