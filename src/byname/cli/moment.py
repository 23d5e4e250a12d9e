"""What is a program doing at this moment? Its threads' own lines, the module that each calls, and what is alive.

Nothing of the program is run; its frames are only read.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torch import nn

from byname.cli.ask import Answer, Request, waiting_for, write_answer
from byname.cli.json_facts import census_facts, site_facts
from byname.cli.unnoticed import census_text, unnoticed, where
from byname.memory.census import Census, census
from byname.model.module_tree import modules_by_path
from byname.reading.frames import CODE_OF_A_MODULES_CALL, locals_of
from byname.source.location import Site, is_library, locate


def answered(request: Request, frame: FrameType | None) -> Answer:
    """Return the answer to a question: a census, or what the program is doing.

    Args:
        request: the question.
        frame: where the main thread is.
    """
    head = f"process {os.getpid()}{where(frame)}"
    facts: dict[str, Any] = {"process": os.getpid()}
    if request.about == "census":
        found = census()
        text = f"{head}\n{census_text(found, request.top, request.width)}"
        facts |= {"when": where(frame).strip(), "step": None}
        return Answer(text, facts | census_facts(found) if request.facts else None)
    now = moment(frame)
    return Answer(f"{head}\n{now}", facts | now.facts() if request.facts else None)


def answer_request(request: Request, frame: FrameType | None) -> None:
    """Answer what another process asks; an error of the look is an answer, too."""
    unnoticed(
        lambda: write_answer(request, answered(request, frame)),
        lambda words: write_answer(request, Answer(words)),
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


@dataclass(frozen=True, slots=True)
class Moment:
    """What the threads of a program are doing, and what is alive. `str` writes it down.

    Attributes:
        threads: the threads, first the one that looks.
        alive: a census.
    """

    threads: tuple[ThreadNow, ...]
    alive: Census

    def __str__(self) -> str:
        alive = str(self.alive).partition("\n")[0]
        return "\n".join([*map(str, self.threads), f"alive: {alive}"])

    def facts(self) -> dict[str, Any]:
        """Return the values that JSON has."""
        kinds = {kind: size for kind, _, size in self.alive.by("kind")}
        alive = {"storages": len(self.alive), "bytes": self.alive.bytes, "kinds": kinds}
        return {"threads": [one.facts() for one in self.threads], "alive": alive}


@dataclass(frozen=True, slots=True)
class ThreadNow:
    """What one thread is doing. `str` writes it down.

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
        """Return the values that JSON has."""
        sites = [site_facts(site) for site in self.sites]
        return {"name": self.name, "sites": sites, "module": self.module, "library": self.library}


def moment(frame: FrameType | None) -> Moment:
    """Return the lines on which the program's threads are, and what is alive.

    Args:
        frame: where the thread that asks is; None if it is in no frame of the program.
    """
    return Moment(tuple(_threads(frame)), census())


def _threads(frame: FrameType | None) -> Iterator[ThreadNow]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    here = threading.get_ident()
    frames = {**sys._current_frames(), **({} if frame is None else {here: frame})}
    for ident in sorted(frames, key=lambda one: one != here):
        yield _thread(names.get(ident, ""), frames[ident])


def _thread(name: str, innermost: FrameType) -> ThreadNow:
    inner: FrameType | None = innermost
    frames: list[FrameType] = []
    while inner is not None:
        frames.insert(0, inner)
        inner = inner.f_back
    program = [one for one in frames if not is_library(one.f_code.co_filename)]
    in_library = not program or innermost is not program[-1]
    library = f"{innermost.f_code.co_qualname} of {_library(innermost.f_code.co_filename)}" if in_library else ""
    return ThreadNow(name, tuple(map(_site, program)), _module(frames), library)


def _module(frames: Sequence[FrameType]) -> str:
    calls = [dict(locals_of(one)).get("self") for one in frames if one.f_code is CODE_OF_A_MODULES_CALL]
    modules = [one for one in calls if isinstance(one, nn.Module)]
    return _named(modules[0], modules[-1]) if modules else ""


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
