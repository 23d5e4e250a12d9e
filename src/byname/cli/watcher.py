"""Watcher: byname's code inside a program that a command runs: at its module calls, its findings, and its end.

An error of this code is reported, and does not reach the program.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, FunctionType, MethodType
from typing import Any

import torch
import torch.fx  # keeps for its traces the call of a module as it is now, so that none of theirs is shown
from torch import nn

from byname.cli.command import CommandError, say
from byname.diagnose.finding import Finding, explained
from byname.memory.census import Census, StorageRow, census
from byname.naming.name import quote_all
from byname.reading.frames import program_frame
from byname.reading.quiet import dynamo_skip
from byname.source.location import Site
from byname.source.tracebacks import frames
from byname.table import counted, text
from byname.text import printable, table_width
from byname.tracing.eager import EAGERLY
from byname.tracing.muted import is_muted
from byname.undo import Patch, Undo


def call_guarded(
    look: Callable[[], None], report: Callable[[str], None], *, also: type[BaseException] = Exception
) -> None:
    """Call a function that looks at the program; give `report` a sentence about an error of it, and raise nothing.

    An error of another signal handler of the program is raised, and so is Ctrl-C, unless `also` has its class.
    """
    try:
        look()
    except (Exception, also) as error:  # the program goes on, whatever goes wrong in a look at it
        if _from_a_handler(error):
            raise
        report(printable(f"could not look at the program: {type(error).__name__}: {error}"))


class Watcher:
    """A block in which a program runs, with something to do when the program ends: `at_end`.

    An error of `at_end` is reported, and the program ends as without it. A fork of the process is another program: if
    it ends inside the block, nothing is done. Each function of `begin` is called at the beginning of the block, and
    notes how to undo what it does at the end.
    """

    def __init__(self, *begin: Callable[[Undo], None]) -> None:
        preload()
        self._at_begin, self._undo = begin, Undo()
        self._process = os.getpid()

    def at_end(self, error: BaseException | None) -> None:
        """Act on the end of the program, by an error, `SystemExit` included, or None if its last line ended it."""
        raise NotImplementedError

    def in_its_process(self) -> bool:
        """Return whether this is the process that made it, and no fork of that."""
        return os.getpid() == self._process

    def __enter__(self) -> None:
        try:
            for begin in self._at_begin:
                begin(self._undo)
        except BaseException:
            self._undo()
            raise

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._undo()
        if self.in_its_process():
            call_guarded(lambda: self.at_end(error), say, also=KeyboardInterrupt)


class PrintedFindings(Watcher):
    """Findings that are printed: of those with the same cause and words only the first, the others' places last."""

    def __init__(self) -> None:
        super().__init__()
        self._more: dict[tuple[str, ...], list[Finding]] = {}

    def found(self, finding: Finding) -> None:
        """Print a finding at once; if one of its kind was printed before, keep it for the end."""
        more = self._more.get(finding.kind)
        if more is None or not self.in_its_process():  # no fork comes to its end here
            self._more[finding.kind] = []
            say(finding)
        else:
            more.append(finding)

    def at_end(self, error: BaseException | None) -> None:
        for (cause, *_), more in self._more.items():
            if more:
                say(f"{cause}: and {counted(len(more), 'more place')}: {'; '.join(_places(more))}")


_MOST = 8


def _places(found: Sequence[Finding]) -> list[str]:
    """Return the names and the lines of the first findings."""
    places = []
    for one in found[:_MOST]:
        lines = " and ".join(dict.fromkeys(map(str, one.sites)))
        places.append(" at ".join(filter(None, [quote_all(one.culprits, most=3), lines])))
    return [*places, *(["..."] if len(found) > _MOST else [])]


class JsonLines(Watcher):
    """A file of lines of JSON, the last for the end of the program; a fork of the process writes none.

    What the file held before is gone. A file that cannot be written raises a `CommandError` before the program starts.
    """

    def __init__(self, to: str) -> None:
        if to == "-":
            raise CommandError("--json -: the program writes to the standard output; name a file", exit_code=2)
        try:
            self._file = Path(to).absolute().open("w", encoding="utf-8")
        except OSError as error:
            raise CommandError(f"--json: {printable(to)} cannot be written: {error.strerror}", exit_code=2) from None
        super().__init__()

    def write(self, kind: str, facts: dict[str, Any]) -> None:
        """Write a line, which is in the file when this returns."""
        if self.in_its_process():
            self._file.write(json.dumps({"kind": kind, **facts}) + "\n")
            self._file.flush()

    def at_end(self, error: BaseException | None) -> None:
        self.write("end", {"error": type(error).__name__ if failure(error) else None})
        self._file.close()


