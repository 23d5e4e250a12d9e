"""Replace: replace modules of a model by others, and put the old ones back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from torch import nn

from byname.errors import BadArgumentError
from byname.model.module_tree import join_path, modules_by_path
from byname.model.where import modules_of, parts_of, unwrapped
from byname.watch.handle import Handle
from byname.watch.requested import Notes

Make = Callable[[nn.Module], nn.Module | None]


def replace(model: nn.Module, where: Any, make: Make) -> Handle:
    """Replace modules of a model, in the model itself.

        >>> import torch, byname
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.ReLU())
        >>> with byname.replace(model, nn.ReLU, lambda old: nn.GELU()) as handle:
        ...     print(handle.paths, model[1])
        ('1', '2') GELU(approximate='none')
        >>> model[1]
        ReLU()

    If a module is at several places, one new module is made and put at all of them. If matched modules contain one
    another, only the outermost is replaced, and those inside go with it. An optimizer that was built before has only
    the old parameters. Several handles may be removed in any order.

    Args:
        model: any module; it cannot be replaced itself.
        where: a path, a selector of modules, a class of modules, a module of the model, or a sequence of these.
        make: a function ``make(old) -> new`` that is called once for each module, before anything is changed. If it
            returns None or the old module, that stays. The new module gets the training flag of the old one.

    Returns:
        The handle that puts the very same old modules back. Its ``paths`` are the places that have a new module.

    Raises:
        NoMatchError: nothing matches.
        BadArgumentError: ``make`` returns something else than a module, or ``where`` matches the model itself or a
            place that is no module. An interjection replaces a function, see `byname.rewrite` and `byname.interject`.
    """
    model = unwrapped(model)
    if not callable(make) or isinstance(make, nn.Module):
        raise BadArgumentError(
            "make takes each old module and returns the new one, as in `lambda old: nn.GELU()`; "
            f"a {type(make).__name__} does not do that"
        )
    known = {id(one) for one in modules_by_path(model).values()}
    olds = _outermost(model, _meant(model, where))
    news = [(old, _made(make, old, path)) for path, old in olds]
    swaps = [Swap(model, old, new) for old, new in news if new is not None and new is not old]
    notes: Notes = dict.fromkeys(_notes(swaps))
    for swap in swaps:
        _train_as(swap.old, swap.new, known)
        swap.notes = notes
    handle = Handle([*swaps], {path: None for swap in swaps for path in swap.paths}, notes)
    return handle.switched(True)


def _meant(model: nn.Module, where: Any) -> list[nn.Module]:
    meant = {id(module) for module in modules_of(model, where).values()}
    found = [module for module in modules_by_path(model).values() if id(module) in meant]
    itself = any(one is model for one in found)
    if itself and (len(found) == 1 or any(one is model or one == "forward" for one in parts_of(where, model))):
        raise BadArgumentError(
            f"this {type(model).__name__} is the model itself, and nothing in it holds it; replace modules inside it"
        )
    return [module for module in found if module is not model]


def _outermost(model: nn.Module, modules: list[nn.Module]) -> list[tuple[str, nn.Module]]:
    """Return the modules that are not inside another one to be replaced, each with its first path."""
    inside = {id(one) for module in modules for one in module.modules() if one is not module}
    paths = {id(module): path for path, module in modules_by_path(model).items()}
    return [(paths[id(one)], one) for one in modules if id(one) not in inside]


def _made(make: Make, old: nn.Module, path: str) -> nn.Module | None:
    new: Any = make(old)
    if new is not None and not isinstance(new, nn.Module):
        what = f"the class {new.__name__}" if isinstance(new, type) else type(new).__name__
        raise BadArgumentError(f"make returned {what} for `{path}`, not a module; nothing was replaced")
    return new


def _notes(swaps: list[Swap]) -> Iterator[str]:
    """Yield notes: that nothing was replaced, or that a new module may not be trained or called."""
    if not swaps:
        yield "make kept every module"
    if any(_parameters(swap.new) - _parameters(swap.old) for swap in swaps):
        yield "an optimizer built before this does not have the parameters of the new modules"
    for swap in swaps:
        for path, holder, name in swap.places:
            if isinstance(holder, nn.MultiheadAttention) and name == "out_proj":
                yield f"`{path}`: MultiheadAttention reads its weight and bias and never calls it"


def _parameters(module: nn.Module) -> set[int]:
    return {id(one) for one in module.parameters()}


def _train_as(old: nn.Module, new: nn.Module, known: set[int]) -> None:
    """Give a new module the training flag of the old one, unless it belongs to the model already."""
    inside = list(new.modules())
    if not any(id(one) in known for one in inside):
        new.train(old.training)
        return
    for one in inside:
        if id(one) not in known:
            one.training = old.training


class Swap:
    """One module and its replacement, wherever the model holds it.

    Attributes:
        places: for each place of the old module, the path, the parent module and the name in it.
        order: the number of the replacement; later ones are above earlier ones.
    """

    def __init__(self, model: nn.Module, old: nn.Module, new: nn.Module) -> None:
        self.old = old
        self.new = new
        self.places = list(_places_of(model, old))
        self.notes: Notes = {}
        self.order = next(_orders)

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(path for path, _, _ in self.places)

    def install(self) -> None:
        for _, holder, name in self.places:
            stacks = _stacks.setdefault(holder, {})
            if len(stacks.get(name, ())) < 2:
                stacks[name] = [(-1, holder._modules[name])]
            others = [one for one in stacks[name] if one[0] != self.order]
            self._change(holder, name, sorted([*others, (self.order, self.new)], key=lambda one: one[0]))

    def remove(self) -> None:
        """Put back the old module, or the module of an earlier replacement."""
        for path, holder, name in self.places:
            stacks = _stacks.get(holder, {})
            if name not in stacks:  # not installed, or removed already by a call that was interrupted
                continue
            if not self._change(holder, name, [one for one in stacks[name] if one[0] != self.order]):
                self.notes[f"other code put another module at `{path}`; it stays there"] = None
            if len(stacks[name]) == 1:
                del stacks[name]

    def _change(self, holder: nn.Module, name: str, stack: _Stack) -> bool:
        """Set the stack of a place; return False if other code has put another module there.

        After an interrupt the call can be repeated. Then it also puts back a module that was installed but not noted.
        """
        stacks, after = _stacks[holder], stack[-1][1]
        known = (stacks[name][-1][1], after, self.new)
        ours = name in holder._modules and any(holder._modules[name] is one for one in known)
        if ours and holder._modules[name] is not after:
            nn.Module.register_module(holder, name, after)  # as an assignment does, so that registration hooks run
            holder._modules[name] = after
        stacks[name] = stack
        return ours


_Stack: TypeAlias = list[tuple[int, nn.Module | None]]
"""The modules of one place: the original one, numbered -1, and its replacements with their numbers."""

_stacks: WeakKeyDictionary[nn.Module, dict[str, _Stack]] = WeakKeyDictionary()
"""For each parent module, the stacks by name. All handles of one place share them, so they can be removed in any order;
the last one removes the entry."""

_orders = itertools.count()


def _places_of(model: nn.Module, module: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Yield the path, the parent module and the name in it, for each place of a module."""
    for path, holder in modules_by_path(model).items():
        for name, child in holder._modules.items():
            if child is module:
                yield join_path(path, name), holder, name
