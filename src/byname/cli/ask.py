"""Ask: a question to a running process, sent by a signal that it handles or by Python's remote debugging.

SIGUSR1 ends a process that has no handler for it, so that this is found out first. Question and answer meet in a folder
that nobody else can write to: both are JSON, in files that are put into place whole. Nothing that is read there is run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import stat
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from byname.cli.command import CommandError, show
from byname.text import WIDE, printable, table_width


class StatusCommand:
    """Show what a running process is doing, and how many tensors are alive in it.

    For each of its threads: the lines of the program, the module that is being called, and the function of the library
    it is in. The process goes on unchanged. It has to be one that was started by `byname run --census-on-signal` or
    `byname census --census-on-signal`, or, with Python 3.14 or newer, any process of the same Python.

    examples:
      byname status --pid 4711
      byname status --pid 4711 --timeout 60
      byname status --pid 4711 --json
    """

    name = "status"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_pid(parser, required=True)
        parser.add_argument("--json", action="store_true", help="print JSON")

    def run(self, options: argparse.Namespace) -> int:
        return print_answer(options, "status", 0, in_json=options.json)


PAUSE = 0.05
"""Seconds between two looks for the answer."""
START = "start it with `byname run --census-on-signal` to be able to ask it"


def add_pid(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    parser.add_argument("--pid", type=int, metavar="N", required=required, help="ask the running process with this pid")
    parser.add_argument("--timeout", type=float, metavar="S", default=30.0, help="seconds to wait for it (30)")


def print_answer(options: argparse.Namespace, about: str, top: int, *, in_json: bool) -> int:
    """Ask the process that the command line names, print its answer, and return the exit code.

    A process that cannot be asked, or gives no answer in time, raises a `CommandError` that says why, and what to do.

    Args:
        about: ``census``, with `top` rows in words, or ``status``.
    """
    if getattr(options, "program", None) is not None:
        raise CommandError("--pid asks a process that is already running: leave out the program", exit_code=2)
    process = options.pid
    reach = _find_transport(process)
    try:
        request = ask(process, about, top, facts=in_json, width=table_width(sys.stdout))
    except OSError as reason:
        raise CommandError(f"no safe folder for the answer: {printable(str(reason))}") from None
    try:
        reach(request)
        answer = _wait_for_answer(process, request, options.timeout)
    finally:
        delete_request(process, request)
    if in_json and answer.facts is None:
        raise CommandError(answer.text)
    print(json.dumps(answer.facts)) if in_json else show(answer.text)
    return 0


def _find_transport(process: int) -> Callable[[Request], None]:
    """Return the function that makes a process look for its question."""
    if not hasattr(os, "getuid"):
        raise CommandError("byname cannot ask a process on this system")
    _check_alive(process)
    if process == os.getpid():
        raise CommandError("this pid is the process that asks")
    if _listens(process):
        return lambda request: os.kill(process, signal.SIGUSR1)
    if hasattr(sys, "remote_exec"):
        return lambda request: _remotely(process, request)
    version = ".".join(map(str, sys.version_info[:2]))
    raise CommandError(
        f"process {process} ({_argv(process)}) does not listen: {START}. With Python 3.14 or newer, any process that "
        f"runs the same Python can be asked; this is {version}"
    )


def _check_alive(process: int) -> None:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        raise CommandError(f"there is no process {process}") from None
    except PermissionError:
        raise CommandError(f"process {process} belongs to another user") from None


def _listens(process: int) -> bool:
    """Return whether a process was started with `--census-on-signal`, and has a handler for SIGUSR1 by now."""
    words = _facts_of(process, "cmdline").split("\0")
    lines = _facts_of(process, "status").splitlines()
    masks = [int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")]
    requested = any("byname" in Path(word).name for word in words) and "--census-on-signal" in words
    return requested and any(mask >> (signal.SIGUSR1 - 1) & 1 for mask in masks)


def _argv(process: int) -> str:
    words = _facts_of(process, "cmdline").replace("\0", " ").strip()
    return printable(words[:80]) or "its command line cannot be read"


def _facts_of(process: int, name: str) -> str:
    """Return the text of a file about a process in /proc; empty if there is none."""
    try:
        return Path(f"/proc/{process}/{name}").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _remotely(process: int, request: Request) -> None:
    """Make a process run a file of byname's, between two of its instructions (PEP 768)."""
    remote: Any = getattr(sys, "remote_exec")  # noqa: B009 - not in the stubs of older versions
    try:
        remote(process, str(script_for(request)))
    except (OSError, RuntimeError, ValueError) as reason:
        raise CommandError(
            f"process {process} ({_argv(process)}) cannot be reached: {printable(str(reason))}. It must run Python "
            f"{sys.version_info[0]}.{sys.version_info[1]} with remote debugging (PYTHON_DISABLE_REMOTE_DEBUG not set), "
            f"and the system must allow it (on Linux ptrace). Or {START}"
        ) from None


