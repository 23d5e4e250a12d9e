"""Where do two processes of one user meet? In a folder that nobody else can write to: a question, and its answer.

Both are JSON, in files that are put into place whole. Nothing that is read there is run.
"""

from __future__ import annotations

import json
import os
import stat
import uuid
from pathlib import Path
from typing import Any, NamedTuple

MOST = 256 * 2**20
"""Bytes of a question or an answer at most."""


class Request(NamedTuple):
    """What another process asks.

    Attributes:
        about: ``census`` or ``explain``.
        top: the number of rows.
        answer: the name of the file for the answer.
        facts: whether the answer is also wanted as values that JSON has.
        width: of a table, in characters.
    """

    about: str
    top: int
    answer: str
    facts: bool = False
    width: int = 160


class Answer(NamedTuple):
    """What a process answers.

    Attributes:
        text: the answer in words.
        facts: the same as values that JSON has; None where they were not asked for, or there are none.
    """

    text: str
    facts: dict[str, Any] | None = None


def _folder(make: bool = False) -> Path | None:
    """Return the folder, if it is one that only this user can write to."""
    folder = _place()
    if make:
        folder.mkdir(mode=0o700, exist_ok=True)
    try:
        found = folder.lstat()
    except OSError:
        return None
    private = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    return folder if private else None


def _place() -> Path:
    return Path("/tmp") / f"byname-{os.getuid()}"  # TMPDIR may differ between the two


def ask(process: int, about: str, top: int, *, facts: bool = False, width: int = 160) -> Request:
    """Put a question to a process where it will find it.

    Raises:
        PermissionError: the folder is there, and others can write to it.
    """
    folder = _folder(make=True)
    if folder is None:
        raise PermissionError(f"{_place()} is not a folder of this user alone")
    request = Request(about, top, f"{process}-{uuid.uuid4().hex}.answer", facts, width)
    _put(folder, f"{process}.request", request._asdict())
    return request


def waiting_for(process: int) -> Request | None:
    """Take the question to a process, if there is one."""
    folder = _folder()
    if folder is None:
        return None
    facts = _read(folder, f"{process}.request")
    (folder / f"{process}.request").unlink(missing_ok=True)
    return _request(facts) if isinstance(facts, dict) else None


def _request(facts: dict[str, Any]) -> Request | None:
    about, top, answer, wanted, width = (facts.get(name) for name in Request._fields)
    known = about in ("census", "explain") and type(top) is int and type(answer) is str and answer == Path(answer).name
    return Request(about, top, answer, wanted is True, width if type(width) is int else 160) if known else None  # type: ignore[arg-type]


def write_answer(request: Request, answer: Answer) -> None:
    """Put an answer where it is waited for."""
    folder = _folder()
    if folder is not None:
        _put(folder, request.answer, answer._asdict())


def answer_to(request: Request) -> Answer | None:
    """Return the answer; None if it has not come."""
    folder = _folder()
    facts = None if folder is None else _read(folder, request.answer)
    if not isinstance(facts, dict) or not isinstance(facts.get("text"), str):
        return None
    values = facts.get("facts")
    return Answer(facts["text"], values if isinstance(values, dict) else None)


def script_for(request: Request) -> Path:
    """Write the file that Python runs in another process, and return its path. It leaves no name in ``__main__``."""
    folder = _folder()
    if folder is None:
        raise PermissionError("the folder of questions is gone")
    source = Path(__file__).parents[2]
    text = _SCRIPT.format(root=str(source), answer=request.answer)
    script = folder / f"{request.answer}.py"
    with os.fdopen(os.open(script, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
        file.write(f"exec({text!r}, {{}})\n")
    return script


_SCRIPT = """
import sys
if "torch" in sys.modules:
    before = sys.path[:]
    sys.path.append({root!r})
    try:
        from byname.cli.moment import answer_remotely
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


def taken_back(process: int, request: Request) -> None:
    """Remove a question and its answer."""
    folder = _folder()
    if folder is not None:
        for name in (f"{process}.request", request.answer, f"{request.answer}.py"):
            (folder / name).unlink(missing_ok=True)


def _put(folder: Path, name: str, facts: dict[str, Any]) -> None:
    beside = folder / f"{name}.{uuid.uuid4().hex}"
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
        json.dump(facts, file)
    beside.replace(folder / name)


def _read(folder: Path, name: str) -> Any:
    try:
        with os.fdopen(os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            return json.loads(file.read(size)) if size <= MOST else None
    except (OSError, ValueError, RecursionError):
        return None
