"""Programs that leak, or only look like it, and the truth about each."""

import contextlib
import gc
import importlib
import itertools
import logging
import re
import shutil
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

HERE = Path(__file__).parent
LEAKS, HEALTHY = HERE / "leaks", HERE / "healthy"
HEADER = re.compile(r"# (cause|name|count|bytes|warm|steps|left|collectable|seen|mended \d+): ?(.*)$")
MARK = re.compile(r"#: (\d+)(?: (\w+))?$")

CAUSES = (
    "stored-graph",
    "hook-closure",
    "stored-exception",
    "growing-cache",
    "retained-graph",
    "lru-cache",
    "logger",
    "prefetch",
    "stored-copies",
    "context-cycle",
    "graph-in-grad",
    "view-pins-base",
)


@dataclass(frozen=True)
class Truth:
    """One thing that grows: what a row of `byname.growth()` has to say about it."""

    cause: str
    name: str
    count: int
    bytes: int


@dataclass(frozen=True)
class Program:
    """A program, and the truth about it as its comments tell it; see leaks/README.md."""

    path: Path
    warm: int = 2
    steps: int = 8
    truths: list[Truth] = field(default_factory=list)
    left: int = 0
    collectable: bool = False
    on_the_heap: bool = False
    mended: dict[int, str] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """What the program gains in its steps."""
        return sum(truth.bytes for truth in self.truths)


def names(folder: Path) -> list[str]:
    """The names of the folder's programs."""
    return sorted(path.stem for path in folder.glob("*.py"))


def parse(path: Path) -> Program:
    """A program with the truth that its comments tell."""
    headers = [match.groups() for line in path.read_text().splitlines() if (match := HEADER.match(line))]
    told = dict(headers)
    return Program(
        path,
        warm=int(told.get("warm", 2)),
        steps=int(told.get("steps", 8)),
        truths=list(_truths(headers)),
        left=_number(told.get("left", "0")),
        collectable=told.get("collectable") == "yes",
        on_the_heap=told.get("seen") == "on the heap",
        mended={int(key.split()[1]): text for key, text in headers if key.startswith("mended")},
    )


def _truths(headers: list[tuple[str, str]]) -> Iterator[Truth]:
    """One for each line `cause`; the lines up to the next one tell the rest of it."""
    starts = [number for number, (key, _) in enumerate(headers) if key == "cause"]
    for start, end in itertools.pairwise([*starts, len(headers)]):
        told = dict(headers[start:end])
        yield Truth(told["cause"], told["name"], int(told["count"]), _number(told["bytes"]))


def _number(text: str) -> int:
    """The value of a sum that is written out, such as `8 * (64 * 4 + 4)`."""
    value = eval(text, {"__builtins__": {}})
    assert type(value) is int
    return value


def story(program: Program) -> dict[int, tuple[Path, int]]:
    """The marked lines of the program, and of the helpers that name it."""
    found = {}
    for file in [program.path, *sorted((program.path.parent / "helpers").glob("*.py"))]:
        for number, line in enumerate(file.read_text().splitlines(), 1):
            mark = MARK.search(line)
            if mark and mark[2] == (None if file == program.path else program.path.stem):
                found[int(mark[1])] = (file, number)
    return found


def mend(program: Program, folder: Path) -> Program:
    """A copy of the program in the folder, with the lines changed that its comments say would mend it."""
    helpers = program.path.parent / "helpers"
    shutil.copytree(helpers, folder / "helpers", ignore=shutil.ignore_patterns("__pycache__"))
    copy = parse(Path(shutil.copy(program.path, folder)))
    marked = story(copy)
    for part, text in program.mended.items():
        file, number = marked[part]
        lines = file.read_text().splitlines()
        old = lines[number - 1]
        lines[number - 1] = old[: len(old) - len(old.lstrip())] + text
        file.write_text("\n".join(lines) + "\n")
    return copy


