"""Hooks: byname's hooks on modules. They run in the order of attaching, and copies of the model do not have them."""

from __future__ import annotations

import copyreg
import inspect
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Container
from contextlib import suppress
from types import MethodType
from typing import Any, TypeAlias

from torch import nn
from torch.jit import ScriptModule
from torch.utils.hooks import RemovableHandle

from byname.model.module_tree import is_script
from byname.reading.quiet import dynamo_skip
from byname.watch.attachment import Attachment


class Hook:
    """A hook of an attachment, which passes PyTorch's arguments to a function if they are as many as expected."""

    __slots__ = ("attachment", "expected", "function")

    def __init__(self, function: Callable[..., Any], expected: int, attachment: Attachment) -> None:
        self.function = function
        self.expected = expected
        self.attachment = attachment

    @property
    def __name__(self) -> str:
        raise AttributeError("TorchScript cannot compile byname's hooks: script the model before attaching")

    @dynamo_skip
    def __call__(self, *args: Any) -> Any:
        """Call the function; do nothing if the hook was removed meanwhile: PyTorch then passes no keyword arguments."""
        return self.function(*args) if len(args) == self.expected else None

    def __reduce__(self) -> Any:
        return _DiscardedHook, ()


class _DiscardedHook:
    """A hook in a copy that the ``__deepcopy__`` of a user's class made. It removes itself at its first call."""

    @dynamo_skip
    def __call__(self, module: nn.Module, *args: Any) -> None:
        for registry, flags in _REGISTRIES.items():
            hooks = module.__dict__[registry]
            for key in [key for key, one in [*hooks.items()] if one is self] if hooks else ():
                for name in (*flags, registry):  # the registry last, since its keys lead to the flags
                    module.__dict__[name].pop(key, None)


class MethodOverride:
    """A replacement for a method of one module, in its ``__dict__``. Copies of the module have the method below it.

    One module may have several, which can be removed in any order.

    Attributes:
        overridden: the function that was there before; None for the method of the class.
    """

    method = "forward"

    def __init__(self, module: nn.Module) -> None:
        self._module = weakref.ref(module)
        self._on = False
        self.overridden: Any = None
        self.__wrapped__ = getattr(type(module), self.method)  # a path to a variable finds the function by this

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.overridden or MethodType(self.__wrapped__, self))

    def install(self) -> None:
        module = self._module()
        if module is not None and not self._on:
            self.overridden = module.__dict__.get(self.method)
            self._on = True
            module.__dict__[self.method] = self

    def remove(self) -> None:
        """Remove this function; if another one wraps it by now, it only calls the one below."""
        module, self._on = self._module(), False
        if module is None:
            return
        above, held = None, module.__dict__.get(self.method)
        while isinstance(held, MethodOverride) and held is not self:
            above, held = held, held.overridden
        if held is not self:
            return
        if above is not None:
            above.overridden = self.overridden
        elif self.overridden is not None:
            module.__dict__[self.method] = self.overridden
        else:
            del module.__dict__[self.method]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run as the method: call `call_replacement`, or the overridden function once this one is removed."""
        return self.call_replacement(args, kwargs) if self._on else self.call_original(args, kwargs)

    def call_original(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.overridden is not None:
            return self.overridden(*args, **kwargs)
        return self.__wrapped__(self._module(), *args, **kwargs)

    def call_replacement(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError


HookPoint: TypeAlias = tuple[str, str, bool]
"""When a hook runs: the registry of the module, PyTorch's flag for the hook, and whether it runs before all others."""

BEFORE: HookPoint = ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", False)
"""Before the forward; the hook is called with ``(module, args, kwargs)``."""

AFTER: HookPoint = ("_forward_hooks", "_forward_hooks_with_kwargs", False)
"""After the forward; the hook is called with ``(module, args, kwargs, output)``."""

ALWAYS: HookPoint = ("_forward_hooks", "_forward_hooks_always_called", False)
"""After it, also if it raised, and even if another thread removed the hook just then: ``(module, args, output)``."""

ALWAYS_FIRST: HookPoint = (*ALWAYS[:2], True)

BEFORE_STATE_DICT: HookPoint = ("_state_dict_pre_hooks", "_state_dict_pre_hooks", False)
"""Before ``state_dict``, which has no flags: ``(module, prefix, keep_vars)``."""

Wanted: TypeAlias = tuple[nn.Module, Hook, HookPoint]


