"""Activations: a loss that does not fit what computed its input, such as cross_entropy of a softmax."""

from __future__ import annotations

import math
from collections.abc import Iterator

from byname.autograd.slots import held_by_nodes
from byname.diagnose.cause import Cause, Facts
from byname.diagnose.causes.loss import BY_HAND, COMPARING, Loss, input_of, is_first, kind_of
from byname.diagnose.nonfinite.reasons import can_look, looking

_SQUASHED = {
    "LogSoftmaxBackward": ("SoftmaxBackward", "softmax", "cross_entropy (log_softmax)"),
    "BinaryCrossEntropyWithLogitsBackward": ("SigmoidBackward", "sigmoid", "binary_cross_entropy_with_logits"),
}
"""Losses with a softmax or sigmoid of their own: the node before which it stands twice, and both in words."""

_NO_LOGARITHM = {
    "SoftmaxBackward": "a softmax",
    "SigmoidBackward": "a sigmoid",
    "AddmmBackward": "a linear layer",
    "ReluBackward": "a relu",
}
"""What gives no log-probabilities, by the node, in words."""
_TAKES_LOGARITHMS = {"NllLossBackward", "NllLoss2DBackward"}


def _squashed_twice(loss: Loss) -> Iterator[Facts]:
    for node in loss.of_kinds(_SQUASHED):
        given, (before, what, words) = input_of(node), _SQUASHED[kind_of(node)]
        if kind_of(given) == before:
            other = "nll_loss of log_softmax" if what == "softmax" else "binary_cross_entropy"
            facts = {"what": what, "loss": words, "other": other}
            yield {**facts, "given": loss.site(given), "used": loss.site(node)}


def _no_logarithms(loss: Loss) -> Iterator[Facts]:
    """Yield the operation that gives no log-probabilities to a loss that expects them."""
    found = [("nll_loss", node, input_of(node)) for node in loss.of_kinds(_TAKES_LOGARITHMS)]
    for node in loss.of_kinds(BY_HAND):
        given = next((one for one, _ in node.next_functions[1:] if kind_of(one) in _NO_LOGARITHM), None)
        call = None if given is None else loss.context.lookup.call(node)
        if call is not None and call.name == "kl_div":
            found.append(("kl_div", node, given))
    for name, node, given in found:
        if (kind := kind_of(given)) in _NO_LOGARITHM:
            remedy = "use cross_entropy, which takes logits" if name == "nll_loss" else "apply log_softmax to it before"
            remedy = "use log_softmax in place of softmax" if kind == "SoftmaxBackward" else remedy
            facts = {"loss": name, "what": _NO_LOGARITHM[kind], "remedy": remedy}
            yield {**facts, "given": loss.site(given), "used": loss.site(node)}


def _over_samples(loss: Loss) -> Iterator[Facts]:
    """Yield a log_softmax of (samples, classes) along the samples, whose result nll_loss takes."""
    for node in loss.of_kinds(_TAKES_LOGARITHMS):
        given = node.next_functions[0][0]
        shape = tuple(given._input_metadata[0].shape) if kind_of(given) == "LogSoftmaxBackward" else ()
        if len(shape) == 2 and shape[0] != shape[1] and given._saved_dim in (0, (1 << 64) - 2):
            sites = {"given": loss.site(given), "used": loss.site(node)}
            yield {"samples": shape[0], "shape": str(shape), **sites}


_RANGES = {
    "SigmoidBackward": ("a sigmoid", 0.0, 1.0),
    "SoftmaxBackward": ("a softmax", 0.0, 1.0),
    "TanhBackward": ("a tanh", -1.0, 1.0),
    "ReluBackward": ("a relu", 0.0, math.inf),
}
"""What gives values of some range only, by the node, in words."""
_MOST_NUMBERS = 1 << 22
"""Numbers of targets that are compared with a range, at most."""


