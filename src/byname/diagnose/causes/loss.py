"""Loss: a backward call that is about to be made, and causes in the operations before its loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import FrameType
from typing import Any

import torch
from torch import nn

from byname.autograd.slots import held_by_nodes
from byname.diagnose.cause import Cause, Facts
from byname.diagnose.context import FailureContext
from byname.diagnose.nonfinite.reasons import can_read, reading_values
from byname.reading.frames import Line
from byname.source.location import Site
from byname.tracking.log import Call

COMPARING = {"MseLossBackward", "SmoothL1LossBackward", "HuberLossBackward"}
NORMS = {"PowBackward", "AbsBackward", "MulBackward"}
"""Nodes that a loss written by hand applies to a difference."""
MOVES = {"ViewBackward", "UnsafeViewBackward", "TransposeBackward", "PermuteBackward", "SqueezeBackward", "TBackward"}


@dataclass(eq=False)
class Loss:
    """The losses of a backward call that a running program is about to make."""

    context: FailureContext  # of the graph behind them
    number: int  # of calls of this line, with this one
    line: Line
    modules: Sequence[nn.Module]  # the outermost ones that were called so far
    frame: FrameType | None  # of the program, that makes the call
    known: Facts = field(default_factory=lambda: {"noticed": None})

    @cached_property
    def nodes(self) -> dict[str, list[Any]]:
        """The nodes of the graph by kind, without the number of the overload."""
        found: dict[str, list[Any]] = {}
        for kind, same in self.context.kinds.items():
            found.setdefault(kind.__name__.rstrip("0123456789"), []).extend(same)
        return found

    def of_kinds(self, kinds: Iterable[str]) -> Iterator[Any]:
        return (node for kind in kinds for node in self.nodes.get(kind, ()))

    def site(self, node: Any) -> Site | None:
        return self.context.site(self.context.walk.numbers[node])

    def call(self, node: Any) -> Call | None:
        """Return the recorded call that made a node; None if it is not known."""
        call: Call | None = self.context.lookup.call(node)
        return call

    def users(self, node: Any) -> list[Any]:
        """Return the nodes that use a node's result."""
        walk = self.context.walk
        return [walk.nodes[number] for number in walk.users[walk.numbers[node]]]

    def uses(self, node: Any, passes: Callable[[Any, Any], bool]) -> Iterator[tuple[Any, Any]]:
        """Yield each use of a node's result, as the node and its user, and of the results of users that pass a test."""
        waiting, seen = [node], {node}
        for one in waiting:
            for user in self.users(one):
                yield one, user
                if user not in seen and passes(one, user):
                    seen.add(user)
                    waiting.append(user)

    def between(self, given: Any, used: Any, **facts: Any) -> Facts:
        """Return facts about a node and a later one, with the line of each."""
        return {**facts, "given": self.site(given), "used": self.site(used)}


def is_first(loss: Loss) -> bool:
    """Return whether a line calls backward for the first time."""
    return loss.number == 1


def node_kind(node: Any) -> str:
    """Return the class of a node without the number of the overload."""
    return type(node).__name__.rstrip("0123456789")


def shape_of(node: Any) -> tuple[int, ...]:
    """Return the shape of a node's result, of the first of several."""
    return tuple(node._input_metadata[0].shape)


def dim_of(node: Any) -> int:
    """Return the dimension along which a node works, which is saved as a large number if it counts from the last."""
    dim = node._saved_dim[0] if type(node._saved_dim) is tuple else int(node._saved_dim)
    return dim if dim < 1 << 63 else dim - (1 << 64) + len(shape_of(node))


def input_of(node: Any) -> Any:
    """Return the node that computed the first input of another, past those that only move values or cast them."""
    given = node.next_functions[0][0]
    while node_kind(given) in {*MOVES, "ToCopyBackward"}:
        given = given.next_functions[0][0]
    return given


def summed(node: Any) -> tuple[int, ...]:
    """Return the dimension of the sum by which exponentials are divided, as in a softmax; none of other divisions."""
    above, below = (*(one for one, _ in node.next_functions), None)[:2]  # a plain number has no node
    while node_kind(below) in ("UnsqueezeBackward", "ExpandBackward"):
        below = below.next_functions[0][0]
    if node_kind(above) != "ExpBackward" or node_kind(below) != "SumBackward":
        return ()
    return tuple(getattr(below, "_saved_dim", ())) if below.next_functions[0][0] is above else ()


