"""Patches: wrappers that record the calls a function mode does not see, in place while some thread is watched.

They wrap ``nn.Module._call_impl`` (for the running module and its result), custom ``Function.apply``,
``nn.Parameter(...)``, ``torch.from_numpy``, ``torch.compile``, ``torch.jit.trace``, ``record_function`` (around an
optimizer's step and ``zero_grad()``). The old constructors (``torch.FloatTensor(...)``)
cannot be wrapped; byname first sees such a tensor when ``requires_grad`` is set on it, and then reads from the source
where it was made.
"""

from __future__ import annotations

import functools
import sys
import threading
import types
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from byname.reading.modes import DISPATCHES, FUNCTIONS
from byname.reading.quiet import dynamo_skip, torch_function_disabled
from byname.source.location import is_library
from byname.source.tracebacks import meant_frame, strip_byname_frames
from byname.tracking.depth import RECURSION_LIMIT
from byname.tracking.log import Called
from byname.tracking.mode import TrackingMode
from byname.tracking.unwatched import Compiled, OptimizerSteps
from byname.undo import Patch, Shared


def start(mode: TrackingMode) -> None:
    FUNCTIONS.push(mode)
    if mode.allocating is not None:
        DISPATCHES.push(mode.allocating)
    _CALL_PATCHES.watch(mode)


def stop(mode: TrackingMode) -> None:
    """Stop a tracking mode and restore everything, even if other modes were entered since and have not been left.

    The call is also valid if `start` succeeded only in part, and again if `stop` was interrupted.
    """
    with ExitStack() as steps:  # whatever one of these raises, the others run; signals wait already
        if mode.allocating is not None:
            steps.callback(DISPATCHES.remove, mode.allocating)
        steps.callback(FUNCTIONS.remove, mode)
        steps.callback(_CALL_PATCHES.unwatch, mode)
        mode.disable()


