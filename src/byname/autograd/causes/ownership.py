"""not-in-optimizer, orphaned-parameter, free-leaf: whose is what gathers a gradient, and who will use that?"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import lru_cache

import executing
import torch

from byname.autograd.causes.words import lines
from byname.autograd.finding import Finding, listed
from byname.autograd.leaves import Leaf
from byname.autograd.scene import Scene
from byname.card import fact
from byname.naming.name import Name
from byname.naming.roots import files_of_the_program
from byname.quiet import untouched
from byname.site import Site

__all__ = ["free_leaves", "left_out", "orphaned"]


def left_out(scene: Scene, leaves: Sequence[Leaf]) -> list[Finding]:
    """Parameters that the loss reaches and that no optimizer will change."""
    names = tuple(leaf.name for leaf in reversed(leaves) if leaf.kind == "parameter" and not leaf.in_optimizer)
    if not names:
        return []
    who = listed(map(str, names))
    gather, them = ("gathers", "it") if len(names) == 1 else ("gather", "them")
    message = f"{who} {gather} a gradient, and {_those(scene)} {'has' if _several(scene) else 'does not have'} {them}"
    remedy = (
        "give them to the optimizer (optimizer.add_param_group), or build it after the model is complete; where they "
        "should stay as they are, requires_grad_(False) saves their gradients"
    )
    return [Finding("not-in-optimizer", message, names, remedy=remedy)]


def orphaned(scene: Scene, strangers: Sequence[torch.Tensor], newcomers: Sequence[Name]) -> list[Finding]:
    """Parameters that an optimizer has and the model has no more.

    Args:
        scene: what is looked at.
        strangers: the optimizer's parameters that are not the model's and that the loss does not reach.
        newcomers: the model's parameters that no optimizer has.
    """
    if not strangers:
        return []
    names = tuple(scene.names(strangers))
    holder = "one of the optimizers" if _several(scene) else _those(scene)
    message = f"{holder} has {listed(map(str, names))}, which the model has no more and this loss does not reach"
    if newcomers:
        message += (
            f"; it does not have {listed(map(str, newcomers))}. A module was replaced after the optimizer was built"
        )
    remedy = (
        "build the optimizer after the last change of the model, or give it the new parameters with add_param_group"
    )
    return [Finding("orphaned-parameter", message, (*names, *newcomers), remedy=remedy)]


def _several(scene: Scene) -> bool:
    return len(scene.optimizers) > 1


def _those(scene: Scene) -> str:
    return "none of the optimizers" if _several(scene) else f"the optimizer ({type(scene.optimizers[0]).__name__})"


def free_leaves(scene: Scene, leaves: Sequence[Leaf]) -> list[Finding]:
    """Leaves that are nobody's parameter, and gather a gradient that nobody reads."""
    return [
        _free(scene, leaf) for leaf in leaves if leaf.kind == "free" and not leaf.in_optimizer and _is_idle(scene, leaf)
    ]


def _is_idle(scene: Scene, leaf: Leaf) -> bool:
    """Whether the gradient of a leaf goes to no use that can be seen."""
    tensor = leaf.tensor
    if tensor is None:
        return True
    with untouched():
        if fact(tensor, "_backward_hooks") or fact(tensor, "_post_accumulate_grad_hooks"):
            return False
    if _reads_its_gradient(leaf.names):
        return False
    is_lost = not leaf.name.exact or leaf.name.rebound_at is not None  # no variable holds it any more
    return is_lost or bool(scene.optimizers)


def _reads_its_gradient(names: Sequence[Name]) -> bool:
    """Whether some file of the program asks for the ``.grad`` of a variable of this name."""
    wanted = {name.path.rpartition(".")[2].partition("[")[0] for name in names}
    return any(wanted & _names_with_grad(file) for file in files_of_the_program())


@lru_cache(maxsize=256)
def _names_with_grad(file: str) -> frozenset[str]:
    """The last part of each ``x.grad`` in a file, ``delta`` of ``self.delta.grad``, and what ``grad(x)`` is given."""
    source = executing.Source.for_filename(file)
    found: set[str] = set()
    for node in [] if source.tree is None else ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and node.attr in ("grad", "register_hook"):
            found.add(_last(node.value))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "grad":
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            found.update(_last(part) for argument in given for part in ast.walk(argument))
    return frozenset(found - {""})


def _last(node: ast.AST) -> str:
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _free(scene: Scene, leaf: Leaf) -> Finding:
    made, used = leaf.site, next((one.site for one in leaf.consumers if one.site is not None), None)
    name = leaf.name
    if made is not None and used is not None and made == used and made.target and not name.exact:
        return _not_a_leaf(made, name)
    held = (
        "no variable holds it any more, so" if not name.exact or name.rebound_at else "it is no parameter of a module,"
    )
    message = (
        f"`{name}` requires grad and gathers a gradient at every backward, which nobody uses: {held} no optimizer "
        "changes it and nothing reads or clears its .grad"
    )
    remedy = (
        "make it an nn.Parameter of the module and give it to the optimizer if it should learn; otherwise make it "
        "without requires_grad, or use it detached"
    )
    return Finding("free-leaf", message, (name,), lines(made, name.rebound_at), remedy)


def _not_a_leaf(made: Site, name: Name) -> Finding:
    """``w = torch.randn(3, requires_grad=True) * 0.1``: the variable is not the leaf."""
    message = (
        f"`{made.target}` is no leaf: the statement at {made} makes a leaf and computes {made.target} from it, so the "
        "gradient goes to a tensor that no variable holds"
    )
    remedy = f"compute the values first: {made.target} = (...).requires_grad_(), or wrap them in nn.Parameter(...)"
    target = Name(made.target or "", "local", name.scope, exact=False, site=made)
    return Finding("non-leaf-grad", message, (target,), lines(made), remedy)
