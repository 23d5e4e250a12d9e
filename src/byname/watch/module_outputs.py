"""Module outputs: hooks that report the outputs of modules, or hook these for their gradients.

Every module of a model may have such a hook, so the usual case is written out in the hook itself. All other cases call
the function of `byname.watch.delivery`, which is slower.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from byname.model.spot import Spot
from byname.reading.modes import FUNCTIONS
from byname.reading.quiet import dynamo_skip
from byname.reading.tensor import is_tensor
from byname.tracing.muted import UNDER_WAY
from byname.watch.attachment import Event, Running, runs
from byname.watch.delivery import Deliver, Delivered, OfGradients, ReshapedGradient, ValueGradient, by_module
from byname.watch.hooks import Hook, Hooks
from byname.watch.inplace import overwrite
from byname.watch.value_gradients import HOOKING, node_reshaped

_GONE = object()

Wanting = Callable[[], Sequence[Delivered]]
"""A function that returns the places that match a call, each with the function that reports the output."""


def hook_outputs(hooks: Hooks, running: Running, spots: Sequence[Delivered]) -> None:
    """Add hooks that report the outputs of modules.

    Args:
        hooks: the hooks of the attachment.
        running: the attachment.
        spots: the places of modules, each with the function that reports its values.
    """
    for module, found in by_module(spots):
        if running.before is not None:
            hook_calls(hooks, running, module, _always(found))
        else:
            hooks.after(module, _hook_of(running, found))


def hook_calls(hooks: Hooks, running: Running, module: nn.Module, wanting: Wanting) -> None:
    """Add hooks that report the output of a module at the places that matched when the call began.

    Args:
        hooks: the hooks of the attachment.
        running: the attachment.
        module: the module.
        wanting: a function that is called when a call begins, and returns the matching places.
    """
    calls = _Calls(running, wanting)
    hooks.before(module, calls.begin)
    hooks.after(module, calls)
    hooks.after(module, calls.ended, always=True)


def hook_ends(hooks: Hooks, running: Running, module: nn.Module, wanting: Wanting) -> None:
    """Add a hook that reports the output of a module at the places that match when the call ends.

    Args:
        hooks: the hooks of the attachment.
        running: the attachment.
        module: the module.
        wanting: a function that is called when a call ends, and returns the matching places.
    """

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        found = wanting() if running.hears() else ()
        return _deliver(running, [deliver for _, deliver in found], module, args, kwargs, output)

    hooks.after(module, hook)


def _always(found: list[Delivered]) -> Wanting:
    return lambda: found


def _hook_of(running: Running, found: list[Delivered]) -> Callable[..., Any]:
    spot, deliver = found[0]
    if len(found) > 1 or spot.items:
        return partial(_deliver, running, [deliver for _, deliver in found])
    if isinstance(deliver, OfGradients):
        return _GradientHook(running, deliver)
    return _OutputHook(running, spot, deliver)


class _OutputHook(Hook):
    """The hook that reports the whole output of a module.

    Attributes:
        function: the general function, for all but the usual case.
        told: whether the place has reported something, so that nothing is left to note about it.
    """

    __slots__ = ("module", "path", "told")

    def __init__(self, running: Running, spot: Spot, deliver: Deliver) -> None:
        super().__init__(deliver, 4, running)
        self.module = spot.module
        self.path = spot.full
        self.told = False

    @dynamo_skip
    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any = _GONE) -> Any:
        """Report the output; do nothing if the hook was removed meanwhile: PyTorch then passes no output."""
        running = self.running
        here = running.thread.here
        if (
            not (self.told and running.everything)
            or here.busy
            or here.modes
            or UNDER_WAY
            or here.iteration < 0
            or output is _GONE
            or _graph_task() != -1
        ):
            return self._longer(module, args, kwargs, output)
        path, calls = self.path, here.calls
        call = calls.get(path, 0)
        calls[path] = call + 1
        inputs = (*args, *kwargs.values()) if kwargs else args
        event = Event(path, self.module, output, inputs, call, False, here.iteration, None, "module")
        try:
            here.busy.append(running)
            callback = running.callback  # reading the attribute before calling it is faster
            new = callback(event)
        except Exception as error:
            running.blame(event, error)
            raise
        finally:
            here.busy.clear()
        if new is None or new is output:
            return None
        running.replaced(event, new)
        return _put(running, module, args, output, new)

    def _longer(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        """Report the output in all but the usual case."""
        if output is _GONE:
            return None
        new = _deliver(self.running, (self.function,), module, args, kwargs, output)
        self.told = self.path in self.running.heard.reached
        return new


def _deliver(
    running: Running,
    delivers: Sequence[Deliver],
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    output: Any,
) -> Any:
    """Report an output at each of the places; return what replaces it."""
    new, inputs = output, (*args, *kwargs.values())
    for deliver in delivers:
        new = deliver(new, inputs)
    return new if new is output else _put(running, module, args, output, new)


def _put(running: Running, module: nn.Module, args: tuple[Any, ...], output: Any, new: Any) -> Any:
    """Return what replaces an output.

    The caller of a module that works in place may ignore the output and use its argument, so that is overwritten.
    """
    in_place = module.__dict__.get("inplace") is True and args and args[0] is output and is_tensor(output)
    if not in_place:
        return new
    if torch.is_grad_enabled() and output.requires_grad and output._is_view():
        running.notes.setdefault(
            f"a {type(module).__name__} works in place on a view: what takes the place of its value is seen by who "
            "reads what it returns, not by who goes on with the tensor that it was given"
        )
        return new
    overwrite(output, new)
    return output


class _Calls:
    """The hooks that report the outputs of a module, with the result of ``before`` from the beginning of the call."""

    def __init__(self, running: Running, wanting: Wanting) -> None:
        self._running = running
        self._wanting = wanting
        self._here = _OutputsHere()

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the matching places when a call begins, and call ``before`` for each."""
        if self._here.begun and not runs(module, 2):  # an interrupt came between the hooks of an earlier call
            self._here.begun.clear()
        found = self._wanting() if self._running.hears() else ()
        tokens = [self._running.begins(spot.full, module, args, kwargs) for spot, _ in found]
        self._here.begun.append([(deliver, token) for (_, deliver), token in zip(found, tokens, strict=True)])

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        begun, new = self._here.begun, output
        for deliver, token in begun[-1] if begun else self._unbegun():
            new = deliver(new, (*args, *kwargs.values()), token)
        return new if new is output else _put(self._running, module, args, output, new)

    def _unbegun(self) -> list[tuple[Deliver, Any]]:
        """Return the functions that report the output of a call that had begun before the hooks were installed."""
        return [(deliver, None) for _, deliver in self._wanting()]

    def ended(self, *_: Any) -> None:
        """Forget the call when it has ended or raised."""
        if self._here.begun:
            self._here.begun.pop()