def activation_of(node: Any) -> str:
    """Return the kind of a node, also of a softmax that divides exponentials by their sum, and of a linear layer."""
    added = [node_kind(one) for one, _ in node.next_functions[1:]] if node_kind(node) == "AddBackward" else []
    if added == ["AccumulateGrad"] and node_kind(input_of(node)) == "MmBackward":
        return "AddmmBackward"
    return "SoftmaxBackward" if node_kind(node) == "DivBackward" and summed(node) else node_kind(node)


_SQUASHED = {
    "LogSoftmaxBackward": ("SoftmaxBackward", "softmax", "cross_entropy (log_softmax)"),
    "BinaryCrossEntropyWithLogitsBackward": ("SigmoidBackward", "sigmoid", "binary_cross_entropy_with_logits"),
    "LogsumexpBackward": ("SoftmaxBackward", "softmax", "Categorical(logits=...), or logsumexp,"),
}
"""Losses that apply a softmax or sigmoid: the node of a second one, and both in words."""

_NO_LOGARITHM = {
    "SoftmaxBackward": "a softmax",
    "SigmoidBackward": "a sigmoid",
    "AddmmBackward": "a linear layer",
    "ReluBackward": "a relu",
}
"""Nodes whose results are no log-probabilities, each in words."""
_RATES = {"SoftplusBackward": "a softplus", "ExpBackward": "an exp", "ReluBackward": "a relu"}
_TAKES_LOGARITHMS = {"NllLossBackward", "NllLoss2DBackward"}


def _squashed_twice(loss: Loss) -> Iterator[Facts]:
    for node in loss.of_kinds(_SQUASHED):
        given, (before, what, words) = input_of(node), _SQUASHED[node_kind(node)]
        users = loss.users(node) if node_kind(node) == "LogsumexpBackward" else None
        if activation_of(given) == before and (users is None or any(_is_normalising(one, given) for one in users)):
            other = "nll_loss of log_softmax" if what == "softmax" else "binary_cross_entropy"
            other = "Categorical(probs=...)" if "Categorical" in words else other
            yield loss.between(given, node, what=what, loss=words, other=other)


def _is_normalising(node: Any, given: Any) -> bool:
    """Return whether a node subtracts a logsumexp from that of which it is one, as a log-softmax does."""
    return node_kind(node) == "SubBackward" and node.next_functions[0][0] is given


def _no_logarithms(loss: Loss) -> Iterator[Facts]:
    """Yield the operation that gives no log-probabilities to a loss that expects them."""
    found = [("nll_loss", node, input_of(node)) for node in loss.of_kinds(_TAKES_LOGARITHMS)]
    found += [("ctc_loss", node, input_of(node)) for node in loss.of_kinds(("CtcLossBackward", "CudnnCtcLossBackward"))]
    for node in loss.of_kinds(NORMS):
        given = next((one for one, _ in node.next_functions[1:] if activation_of(one) in _NO_LOGARITHM), None)
        call = None if given is None else loss.call(node)
        if call is not None and call.name == "kl_div":
            found.append(("kl_div", node, given))
    for name, node, given in found:
        if (kind := activation_of(given)) in _NO_LOGARITHM:
            remedy = "use cross_entropy, which takes logits" if name == "nll_loss" else "apply log_softmax to it before"
            remedy = "use log_softmax in place of softmax" if kind == "SoftmaxBackward" else remedy
            yield loss.between(given, node, loss=name, what=_NO_LOGARITHM[kind], remedy=remedy)


def _rates(loss: Loss) -> Iterator[Facts]:
    """Yield the operation that gives rates to poisson_nll_loss, which takes the exponential of what it is given."""
    for node in loss.of_kinds(("ExpBackward",)):
        given, call = input_of(node), loss.call(node)
        if node_kind(given) in _RATES and call is not None and call.name == "poisson_nll_loss":
            yield loss.between(given, node, what=_RATES[node_kind(given)])


_RANGES = {
    "SigmoidBackward": ("a sigmoid", 0.0, 1.0),
    "SoftmaxBackward": ("a softmax", 0.0, 1.0),
    "TanhBackward": ("a tanh", -1.0, 1.0),
    "ReluBackward": ("a relu", 0.0, math.inf),
}
"""Nodes whose results have a limited range, each in words, with the range."""
MOST_NUMBERS = 1 << 22
"""Numbers of targets that are compared with a range, at most."""


