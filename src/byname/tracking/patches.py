"""Patches: wrappers that record the calls a function mode does not see, in place while some thread is watched.

Wraps ``nn.Module._call_impl`` (to know the running module and its result), custom ``Function.apply``,
``nn.Parameter(...)``, ``torch.from_numpy``, ``torch.compile``, ``torch.jit.trace``, the end of an optimizer's step, and
the showing of warnings.
The old constructors (``torch.FloatTensor(...)``) cannot be wrapped; such a tensor is met when ``requires_grad`` is set
on it, and its making is then read from the source.
"""

from __future__ import annotations

import functools
import sys
import threading
import types
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from byname.reading.functions import MAKING
from byname.reading.modes import DISPATCHES, FUNCTIONS
from byname.reading.objects import attributes_of, found_in
from byname.reading.quiet import dynamo_skip, torch_function_disabled
from byname.source.location import is_library
from byname.source.tracebacks import clean, meant_frame
from byname.tracking.compiled import Compiled
from byname.tracking.depth import Deeper
from byname.tracking.log import Called, Log
from byname.tracking.mode import TrackingMode, restore, suspend
from byname.tracking.optimizers import Steps
from byname.undo import Patch, Shared


def start(watch: TrackingMode) -> None:
    """Begin to watch this thread."""
    FUNCTIONS.push(watch)
    if watch.allocating is not None:
        DISPATCHES.push(watch.allocating)
    _UNSEEN.watch(watch)


def stop(watch: TrackingMode) -> None:
    """Stop a tracking mode and restore everything, even if other modes were entered since and have not been left.

    The call is also valid if `start` succeeded only in part, and again if `stop` was interrupted.
    """
    try:  # each of them, whatever the others raise; signals wait already
        watch.disable()
    finally:
        try:
            _UNSEEN.unwatch(watch)
        finally:
            try:
                FUNCTIONS.remove(watch)
            finally:
                if watch.allocating is not None:
                    DISPATCHES.remove(watch.allocating)


