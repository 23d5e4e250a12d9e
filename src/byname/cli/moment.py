"""What is a program doing at this moment? Its threads' own lines, the module that each calls, and what is alive.

Nothing of the program is run; its frames are only read.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from torch import nn

from byname.cli.requests import Request, waiting_for, write_answer
from byname.cli.unnoticed import shown_census, unnoticed, where
from byname.memory.census import census
from byname.model.module_tree import modules_by_path
from byname.reading.frames import CODE_OF_A_MODULES_CALL, locals_of
from byname.source.location import Site, is_library, locate

__all__ = ["answer_remotely", "answer_request", "answered", "moment"]


def answered(about: str, top: int, frame: FrameType | None) -> str:
    """Return the answer to a question: a census, or what the program is doing.

    Args:
        about: ``census`` or ``explain``.
        top: the number of rows of a census.
        frame: where the main thread is.
    """
    head = f"process {os.getpid()}{where(frame)}"
    return f"{head}\n{shown_census(top)}" if about == "census" else f"{head}\n{moment(frame)}"


def answer_request(request: Request, frame: FrameType | None) -> None:
    """Answer what another process asks; an error of the look is an answer, too."""
    unnoticed(
        lambda: write_answer(request, answered(request.about, request.top, frame)),
        lambda words: write_answer(request, words),
    )


def answer_remotely() -> None:
    """Answer what another process asks, where Python runs a file of that process in this one."""
    request = waiting_for(os.getpid())
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_remote(frame):
        frame = frame.f_back
    if request is not None:
        answer_request(request, frame)


def _is_remote(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return file == "<string>" or file.startswith(f"/tmp/byname-{os.getuid()}")


def moment(frame: FrameType | None) -> str:
    """Return the lines on which the program's threads are, and a summary of what is alive."""
    return "\n".join([*_threads(frame), f"alive: {str(census()).partition(chr(10))[0]}"])


def _threads(frame: FrameType | None) -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    here = threading.get_ident()
    frames = {**sys._current_frames(), **({} if frame is None else {here: frame})}
    for ident in sorted(frames, key=lambda one: one != here):
        yield f"{names.get(ident, 'a thread that Python did not start')}:"
        yield from _stack(frames[ident])


def _stack(innermost: FrameType) -> Iterator[str]:
    inner: FrameType | None = innermost
    frames: list[FrameType] = []
    while inner is not None:
        frames.insert(0, inner)
        inner = inner.f_back
    program = [one for one in frames if not is_library(one.f_code.co_filename)]
    sites = [_site(one) for one in program]
    width = max((len(str(site)) for site in sites), default=0)
    yield from (f"    {site!s:<{width}}  {site.statement or f'in {site.function}'}" for site in sites)
    calls = [dict(locals_of(one)).get("self") for one in frames if one.f_code is CODE_OF_A_MODULES_CALL]
    modules = [one for one in calls if isinstance(one, nn.Module)]
    if modules:
        yield f"  in a call of {_named(modules[0], modules[-1])}"
    if not program or frames[-1] is not program[-1]:
        last, where = frames[-1].f_code, "in" if program else "no line of the program; in"
        yield f"  {where} {last.co_qualname} of {_library(last.co_filename)}"


def _site(frame: FrameType) -> Site:
    return locate(frame.f_code, frame.f_lasti).site


def _named(root: nn.Module, inner: nn.Module) -> str:
    """Return a module as the outermost one that is being called has it: ``blocks.3.attn (Attention) of GPT``."""
    path = next((path for path, module in modules_by_path(root).items() if module is inner), "")
    kind = type(inner).__name__
    return kind if inner is root else f"{f'{path} ({kind})' if path else kind} of {type(root).__name__}"


def _library(file: str) -> str:
    parts = file.replace("\\", "/").split("/")
    return "/".join(parts[-2:])
