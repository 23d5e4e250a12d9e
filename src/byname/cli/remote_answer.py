"""Remote answer: the tensors alive in this process, or the lines its threads are on, as an answer to another process.

Nothing of the program is run; its frames are only read. A signal is answered with a census, or with the answer to the
question of another process (`byname.cli.ask`). Python runs its handler between two instructions of the main thread,
wherever that may be: also within a write to the standard error, whose buffer is therefore not touched, or within an
import, so that nothing is imported here.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from torch import nn

from byname.cli.ask import Answer, Request, take_request, write_answer
from byname.cli.command import CommandError
from byname.cli.watcher import call_guarded, census_facts, census_text, preload, site_facts, where
from byname.memory.census import census
from byname.model.module_tree import modules_by_path
from byname.reading.frames import MODULE_CALL_CODE, locals_of
from byname.reading.quiet import dynamo_skip
from byname.source.location import Site, is_library, locate
from byname.source.tracebacks import walk_frames
from byname.text import printable_lines, terminal_width, wrap_text


def make_answer(request: Request, frame: FrameType | None) -> Answer:
    """Return the answer to a question: a census, or the lines on which the threads are, and how much is alive."""
    facts: dict[str, Any] = {"process": os.getpid()}
    if request.about == "census":
        found = census()
        lines = [census_text(found, request.top, request.width)]
        if request.facts:
            facts |= {"when": where(frame).strip(), "step": None, **census_facts(found)}
    else:
        threads, found = [*_threads(frame)], census()
        lines = [*map(str, threads), "alive: " + str(found).partition("\n")[0]]
        kinds = {kind: size for kind, _, size in found.by("kind")}
        facts["threads"] = [one.facts() for one in threads]
        facts["alive"] = {"storages": len(found), "bytes": found.bytes, "kinds": kinds}
    text = "\n".join([f"process {os.getpid()}{where(frame)}", *lines])
    return Answer(text, facts if request.facts else None)


def answer_request(request: Request, frame: FrameType | None) -> None:
    """Answer the question of another process; if the look fails, the error is the answer."""
    call_guarded(
        lambda: write_answer(request, make_answer(request, frame)), lambda words: write_answer(request, Answer(words))
    )


def answer_remotely() -> None:
    """Answer the question of another process whose file Python runs in this one."""
    request = take_request(os.getpid())
    remote = "<string>", f"/tmp/byname-{os.getuid()}"
    own = (one for one in walk_frames(sys._getframe(1)) if not one.f_code.co_filename.startswith(remote))
    if request is not None:
        answer_request(request, next(own, None))


class ThreadNow(NamedTuple):
    """A thread at this moment; `str` returns it as text.

    Attributes:
        name: its name; empty if Python did not start it.
        sites: the lines of the program that it is in, the innermost last.
        module: the module that is being called, such as ``blocks.3.attn (Attention) of GPT``; empty for none.
        library: the innermost function, if that is one of a library: ``matmul of torch/functional.py``; else empty.
    """

    name: str
    sites: tuple[Site, ...]
    module: str
    library: str

    def __str__(self) -> str:
        width = max((len(str(site)) for site in self.sites), default=0)
        lines = [f"    {site!s:<{width}}  {site.statement or f'in {site.function}'}" for site in self.sites]
        if self.module:
            lines.append(f"  in a call of {self.module}")
        if self.library:
            lines.append(f"  {'in' if self.sites else 'no line of the program; in'} {self.library}")
        return "\n".join([f"{self.name or 'a thread that Python did not start'}:", *lines])

    def facts(self) -> dict[str, Any]:
        return self._asdict() | {"sites": [site_facts(site) for site in self.sites]}


def _threads(frame: FrameType | None) -> Iterator[ThreadNow]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    here = threading.get_ident()
    frames = {**sys._current_frames(), **({} if frame is None else {here: frame})}
    for ident in sorted(frames, key=lambda one: one != here):
        yield _thread(names.get(ident, ""), frames[ident])


def _thread(name: str, innermost: FrameType) -> ThreadNow:
    frames = [frame for frame, _ in traceback.walk_stack(innermost)][::-1]
    cli = sys.modules["byname.cli"].__file__
    main = [number for number, frame in enumerate(frames) if frame.f_code.co_filename == cli]
    frames = frames[main[-1] :] if main else frames  # what has called it is the script of the command, not the program
    program = [frame for frame in frames if not is_library(frame.f_code.co_filename)]
    library = ""
    if innermost not in program[-1:]:
        file = Path(innermost.f_code.co_filename)
        library = f"{innermost.f_code.co_qualname} of {'/'.join(file.parts[-2:])}"
    sites = tuple(locate(frame.f_code, frame.f_lasti).site for frame in program)
    return ThreadNow(name, sites, _module(frames), library)


def _module(frames: Sequence[FrameType]) -> str:
    """Return the innermost module that is being called: its path in the outermost one, and the classes of both."""
    calls = [dict(locals_of(frame)).get("self") for frame in frames if frame.f_code is MODULE_CALL_CODE]
    modules = [one for one in calls if isinstance(one, nn.Module)]
    if not modules:
        return ""
    root, inner = modules[0], modules[-1]
    path = next((path for path, module in modules_by_path(root).items() if module is inner), "")
    kind = type(inner).__name__
    return kind if inner is root else f"{f'{path} ({kind})' if path else kind} of {type(root).__name__}"


def answer_signals() -> None:
    """Answer SIGUSR1 until Python ends, unless the program takes another handler. Processes it forks answer, too."""
    if not hasattr(signal, "SIGUSR1"):
        raise CommandError(
            "this platform has no SIGUSR1 to answer; `byname census --every N` looks after optimizer steps"
        )
    if threading.current_thread() is not threading.main_thread():
        raise CommandError("--census-on-signal works only in the main thread, where Python handles signals")
    number = signal.SIGUSR1
    before = signal.getsignal(number)
    if before is None:
        raise CommandError("--census-on-signal: SIGUSR1 is already handled outside Python (faulthandler.register?)")
    preload()
    ours = _answering(before)
    signal.signal(number, ours)
    signal.siginterrupt(number, False)  # else system calls of C++ code that does not expect it come back with EINTR

    def restore() -> None:
        if signal.getsignal(number) is ours:
            signal.signal(number, before)

    atexit.register(restore)


def _answering(before: Any) -> Callable[[int, FrameType | None], None]:
    answering: list[bool] = []

    def look(frame: FrameType | None) -> None:
        request = take_request(os.getpid())
        if request is not None:
            return answer_request(request, frame)
        _write(f"census of process {os.getpid()}{where(frame)}\n{census_text(census(), 20)}")

    @dynamo_skip
    def answer(number: int, frame: FrameType | None) -> None:
        if not answering:  # else it came while the last one is answered
            answering.append(True)
            try:
                call_guarded(lambda: call_guarded(lambda: look(frame), _write), lambda _: None)  # where nobody listens
            finally:
                answering.clear()
        if callable(before):
            before(number, frame)

    return answer


def _write(words: str) -> None:
    """Write to the standard error without its buffer, as the handler may have interrupted a write to that."""
    stream = sys.__stderr__
    if stream is not None and not stream.closed:
        text = wrap_text(f"byname: {printable_lines(words)}", terminal_width(stream))
        rest = f"{text}\n".encode(stream.encoding, "backslashreplace")
        while rest:
            rest = rest[os.write(stream.fileno(), rest) :]
