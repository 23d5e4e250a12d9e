"""How much slower is a training step while it is tracked, and is it as fast as ever afterwards?

The time of a tracked step includes entering and leaving the tracker, and letting go of what it remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from time import process_time
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import byname
from benchmarks.graphs import tiny_step, transformer_step
from benchmarks.timing import Rounds, Row, Variant, interleaved

__all__ = ["CONTEXTS", "NoOp", "afterwards", "against_plain", "floor", "tracking"]

_MICRO, _MILLI = 1e-6, 1e-3

_Step = Callable[[], None]


def tracking() -> list[Row]:
    """A step in which PyTorch computes, and one in which it only dispatches."""
    return [
        *_rows("transformer, 4 blocks, AdamW", transformer_step(), limit=1.05, rounds=60),
        *_rows("205 operations on 4×4 matrices, SGD", tiny_step(), limit=1.45, rounds=150, times=5),
        *_entering("between steps of 205 operations", tiny_step(), rounds=200),
        *_allocations("transformer of about 190 ms", transformer_step(256, 15), limit=1.2, rounds=40),
        *_allocations("transformer of about 20 ms", transformer_step(64, 12), limit=None, rounds=60),
        *_allocations("205 operations on 4×4 matrices", tiny_step(), limit=None, rounds=60, times=5),
    ]


def _entering(title: str, step: _Step, rounds: int) -> list[Row]:
    """What it costs to enter a tracker and to leave it, when a step has run in between."""

    def run() -> float:
        step()
        start = process_time()
        tracker = byname.track().__enter__()
        entered = process_time() - start
        step()
        start = process_time()
        tracker.__exit__(None, None, None)
        del tracker
        return entered + process_time() - start

    took = interleaved({"both": run}, rounds)
    return [Row(f"entering and leaving, {title}", took.each("both", 1, _MICRO), "µs", 80)]


class NoOp(TorchFunctionMode):
    """The floor: what any function mode costs."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class NoOpDispatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The floor of allocations: what any dispatch mode costs."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Without the wrapper that PyTorch otherwise puts around the handler."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class _Counting(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


def _rows(title: str, step: _Step, limit: float, rounds: int, times: int = 1) -> list[Row]:
    calls = _calls(step)
    took = interleaved(_variants(step, times), rounds)
    return [
        *floor(f"{title}: plain step of {calls:,} calls", took, times),
        against_plain("tracked", "tracked", took, limit),
        Row("  tracked / under the mode", took.ratio("tracked", "mode"), "×"),
        Row("  tracked less plain, a call", took.each("tracked", times * calls, _MICRO, less="plain"), "µs"),
        against_plain("under set_detect_anomaly", "anomaly", took),
        against_plain("not tracked, after a tracker that is still held", "after", took),
    ]


def _allocations(title: str, step: _Step, limit: float | None, rounds: int, times: int = 1) -> list[Row]:
    variants = {
        "plain": _inside(nullcontext, step, times),
        "again": _inside(nullcontext, step, times),
        "mode": _inside(NoOpDispatch, step, times),
        "tracked": _inside(byname.track, step, times),
        "allocations": _inside(lambda: byname.track(allocations=True), step, times),
        "after": afterwards(lambda: byname.track(allocations=True), step, times),
    }
    took = interleaved(variants, rounds)
    return [
        *floor(f"allocations, {title}: plain step", took, times, mode="dispatch"),
        against_plain("tracked", "tracked", took),
        against_plain("tracked with allocations", "allocations", took, limit),
        against_plain("not tracked, after such a tracker that is still held", "after", took),
    ]


def _calls(step: _Step) -> int:
    """How many calls a function mode sees in a step, once the optimizer has its state."""
    step()
    counting = _Counting()
    with counting:
        step()
    return counting.calls


def floor(title: str, took: Rounds, times: int, mode: str = "function") -> list[Row]:
    """How long a plain step takes, how well that can be told, and what any mode costs."""
    return [
        Row(title, took.each("plain", times, _MILLI), "ms"),
        against_plain("plain again (A/A)", "again", took),
        against_plain(f"under a {mode} mode that does nothing", "mode", took),
    ]


def against_plain(words: str, what: str, took: Rounds, limit: float | None = None) -> Row:
    """How many times the time of a plain step one takes."""
    return Row(f"  {words} / plain", took.ratio(what, "plain"), "×", limit)


def _variants(step: _Step, times: int) -> dict[str, Variant]:
    return {
        **{what: _inside(context, step, times) for what, context in CONTEXTS.items()},
        "after": afterwards(byname.track, step, times),
    }


CONTEXTS: Mapping[str, Callable[[], AbstractContextManager[object]]] = {
    "plain": nullcontext,
    "again": nullcontext,
    "mode": NoOp,
    "tracked": byname.track,
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
}
"""What a step is timed in."""


def _inside(context: Callable[[], AbstractContextManager[object]], step: _Step, times: int) -> Variant:
    def run() -> float:
        start = process_time()
        with context():
            for _ in range(times):
                step()
        return process_time() - start

    return run


def afterwards(context: Callable[[], AbstractContextManager[object]], step: _Step, times: int) -> Variant:
    """Steps after a context that has ended and is still held."""

    def run() -> float:
        with context() as held:
            step()
        seconds = _inside(nullcontext, step, times)()
        del held
        return seconds

    return run
