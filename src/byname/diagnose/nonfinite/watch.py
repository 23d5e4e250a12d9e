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
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from byname.autograd.slots import slots_in
from byname.autograd.walk import Walk, leaf_tensors, node_name
from byname.diagnose.cause import Cause, Facts, always, no_extra_facts, render
from byname.diagnose.engine import safely
from byname.diagnose.finding import Finding
from byname.diagnose.nonfinite.backward import WatchedRun, of_backward
from byname.diagnose.nonfinite.origins import Origin, Origins, OriginsMode
from byname.diagnose.nonfinite.reasons import DIVERGING, call_of, is_finite, largest_of, numbers_of, reading_values
from byname.errors import NoGraphError, NotATensorError
from byname.naming.history import name_at
from byname.naming.name import Name
from byname.naming.names import find, name
from byname.naming.search import Targets
from byname.reading.frames import NO_LINE, caller, reported_frame
from byname.reading.modules import parameters_of
from byname.reading.quiet import DisableTorchFunction, dynamo_skip
from byname.reading.tensor import fact
from byname.source.location import Site, locate
from byname.undo import Undo


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.runs: list[WatchedRun | None] = []  # the backward calls that the thread is making
        self.fine: list[weakref.ref[torch.Tensor]] = []  # parameters that were finite before its last step


