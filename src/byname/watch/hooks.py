"""Hooks: byname's hooks on modules, which keep their order and are left out of copies of the model."""

from __future__ import annotations

import copyreg
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Container
from contextlib import suppress
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from byname.model.module_tree import is_script
from byname.reading.quiet import dynamo_skip
from byname.watch.attachment import Running

__all__ = ["Hook", "Hooks", "ForwardStandIn", "attachments_of"]


class Hook:
    """A hook of byname, known by its class: a function and the attachment that it belongs to."""

    __slots__ = ("expected", "function", "running")

    def __init__(self, function: Callable[..., Any], expected: int, running: Running) -> None:
        self.function = function
        self.expected = expected
        self.running = running

    @dynamo_skip
    def __call__(self, *args: Any) -> Any:
        """Run the hook; PyTorch gives no keyword arguments if it was removed while the module ran."""
        return self.function(*args) if len(args) == self.expected else None

    def __reduce__(self) -> Any:
        return _Spent, ()


class _Spent:
    """A hook in a copy that a class's own ``__deepcopy__`` made: it removes itself when it is first called."""

    @dynamo_skip
    def __call__(self, module: nn.Module, *args: Any) -> None:
        _take_out(module, self)


class ForwardStandIn:
    """What stands in a module's ``__dict__`` as its forward; copies of the module have what was there before.

    Several of one module may be removed in any order.

    Args:
        module: the module.

    Attributes:
        below: what was there before; None for the forward of the class.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = weakref.ref(module)
        self._on = False
        self.below: Any = None
        self.__wrapped__ = type(module).forward  # by which a path to a variable finds the function

    def install(self) -> None:
        """Put it in place, above those that are there."""
        module = self._module()
        if module is not None and not self._on:
            self.below = module.__dict__.get("forward")
            self._on = True
            module.__dict__["forward"] = self

    def remove(self) -> None:
        """Take it out; where somebody has wrapped it since, it only passes on."""
        module, self._on = self._module(), False
        if module is None:
            return
        above, held = None, module.__dict__.get("forward")
        while isinstance(held, ForwardStandIn) and held is not self:
            above, held = held, held.below
        if held is not self:
            return
        if above is not None:
            above.below = self.below
        elif self.below is not None:
            module.__dict__["forward"] = self.below
        else:
            del module.__dict__["forward"]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What PyTorch calls as the forward."""
        if self._on:
            return self.instead(args, kwargs)
        if self.below is not None:
            return self.below(*args, **kwargs)
        return self.__wrapped__(self._module(), *args, **kwargs)

    def instead(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what takes the place of the module's output."""
        raise NotImplementedError


def _take_out(module: nn.Module, hook: Any) -> None:
    """Remove a hook, found by identity, from a module."""
    for registry, flags in _REGISTRIES.items():
        hooks = module.__dict__[registry]
        for key in [key for key, one in [*hooks.items()] if one is hook] if hooks else ():
            for name in (*flags, registry):  # which tells where the flags are
                module.__dict__[name].pop(key, None)


class Hooks:
    """The hooks of one attachment, which are installed and removed together.

    Args:
        model: the model whose modules are hooked; it and its parts are copied and pickled without the hooks.
        running: the attachment.
    """

    def __init__(self, model: nn.Module, running: Running) -> None:
        self._model = model
        self._running = running
        self._wanted: list[Callable[[], tuple[nn.Module, RemovableHandle]]] = []
        self._handles: list[tuple[nn.Module, RemovableHandle]] = []
        self._hooks: list[tuple[nn.Module, Hook]] = []
        self._classes: list[type[nn.Module]] = []
        self._let_go: weakref.finalize[Any, Hooks] | None = None

    def before(self, module: nn.Module, function: Callable[..., Any], *, first: bool = False) -> None:
        """Add a hook ``(module, args, kwargs)`` that runs before the forward."""
        if is_script(module):
            return
        hook = self._hook(module, function, 3)
        self._wanted.append(lambda: (module, module.register_forward_pre_hook(hook, prepend=first, with_kwargs=True)))

    def after(
        self, module: nn.Module, function: Callable[..., Any], *, always: bool = False, first: bool = False
    ) -> None:
        """Add a hook ``(module, args, kwargs, output)`` that runs after the forward; with `always` also after an error.

        The latter also runs when the forward has raised, gets no ``kwargs``, and runs as well where another thread took
        it off just after the forward.
        """
        if is_script(module):
            return
        hook = self._hook(module, function, 3 if always else 4)
        self._wanted.append(
            lambda: (
                module,
                module.register_forward_hook(hook, prepend=first, with_kwargs=not always, always_call=always),
            )
        )

    def _hook(self, module: nn.Module, function: Callable[..., Any], expected: int) -> Hook:
        hook = function if isinstance(function, Hook) else Hook(function, expected, self._running)
        self._hooks.append((module, hook))
        return hook

    def install(self) -> None:
        """Install the hooks, before those of later attachments."""
        self._classes = [*{type(module): None for module, _ in self._hooks}]
        self._let_go = _unhooked_copies.add(self, self._classes)
        for register in self._wanted:
            module, handle = register()
            self._handles.append((module, handle))
        for module in {id(module): module for module, _ in self._handles}.values():
            for registry in _REGISTRIES:
                hooks = module.__dict__[registry]
                if len(hooks) > 1:
                    _in_order(hooks, self._running.order)

    def remove(self) -> None:
        """Remove the hooks."""
        self.keep(frozenset())
        for module, hook in self._hooks:  # an interrupt may have come before the handle of one was noted
            _take_out(module, hook)
        _unhooked_copies.discard(self, self._classes)
        if self._let_go is not None:
            self._let_go.detach()  # else each pause of an attachment would leave one until the model dies
        self._classes, self._let_go = [], None

    def keep(self, modules: Container[int]) -> None:
        """Remove the hooks from all modules except these, given by ``id``."""
        kept = []
        for module, handle in self._handles:
            if id(module) in modules:
                kept.append((module, handle))
            else:
                handle.remove()
        self._handles = kept


def _in_order(hooks: OrderedDict[int, Any], order: int) -> None:
    now = [*hooks.items()]  # other threads may attach and remove meanwhile
    later = [(key, hook) for key, hook in now if issubclass(type(hook), Hook) and hook.running.order > order]
    for key, _ in sorted(later, key=lambda found: found[1].running.order):
        with suppress(KeyError):
            hooks.move_to_end(key)


def attachments_of(model: nn.Module) -> list[Running]:
    """Return what is attached to a model, in the order of attaching."""
    hooks = model.__dict__["_forward_pre_hooks"].values()
    found = {hook.running.order: hook.running for hook in hooks if issubclass(type(hook), Hook)}
    return [found[order] for order in sorted(found) if found[order].model is model]


class _UnhookedCopies:
    """The classes of watched modules, changed so that copies and pickles leave byname's hooks out.

    ``copyreg`` is the one place that `copy`, `pickle` and ``torch.save`` all ask. It goes by class, so an entry is made
    while a model with such a module is watched, and leaves other modules of the class as they are.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the collector may let go of a model at any moment
        self._users: dict[type[nn.Module], set[int]] = {}

    def add(self, user: Hooks, classes: list[type[nn.Module]]) -> weakref.finalize[Any, Hooks] | None:
        """Return the finalizer that discards them when the attachment is freed together with its model."""
        if not classes:
            return None
        let_go = weakref.finalize(user, self._discard, id(user), classes)
        let_go.atexit = False
        with self._lock:
            for kind in classes:
                self._users.setdefault(kind, set()).add(id(user))
                if kind not in copyreg.dispatch_table:
                    copyreg.dispatch_table[kind] = _without_hooks
        return let_go

    def discard(self, user: Hooks, classes: list[type[nn.Module]]) -> None:
        self._discard(id(user), classes)

    def _discard(self, user: int, classes: list[type[nn.Module]]) -> None:
        with self._lock:
            for kind in classes:
                users = self._users.get(kind, set())
                users.discard(user)
                if not users:
                    self._users.pop(kind, None)
                    if copyreg.dispatch_table.get(kind) is _without_hooks:
                        del copyreg.dispatch_table[kind]


_unhooked_copies = _UnhookedCopies()

_REGISTRIES = {
    "_forward_hooks": ("_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    "_forward_pre_hooks": ("_forward_pre_hooks_with_kwargs",),
}


def _without_hooks(module: nn.Module) -> Any:
    """Return what a copy or a pickle of a module is made from."""
    reduced: Any = module.__reduce_ex__(2)
    if type(reduced) is not tuple or len(reduced) < 3 or type(reduced[2]) is not dict:
        return reduced
    state = dict(reduced[2])
    while isinstance(state.get("forward"), ForwardStandIn):
        below = state.pop("forward").below
        state.update({} if below is None else {"forward": below})
    for registry, flags in _REGISTRIES.items():
        hooks = state.get(registry) or {}
        ours = {key for key, hook in hooks.items() if issubclass(type(hook), Hook)}
        if ours:
            for name in (registry, *flags):
                state[name] = OrderedDict((key, one) for key, one in state[name].items() if key not in ours)
    return (*reduced[:2], state, *reduced[3:])