class _OutputsHere(threading.local):
    def __init__(self) -> None:
        self.begun: list[list[tuple[Deliver, Any]]] = []


class _GradientHook(Hook):
    """The hook that hooks the output of a module, if it is one tensor, to report its gradient.

    Attributes:
        function: the general function, for all but the usual case.
        place: the place at which the gradient is reported.
    """

    __slots__ = ("place",)

    def __init__(self, running: Running, deliver: OfGradients) -> None:
        super().__init__(deliver, 4, running)
        self.place = deliver.place()

    @dynamo_skip
    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any = _GONE) -> Any:
        """Hook the output; do nothing if this hook was removed meanwhile: PyTorch then passes no output."""
        running, place = self.running, self.place
        here = running.thread.here
        if (
            not (place.waited and running.everything)
            or here.busy
            or UNDER_WAY
            or here.iteration < 0
            or type(output) is not Tensor
            or kwargs
            or _modes_on()
            or _graph_task() != -1
            or output.grad_fn is None
        ):
            return None if output is _GONE else self._longer(module, args, kwargs, output)
        for one in args:
            if one is output:
                return self._longer(module, args, kwargs, output)
        known = found = None
        if output._is_view():
            known = here.latest.of(output)
            found = node_reshaped(output) if known is None else None
            if known is found:
                return self._longer(module, args, kwargs, output)
        path, calls, iteration, stamp = place.path, here.calls, here.iteration, running.stamp
        call = calls.get(path, 0)
        calls[path] = call + 1
        stamped = None if stamp is None else stamp(iteration)
        if found is not None:
            node, slot = found
            hook = ReshapedGradient(place, call, iteration, stamped)
            hook.size, hook.slot = output.shape, slot
            node.register_prehook(hook)
            here.latest.note(output, hook)
        elif known is not None:
            known.append(ValueGradient(place, call, iteration, stamped))
        else:
            _hook(output, ValueGradient(place, call, iteration, stamped))
        return None

    def _longer(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        """Hook the output in all but the usual case."""
        return _deliver(self.running, (self.function,), module, args, kwargs, output)


def _hook(output: Tensor, hook: ValueGradient) -> None:
    """Hook a tensor; if a module inside this one returned the same tensor and hooked it, append to that hook."""
    with HOOKING:
        hooks = output._backward_hooks
        last = hooks[next(reversed(hooks))] if hooks else None
        if type(last) is ValueGradient:
            last.append(hook)
        else:
            output.register_hook(hook)  # type: ignore[no-untyped-call]


_modes_on: Callable[[], int] = FUNCTIONS.depth
_graph_task: Callable[[], int] = torch._C._current_graph_task_id