def _unreachable(loss: Loss) -> Iterator[Facts]:
    """Yield losses that compare values of a limited range with targets that mostly lie outside of it."""
    compared = [(input_of(node), node, held) for node, held in _held(loss.of_kinds(COMPARING), "target")]
    for given, node, target in [*compared, *_by_hand(loss)]:
        what, least, most = _RANGES.get(activation_of(given), ("", 0.0, 0.0))
        share, ends = _outside(target, least, most) if what else (0.0, "")
        if share > 0.25:
            reach = f"{least:g} and {most:g}"
            yield loss.between(given, node, what=what, range=reach, share=f"{share:.0%}", ends=ends)


def _share_one(loss: Loss) -> Iterator[Facts]:
    """Yield a softmax whose results go into a binary cross-entropy with several targets of 1 for a sample."""
    for node, target in _held(loss.of_kinds(("BinaryCrossEntropyBackward",)), "target"):
        given = input_of(node)
        is_softmax = node_kind(given) == "SoftmaxBackward" and shape_of(given) == tuple(target.shape)
        if is_softmax and target.numel() <= MOST_NUMBERS and can_read(target):
            with reading_values():
                share = float((target.detach().sum(dim_of(given)) > 1.5).double().mean())
            if share > 0.25:
                yield loss.between(given, node, share=f"{share:.0%}")


def _held(nodes: Iterable[Any], slot: str) -> list[tuple[Any, torch.Tensor]]:
    """Return the nodes that have saved a tensor as `slot`, with that tensor."""
    return [(node, held) for node, name, held in held_by_nodes(nodes) if name == slot]


def lines_by_hand(loss: Loss) -> Iterator[tuple[Line, str]]:
    """Yield the lines of a loss by hand that subtract what has no graph, each with the reduction."""
    means = {node.next_functions[0][0] for node in loss.of_kinds(("MeanBackward",))}
    for minus, norm, _ in differences(loss):
        call = loss.call(minus) if (None, 0) in minus.next_functions else None
        if call is not None:
            yield call.line, "mean" if norm in means else "none"


def differences(loss: Loss, kinds: Iterable[str] = NORMS) -> Iterator[tuple[Any, Any, torch.Tensor]]:
    """Yield the nodes of differences, with the nodes that square them or take their absolutes, and the values."""
    for node, difference in _held(loss.of_kinds(kinds), "self"):
        minus = node.next_functions[0][0]
        if node_kind(minus) == "SubBackward" and all(one is minus for one, _ in node.next_functions):
            yield minus, node, difference


def _by_hand(loss: Loss) -> Iterator[tuple[Any, Any, torch.Tensor]]:
    """Yield the value in a difference with targets in a loss by hand, the node of the difference, and the targets."""
    for minus, _, difference in differences(loss):
        terms = [one for one, _ in minus.next_functions] if minus._saved_alpha == 1 else [None]
        given: Any = next((one for one in terms if one is not None), None)
        while node_kind(given) in MOVES - _TURNS:
            given = given.next_functions[0][0]
        for _, result in _held([given], "result") if None in terms and given is not None else ():
            if result.numel() == difference.numel() and can_read(difference):
                with reading_values():
                    difference, result = difference.detach().flatten(), result.detach().flatten()
                    yield given, minus, result - difference if terms[1] is None else result + difference


_TURNS = {"TransposeBackward", "PermuteBackward", "TBackward"}
"""Nodes after which the values come in another order."""


def _outside(target: torch.Tensor, least: float, most: float) -> tuple[float, str]:
    """Return the share of some targets that lies outside of a range, and the smallest and the largest in words."""
    if not 0 < target.numel() <= MOST_NUMBERS or not can_read(target):
        return 0.0, ""
    with reading_values():
        values = target.detach().double()
        share = float(((values < least - 0.05) | (values > most + 0.05)).double().mean())
        return share, f"{float(values.min()):.3g} to {float(values.max()):.3g}"


def _no_probabilities(loss: Loss) -> Iterator[Facts]:
    """Yield binary cross-entropies over all their targets, some of which are no probabilities."""
    for node, target in _held(loss.of_kinds(["BinaryCrossEntropyWithLogitsBackward"]), "target"):
        share, ends = _outside(target, 0.0, 1.0)
        if share > 0.05 and node._saved_reduction and not any(True for _ in _held([node], "weight")):
            yield {"share": f"{share:.0%}", "ends": ends, "used": loss.site(node)}


_WITH_LOGITS = "binary_cross_entropy_with_logits"
_BOUNDED = {
    "LogSoftmaxBackward": (("ReluBackward", "SigmoidBackward"), "cross_entropy (log_softmax)"),
    "BinaryCrossEntropyWithLogitsBackward": (("ReluBackward", "SoftmaxBackward"), _WITH_LOGITS),
}
"""Losses that take logits: the nodes that bound their values, and the loss in words."""