class _Unseen:
    """The calls that a function mode does not see, wrapped while any thread is watched."""

    def __init__(self) -> None:
        self._watched = Shared(self._install, self._remove)
        self._watches: dict[int, list[TrackingMode]] = {}
        self._compiled = Compiled(self._watches, self._hide, self._show)
        self._steps = Steps(self._watches)
        self._patches = [
            Patch(torch.autograd.Function, "apply", _once(self._noted, classmethod)),
            Patch(nn.Parameter, "__new__", _once(self._noted, staticmethod)),
            Patch(torch, "from_numpy", _once(self._noted)),
            Patch(nn.Module, "_call_impl", _once(self._running)),
            Patch(torch, "compile", _once(self._compiling)),
            Patch(torch.jit, "trace", _once(self._unwatched)),
            Patch(torch.autograd.profiler.record_function, "__exit__", _once(self._steps.ending)),
            Patch(torch._utils.ExceptionWrapper, "__init__", _once(_cleaning)),
            Patch(warnings, "_showwarnmsg", _once(_about_the_program)),
        ]
        self._hook: Any = None
        self._deeper = Deeper()

    def watch(self, watch: TrackingMode) -> None:
        """Add a tracking mode; the first one installs the wrappers. If this raises, `unwatch` takes off what it did."""
        with self._watched.lock:
            self._watches.setdefault(watch.log.thread, []).append(watch)
            self._watched.hold(watch)
            self._compiled.watch()

    def unwatch(self, watch: TrackingMode) -> None:
        """Remove a tracking mode; the last one restores the originals. A second call does nothing."""
        with self._watched.lock:
            watches = self._watches.get(watch.log.thread, [])
            if watch in watches:
                watches.remove(watch)
            if not watches:
                self._watches.pop(watch.log.thread, None)
            self._watched.release(watch)

    def _install(self) -> None:
        self._deeper.install()
        for patch in self._patches:
            patch.install()
        self._hear_of_steps()

    def _remove(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        for patch in self._patches:
            patch.remove()
        self._deeper.remove()
        self._compiled.unwatch()

    def _hide(self) -> None:
        """Remove the wrappers for a while."""
        with self._watched.lock:
            self._hook.remove()
            for patch in self._patches:
                patch.hide()

    def _show(self) -> None:
        """Put the wrappers back, unless no thread is watched any more."""
        with self._watched.lock:
            if self._watches:
                self._hear_of_steps()
            for patch in self._patches:
                patch.show()

    def _hear_of_steps(self) -> None:
        """Register the hook of optimizers; its handle is made only once, because making it is slow."""
        if self._hook is None:
            self._hook = register_optimizer_step_pre_hook(self._steps.begin)
        else:
            self._hook.hooks_dict_ref()[self._hook.id] = self._steps.begin

    def _noted(self, function: Any) -> Any:
        """Return a wrapper that records each call of a function that makes tensors."""
        called = Called(function.__name__.replace("__new__", "Parameter"), MAKING, False)

        @dynamo_skip
        def noted(*args: Any, **kwargs: Any) -> Any:
            watches = self._watches.get(threading.get_ident())
            if not watches or torch_function_disabled():
                return function(*args, **kwargs)
            before = torch._C._autograd._get_sequence_nr()
            result = function(*args, **kwargs)
            for watch in watches:
                watch.note_unseen(called, args, result, before, sys._getframe(1))
            return result

        return noted

    def _running(self, call: Any) -> Any:
        """Return a wrapper of the module call that enters the running module in the log."""

        @dynamo_skip
        def running(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            watches = self._watches.get(threading.get_ident())
            if not watches:
                return call(module, *args, **kwargs)
            if len(watches) > 1:
                return _run_in_all([watch.log for watch in watches], call, module, args, kwargs)
            log = watches[0].log
            depth = log.enter(module)
            if log.listener is not None:
                log.listener.ran(module, args, kwargs, depth, sys._getframe(1))
            try:
                output = call(module, *args, **kwargs)
            finally:
                del log.modules[depth:]
            log.note_return(output)
            return output

        return running

    def _unwatched(self, function: Any) -> Any:
        """Return a wrapper that takes the mode off for a function that inspects the Python stack and would find it."""

        @dynamo_skip
        def unwatched(*args: Any, **kwargs: Any) -> Any:
            watches = list(self._watches.get(threading.get_ident(), ()))
            before = suspend(watches)
            try:
                return function(*args, **kwargs)
            finally:
                restore([watch for watch in watches if not watch.stopped], before)

        return unwatched

    def _compiling(self, compile_: Any) -> Any:
        @dynamo_skip
        def compiling(*args: Any, **kwargs: Any) -> Any:
            compiled = compile_(*args, **kwargs)
            with self._watched.lock:
                if self._watches:
                    self._compiled.watch()
            return compiled

        return compiling


def _run_in_all(logs: list[Log], call: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
    """Call a module in a thread that several trackers watch."""
    depths = [log.enter(module) for log in logs]
    try:
        output = call(module, *args, **kwargs)
    finally:
        for log, depth in zip(logs, depths, strict=True):
            del log.modules[depth:]
    for log in logs:
        log.note_return(output)
    return output


def _cleaning(wrap: Any) -> Any:
    """Return a wrapper that takes byname's frames out of an error which another process or thread is to raise again."""

    def cleaning(*args: Any, **kwargs: Any) -> None:
        error = sys.exc_info()[1]
        if error is not None:
            clean(error)
        wrap(*args, **kwargs)

    return cleaning


def _about_the_program(show: Callable[[warnings.WarningMessage], None]) -> Callable[[warnings.WarningMessage], None]:
    """Return a wrapper of ``warnings._showwarnmsg`` that issues a warning about byname's line for the program's line.

    So the program's filters decide about it, and Python's memory of what was shown is that of the program's line.
    """

    @functools.wraps(show)
    def showing(message: warnings.WarningMessage) -> None:
        found = meant_frame(message.filename, message.lineno)
        if found is None:
            show(message)
        else:
            _forget(message, found[0])
            _issue(message, found[1])

    return showing


def _forget(message: warnings.WarningMessage, frame: FrameType) -> None:
    """Remove a warning from Python's memory of what was shown, once a line and once at all, of a frame's module."""
    key = str(message.message), message.category
    frame.f_globals.get("__warningregistry__", {}).pop((*key, message.lineno), None)
    vars(warnings).get("onceregistry", {}).pop(key, None)


def _issue(message: warnings.WarningMessage, frame: FrameType) -> None:
    warnings.warn_explicit(
        message.message,
        message.category,
        frame.f_code.co_filename,
        frame.f_lineno or 0,
        frame.f_globals.get("__name__"),
        frame.f_globals.setdefault("__warningregistry__", {}),
        source=message.source,
    )


def _once(make: Callable[[Any], Any], bind: Callable[[Any], Any] | None = None) -> Callable[[Any], Any]:
    """Return a function that makes a wrapper of an attribute. One of a library's function is kept for the next time.

    Args:
        make: makes a wrapper of the function itself.
        bind: such as `staticmethod`, where the attribute is one.
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
    """Return whether a function is PyTorch's or Python's own, and not something that was put in its place."""
    code = getattr(function, "__code__", None)
    if code is None:
        return type(function) is types.BuiltinFunctionType
    return is_library(code.co_filename) and set(code.co_freevars) <= {"__class__"}  # which `super()` refers to


_UNSEEN = _Unseen()
"""One object for the process, because it wraps attributes of the process; it is empty while nothing tracks."""


_Context = Callable[[], AbstractContextManager[Any]]


class _NewThreads:
    """Wraps ``Thread.start`` so that each new thread runs inside given contexts."""

    def __init__(self) -> None:
        patch = Patch(threading.Thread, "start", self._starting)
        self._contexts = Shared(patch.install, patch.remove)

    def begin(self, context: _Context) -> None:
        """Run each thread started from now on in a context of its own, which `context` makes."""
        self._contexts.hold(context)

    def end(self, context: _Context) -> None:
        """Stop using `context` for new threads. A second call does nothing."""
        self._contexts.release(context)

    def _starting(self, original: Callable[..., None]) -> Callable[..., None]:
        def start(thread: threading.Thread) -> None:
            if _is_computed(found_in(type(thread), "run")):
                return original(thread)
            own = attributes_of(thread)
            former = own.get("run", _NONE)
            own["run"] = ours = functools.partial(_in_contexts, thread, former, self._contexts.holders)
            try:
                original(thread)
            except BaseException:
                if own.get("run") is ours:
                    _restore(own, former)
                raise
            return None

        return start


def _in_contexts(thread: threading.Thread, former: object, contexts: Sequence[_Context]) -> None:
    """Run a thread inside the contexts that were active when it was started, and restore its own ``run``."""
    _restore(attributes_of(thread), former)
    with ExitStack() as entered:
        for context in contexts:
            entered.enter_context(context())
        try:
            thread.run()
        except BaseException:
            _report_cleaned(attributes_of(thread))
            raise


def _report_cleaned(own: dict[str, Any]) -> None:
    """Make a thread report its error without the frame that byname adds between the thread and its ``run``."""
    report = own.get("_invoke_excepthook")
    if report is None:  # private to Thread: a version without it shows the frame
        return

    def cleaned(thread: threading.Thread) -> None:
        own["_invoke_excepthook"] = report
        error = sys.exc_info()[1]
        if error is not None:
            clean(error)
        report(thread)

    own["_invoke_excepthook"] = cleaned


def _is_computed(attribute: object) -> bool:
    """Return whether a class computes an attribute, as a property does, and so ignores an instance attribute."""
    return hasattr(type(attribute), "__set__")


def _restore(own: dict[str, Any], former: object) -> None:
    """Restore a thread's own ``run`` attribute; most threads have none."""
    if former is _NONE:
        own.pop("run", None)
    else:
        own["run"] = former


_NONE = object()

NEW_THREADS = _NewThreads()
"""One object for the process, because it wraps an attribute of the process; it is empty while nothing tracks."""
