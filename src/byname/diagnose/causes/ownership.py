"""not-in-optimizer, orphaned-parameter, free-leaf: whose is what gathers a gradient, and who will use that?"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from byname.autograd.leaves import Leaf
from byname.diagnose.causes.reads import reads_gradient_of
from byname.diagnose.context import Scene
from byname.diagnose.finding import Finding, known_sites
from byname.naming.name import Name, quote, quote_all
from byname.reading.modules import parameters_in
from byname.reading.quiet import untouched
from byname.reading.tensor import fact
from byname.source.location import Site

__all__ = ["free_leaves", "left_out", "orphaned"]


def left_out(scene: Scene, leaves: Sequence[Leaf]) -> list[Finding]:
    """Parameters of the models that the loss reaches and that no optimizer will change."""
    theirs = {id(one) for model in scene.models for one in parameters_in(model)}
    names = tuple(
        leaf.name for leaf in reversed(leaves) if _is_left_out(leaf) and (not theirs or id(leaf.tensor) in theirs)
    )
    if not names:
        return []
    gather, it, they = ("gathers", "it", "it") if len(names) == 1 else ("gather", "them", "they")
    has = "has" if _several(scene) else "does not have"
    message = f"{quote_all(names)} {gather} a gradient, and {_those(scene)} {has} {it}"
    remedy = (
        f"give {it} to the optimizer (optimizer.add_param_group), or build it when the model is complete; where {they} "
        f"should stay, requires_grad_(False) also saves computing {'its gradient' if it == 'it' else 'their gradients'}"
    )
    return [Finding("not-in-optimizer", message, names, remedy=remedy)]


def _is_left_out(leaf: Leaf) -> bool:
    return leaf.kind == "parameter" and not leaf.in_optimizer


def orphaned(scene: Scene, strangers: Sequence[torch.Tensor], newcomers: Sequence[Leaf]) -> list[Finding]:
    """Parameters that an optimizer has and the model has no more.

    Args:
        scene: what is looked at.
        strangers: the optimizer's parameters that are not the model's and that the loss does not reach.
        newcomers: the leaves of the model's parameters that no optimizer has.
    """
    shapes = {leaf.card.shape for leaf in newcomers}
    named = zip(scene.names(strangers), strangers, strict=True)
    gone = [(name, one) for name, one in named if ".param_groups[" in name.path or _shape(one) in shapes]
    if not gone:
        return []
    holder = "one of the optimizers" if _several(scene) else _those(scene)
    old = ", ".join(f"`{name}` ({'×'.join(map(str, _shape(one))) or 'scalar'})" for name, one in gone)
    message = f"{holder} has {old}, which the model does not have and this loss does not reach"
    new = tuple(leaf.name for leaf in reversed(newcomers))
    if new:
        message += (
            f"; it does not have {quote_all(new)}. It looks as if a part was replaced after the optimizer was built"
        )
    remedy = (
        "build the optimizer after the last change of the model, or give it the new parameters with add_param_group"
    )
    return [Finding("orphaned-parameter", message, (*(name for name, _ in gone), *new), remedy=remedy)]


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    with untouched():
        return tuple(fact(tensor, "shape"))


def _several(scene: Scene) -> bool:
    return len(scene.optimizers) > 1


def _those(scene: Scene) -> str:
    return "none of the optimizers" if _several(scene) else f"the optimizer ({type(scene.optimizers[0]).__name__})"


def free_leaves(scene: Scene, leaves: Sequence[Leaf]) -> list[Finding]:
    """Leaves that are nobody's parameter, and gather a gradient that nobody reads."""
    return [
        _free(scene, leaf)
        for leaf in reversed(leaves)
        if leaf.kind == "free" and not leaf.in_optimizer and _is_idle(scene, leaf)
    ]


def _is_idle(scene: Scene, leaf: Leaf) -> bool:
    """Whether the gradient of a leaf goes to no use that can be seen."""
    tensor = leaf.tensor
    if tensor is None:
        return True
    with untouched():
        if fact(tensor, "_backward_hooks") or fact(tensor, "_post_accumulate_grad_hooks"):
            return False
    if reads_gradient_of(leaf.names):
        return False
    is_lost = not leaf.name.exact or leaf.name.rebound_at is not None  # no variable holds it any more
    return is_lost or bool(scene.optimizers)


def _free(scene: Scene, leaf: Leaf) -> Finding:
    made, used = leaf.site, next((one.site for one in leaf.consumers if one.site is not None), None)
    name = leaf.name
    if used is not None and used.target and not name.exact and "requires_grad" in used.statement:
        return _not_a_leaf(used, name)
    held = (
        "no variable holds it any more, so" if not name.exact or name.rebound_at else "it is no parameter of a module,"
    )
    message = (
        f"{quote(name)} requires grad and gathers a gradient at every backward, which nobody uses: {held} no optimizer "
        "changes it and nothing reads or clears its .grad"
    )
    remedy = (
        "make it an nn.Parameter of the module and give it to the optimizer if it should learn; otherwise make it "
        "without requires_grad, or use it detached"
    )
    return Finding("free-leaf", message, (name,), known_sites(made, name.rebound_at), remedy)


def _not_a_leaf(made: Site, name: Name) -> Finding:
    """``w = torch.randn(3, requires_grad=True) * 0.1``: the variable is not the leaf."""
    message = (
        f"`{made.target}` is no leaf: the statement at {made} makes a leaf and computes {made.target} from it, so the "
        "gradient goes to a tensor that no variable holds"
    )
    remedy = f"compute the values first: {made.target} = (...).requires_grad_(), or wrap them in nn.Parameter(...)"
    target = Name(made.target or "", "local", name.scope, exact=False, site=made)
    return Finding("non-leaf-grad", message, (target,), known_sites(made), remedy)