class FiniteWatch:
    """Watch that reports each operation that first turned finite numbers into NaN or Inf, once for each line."""

    def __init__(self, report: Callable[[Finding], None]) -> None:
        self._report = report
        self._origins = Origins()
        self._reported: set[tuple[Any, ...]] = set()
        self._bad_leaves: dict[int, weakref.ref[torch.Tensor]] = {}
        self._local = _OfThread()

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Follow the computations of this thread inside the context."""
        mode = OriginsMode(self._origins)
        try:
            mode.start()
            yield
        finally:
            mode.stop()

    def before_backward(self, roots: Sequence[Any]) -> None:
        """Watch the backward call that this thread makes, until `after_backward`; report a root that is not finite."""
        runs = self._local.runs
        runs.append(None)
        walk = _walk(roots)
        if walk is None:
            return
        frame = reported_frame(caller())
        site = None if frame is None else locate(frame.f_code, frame.f_lasti).site
        bad = [root for root in walk.tensors if not is_finite(root)]
        if bad:
            if not self._is_consequence(walk):
                self._report_once(*of_forward(not_finite_root(walk, bad[0], self._origins, site)))
                self._note_bad_leaves(walk)
        else:
            runs[-1] = WatchedRun(walk, site)
            if (origin := self._origins.overflow) is not None:
                root = _Root(walk, site, None, origin, ". The root is finite again, as 1 / Inf is 0")
                self._report_once(*of_forward(root))
        self._origins.overflow = None

    def begin(self, block: Undo) -> None:
        """Follow this thread, and look at the parameters around each step of an optimizer, until the block is left."""
        block.register(register_optimizer_step_pre_hook, partial(safely, self._before_step))
        block.register(register_optimizer_step_post_hook, partial(safely, self._after_step))
        mode = OriginsMode(self._origins)
        block.add(mode.stop)
        mode.start()

    @dynamo_skip
    def _before_step(self, optimizer: Any, *_: Any) -> None:
        with DisableTorchFunction():
            graded = [(one, grad) for one in parameters_of(optimizer) if (grad := fact(one, "grad")) is not None]
            fine = [one for one, grad in graded if is_finite(one) and is_finite(grad)]
        self._local.fine = list(map(weakref.ref, fine))

    @dynamo_skip
    def _after_step(self, optimizer: Any, *_: Any) -> None:
        """Report a parameter that a step has made NaN or Inf, though it and its gradient were finite."""
        self._origins.stepped = True
        known, self._local.fine = self._local.fine, []
        fine = [one for reference in known if (one := reference()) is not None]
        bad = next((one for one in fine if not is_finite(one)), None)
        if bad is not None and (frame := caller()) is not None:
            self._bad_leaves.update((id(one), weakref.ref(one)) for one in fine)
            step = _NonFiniteStep(optimizer, bad, locate(frame.f_code, frame.f_lasti).site)
            found = (one for cause in BY_STEP for one in cause.findings(step))
            self._report_once(("step", step.stepped), next(found))

    def after_backward(self) -> None:
        """Remove the hooks, and report the gradient that is not finite, if they saw one."""
        run = self._local.runs.pop()
        if run is None:
            return
        run.remove_hooks()
        if not run.found:
            for leaf in leaf_tensors(run.walk.nodes) if self._bad_leaves else ():  # what comes later is another event
                self._bad_leaves.pop(id(leaf), None)
        else:
            self._note_bad_leaves(run.walk)
            for outer in self._local.runs:
                if outer is not None:
                    outer.done = True
            nodes = run.walk.numbers if run.bad_gradient.from_forward else {}
            with DisableTorchFunction():
                made = [one for result, one in self._origins.known.items() if fact(result, "grad_fn") in nodes]
            turned = next((one for one in made if one.turned), None)
            hidden = _Root(run.walk, run.site, None, turned, _LEFT_OUT)
            self._report_once(*(of_backward(run) if turned is None else of_forward(hidden)))

    def _note_bad_leaves(self, walk: Walk) -> None:
        """Note the leaves that a step may now update with gradients that are not finite."""
        self._bad_leaves.update((id(leaf), weakref.ref(leaf)) for leaf in leaf_tensors(walk.nodes))

    def _is_consequence(self, walk: Walk) -> bool:
        """Return whether a leaf holds NaN or Inf left by gradients that were reported already."""
        known = ((leaf, self._bad_leaves.get(id(leaf))) for leaf in leaf_tensors(walk.nodes))
        return any(one is not None and one() is leaf and not is_finite(leaf) for leaf, one in known)

    def _report_once(self, key: tuple[Any, ...], finding: Finding) -> None:
        if key not in self._reported:
            self._reported.add(key)
            self._report(finding)


def _walk(roots: Sequence[Any]) -> Walk | None:
    compiled = sys.modules.get("torch._dynamo.compiled_autograd")
    if compiled is not None and compiled.compiled_autograd_enabled:
        return None  # hooks would be compiled into the graph
    try:
        return Walk(tuple(roots))
    except (NoGraphError, NotATensorError):  # the engine raises an error of its own, which says it better
        return None


class _Root(NamedTuple):
    """A root that is not finite itself, or that hides an overflow, and the line that calls backward."""

    walk: Walk
    site: Site | None
    tensor: torch.Tensor | None  # that its numbers came with, if one is known
    origin: Origin | None  # the call that made them, or used them first, if one was seen
    hidden: str = ""  # why the root is finite, though they are not

    @property
    def known(self) -> Facts:
        origin = self.origin
        made = None if origin is None else origin.line.site
        facts: Facts = {"noticed": self.site, "origin": origin, "kind": "NaN or Inf", "used": ""}
        if origin is not None:
            call = call_of(origin.operation, made, _result_of(origin))
            facts |= {"numbers": origin.numbers, "kind": origin.numbers.kind, "call": call}
        if origin is not None and made is not None:
            facts["used"] = render(", first used by {call}", call=call_of(origin.operation, made, None))
        return facts

    @property
    def is_turned(self) -> bool:
        """Whether a call that was seen made the numbers."""
        return self.origin is not None and self.origin.turned

    @property
    def is_given(self) -> bool:
        """Whether the program itself wrote or read the numbers."""
        return self.tensor is None and self.origin is not None and self.origin.source is None

    def of_tensor(self, name: str) -> Any:
        return None if self.tensor is None else fact(self.tensor, name)


_LEFT_OUT = ". The root leaves them out, but backward multiplies them by the gradient 0, and 0 times NaN or Inf is NaN"


def of_forward(root: _Root) -> tuple[tuple[Any, ...], Finding]:
    """Return a key under which to report the finding once, and the finding."""
    finding = next(finding for cause in IN_FORWARD for finding in cause.findings(root))
    line, called = NO_LINE if root.origin is None else root.origin.line, root.site
    if root.is_turned or root.is_given:
        return (*line.place, "forward" if root.is_turned else "given"), finding
    if root.tensor is None:
        return (None if root.origin is None else line.place, called), finding
    named = name(root.tensor)
    return ("there", named.path, named.scope) if named.path else ("there", line.site, called), finding


def not_finite_root(walk: Walk, root: torch.Tensor, origins: Origins, site: Site | None) -> _Root:
    """Return a root that is not finite, with what is known of its numbers."""
    origin = origins.known.get(root)
    if origin is None:
        return _Root(walk, site, *_earliest(walk, root, origins))
    return _Root(walk, site, None if origin.source is None else origin.source(), origin)


def _earliest(walk: Walk, root: torch.Tensor, origins: Origins) -> tuple[torch.Tensor | None, Origin | None]:
    """Return the first tensor in the graph that is not finite, and its origin, for a root of unknown origin."""
    order = sorted(range(1, len(walk.nodes)), key=lambda number: walk.nodes[number]._sequence_nr())
    leaves = set(walk.leaf_numbers)
    with DisableTorchFunction():
        saved = (slot.tensor for number in order if number not in leaves for slot in slots_in(walk.nodes[number]))
        for tensor in (*leaf_tensors(walk.nodes), *saved, root):
            if tensor is not None and not is_finite(tensor):
                return tensor, origins.known.get(tensor)
    return None, None


def _grown(walk: Walk, origin: Origin) -> tuple[torch.Tensor, float] | None:
    """Return a leaf with far larger numbers than training needs, and the largest, if an operation overflowed."""
    if origin.numbers.kind != "Inf" or origin.was != "finite numbers":
        return None
    with reading_values():
        sizes = [(leaf, largest) for leaf in leaf_tensors(walk.nodes) if (largest := largest_of(leaf)) > _GROWN]
    return max(sizes, key=lambda found: found[1], default=None)


_GROWN = 1e6


def _turned(root: _Root) -> Iterator[Facts]:
    """Yield the call that made the numbers, and the leaf that has grown beyond measure, if one has."""
    origin = root.origin
    assert origin is not None
    so, remedy = root.hidden, origin.remedy
    grown = None if root.hidden else _grown(root.walk, origin)
    if grown is not None:
        words = ". {leaf} holds numbers up to {size:.1e} by then: most likely, training diverges"
        so, remedy = render(words, leaf=name(grown[0]), size=grown[1]), DIVERGING
    yield {"why": origin.why and f": {origin.why}", "so": so, "remedy": remedy}


def _there(root: _Root) -> Iterator[Facts]:
    """Yield the tensor that held the numbers before any operation that was seen."""
    assert root.tensor is not None
    named = name(root.tensor)
    whose: str = f"a tensor without a name, of shape {tuple(root.tensor.shape)},"
    if named.path:
        whose = render("`{named.path}`{named:-}", named=named)
    node = root.of_tensor("grad_fn")
    kind = "" if node is None else node_name(node)
    yield {"whose": whose, "numbers": numbers_of(root.tensor), "node": kind, "inside": kind.removesuffix("Backward")}


def _result_of(origin: Origin) -> Name | None:
    result = None if origin.result is None else origin.result()
    named = None if result is None else find(Targets([result]), deep=False).own_name(result)
    expr, code = origin.line.expr, origin.line.code
    return named if named or expr is None or code is None else name_at(expr, code)


# fmt: off
IN_FORWARD: tuple[Cause[_Root], ...] = (
    Cause("non-finite-gradient", lambda root: root.is_turned, _turned,
        "{call} turned {origin.was} into {kind} in the forward pass ({numbers.found} of {numbers.of}){why}{so}",
        "{remedy}"),
    Cause("non-finite-gradient", lambda root: root.is_given, no_extra_facts,
        "{call} was given {numbers}, and this reached the root: no operation produced it",
        "look at where these numbers come from; torch.nan_to_num or a mask removes them"),
    Cause("non-finite-gradient", lambda root: root.tensor is None, no_extra_facts,
        "the root holds {kind}, but byname does not know which operation produced it{used}",
        "byname run --non-finite follows the operations of the forward pass too"),
    Cause("non-finite-gradient", lambda root: root.of_tensor("grad_fn") is not None, _there,
        "{whose}, the result of {node}, holds {numbers}{used}; what happened inside it was not seen",
        "look into the forward of {inside}: its operations are hidden"),
    Cause("non-finite-gradient", lambda root: root.of_tensor("requires_grad"), _there,
        "{whose} holds {numbers} already{used}: no operation of this forward pass produced it",
        "look at an earlier optimizer step, at what was loaded into it, or at how it was initialised"),
    Cause("non-finite-gradient", always, _there,
        "{whose} holds {numbers} already{used}: it is in the data, no operation seen here produced it",
        "look at where the data comes from; torch.nan_to_num or a mask removes such values"),
)
# fmt: on
"""The causes of a root that is not finite, in the order in which they are looked for; there is always one."""


class _NonFiniteStep(NamedTuple):
    """A parameter that a step has made NaN or Inf, and the line of the step."""

    optimizer: Any
    parameter: torch.Tensor
    stepped: Site

    @property
    def known(self) -> Facts:
        facts = {"kind": type(self.optimizer).__name__, "stepped": self.stepped, "noticed": None}
        return {**facts, "parameter": name(self.parameter), "numbers": numbers_of(self.parameter)}


def _too_small_eps(step: _NonFiniteStep) -> Iterator[Facts]:
    """Yield the ``eps`` of the optimizer, if it is 0 in the dtype of the parameter."""
    dtype = step.parameter.dtype
    eps = [group["eps"] for group in step.optimizer.param_groups if type(group.get("eps")) is float]
    with reading_values():
        lost = [one for one in eps if one and not torch.tensor(one, dtype=dtype, device="cpu").item()]
    if lost:
        yield {"eps": lost[0], "dtype": str(dtype).removeprefix("torch.")}


_STEPPED = (
    "the step of {kind}{stepped:at} turned finite numbers of {parameter} into {numbers}, and its gradient is finite"
)

# fmt: off
BY_STEP: tuple[Cause[_NonFiniteStep], ...] = (
    Cause("non-finite-gradient", always, _too_small_eps,
        f"{_STEPPED}: eps={{eps:g}} is 0 in {{dtype}}, and 0 / 0 is NaN",
        "keep the parameters in float32 and compute under torch.autocast, or pass a larger eps, such as 1e-4"),
    Cause("non-finite-gradient", always, no_extra_facts, _STEPPED,
        "lower the learning rate, and look at what the optimizer keeps in its state"),
)
# fmt: on
"""The causes of a parameter that a step has made NaN or Inf, in the order in which they are looked for."""
