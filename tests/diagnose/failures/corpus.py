"""Which failing programs are there, and what is the truth about each?"""

import contextlib
import importlib
import re
import shutil
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
MARK = re.compile(r"#: ((?:\d+ ?)+)(\w*)$")
MASKED = re.compile(r"#: masked$")
HEADER = re.compile(r"# (cause|culprits|also|group|kind|first|mended \d+): ?(.*)$")

Place = tuple[str, int]


@dataclass(frozen=True)
class Program:
    """A program that fails, and the truth about it as its comments tell it; see README.md."""

    path: Path
    cause: str = ""
    kind: str = ""
    culprits: list[str] = field(default_factory=list)
    also: list[str] = field(default_factory=list)
    group: str = ""
    story: dict[int, Place] = field(default_factory=dict)
    first: str = ""
    masked: Place | None = None
    mended: dict[int, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.path.parent


def programs(folder: Path = HERE) -> list[Program]:
    """Every program of the folder, by name."""
    return [parse(path) for path in sorted(folder.glob("*.py")) if path.name != "corpus.py"]


def named(wanted: Callable[[Program], bool] = lambda program: True) -> pytest.MarkDecorator:
    """Parametrizes a test with programs, by name: no test module holds them, for byname to look through."""
    return pytest.mark.parametrize("program", [one.path.stem for one in programs() if wanted(one)], indirect=True)


def parse(path: Path) -> Program:
    lines = path.read_text().splitlines()
    headers = [match.groups() for line in lines if (match := HEADER.match(line))]
    told = dict(headers)
    return Program(
        path,
        cause=told["cause"],
        kind=told["kind"],
        culprits=_listed(headers, "culprits"),
        also=_listed(headers, "also"),
        group=told.get("group", ""),
        story=dict(sorted(_story(path))),
        first=told.get("first", ""),
        masked=next(((path.name, number) for number, line in enumerate(lines, 1) if MASKED.search(line)), None),
        mended={int(key.split()[1]): text for key, text in headers if key.startswith("mended")},
    )


def _listed(headers: list[tuple[str, str]], wanted: str) -> list[str]:
    return [name.strip() for key, text in headers if key == wanted for name in text.split(",") if name.strip()]


def _story(path: Path) -> Iterator[tuple[int, Place]]:
    for file in [path, *sorted((path.parent / "helpers").glob("*.py"))]:
        for number, line in enumerate(file.read_text().splitlines(), 1):
            mark = MARK.search(line)
            if mark and mark[2] == ("" if file == path else path.stem):
                for part in mark[1].split():
                    yield int(part), (file.relative_to(path.parent).as_posix(), number)


def run(
    program: Program, within: AbstractContextManager[object] | None = None
) -> tuple[dict[str, object], Exception | None]:
    """What the program's module holds in the end, and the error that ended it.

    The program runs as `python program.py` would run it, in this process: as the module `__main__`, from its real file,
    with helpers imported afresh. An error passes through `within` before it is returned.
    """
    module = types.ModuleType("__main__")
    module.__file__ = str(program.path)
    code = compile(program.path.read_text(), str(program.path), "exec")
    with _as_main(module, program.folder), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with within or nullcontext():
                exec(code, module.__dict__)
        except Exception as error:  # whatever the program raises is what is asked for
            return module.__dict__, error
        finally:
            torch.set_grad_enabled(True)  # which a program may have left off
    return module.__dict__, None


@contextlib.contextmanager
def _as_main(module: types.ModuleType, folder: Path) -> Iterator[None]:
    before = sys.modules["__main__"], list(sys.path)
    _forget_helpers()
    importlib.invalidate_caches()
    sys.modules["__main__"], sys.path[:] = module, [str(folder), *sys.path]
    try:
        yield
    finally:
        sys.modules["__main__"], sys.path[:] = before
        _forget_helpers()


def _forget_helpers() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "helpers"]:
        del sys.modules[name]


def user_frames(program: Program, error: BaseException) -> list[Place]:
    """The frames of the error's traceback that are in the program or its helpers, innermost last."""
    found = []
    traceback = error.__traceback__
    while traceback is not None:
        file = Path(traceback.tb_frame.f_code.co_filename)
        if file.is_relative_to(program.folder) and file.name != "corpus.py":
            found.append((file.relative_to(program.folder).as_posix(), traceback.tb_lineno))
        traceback = traceback.tb_next
    return found


def mend(program: Program, folder: Path) -> Program:
    """A copy of the program in the folder, with the lines changed that its comments say would mend it."""
    shutil.copytree(program.folder / "helpers", folder / "helpers", ignore=shutil.ignore_patterns("__pycache__"))
    copy = Path(shutil.copy(program.path, folder))
    for part, text in program.mended.items():
        name, number = program.story[part]
        lines = (folder / name).read_text().splitlines()
        old = lines[number - 1]
        lines[number - 1] = old[: len(old) - len(old.lstrip())] + text
        (folder / name).write_text("\n".join(lines) + "\n")
    return parse(copy)