class _CallPatches:
    """The calls that a function mode does not see, wrapped while any thread is watched."""

    def __init__(self) -> None:
        self._watched = Shared(self._install, self._remove)
        self._tracking_modes: dict[int, list[TrackingMode]] = {}
        self._compiled = Compiled(self._tracking_modes, self._hide, self._show)
        self._steps = OptimizerSteps(self._tracking_modes)
        self._patches = [
            Patch(torch.autograd.Function, "apply", _cached_wrapper(self._recording_wrapper, classmethod)),
            Patch(nn.Parameter, "__new__", _cached_wrapper(self._recording_wrapper, staticmethod)),
            Patch(torch, "from_numpy", _cached_wrapper(self._recording_wrapper)),
            Patch(nn.Module, "_call_impl", _cached_wrapper(self._module_call_wrapper)),
            Patch(torch, "compile", _cached_wrapper(self._compile_wrapper)),
            Patch(torch.jit, "trace", _cached_wrapper(self._untracked_wrapper)),
            Patch(torch.autograd.profiler.record_function, "__enter__", _cached_wrapper(self._steps.wrap_enter)),
            Patch(torch.autograd.profiler.record_function, "__exit__", _cached_wrapper(self._steps.wrap_exit)),
            Patch(torch._utils.ExceptionWrapper, "__init__", _cached_wrapper(_traceback_cleaner)),
        ]
        self._hook: Any = None

    def watch(self, mode: TrackingMode) -> None:
        """Add a tracking mode; the first one installs the wrappers. If this raises, `unwatch` undoes it."""
        with self._watched.lock:
            self._tracking_modes.setdefault(mode.log.thread, []).append(mode)
            self._watched.hold(mode)
            self._compiled.watch()

    def unwatch(self, mode: TrackingMode) -> None:
        """Remove a tracking mode; the last one restores the originals. A second call does nothing."""
        with self._watched.lock:
            tracking_modes = self._tracking_modes.get(mode.log.thread, [])
            if mode in tracking_modes:
                tracking_modes.remove(mode)
            if not tracking_modes:
                self._tracking_modes.pop(mode.log.thread, None)
            self._watched.release(mode)

    def _install(self) -> None:
        RECURSION_LIMIT.hold(self)
        WARNING_LINES.hold(self)
        for patch in self._patches:
            patch.install()
        self._register_hook()

    def _remove(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        for patch in self._patches:
            patch.remove()
        WARNING_LINES.release(self)
        RECURSION_LIMIT.release(self)
        self._compiled.unwatch()

    def _hide(self) -> None:
        with self._watched.lock:
            self._hook.remove()
            for patch in self._patches:
                patch.hide()

    def _show(self) -> None:
        """Put the wrappers back, unless no thread is watched any more."""
        with self._watched.lock:
            if self._tracking_modes:
                self._register_hook()
            for patch in self._patches:
                patch.show()

    def _register_hook(self) -> None:
        """Register the hook of optimizers; its handle is made only once, because making it is slow."""
        if self._hook is None:
            self._hook = register_optimizer_step_pre_hook(self._steps.begin)
        else:
            self._hook.hooks_dict_ref()[self._hook.id] = self._steps.begin

    def _recording_wrapper(self, function: Any) -> Any:
        called = Called(function.__name__.replace("__new__", "Parameter"), False)

        @dynamo_skip
        def noted(*args: Any, **kwargs: Any) -> Any:
            tracking_modes = self._tracking_modes.get(threading.get_ident())
            if not tracking_modes or torch_function_disabled():
                return function(*args, **kwargs)
            before = torch._C._autograd._get_sequence_nr()
            result = function(*args, **kwargs)
            for mode in tracking_modes:
                mode.note_unseen(called, args, result, before, sys._getframe(1))
            return result

        return noted

    def _module_call_wrapper(self, call: Any) -> Any:
        @dynamo_skip
        def running(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            tracking_modes = self._tracking_modes.get(threading.get_ident())
            if not tracking_modes:
                return call(module, *args, **kwargs)
            entered = [(mode.log, mode.log.enter(module)) for mode in tracking_modes]
            for log, depth in entered:
                if log.listener is not None:
                    log.listener.ran(module, args, kwargs, depth, sys._getframe(1))
            try:
                output = call(module, *args, **kwargs)
            finally:
                for log, depth in entered:
                    del log.modules[depth:]
            for log, _ in entered:
                log.note_return(output)
            return output

        return running

    def _untracked_wrapper(self, function: Any) -> Any:
        """Return a wrapper that takes the modes off while a function inspects the Python stack and would find them."""

        @dynamo_skip
        def unwatched(*args: Any, **kwargs: Any) -> Any:
            tracking_modes = list(self._tracking_modes.get(threading.get_ident(), ()))
            functions = FUNCTIONS.remove_all(tracking_modes)
            dispatches = DISPATCHES.remove_all([mode.allocating for mode in tracking_modes])
            try:
                return function(*args, **kwargs)
            finally:
                wanted = [mode for mode in tracking_modes if not mode.stopped]
                FUNCTIONS.restore(wanted, functions)
                DISPATCHES.restore([mode.allocating for mode in wanted], dispatches)

        return unwatched

    def _compile_wrapper(self, compile_: Any) -> Any:
        @dynamo_skip
        def compiling(*args: Any, **kwargs: Any) -> Any:
            compiled = compile_(*args, **kwargs)
            with self._watched.lock:
                if self._tracking_modes:
                    self._compiled.watch()
            return compiled

        return compiling


def _traceback_cleaner(wrap: Any) -> Any:
    """Return a wrapper that removes byname's frames from an error that another process or thread raises again."""

    def cleaning(*args: Any, **kwargs: Any) -> None:
        error = sys.exc_info()[1]
        if error is not None:
            strip_byname_frames(error)
        wrap(*args, **kwargs)

    return cleaning


def _warning_relocator(show: Callable[[warnings.WarningMessage], None]) -> Callable[[warnings.WarningMessage], None]:
    """Return a wrapper of ``warnings._showwarnmsg`` that reissues a warning about byname's line at the program's line.

    There the program's filters apply to it, and Python counts it as shown there.
    """

    @functools.wraps(show)
    def showing(message: warnings.WarningMessage) -> None:
        found = meant_frame(message.filename, message.lineno)
        if found is None:
            show(message)
        else:
            _forget(message, found[0])
            warnings.warn_explicit(
                message.message,
                message.category,
                found[1].f_code.co_filename,
                found[1].f_lineno or 0,
                found[1].f_globals.get("__name__"),
                found[1].f_globals.setdefault("__warningregistry__", {}),
                source=message.source,
            )

    return showing


def _forget(message: warnings.WarningMessage, frame: FrameType) -> None:
    """Remove a warning from Python's records of warnings shown, both a frame's module's and the global one."""
    key = str(message.message), message.category
    frame.f_globals.get("__warningregistry__", {}).pop((*key, message.lineno), None)
    vars(warnings).get("onceregistry", {}).pop(key, None)


_RELOCATING = Patch(warnings, "_showwarnmsg", _warning_relocator)
WARNING_LINES = Shared(_RELOCATING.install, _RELOCATING.remove)
"""Warnings have the line of the program while anything holds this, and not that of byname's function mode."""


def _cached_wrapper(make: Callable[[Any], Any], bind: Callable[[Any], Any] | None = None) -> Callable[[Any], Any]:
    """Return a function that makes a wrapper of an attribute, bound as a `staticmethod` or the like if `bind` says so.

    The wrapper of a library's function is cached.
    """
    made: dict[int, tuple[Any, Any]] = {}

    def wrapper_of(original: Any) -> Any:
        if id(original) in made:
            return made[id(original)][1]
        function = getattr(original, "__func__", original)
        wrapper = functools.wraps(function)(make(function))
        bound = wrapper if bind is None else bind(wrapper)
        if _is_a_librarys(function):  # a patch of the program's may hold anything, and must not live on here
            made[id(original)] = original, bound
        return bound

    return wrapper_of


def _is_a_librarys(function: Any) -> bool:
    """Return whether a function is PyTorch's or Python's own, and not a replacement of it."""
    code = getattr(function, "__code__", None)
    if code is None:
        return type(function) is types.BuiltinFunctionType
    return is_library(code.co_filename) and set(code.co_freevars) <= {"__class__"}  # which `super()` refers to


_CALL_PATCHES = _CallPatches()
"""One object for the process, because it wraps attributes of the process; it is empty while nothing tracks."""


def _in_contexts(body: Callable[..., None]) -> Callable[..., None]:
    def in_contexts(thread: threading.Thread) -> None:
        with ExitStack() as entered:
            try:
                for context in NEW_THREADS.holders:
                    entered.enter_context(context())
            finally:
                body(thread)  # in any case, since whoever has started the thread waits until it runs

    return in_contexts


_THREAD_BODY = Patch(threading.Thread, "_bootstrap_inner", _in_contexts)
NEW_THREADS = Shared(_THREAD_BODY.install, _THREAD_BODY.remove)
"""New threads run in contexts while anything holds this: its holders are functions that make one for each thread."""