def _rectified(loss: Loss) -> Iterator[Facts]:
    """Yield logits that cannot be negative."""
    for node in loss.of_kinds(_BOUNDED):
        given, (kinds, words) = input_of(node), _BOUNDED[node_kind(node)]
        if (kind := activation_of(given)) in kinds:
            yield loss.between(given, node, what=_RANGES[kind][0], loss=words)


def _swapped_arguments(loss: Loss) -> Iterator[Facts]:
    """Yield losses whose target has a graph, and whose input has none."""
    kinds = {"BinaryCrossEntropyBackward": "binary_cross_entropy", "BinaryCrossEntropyWithLogitsBackward": _WITH_LOGITS}
    for node in loss.of_kinds(kinds):
        given, target = (*node.next_functions, (None, 0), (None, 0))[:2]
        if given[0] is None and target[0] is not None:
            yield {"loss": kinds[node_kind(node)], "used": loss.site(node)}


def _terms(node: Any) -> list[Any]:
    """Return the nodes whose results a node adds up or subtracts, also if each is multiplied by a number near 1."""
    terms, seen, waiting = [], {node}, [node]
    for one in waiting:
        below = {other for other, _ in one.next_functions} - seen - {None} if _adds_up(one) else None
        if below is None:
            terms.append(one)
        else:
            seen |= below
            waiting += below
    return terms


def _adds_up(node: Any) -> bool:
    kind = node_kind(node)
    if kind != "MulBackward" or len([one for one, _ in node.next_functions if one is not None]) != 1:
        return kind in ("AddBackward", "SubBackward", "NegBackward")
    with reading_values():
        held = [one for _, _, one in held_by_nodes([node])]
        return bool(held) and all(one.numel() == 1 and can_read(one) and 0.05 < abs(float(one)) < 20 for one in held)


def _sum_beside_mean(loss: Loss) -> Iterator[Facts]:
    """Yield the sum of a KL divergence over all samples, to which the mean of a reconstruction is added."""
    every = [term for root in loss.context.nodes[:1] for term in _terms(root)]
    means = [one for one in every if getattr(one, "_saved_reduction", 0) == 1 or node_kind(one) == "MeanBackward"]
    for node in [one for one in every if node_kind(one) == "SumBackward" and not hasattr(one, "_saved_dim")]:
        terms, count = {node_kind(one): one for one in _terms(input_of(node))}, math.prod(shape_of(input_of(node)))
        square = terms.get("PowBackward") or terms.get("MulBackward")
        squared = {"NoneType"} if square is None else {node_kind(one) for one, _ in square.next_functions}
        is_likelihood = squared & {"NoneType", "SubBackward", "DivBackward"}  # as of differences from data
        for mean in means if terms.keys() & {"ExpBackward", "LogBackward"} and not is_likelihood else ():
            if (numbers := math.prod(shape_of(mean.next_functions[0][0]))) > count:
                yield loss.between(node, mean, numbers=numbers)


def _negative_targets(loss: Loss) -> Iterator[Facts]:
    """Yield targets of kl_div, by which it multiplies, that are mostly negative."""
    for node, target in _held(loss.of_kinds(["MulBackward"]), "self"):
        call = loss.call(node)
        share, ends = _outside(target, 0.0, math.inf) if call is not None and call.name == "kl_div" else (0.0, "")
        if share > 0.25:
            yield {"share": f"{share:.0%}", "ends": ends, "used": loss.site(node)}


def _without_minus(loss: Loss) -> Iterator[Facts]:
    """Yield a logsigmoid of which the loss is the mean or sum as it is: that of -x in one should be small."""
    found, waiting = list[Any](), [*loss.context.nodes[:1]]
    for node in waiting:
        is_sum = node_kind(node) in {*MOVES, "MeanBackward", "SumBackward", "AddBackward"}
        (waiting if is_sum else found).extend([one for one, _ in node.next_functions] if is_sum else [node])
    is_alone = {*map(node_kind, found)} == {"LogSigmoidBackward"}
    plain = [one for one in found if node_kind(input_of(one)) != "NegBackward"] if is_alone else []
    if plain:
        yield {"used": loss.site(plain[0])}


