"""Outside: the state that a forward reads besides its arguments; a graph would keep its values from tracing.

PyTorch state (``torch.is_grad_enabled()``, autocast, the default dtype) is recorded. A graph is valid for one value of
this state, and another value gets a graph of its own. Random numbers and the time change with each call, so they are
refused. Function modes do not see these queries (PyTorch 2.13), so a profile function (`sys.setprofile`) observes them.
"""

from __future__ import annotations

import datetime
import importlib
import itertools
import os
import pickle
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

from byname.reading.objects import parents_of
from byname.rewriting.proxies import Untraceable
from byname.source.location import is_library, is_torch
from byname.source.tracebacks import is_byname


def _known_to_autocast() -> Iterator[str]:
    for kind in ("cpu", "cuda", "mps", "xpu", "hpu", "mtia", "maia", "ipu", "xla", "privateuseone"):
        with suppress(RuntimeError, ValueError):  # this PyTorch was built without the device
            torch.get_autocast_dtype(kind)
            torch.is_autocast_enabled(kind)
            yield kind


_KINDS = tuple(_known_to_autocast())


def autocast_state() -> tuple[Any, ...]:
    """Return (enabled, dtype) of autocast for each type of device."""
    return tuple([(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _KINDS])


def other_modes(answers: Mapping[str, Any]) -> Iterator[Callable[[], AbstractContextManager[Any]]]:
    """Yield context managers for the likely other values of the modes that the forward asked for."""
    grad = [torch.is_grad_enabled()]
    cast = [frozenset(kind for kind in _KINDS if torch.is_autocast_enabled(kind))]
    if "is_grad_enabled" in answers:
        grad.append(not grad[0])
    if "autocast" in answers:
        cast += [frozenset()] if cast[0] else [frozenset([kind]) for kind in _KINDS[:2]]
    for enabled, kinds in [*itertools.product(grad, cast)][1:]:
        yield partial(_in_modes, enabled, kinds)


@contextmanager
def _in_modes(grad: bool, cast: frozenset[str]) -> Iterator[None]:
    before = [torch.is_autocast_enabled(kind) for kind in _KINDS]
    with torch.set_grad_enabled(grad):
        try:
            for kind in _KINDS:
                torch.set_autocast_enabled(kind, kind in cast)
            yield
        finally:
            for kind, enabled in zip(_KINDS, before, strict=True):
                torch.set_autocast_enabled(kind, enabled)


_STATES: dict[str, Callable[[], Any]] = {
    "is_grad_enabled": torch.is_grad_enabled,
    "is_inference_mode_enabled": torch.is_inference_mode_enabled,
    "autocast": autocast_state,
    "is_autocast_cache_enabled": torch.is_autocast_cache_enabled,
    "get_default_dtype": torch.get_default_dtype,
    "get_default_device": torch.get_default_device,
    "are_deterministic_algorithms_enabled": torch.are_deterministic_algorithms_enabled,
    "is_anomaly_enabled": torch.is_anomaly_enabled,
    "get_float32_matmul_precision": torch.get_float32_matmul_precision,
}
"""The queries of PyTorch state, by name."""


def _askable() -> Iterator[tuple[Any, str]]:
    """Yield each query (a C function, or the code of a Python function) with the name of the state it reads."""
    for name, ask in _STATES.items():
        yield getattr(ask, "__code__", ask), name
    for owner in (torch, torch._C):
        for name in dir(owner):
            if name.startswith(("is_autocast_", "get_autocast_")) and name not in _STATES:
                ask = getattr(owner, name)
                yield getattr(ask, "__code__", ask), "autocast"


_ASKED = dict(_askable())


def answers_hold(answers: Mapping[str, Any]) -> bool:
    """Return whether the recorded PyTorch state is the present one."""
    return all(_STATES[name]() == answer for name, answer in answers.items())


_OF_TIME = frozenset("time monotonic perf_counter process_time thread_time localtime gmtime ctime".split())
_CLOCKS: frozenset[Any] = frozenset(
    [
        *(getattr(time, name) for name in vars(time) if name.removesuffix("_ns") in _OF_TIME),
        *(getattr(datetime.datetime, name) for name in ("now", "utcnow", "today")),
        datetime.date.today,
    ]
)
_GENERATORS = frozenset((random.Random, torch.Generator))
_ON_BEHALF = frozenset(("random", "secrets", "uuid", "torch.random", "torch.cuda.random"))
"""Modules that draw random numbers or read the time for their caller."""


class Outside:
    """Records the state that one thread reads while a forward is traced.

    Args:
        modules: the modules of the model. Clocks that their packages read are refused; clocks that other libraries read
            for themselves, for example in a log, are ignored.

    Attributes:
        answers: the PyTorch state that the forward asked for, with the values from the beginning of the forward.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self.answers: dict[str, Any] = {}
        self._packages = {_package(str(type(one).__module__)) for one in modules} - {"torch"}
        self._now = {name: ask() for name, ask in _STATES.items()}
        self._seen: dict[int, CodeType] = {}
        self._drawn: dict[int, tuple[str, Callable[[], bytes], bytes]] = {}
        self._refused: Untraceable | None = None

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Observe the calls of this thread inside the block."""
        if "numpy" in sys.modules:
            numpys: Any = importlib.import_module("numpy.random")  # NumPy imports it lazily
            self._watch("numpy.random", numpys, lambda: pickle.dumps(numpys.get_state()))
        before: Any = sys.getprofile()
        if before is not None and not callable(before) and not hasattr(before, "enable"):
            yield  # a profiler written in C could not be reinstalled
            return
        sys.setprofile(self._happens)
        try:
            yield
        finally:
            if before is None or callable(before):
                sys.setprofile(before)
            else:  # the profiler of `cProfile` (Python 3.11)
                before.enable()
        self.check()

    def check(self) -> None:
        """Raise `Untraceable` if random numbers were drawn, or the time was read.

        A profile function does not see the calls of NumPy, so the states of its generators are compared.
        """
        if self._refused is not None:
            raise self._refused
        for name, state, before in self._drawn.values():
            if state() != before:
                raise Untraceable(
                    f"draws numbers by {name}, or an earlier statement does: they would be drawn only once"
                )

    def reads(self, value: Any) -> None:
        """Watch a value that the forward reads, if it is a NumPy random generator."""
        if str(type(value).__module__).startswith("numpy.random") and id(value) not in self._drawn:
            of_bits = getattr(value, "bit_generator", None) or getattr(value, "_bit_generator", None)
            if of_bits is not None:
                name = f"a numpy.random.{type(value).__name__}"
                self._watch(name, value, lambda: pickle.dumps(of_bits.state))

    def _watch(self, name: str, thing: Any, state: Callable[[], bytes]) -> None:
        self._drawn[id(thing)] = name, state, state()

    def _happens(self, frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call":
            asked = _ASKED.get(called) if type(called) is _BUILTIN else None
            if asked is not None:
                self._asks(frame, asked)
            elif type(called) is _BUILTIN:
                self._draws(frame, called)
        elif event == "call":
            code = frame.f_code
            if id(code) not in self._seen:
                self._seen[id(code)] = code
                self._look(frame)
            asked = _ASKED.get(code) if is_torch(code.co_filename) else None
            if asked is not None and frame.f_back is not None:
                self._asks(frame.f_back, asked)

    def _asks(self, frame: FrameType, what: str) -> None:
        file = frame.f_code.co_filename
        if not is_byname(file) and not file.endswith(_OF_MODES):
            self.answers[what] = self._now[what]

    def _draws(self, frame: FrameType, called: Any) -> None:
        """Refuse a C function that returns another value at each call, such as a clock or a random generator."""
        if called in _CLOCKS:
            asker = _asker(frame)
            if asker is not None and self._counts(asker):
                self._refuse(f"asks for the time by {_named(called)}, which would happen only once")
        elif called is os.urandom or not _GENERATORS.isdisjoint(parents_of(type(called.__self__))):
            asker = _asker(frame)
            if asker is not None and _package(_module(asker)) not in sys.stdlib_module_names:
                self._refuse(f"draws random numbers by {_named(called)}, which would happen only once")

    def _counts(self, asker: FrameType) -> bool:
        return not is_library(asker.f_code.co_filename) or _package(_module(asker)) in self._packages

    def _refuse(self, why: str) -> None:
        self._refused = Untraceable(why)
        raise self._refused

    def _look(self, frame: FrameType) -> None:
        """Look for random generators among the globals and closure variables of a function."""
        code = frame.f_code
        if is_torch(code.co_filename) or "numpy.random" not in sys.modules:
            return
        for name in code.co_names:
            self.reads(frame.f_globals.get(name))
        for name in code.co_freevars:
            self.reads(frame.f_locals.get(name))


_BUILTIN = type(len)
_OF_MODES = (os.path.join("autograd", "grad_mode.py"), os.path.join("amp", "autocast_mode.py"))  # noqa: PTH118
"""The files that switch modes; they query the mode only to restore it."""


def _asker(frame: FrameType) -> FrameType | None:
    asker: FrameType | None = frame
    while asker is not None and _module(asker) in _ON_BEHALF:
        asker = asker.f_back
    return asker


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def _package(module: str) -> str:
    return module.partition(".")[0]


def _named(function: Any) -> str:
    owner = getattr(function, "__module__", None)
    return f"{owner}.{function.__qualname__}" if owner else str(function.__qualname__)


def is_leaving() -> bool:
    """Return whether the end of a ``with`` block switches grad mode, rather than its beginning."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name, file = frame.f_code.co_name, str(frame.f_code.co_filename)
        if file.endswith("grad_mode.py") and name in ("__enter__", "__exit__"):
            return bool(name == "__exit__")
        frame = frame.f_back if is_torch(file) else None
    return False


def switched(enabled: bool) -> bool:
    """Switch grad mode and return the earlier mode."""
    was = torch.is_grad_enabled()
    torch._C._set_grad_enabled(enabled)
    return was


def restored(enabled: bool) -> None:
    """Restore grad mode."""
    torch._C._set_grad_enabled(enabled)


def state_of_modes() -> tuple[Any, ...]:
    """Return the modes that a graph does not keep."""
    return (
        torch.is_inference_mode_enabled(),
        autocast_state(),
        torch._C._autograd._saved_tensors_hooks_is_enabled(),  # type: ignore[attr-defined]
        torch._C._autograd._top_saved_tensors_default_hooks(True) is not None,
    )


def check_modes(state: tuple[Any, ...]) -> None:
    """Raise `Untraceable` if the modes differ from those in which the forward began."""
    now = state_of_modes()
    for was, is_now, what in zip(state, now, _MODES, strict=True):
        if was != is_now:
            raise Untraceable(f"runs under {what}, which a graph does not keep")


_MODES = (
    "inference mode",
    "autocast",
    "hooks of saved tensors",
    "hooks of saved tensors, such as a checkpoint's",
)