class FindingsFile(JsonLines):
    """Lines for findings, when they come, and for the explanation of the error that ends the program."""

    def found(self, finding: Finding) -> None:
        self.write("finding", finding_facts(finding))

    def at_end(self, error: BaseException | None) -> None:
        explanation = None if error is None else explained(error)
        if explanation is not None:
            self.write("explanation", finding_facts(explanation))
        super().at_end(error)


def finding_facts(finding: Finding) -> dict[str, Any]:
    return finding.row() | {"sites": [site_facts(site) for site in finding.sites]}


def census_facts(found: Census) -> dict[str, Any]:
    """Return a census as values that JSON has, with all rows. No row holds the values of a tensor."""
    return {
        "bytes": found.bytes,
        "unattributed": found.unattributed,
        "notes": list(found.notes),
        "rows": [_storage_facts(one) for one in found],
    }


def _storage_facts(one: StorageRow) -> dict[str, Any]:
    row = one.row()
    sites = {"site": one.site, "caller": one.site and one.site.caller}
    return {"holders": row.pop("held_by"), **row, **{key: site and site_facts(site) for key, site in sites.items()}}


def site_facts(site: Site) -> dict[str, Any]:
    return {"file": site.file, "line": site.line, "function": site.function, "statement": site.statement}


def failure(error: BaseException | None) -> BaseException | None:
    """Return the error that a program failed with; None for `SystemExit`, and if there was no error."""
    return None if isinstance(error, SystemExit) else error


def _from_a_handler(error: BaseException) -> bool:
    handlers: list[Any] = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = [one.__code__ for one in handlers if type(one) in (FunctionType, MethodType)]
    return any(one.code is code for one in frames(error)[1:] for code in codes)


def census_text(found: Census, top: int, width: int | None = None) -> str:
    """Return the first rows of a census as a table, by default as wide as the standard error."""
    table = found.head(top, width=table_width(sys.__stderr__) if width is None else width)
    nothing = "functions that held tensors have returned; --every N looks while they run"
    return table if found else f"{table}\n{nothing}"


def where(frame: FrameType | None) -> str:
    """Return the line of the program that runs, as `` at train.py:14``; empty if none does."""
    frame = program_frame(frame)
    return "" if frame is None else f" at {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


@functools.cache
def preload() -> None:
    """Import everything that a look needs, so that none of it is imported in the middle of the program."""
    census()
    text([{"": ""}], width=table_width(None))


class _CallDepth(threading.local):
    depth = 0


class Calls:
    """Replacement of ``nn.Module.__call__`` that shows each call to a function, until that has found its module.

    The function gets a module and whether no other module calls it, and returns True where that is the one. The tracer
    of `torch.fx` replaces the call, too. A global hook would come too late: hooks made inside of it are not run for
    that call, and `torch.compile` warns of global hooks. Until the module is found compiled functions run eagerly, for
    nothing could be seen in them.
    """

    def __init__(self, look: Callable[[nn.Module, bool], bool]) -> None:
        self._look = look
        self._looking = threading.Lock()
        self._thread = _CallDepth()
        self._process = os.getpid()
        self._patch = Patch(nn.Module, "__call__", self._shown)
        self._undo = Undo()
        self._found = False

    def begin(self, undo: Undo) -> None:
        def compiled() -> None:
            """Do nothing when a compiled function is called."""

        undo.add(self.end)
        self._undo.add(EAGERLY.release, compiled)
        EAGERLY.hold(compiled)
        self._undo.add(self._patch.remove)
        self._patch.install()

    def _shown(self, before: Callable[..., Any]) -> Callable[..., Any]:
        @dynamo_skip
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not self._sees():
                return before(module, *args, **kwargs)
            outermost = not self._thread.depth
            self._thread.depth += 1
            try:
                self._show(module, outermost)
                return before(module, *args, **kwargs)
            finally:
                self._thread.depth -= 1

        return call

    def end(self) -> None:
        """Show no more calls; a second time does nothing."""
        self._found = True
        self._undo()

    def _sees(self) -> bool:
        """Return whether a call that begins now is the program's, and not a tracer's or that of a forked process."""
        if self._found or is_muted() or os.getpid() != self._process or torch._C._get_tracing_state() is not None:
            return False
        # In `torch.export` tensors have no values.
        return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is None

    def _show(self, module: nn.Module, outermost: bool) -> None:
        if self._looking.acquire(blocking=False):  # one thread finds it, and none waits
            try:
                if not self._found and self._look(module, outermost):
                    self.end()
            finally:
                self._looking.release()