@contextlib.contextmanager
def loaded(program: Program) -> Iterator[None]:
    """The program is the module `__main__`, as in `python program.py`, and its first lines have run.

    Nothing but `sys.modules` holds the module meanwhile, so that no variable of the tests is in the way of its names.
    """
    before, path = sys.modules["__main__"], list(sys.path)
    loggers = logging.Logger.manager.loggerDict
    named = set(loggers)
    importlib.invalidate_caches()
    sys.modules["__main__"], sys.path[:] = types.ModuleType("__main__"), [str(program.path.parent), *path]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Using backward.. with create_graph=True")  # that it leaks is the point
            warnings.filterwarnings("ignore", "This process .* is multi-threaded, use of fork")  # a loader, Python 3.12
            _execute(program.path)
            yield
    finally:
        if "stop" in vars(sys.modules["__main__"]):
            sys.modules["__main__"].stop()
        vars(sys.modules["__main__"]).clear()
        for name in (
            set(loggers) - named
        ):  # pytest adds handlers that keep records to every logger that does not propagate
            del loggers[name]
        if any(truth.cause == "graph-in-grad" for truth in program.truths):
            _break_cycles()
        sys.modules["__main__"], sys.path[:] = before, path
        for name in [name for name in sys.modules if name.split(".")[0] == "helpers"]:
            del sys.modules[name]
        gc.collect()  # caches of methods are cycles; the next program would be searched among their tensors


def _break_cycles() -> None:
    """Ends the leak that not even the garbage collector ends, so that no later program runs among what one left."""
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, torch.nn.Parameter) and thing.is_leaf and thing.grad is not None:
            if thing.grad.grad_fn is not None:
                thing.grad = None


def _execute(path: Path) -> None:
    torch.manual_seed(0)
    namespace = vars(sys.modules["__main__"])
    namespace["__file__"] = str(path)
    exec(compile(path.read_text(), str(path), "exec"), namespace)


def drive(steps: Iterator[int]) -> None:
    """Runs the loaded program: its function `train` has a loop of its own over the steps, its `step` is called for each."""
    if "train" in vars(sys.modules["__main__"]):
        sys.modules["__main__"].train(steps)
    else:
        for number in steps:
            sys.modules["__main__"].step(number)


class Witness(contextlib.ExitStack):
    """Which storages are alive, of all that any thread made while the witness was there.

    Sees every storage that an operation returns or is given, and holds none: nothing here is byname's.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[int, tuple[StorageWeakRef, int]] = {}

    def __enter__(self) -> "Witness":
        run = threading.Thread.run
        seen = self._note

        def witnessed(thread: threading.Thread) -> None:
            with _Noting(seen):
                run(thread)

        threading.Thread.run = witnessed  # type: ignore[method-assign]
        self.callback(setattr, threading.Thread, "run", run)
        self.enter_context(_Noting(seen))
        return self

    def _note(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._seen:
            self._seen[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())

    def look_on_the_heap(self) -> None:
        """Notes also what no operation of this process made, such as a batch that came from another process."""
        for thing in gc.get_objects():
            if type(thing) is torch.Tensor and thing.layout is torch.strided and thing.device.type == "cpu":
                self._note(thing)

    def alive(self) -> dict[int, int]:
        """The bytes of each living storage."""
        return {key: size for key, (ref, size) in list(self._seen.items()) if not ref.expired()}


class _Noting(TorchDispatchMode):
    def __init__(self, note: Callable[[torch.Tensor], None]) -> None:
        super().__init__()
        self.note = note

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves((args, kwargs, result)):
            if isinstance(value, torch.Tensor) and value.layout is torch.strided:
                self.note(value)
        return result


@dataclass(frozen=True)
class Gain:
    """What a program gained in its steps: bytes, what the garbage collector gives back; what it leaves when it ends."""

    bytes: int
    garbage: int = 0
    behind: int = 0


def witnessed(program: Program) -> Gain:
    """What the program really gains, from before its steps to after them, by the witness."""
    measured: list[int] = []

    def look() -> None:
        if program.on_the_heap:
            witness.look_on_the_heap()
        measured.append(sum(witness.alive().values()))

    def steps() -> Iterator[int]:
        yield from range(program.warm)
        look()
        yield from range(program.warm, program.warm + program.steps)
        look()
        gc.collect()
        look()

    with Witness() as witness, _only_its_own_garbage():
        with loaded(program):
            drive(steps())
        gc.collect()
        behind = sum(witness.alive().values())
    before, after, collected = measured
    return Gain(after - before, after - collected, behind)


@contextlib.contextmanager
def _only_its_own_garbage() -> Iterator[None]:
    """As `no_collection`; a collection looks only at what is made meanwhile, which is quick."""
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Nothing is freed meanwhile but by reference counts; what was garbage before is gone."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect()
