"""Memory: the time to list what is alive and who holds it, on heaps of 0.3, 1.5 and 6 million objects.

Each heap is a process of its own. The floors and the rivals look at the same heap in the same rounds; a rival that is
not installed is left out. Figures a million objects count all that `gc.get_objects` gives.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from time import process_time
from typing import Any

import torch

import byname
from benchmarks.apart import asked, hand_over, rows_apart
from benchmarks.heaps import Program
from benchmarks.quiet import TIMES
from benchmarks.rivals import by_attribute, by_class, by_instance, collected, in_bytes, referrers, traced
from benchmarks.timing import Rounds, Row, Variant, interleaved
from benchmarks.tracking import against_plain

__all__ = ["memory"]

_byname: Any = byname
_OFFERED = frozenset({"census", "holders", "growth"} & set(dir(byname)))  # what a byname lacks is left out

_MILLI, _MILLION = 1e-3, 1e6

_ASKED, _FEW, _CHAINS = 1_000, 20, 2
"""How many tensors `holders` is asked about, and how many of them the ways that take one at a time."""

_LONG = 100_000
"""From so many samples on, a single chain of objgraph takes too long to be waited for."""

_SIZES = {300_000: 7, 1_500_000: 5, 6_000_000: 3}
"""How many objects the heaps have, and how many rounds are run on each."""


def memory() -> list[Row]:
    """The heaps, then a step in programs that ask nothing."""
    return [row for size in _SIZES for row in rows_apart("benchmarks.memory", str(size))] + _steps()


def _steps(sets: int = 5, rounds: int = 8) -> list[Row]:
    """Sets of fresh processes: where a process happens to lie in memory makes some percent, and stays."""
    states = {"plain": "absent", "again": "absent", "imported": "imported"}
    if "census" in _OFFERED:
        states["called"] = "called"
    parts = [_in_processes(states, rounds) for _ in range(sets)]
    took = Rounds({what: [seconds for part in parts for seconds in part.seconds[what]] for what in states})
    words = {
        "again": ("in another such process (A/A)", None),
        "imported": ("byname imported", 1.02),
        "called": ("after a census and the like, results still held", 1.02),
    }
    return [
        Row("transformer, 4 blocks, AdamW: step without byname", took.each("plain", TIMES, _MILLI), "ms"),
        *(against_plain(said, what, took, limit) for what, (said, limit) in words.items() if what in states),
    ]


def _in_processes(states: Mapping[str, str], rounds: int) -> Rounds:
    with ExitStack() as programs:
        variants = {what: programs.enter_context(asked("benchmarks.quiet", state)) for what, state in states.items()}
        return interleaved(variants, rounds)


def _heap(size: int) -> list[Row]:
    """The program is a variable of this function, which runs meanwhile; nothing else of here holds its tensors."""
    program = Program(size)
    warnings.simplefilter("ignore", FutureWarning)  # of torch.distributed.reduce_op, when asked for its class
    variants = {**_listing(), **_holding(program)}
    took = interleaved(variants, _SIZES[size])
    return _rows(took, len(gc.get_objects()), len(by_instance()))


def _listing() -> dict[str, Variant]:
    """Everything that goes once over the heap."""
    calls: dict[str, Callable[[], object] | None] = {
        "objects": gc.get_objects,
        "class": by_class,
        "isinstance": by_instance,
        "again": by_instance,
        "bytes": in_bytes,
        "attribute": by_attribute,
        "memlab": collected(),
    }
    if "census" in _OFFERED:
        assert _byname.census(names=False).bytes >= in_bytes(), "a census finds what any loop finds"
        calls |= {"census": lambda: _byname.census(names=False), "named": _byname.census}
    if "growth" in _OFFERED:
        calls["growth"] = _grown
    return {what: _looking(call) for what, call in calls.items() if call is not None}


def _grown() -> object:
    with _byname.growth() as growth:
        kept = torch.zeros(8)
    del kept
    return growth.rows()


def _holding(program: Program) -> dict[str, Variant]:
    """Who holds a thousand tensors; of what takes one at a time, only a few are asked about."""
    variants = {
        "referrers": _looking(lambda: referrers(program.thousand()[:: _ASKED // _FEW])),
    }
    if (trace := traced()) is not None and len(program.samples) < _LONG:
        variants["objgraph"] = _looking(lambda: trace(program.thousand()[:: _ASKED // _CHAINS]))
        if "holders" in _OFFERED:
            layer: Any = program.model[50]
            variants |= {
                "one": _looking(lambda: _byname.holders(layer.weight)),
                "chain": _looking(lambda: trace([layer.weight])),
            }
    if "holders" in _OFFERED:
        found = _byname.holders(program.thousand())
        assert [bool(one) for one in found] == [True] * _ASKED, "the program holds each of these tensors"
        variants["holders"] = _looking(lambda: _byname.holders(program.thousand()))
    return variants


def _looking(call: Callable[[], object]) -> Variant:
    """Seconds of one call, and of letting its result go, on a heap whose young objects have been looked through."""

    def run() -> float:
        gc.collect(1)
        start = process_time()
        call()
        return process_time() - start

    return run


def _rows(took: Rounds, objects: int, tensors: int) -> list[Row]:
    words = {
        "objects": (f"heap of {objects:,} objects, {tensors:,} tensors: gc.get_objects", 1, None),
        "class": ("  the class of each, in a set of classes", 1, None),
        "isinstance": ("  isinstance of each", 1, None),
        "attribute": ("  isinstance, or of its `data`, as torchlisttensors", 1, None),
        "memlab": ("  pytorch_memlab, collecting only", 1, None),
        "bytes": ("  isinstance and bytes, each storage once", 1, None),
        "census": ("  census without names", 1, 0.15),
        "named": ("  census", 1, None),
        "growth": ("  growth, entered, left and listed", 1, None),
        "holders": (f"  holders of {_ASKED:,} tensors", 1, 1.5),
        "referrers": (f"  gc.get_referrers of {_ASKED:,}, from {_FEW}", _ASKED / _FEW, None),
        "objgraph": (f"  objgraph.find_backref_chain of {_ASKED:,}, from {_CHAINS}", _ASKED / _CHAINS, None),
    }
    return [
        Row(said, [seconds * times * _MILLION / objects for seconds in took.seconds[what]], "s/M", limit)
        for what, (said, times, limit) in words.items()
        if what in took.seconds
    ] + _ratios(took)


def _ratios(took: Rounds) -> list[Row]:
    """The limits say that byname is twice as fast as the same done by isinstance."""
    ratios = {
        "isinstance again / isinstance (A/A)": ("again", "isinstance", None),
        "census without names / isinstance and bytes": ("census", "bytes", 0.5),
        "census without names / class of each": ("census", "class", None),
        "census / census without names": ("named", "census", None),
        "census / isinstance": ("named", "isinstance", 2.5),
        "holders of one parameter / objgraph.find_backref_chain": ("one", "chain", 0.8),
        "growth / census without names": ("growth", "census", None),
    }
    return [
        Row(f"  {words}", took.ratio(what, floor), "×", limit)
        for words, (what, floor, limit) in ratios.items()
        if {what, floor} <= took.seconds.keys()
    ]


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    hand_over(_heap(int(sys.argv[1])))
