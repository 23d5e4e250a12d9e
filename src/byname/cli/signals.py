"""Signals: SIGUSR1 answered with a census, or with the answer to the question of another process (`byname.cli.ask`).

Python runs a handler between two instructions of the main thread, wherever that may be: also within a write to the
standard error, whose buffer is therefore not touched, or within an import, so that nothing is imported here.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from byname.cli.ask import waiting_for
from byname.cli.command import CommandError
from byname.cli.moment import answer_request
from byname.cli.unnoticed import census_text, ready, unnoticed, where
from byname.memory.census import census
from byname.reading.quiet import dynamo_skip
from byname.text import fitted, printable_lines, width_of


def answer_signals(top: int = 20) -> None:
    """Answer SIGUSR1 until Python ends, unless the program takes another handler. Processes it forks answer, too.

    Raises:
        CommandError: there is no such signal, or it cannot be answered.
    """
    if not hasattr(signal, "SIGUSR1"):
        raise CommandError(
            "this platform has no SIGUSR1 to answer; `byname census --every N` looks after optimizer steps"
        )
    if threading.current_thread() is not threading.main_thread():
        raise CommandError("--census-on-signal works in the main thread only: Python takes signals there")
    number = signal.SIGUSR1
    before = signal.getsignal(number)
    if before is None:
        raise CommandError("SIGUSR1 is already handled outside of Python (faulthandler.register?): --census-on-signal")
    ready()
    ours = _answering(before, top)
    signal.signal(number, ours)
    signal.siginterrupt(number, False)  # else system calls of C++ code that does not expect it come back with EINTR

    def restore() -> None:
        if signal.getsignal(number) is ours:
            signal.signal(number, before)

    atexit.register(restore)


def _answering(before: Any, top: int) -> Callable[[int, FrameType | None], None]:
    answering: list[bool] = []

    def look(frame: FrameType | None) -> None:
        request = waiting_for(os.getpid())
        if request is not None:
            return answer_request(request, frame)
        _write(f"census of process {os.getpid()}{where(frame)}\n{census_text(census(), top)}")

    @dynamo_skip
    def answer(number: int, frame: FrameType | None) -> None:
        if not answering:  # else it came while the last one is answered
            answering.append(True)
            try:
                unnoticed(lambda: unnoticed(lambda: look(frame), _write), lambda _: None)  # where nobody listens
            finally:
                answering.clear()
        if callable(before):
            before(number, frame)

    return answer


def _write(words: str) -> None:
    """Write past the buffers of the standard error, which the handler may have interrupted."""
    stream = sys.__stderr__
    if stream is not None and not stream.closed:
        text = fitted(f"byname: {printable_lines(words)}", width_of(stream))
        rest = f"{text}\n".encode(stream.encoding, "backslashreplace")
        while rest:
            rest = rest[os.write(stream.fileno(), rest) :]
