"""Hooks: byname's hooks on modules. They run in the order of attaching, and copies of the model do not have them."""

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


class Hook:
    """A hook of byname, recognized by this class.

    Args:
        function: the function that PyTorch's arguments are passed to.
        expected: the number of these arguments.
        running: the attachment of the hook.
    """

    __slots__ = ("expected", "function", "running")

    def __init__(self, function: Callable[..., Any], expected: int, running: Running) -> None:
        self.function = function
        self.expected = expected
        self.running = running

    @dynamo_skip
    def __call__(self, *args: Any) -> Any:
        """Call the function; do nothing if the hook was removed meanwhile: PyTorch then passes no keyword arguments."""
        return self.function(*args) if len(args) == self.expected else None

    def __reduce__(self) -> Any:
        return _Spent, ()


class _Spent:
    """A hook in a copy that the ``__deepcopy__`` of a user's class made. It removes itself at its first call."""

    @dynamo_skip
    def __call__(self, module: nn.Module, *args: Any) -> None:
        _take_out(module, self)


class ForwardStandIn:
    """A replacement for the forward of one module, in its ``__dict__``. Copies of the module have the forward below it.

    One module may have several, which can be removed in any order.

    Args:
        module: the module.

    Attributes:
        below: the forward that was there before; None for the forward of the class.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = weakref.ref(module)
        self._on = False
        self.below: Any = None
        self.__wrapped__ = type(module).forward  # a path to a variable finds the function by this attribute

    def install(self) -> None:
        """Install this forward above those that are there."""
        module = self._module()
        if module is not None and not self._on:
            self.below = module.__dict__.get("forward")
            self._on = True
            module.__dict__["forward"] = self

    def remove(self) -> None:
        """Remove this forward; if another function wraps it by now, it only calls the forward below."""
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
        """Run as the forward: call `instead`, or the forward below once this one is removed."""
        if self._on:
            return self.instead(args, kwargs)
        if self.below is not None:
            return self.below(*args, **kwargs)
        return self.__wrapped__(self._module(), *args, **kwargs)

    def instead(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the output of the module."""
        raise NotImplementedError


def _take_out(module: nn.Module, hook: Any) -> None:
    """Remove a hook, found by identity, from a module."""
    for registry, flags in _REGISTRIES.items():
        hooks = module.__dict__[registry]
        for key in [key for key, one in [*hooks.items()] if one is hook] if hooks else ():
            for name in (*flags, registry):  # the registry last, since its keys lead to the flags
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
        """Add a hook ``(module, args, kwargs)`` that runs before the forward; if `first`, before all other hooks."""
        if is_script(module):
            return
        hook = self._hook(module, function, 3)
        self._wanted.append(lambda: (module, module.register_forward_pre_hook(hook, prepend=first, with_kwargs=True)))

    def after(
        self, module: nn.Module, function: Callable[..., Any], *, always: bool = False, first: bool = False
    ) -> None:
        """Add a hook ``(module, args, kwargs, output)`` that runs after the forward.

        Args:
            module: the module; nothing is done for a scripted one.
            function: the hook; what it returns, unless None, replaces the output.
            always: whether the hook runs also after a forward that has raised. It then gets no ``kwargs``, and runs
                even if another thread removed it just after the forward.
            first: whether the hook runs before all other hooks.
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
        for module, hook in self._hooks:  # an interrupt may have come before the handle of a hook was noted
            _take_out(module, hook)
        _unhooked_copies.discard(self, self._classes)
        if self._let_go is not None:
            self._let_go.detach()  # otherwise each pause of an attachment would leave a finalizer while the model lives
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
    """Return the attachments of a model, in the order of attaching."""
    hooks = model.__dict__["_forward_pre_hooks"].values()
    found = {hook.running.order: hook.running for hook in hooks if issubclass(type(hook), Hook)}
    return [found[order] for order in sorted(found) if found[order].model is model]


class _UnhookedCopies:
    """The classes of hooked modules, registered in ``copyreg`` so that copies and pickles leave byname's hooks out.

    `copy`, `pickle` and ``torch.save`` all look into ``copyreg``. Its entries belong to classes, so a class has one
    while a module of it is hooked. Other modules of the class are copied as before.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: the garbage collector may free a model, and so call this, any time
        self._users: dict[type[nn.Module], set[int]] = {}

    def add(self, user: Hooks, classes: list[type[nn.Module]]) -> weakref.finalize[Any, Hooks] | None:
        """Register the classes; return the finalizer that discards them when the attachment is freed with its model."""
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
    """Return the reduced value of a module, for a copy or a pickle, without byname's hooks and forwards."""
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