class Hooks:
    """The hooks of one attachment, which are installed and removed together.

    They are put into PyTorch's registries directly, under keys that are noted before: so whatever was put in can be
    taken out, wherever an interrupt came, and a hook costs a tenth of what it costs with a handle of PyTorch.
    """

    def __init__(self, attachment: Attachment) -> None:
        self.attachment = attachment
        self.pending: list[Wanted] = []
        self._placed: dict[int, Wanted] = {}
        self._classes: list[type[nn.Module]] = []

    def call(self, point: HookPoint, module: nn.Module, function: Callable[..., Any]) -> None:
        self.pending.append((module, Hook(function, 4 if point is AFTER else 3, self.attachment), point))

    def install(self) -> None:
        """Install the hooks, before those of later attachments; none on scripted modules, which run no hooks."""
        classes = {type(module): None for module, *_ in self.pending}
        if any(issubclass(kind, ScriptModule) for kind in classes):
            self.pending = [one for one in self.pending if not is_script(one[0])]
            classes = {type(module): None for module, *_ in self.pending}
        if not self.pending:
            return
        keys = RemovableHandle.next_id
        RemovableHandle.next_id = keys + len(self.pending)
        self._placed = dict(enumerate(self.pending, keys))
        self._classes = [*classes]
        _unhooked_copies.add(self, self._classes)
        order = self.attachment.order
        for key, (module, hook, (registry, flag, first)) in self._placed.items():
            held = module.__dict__
            held[flag][key] = True
            hooks = held[registry]
            hooks[key] = hook
            if first:
                hooks.move_to_end(key, last=False)
            elif len(hooks) > 1:
                _in_order(hooks, order)

    def remove(self) -> None:
        if self._classes:
            self.keep(())
            _unhooked_copies.discard(weakref.ref(self), self._classes)
            self._classes = []

    def keep(self, modules: Container[int]) -> None:
        """Remove the hooks from all modules except these, given by ``id``."""
        kept = {}
        for key, pending in self._placed.items():
            module, _, (registry, flag, _) = pending
            if id(module) in modules:
                kept[key] = pending
            else:
                module.__dict__[registry].pop(key, None)
                module.__dict__[flag].pop(key, None)
        self._placed = kept


def _in_order(hooks: OrderedDict[int, Any], order: int) -> None:
    now = [*hooks.items()]  # other threads may attach and remove meanwhile
    later = [(key, hook) for key, hook in now if issubclass(type(hook), Hook) and hook.attachment.order > order]
    for key, _ in sorted(later, key=lambda found: found[1].attachment.order):
        with suppress(KeyError):
            hooks.move_to_end(key)


def attachments_of(model: nn.Module) -> list[Attachment]:
    """Return the attachments of a model, in the order of attaching."""
    hooks = model.__dict__["_forward_pre_hooks"].values()
    found = {hook.attachment.order: hook.attachment for hook in hooks if issubclass(type(hook), Hook)}
    return [found[order] for order in sorted(found) if found[order].model is model]


class _UnhookedCopies:
    """The classes of hooked modules, registered in ``copyreg`` so that copies and pickles leave byname's hooks out.

    `copy`, `pickle` and ``torch.save`` all look into ``copyreg``. Its entries belong to classes, so a class has one
    while a module of it is hooked. Other modules of the class are copied as before.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: the garbage collector may free a model, and so call this, any time
        self._users: dict[type[nn.Module], set[weakref.ref[Hooks]]] = {}

    def add(self, user: Hooks, classes: list[type[nn.Module]]) -> None:
        """Register the classes, until they are discarded or the attachment is freed with its model."""
        held = weakref.ref(user, self._forget)
        with self._lock:
            for kind in classes:
                self._users.setdefault(kind, set()).add(held)
                copyreg.dispatch_table.setdefault(kind, _without_hooks)

    def _forget(self, freed: weakref.ref[Hooks]) -> None:
        self.discard(freed, [*self._users])

    def discard(self, user: weakref.ref[Hooks], classes: list[type[nn.Module]]) -> None:
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
    "_state_dict_pre_hooks": (),
}


def _without_hooks(module: nn.Module) -> Any:
    """Return the reduced value of a module, for a copy or a pickle, without byname's hooks, forwards and parameters."""
    reduced: Any = module.__reduce_ex__(2)
    if type(reduced) is not tuple or len(reduced) < 3 or type(reduced[2]) is not dict:
        return reduced
    state = dict(reduced[2])
    for name in reduced[2]:
        while isinstance(state.get(name), MethodOverride):
            overridden = state.pop(name).overridden
            state.update({} if overridden is None else {name: overridden})
    held, saved = reduced[2].get("_parameters") or {}, reversed((state.get("_state_dict_pre_hooks") or {}).values())
    replaced = [one for hook in saved if issubclass(type(hook), Hook) for one in hook.attachment.substitutes[::-1]]
    if own := {one.name: one.value for one in replaced if one.registry is held}:  # of several the first one's
        state["_parameters"] = {**held, **own}
    for registry, flags in _REGISTRIES.items():
        hooks = state.get(registry) or {}
        ours = {key for key, hook in hooks.items() if issubclass(type(hook), Hook)}
        if ours:
            for name in (registry, *flags):
                state[name] = OrderedDict((key, one) for key, one in state[name].items() if key not in ours)
    return (*reduced[:2], state, *reduced[3:])
