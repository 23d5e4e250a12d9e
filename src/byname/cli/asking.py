"""How does a command ask a process that runs already? By a signal that it listens to, or by Python's remote debugging.

A process that does not listen to SIGUSR1 would be ended by it; so what listens is found out before.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from byname.cli.command import CommandError
from byname.cli.requests import Answer, Request, answer_to, ask, script_for, taken_back
from byname.cli.width import table_width
from byname.text import printable

PAUSE = 0.05
"""Seconds between two looks for the answer."""
START = "start it with `byname run --census-on-signal`, and it can be asked"


def add_pid(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """Tell the parser of the process."""
    parser.add_argument("--pid", type=int, metavar="N", required=required, help="ask the process of this number")
    parser.add_argument("--timeout", type=float, metavar="S", default=30.0, help="wait so many seconds for it (30)")


def asked_by(options: argparse.Namespace, about: str, top: int, *, facts: bool = False) -> Answer:
    """Ask the process that the command line names, and return its answer.

    Args:
        options: the process, and how long to wait for it.
        about: ``census`` or ``explain``.
        top: the number of rows of a census in words.
        facts: whether the answer is also wanted as values that JSON has.

    Raises:
        CommandError: the process cannot be asked, or gives no answer in time; the text says why, and what to do.
    """
    if getattr(options, "program", None) is not None:
        raise CommandError("--pid asks a process that runs already, and no program goes with it", exit_code=2)
    answer = _answer(options.pid, about, top, facts, options.timeout)
    if facts and answer.facts is None:
        raise CommandError(answer.text)
    return answer


def _answer(process: int, about: str, top: int, facts: bool, timeout: float) -> Answer:
    reach = _way_to(process)
    try:
        request = ask(process, about, top, facts=facts, width=table_width(sys.stdout))
    except OSError as reason:
        raise CommandError(f"there is no safe place for the answer: {printable(str(reason))}") from None
    try:
        reach(request)
        return _awaited(process, request, timeout)
    finally:
        taken_back(process, request)


def _way_to(process: int) -> Callable[[Request], None]:
    """Return what makes a process look for its question."""
    if not hasattr(os, "getuid"):
        raise CommandError("this system has no way to ask a process")
    _check_alive(process)
    if process == os.getpid():
        raise CommandError("this is the process that asks")
    if _listens(process):
        return lambda request: os.kill(process, signal.SIGUSR1)
    if hasattr(sys, "remote_exec"):
        return lambda request: _remotely(process, request)
    version = ".".join(map(str, sys.version_info[:2]))
    raise CommandError(
        f"process {process} ({_shown(process)}) does not listen: {START}. With Python 3.14 or newer any process can be "
        f"asked that runs the same Python; this is {version}"
    )


def _check_alive(process: int) -> None:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        raise CommandError(f"there is no process {process}") from None
    except PermissionError:
        raise CommandError(f"process {process} belongs to another user") from None


def _listens(process: int) -> bool:
    """Whether a process was told to answer SIGUSR1 by byname, and has begun to."""
    words = _words(process)
    asked = any("byname" in Path(word).name for word in words) and "--census-on-signal" in words
    return asked and _catches(process)


def _words(process: int) -> list[str]:
    """Return the command line of a process; nothing where the system has no /proc."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _catches(process: int) -> bool:
    """Whether a process has a handler for SIGUSR1."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(errors="replace").splitlines()
    except OSError:
        return False
    masks = [int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")]
    return any(mask >> (signal.SIGUSR1 - 1) & 1 for mask in masks)


def _shown(process: int) -> str:
    words = " ".join(_words(process)).strip()
    return printable(words[:80]) or "of which the command line cannot be read"


def _remotely(process: int, request: Request) -> None:
    """Have Python run a file of ours in a process, between two of its instructions (PEP 768)."""
    remote: Any = getattr(sys, "remote_exec")  # noqa: B009 - not in the stubs of older versions
    try:
        remote(process, str(script_for(request)))
    except (OSError, RuntimeError, ValueError) as reason:
        raise CommandError(
            f"process {process} ({_shown(process)}) cannot be reached: {printable(str(reason))}. It has to run Python "
            f"{sys.version_info[0]}.{sys.version_info[1]} with remote debugging (PYTHON_DISABLE_REMOTE_DEBUG not set), "
            f"and the system has to allow it (on Linux ptrace). Or {START}"
        ) from None


def _awaited(process: int, request: Request, timeout: float) -> Answer:
    end = time.monotonic() + timeout
    while True:
        answer = answer_to(request)
        if answer is not None:
            return answer
        try:
            _check_alive(process)
        except CommandError:
            raise CommandError(f"process {process} ended before it answered") from None
        if time.monotonic() > end:
            raise CommandError(
                f"process {process} gave no answer in {timeout:g} seconds: it answers when its main thread next runs "
                "Python code, not in the middle of a long call into C++ or while it waits for a lock; or it has taken "
                "SIGUSR1 for itself. --timeout waits longer"
            )
        time.sleep(PAUSE)
