"""Step watchers: censuses of a program, or the growth in it, after its optimizer steps and at its end."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Callable

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from byname.cli.command import say
from byname.cli.watcher import Calls, JsonLines, Watcher, call_guarded, census_facts, census_text, failure, where
from byname.memory.census import census
from byname.memory.growth import Growth
from byname.reading.frames import caller, treat_as_running
from byname.reading.quiet import dynamo_skip
from byname.table import counted
from byname.text import table_width
from byname.undo import Undo


class CensusShown(Watcher):
    """A census when the program ends, and after every Nth of its optimizer steps, with its `top` rows.

    All rows go to a file of lines of JSON, if there is one.
    """

    def __init__(self, every: int | None, top: int, lines: JsonLines | None) -> None:
        self._top, self._lines = top, lines
        super().__init__(*([] if every is None else [_Steps(lambda step: step % every == 0, self._after).begin]))

    def at_end(self, error: BaseException | None) -> None:
        """Show what is alive, also in the functions that failed."""
        with treat_as_running(error):
            self._print_census(f"at the {type(error).__name__}" if failure(error) else "at the end")

    def _after(self, number: int, step: str) -> None:
        self._print_census(f"after {step}", number)

    def _print_census(self, when: str, step: int | None = None) -> None:
        found = census()
        say(f"census {when}\n{census_text(found, self._top)}")
        if self._lines is not None:
            self._lines.write("census", {"when": when, "step": step, **census_facts(found)})


class GrowthShown(Watcher):
    """Growth from the first look after an optimizer step to the last one, reported when the program ends.

    A program without steps, such as one that serves a model, is looked at when it calls an outermost module. Compiled
    functions run eagerly until the first step, so that the calls are seen. Without a number of steps from look to look,
    looks come after 1, 2, 4, 8 ... steps, or at call 8, 16 ...
    """

    def __init__(self, every: int | None, top: int, lines: JsonLines | None) -> None:
        self._every, self._top, self._lines = every, top, lines
        super().__init__(_Steps(self._is_due, self._after).begin, Calls(self._called).begin)
        self._calls = itertools.count(1)
        self._stepped = False
        self._growth: Growth | None = None
        self._number = 0
        self._looks: list[str] = []

    def _is_due(self, number: int, first: int = 1) -> bool:
        doubled = number >= first and number & (number - 1) == 0
        return doubled if self._every is None else number % self._every == 0

    def _called(self, module: nn.Module, outermost: bool) -> bool:
        """Look at a program that has made no optimizer step; return whether it has made one."""
        if outermost and not self._stepped and self._is_due(number := next(self._calls), first=_FIRST_CALL):
            call = f"call {number} of a module ({type(module).__name__}{where(caller())})"
            call_guarded(lambda: self._look(number, call), say)
        return self._stepped

    def _after(self, number: int, step: str) -> None:
        if not self._stepped:  # the calls before the first step were no steps
            self._stepped, self._growth, self._looks = True, None, []
        self._look(number, step)

    def _look(self, number: int, step: str) -> None:
        self._number = number
        if self._growth is None:
            unit = "step" if self._stepped else "call"
            self._growth = Growth(False, _LOOKS, lambda: self._number, unit).__enter__()
        else:
            self._growth.mark()
        self._looks.append(step)

    def at_end(self, error: BaseException | None) -> None:
        if self._growth is None or len(self._looks) < 2:
            seen = counted(len(self._looks), "look")
            return say(f"growth compares two looks after optimizer steps, but there was time for {seen}")
        found = self._growth
        found.end()
        span = f"from {self._looks[0]} to {self._looks[-1]}, {counted(len(self._looks), 'look')}"
        say(f"growth {span}\n{found.head(self._top, width=table_width(sys.__stderr__))}")
        if self._lines is not None:
            rows = [one.row() | {"marks": one.marks} for one in found]
            self._lines.write("growth", {"looks": self._looks, "rows": rows})


_LOOKS = 3
"""Number of looks after which a row that has stopped growing is left out: the first steps fill caches."""
_FIRST_CALL = 8
"""The first call to look at: by then most programs that train have made a step."""


class _Steps:
    """Counter of optimizer steps, which calls a function with the number and the words of each that is due."""

    def __init__(self, due: Callable[[int], bool], look: Callable[[int, str], None]) -> None:
        self._due, self._look = due, look
        self._numbers = itertools.count(1)
        self._looking = threading.Lock()
        self._process = os.getpid()

    def begin(self, undo: Undo) -> None:
        @dynamo_skip
        def stepped(optimizer: torch.optim.Optimizer, *_: object) -> None:
            number = next(self._numbers)
            if self._due(number) and self._looking.acquire(blocking=False):  # one look at a time, and nobody waits
                try:
                    elsewhere = "" if os.getpid() == self._process else f", process {os.getpid()}"
                    step = f"optimizer step {number} ({type(optimizer).__name__}{where(caller())}){elsewhere}"
                    call_guarded(lambda: self._look(number, step), say)
                finally:
                    self._looking.release()

        undo.register(register_optimizer_step_post_hook, stepped)