def _unreachable(loss: Loss) -> Iterator[Facts]:
    """Yield comparisons of what has a range with targets most of which lie outside of it."""
    for node, slot, target in held_by_nodes(loss.of_kinds(COMPARING)):
        what, least, most = _RANGES.get(kind_of(input_of(node)), ("", 0.0, 0.0))
        if slot == "target" and what and 0 < target.numel() <= _MOST_NUMBERS and can_look(target):
            with looking():
                values = target.detach().double()
                share = float(((values < least - 0.05) | (values > most + 0.05)).double().mean())
                ends = f"{float(values.min()):.3g} to {float(values.max()):.3g}"
            if share > 0.5:
                facts = {"what": what, "range": f"{least:g} and {most:g}", "share": f"{share:.0%}", "ends": ends}
                yield {**facts, "given": loss.site(input_of(node)), "used": loss.site(node)}


_WITH_LOGITS = "binary_cross_entropy_with_logits"
_BOUNDED = {
    "LogSoftmaxBackward": (("ReluBackward", "SigmoidBackward"), "cross_entropy (log_softmax)"),
    "BinaryCrossEntropyWithLogitsBackward": (("ReluBackward", "SoftmaxBackward"), _WITH_LOGITS),
}
"""Losses that take logits: the nodes of what bounds these, and the loss in words."""


def _rectified(loss: Loss) -> Iterator[Facts]:
    """Yield logits that cannot be negative."""
    for node in loss.of_kinds(_BOUNDED):
        given, (kinds, words) = input_of(node), _BOUNDED[kind_of(node)]
        if kind_of(given) in kinds:
            facts = {"what": _RANGES[kind_of(given)][0], "loss": words}
            yield {**facts, "given": loss.site(given), "used": loss.site(node)}


def _turned_round(loss: Loss) -> Iterator[Facts]:
    """Yield losses whose target has a graph, and whose input has none."""
    kinds = {"BinaryCrossEntropyBackward": "binary_cross_entropy", "BinaryCrossEntropyWithLogitsBackward": _WITH_LOGITS}
    for node in loss.of_kinds(kinds):
        given, target = (*node.next_functions, (None, 0), (None, 0))[:2]
        if given[0] is None and target[0] is not None:
            yield {"loss": kinds[kind_of(node)], "used": loss.site(node)}


# fmt: off
ACTIVATIONS: tuple[Cause[Loss], ...] = (
    Cause("double-softmax", is_first, _squashed_twice,
        "suspicious: {what}(){given:at} is applied to what {loss}{used:at} is given, which applies one of its own: the "
        "gradients become small, and the loss cannot go below a bound",
        "leave out the {what}() and give the logits to the loss, or use {other}"),
    Cause("no-log-probabilities", is_first, _no_logarithms,
        "suspicious: the result of {what}{given:at} is given to {loss}{used:at}, which expects log-probabilities",
        "{remedy}"),
    Cause("no-log-probabilities", is_first, _over_samples,
        "suspicious: log_softmax{given:at} is over the {samples} samples (dim=0) of shape {shape}, and "
        "nll_loss{used:at} expects it over the classes",
        "take the log_softmax with dim=1"),
    Cause("target-out-of-reach", is_first, _unreachable,
        "{what}{given:at} gives values between {range} only, and {share} of the targets that the loss{used:at} "
        "compares them with lie outside: they go from {ends}",
        "leave out the activation where the output is a regression, or scale the targets to its range"),
    Cause("rectified-logits", is_first, _rectified,
        "suspicious: {what}{given:at} is applied to the logits that {loss}{used:at} is given: they cannot be negative, "
        "though the loss expects any numbers",
        "leave it out before the loss"),
    Cause("loss-turned-round", is_first, _turned_round,
        "{loss}{used:at} gets its gradient through its target only, and its first argument has no graph: they seem to "
        "be swapped, the labels first and the prediction as their target",
        "swap the arguments: {loss}(prediction, target)"),
)
# fmt: on
"""Causes that an activation before a loss shows."""