def _mean_of_samples(loss: Loss) -> Iterator[Facts]:
    """Yield a loss that is one mean, and that weights of the samples multiply, or the factor of a focal loss."""
    for node, _, weights in held_by_nodes(list(loss.of_kinds(("MulBackward",)))):
        for given in [one for one, _ in node.next_functions if one is not None and shape_of(one) == ()]:
            is_mean = node_kind(given) == "MeanBackward" or getattr(given, "_saved_reduction", 0) == 1
            is_mean = is_mean and {*map(node_kind, loss.users(node))} <= {"MeanBackward", "SumBackward"}
            if is_mean and weights.numel() > 1 and shape_of(given.next_functions[0][0])[:1] == tuple(weights.shape):
                yield loss.between(given, node, what="the weights that multiply it")
    for node in loss.of_kinds(("ExpBackward",)):
        given = input_of(input_of(node)) if node_kind(input_of(node)) == "NegBackward" else None
        if getattr(given, "_saved_reduction", 0) == 1 and node_kind(given) not in COMPARING:
            yield loss.between(given, node, what="the powers of its exponential, as in a focal loss,")


# fmt: off
ACTIVATIONS: tuple[Cause[Loss], ...] = (
    Cause("double-softmax", is_first, _squashed_twice,
        "suspicious: a {what}{given:at} is applied to what {loss}{used:at} is given, which applies one of its own: the "
        "gradients become small, and the loss cannot go below a bound",
        "leave out the {what} and give the logits to the loss, or use {other}"),
    Cause("no-log-probabilities", is_first, _no_logarithms,
        "suspicious: the result of {what}{given:at} is given to {loss}{used:at}, which expects log-probabilities",
        "{remedy}"),
    Cause("no-log-probabilities", is_first, _rates,
        "suspicious: the result of {what}{given:at} is given to poisson_nll_loss{used:at}, which expects the logarithm "
        "of a rate, and takes its exponential, by default",
        "leave it out before the loss, or give the loss log_input=False"),
    Cause("target-out-of-reach", is_first, _unreachable,
        "{what}{given:at} gives values between {range} only, and {share} of the targets that the loss{used:at} "
        "compares them with lie outside: they go from {ends}",
        "leave out the activation where the output is a regression, or scale the targets to its range"),
    Cause("target-out-of-reach", is_first, _no_probabilities,
        "binary_cross_entropy_with_logits{used:at} takes targets between 0 and 1, and {share} of them lie outside: "
        "they go from {ends}; their loss has no lower bound",
        "make them 0 and 1, such as (target > 0).float()"),
    Cause("target-out-of-reach", is_first, _negative_targets,
        "kl_div{used:at} takes probabilities as targets, and {share} of them are negative, as logarithms are: they go "
        "from {ends}",
        "give it probabilities, by softmax in place of log_softmax, or log_target=True"),
    Cause("target-out-of-reach", is_first, _share_one,
        "the results of a softmax{given:at} sum up to 1, and {share} of the samples have several targets of 1 in "
        "binary_cross_entropy{used:at}, which cannot all be reached",
        "leave out the softmax, and use binary_cross_entropy_with_logits, with a sigmoid for each output"),
    Cause("rectified-logits", is_first, _rectified,
        "suspicious: {what}{given:at} is applied to the logits that {loss}{used:at} is given: they cannot be negative, "
        "though the loss expects any numbers",
        "leave it out before the loss"),
    Cause("sum-beside-mean", is_first, _sum_beside_mean,
        "suspicious: the KL divergence{given:at} is a sum over all samples, and the reconstruction beside it{used:at} "
        "a mean over {numbers} numbers, which counts next to nothing: this leads to posterior collapse",
        "reduce both alike: reduction='sum' for both, or a sum over the features and a mean over the samples"),
    Cause("mean-before-weights", is_first, _mean_of_samples,
        "suspicious: this loss{given:at} is the mean over all samples already, one number: {what}{used:at} count for "
        "all alike", "reduction='none' there, and the mean at the end: (weights * loss).mean()"),
    Cause("loss-turned-round", is_first, _swapped_arguments,
        "{loss}{used:at} gets its gradient through its target only, and its first argument has no graph: they seem to "
        "be swapped, the labels first and the prediction as their target",
        "swap the arguments: {loss}(prediction, target)"),
    Cause("loss-turned-round", is_first, _without_minus,
        "suspicious: this loss is the mean or sum of logsigmoid(){used:at} as it is, which has no lower bound: each "
        "step makes what it is given smaller, the wrong way round for a score that should be large",
        "put a minus before it: -F.logsigmoid(x).mean()"),
)
# fmt: on
"""Causes that concern an activation before a loss."""