def _wait_for_answer(process: int, request: Request, timeout: float) -> Answer:
    end = time.monotonic() + timeout
    while True:
        answer = read_answer(request)
        if answer is not None:
            return answer
        try:
            _check_alive(process)
        except CommandError:
            raise CommandError(f"process {process} ended before it answered") from None
        if time.monotonic() > end:
            raise CommandError(
                f"process {process} gave no answer in {timeout:g} seconds: it answers when its main thread next runs "
                "Python code, not in the middle of a long call into C++ or while it waits for a lock; or it handles "
                "SIGUSR1 itself. --timeout waits longer"
            )
        time.sleep(PAUSE)


MOST = 256 * 2**20
"""Bytes of a question or an answer at most."""


class Request(NamedTuple):
    """A question of another process, about its ``census`` or its ``status``.

    Attributes:
        answer: the name of the file for the answer.
        facts: whether the answer is also wanted as values that JSON has.
        top, width: the number of rows of a table, and its width in characters.
    """

    about: str
    top: int
    answer: str
    facts: bool = False
    width: int = WIDE


class Answer(NamedTuple):
    """An answer as text, and as values that JSON has if those were asked for and there are some."""

    text: str
    facts: dict[str, Any] | None = None


def ask(process: int, about: str, top: int, *, facts: bool = False, width: int = WIDE) -> Request:
    """Write a question to the file in which the process looks for it."""
    request = Request(about, top, f"{process}-{uuid.uuid4().hex}.answer", facts, width)
    _put(_folder(make=True), f"{process}.request", request._asdict())
    return request


def delete_request(process: int, request: Request) -> None:
    _remove(f"{process}.request", request.answer, f"{request.answer}.py")


def take_request(process: int) -> Request | None:
    """Return the question to a process and remove it; None if there is none."""
    facts = _read(f"{process}.request")
    _remove(f"{process}.request")
    if not isinstance(facts, dict):
        return None
    about, top, answer, wanted, width = (facts.get(name) for name in Request._fields)
    if about not in ("census", "status") or type(top) is not int:
        return None
    if type(answer) is not str or answer != Path(answer).name:
        return None
    return Request(about, top, answer, wanted is True, width if type(width) is int else WIDE)


def write_answer(request: Request, answer: Answer) -> None:
    _put(_folder(), request.answer, answer._asdict())


def read_answer(request: Request) -> Answer | None:
    """Return the answer; None if it has not come."""
    facts = _read(request.answer)
    if not isinstance(facts, dict) or not isinstance(facts.get("text"), str):
        return None
    values = facts.get("facts")
    return Answer(facts["text"], values if isinstance(values, dict) else None)


def script_for(request: Request) -> Path:
    """Write the file that Python runs in another process, and return its path. It leaves no name in ``__main__``."""
    script = _folder() / f"{request.answer}.py"
    text = _SCRIPT.format(root=str(Path(__file__).parents[2]), answer=request.answer)
    _write(script, f"exec({text!r}, {{}})\n")
    return script


_SCRIPT = """
import sys
if "torch" in sys.modules:
    before = sys.path[:]
    sys.path.append({root!r})
    try:
        from byname.cli.remote_answer import answer_remotely
        answer_remotely()
    finally:
        sys.path[:] = before
else:
    import json, os
    folder = "/tmp/byname-%d" % os.getuid()
    with open(os.path.join(folder, {answer!r} + ".new"), "x") as file:
        json.dump({{"text": "no PyTorch is loaded in process %d" % os.getpid()}}, file)
    os.replace(os.path.join(folder, {answer!r} + ".new"), os.path.join(folder, {answer!r}))
"""


def _folder(make: bool = False) -> Path:
    """Return the folder of questions and answers; an OSError if it is not there, or others can write to it."""
    folder = _place()
    if make:
        folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a private folder of this user")
    return folder


def _place() -> Path:
    return Path("/tmp") / f"byname-{os.getuid()}"  # TMPDIR may differ between the two


def _put(folder: Path, name: str, facts: dict[str, Any]) -> None:
    beside = folder / f"{name}.{uuid.uuid4().hex}"
    _write(beside, json.dumps(facts))
    beside.replace(folder / name)


def _write(file: Path, text: str) -> None:
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as stream:
        stream.write(text)


def _read(name: str) -> Any:
    try:
        with os.fdopen(os.open(_folder() / name, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            return json.loads(file.read(size)) if size <= MOST else None
    except (OSError, ValueError, RecursionError):
        return None


def _remove(*names: str) -> None:
    with suppress(OSError):
        for name in names:
            (_folder() / name).unlink(missing_ok=True)
