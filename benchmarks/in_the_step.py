"""In the step: how long does a program wait for the recorder while it runs, and when the recording is closed?

The model gives its input back, so what is measured is the recorder alone. Seconds are of a clock: a write may wait.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import h5py
import torch
from torch import Tensor, nn

import byname
from benchmarks.models import Layers
from benchmarks.storing import series_of
from benchmarks.timing import Row, Variant, interleaved, small_heap
from byname.recording.log_file import LogStore

__all__ = ["in_the_step"]

_KIB, _MIB = 1 << 10, 1 << 20
_MICRO = 1e-6
_WINDOW = 15 * _MIB
_BLOCK = 32
"""The rows of a block that is written by h5py: as many as a careful program collects."""

After = Callable[[], object]
"""What is done when a step has ended."""


def in_the_step() -> list[Row]:
    """One place of 64 KiB, with and without flushes; 500 places of 4 KiB; closing; a log that is still written."""
    with tempfile.TemporaryDirectory() as inside, small_heap():
        folder = Path(inside)
        return [*_large_values(folder), *_flushed(folder), *_many_places(folder), *_closing(folder), *_live(folder)]


def _values(size: int) -> list[Tensor]:
    """Values that change from step to step, as they do in a training."""
    return [torch.randn(size // 4) for _ in range(64)]


def _large_values(folder: Path, times: int = 2_000, rounds: int = 9) -> list[Row]:
    model, values = Layers(1), _values(64 * _KIB)
    file = folder / "run.h5"
    variants = {
        "empty": _steps(model, values, times, lambda: _nothing(model)),
        "raw": _steps(model, values, times, lambda: _written(model, folder / "raw")),
        "h5py": _steps(model, values, times, lambda: _in_blocks(model, folder / "hand.h5")),
        "hook": _steps(model, values, times, lambda: _kept(model)),
        "file": _steps(model, values, times, lambda: _recorded(model, "layers.0", to=file, overwrite=True)),
        "memory": _steps(model, values, times, lambda: _recorded(model, "layers.0")),
    }
    took = interleaved(variants, rounds)
    words = {
        "raw": ("written by os.write", None),
        "h5py": (f"copied, and written by h5py in blocks of {_BLOCK}", None),
        "hook": ("kept by a hook that clones", None),
        "file": ("recorded to a file", 55),
        "memory": ("recorded in memory", 30),
    }
    return [
        Row(f"64 KiB a step, less a step alone: {said}", took.each(one, times, _MICRO, less="empty"), "µs", limit)
        for one, (said, limit) in words.items()
    ]


def _flushed(folder: Path, times: int = 1_000, rounds: int = 9) -> list[Row]:
    """Flushed after some steps: what was recorded outlives the process from then on."""
    model, values = Layers(1), _values(64 * _KIB)
    file = folder / "run.h5"

    def recorded(every: int) -> Variant:
        return _steps(
            model, values, times, lambda: _recorded(model, "layers.0", every, to=file, overwrite=True, finish=False)
        )

    variants = {
        "raw": _steps(model, values, times, lambda: _written(model, folder / "raw")),
        "again": _steps(model, values, times, lambda: _written(model, folder / "raw")),
        "100": recorded(100),
        "1": recorded(1),
    }
    took = interleaved(variants, rounds)
    return [
        Row("64 KiB a step, written by os.write", took.each("raw", times, _MICRO), "µs"),
        Row("  again (A/A)", took.ratio("again", "raw"), "×"),
        Row("  recorded, flushed every 100 steps", took.ratio("100", "raw"), "×", 1.5),
        Row("  recorded, flushed every step", took.ratio("1", "raw"), "×", 3.5),
    ]


def _many_places(folder: Path, times: int = 64, rounds: int = 9) -> list[Row]:
    model, values = Layers(500), _values(4 * _KIB)
    variants = {
        "h5py": _steps(model, values, times, lambda: _in_blocks(model, folder / "hand.h5")),
        "again": _steps(model, values, times, lambda: _in_blocks(model, folder / "hand.h5")),
        "file": _steps(
            model, values, times, lambda: _recorded(model, "layers.*", to=folder / "run.h5", overwrite=True)
        ),
    }
    took = interleaved(variants, rounds)
    return [
        Row("500 places of 4 KiB, copied, and written by h5py in blocks: a step", took.each("h5py", times, 1e-3), "ms"),
        Row("  again (A/A)", took.ratio("again", "h5py"), "×"),
        Row("  recorded to a file", took.ratio("file", "h5py"), "×", 1.2),
    ]


def _closing(folder: Path, rounds: int = 5) -> list[Row]:
    """The HDF5 file of 1 GiB, made of its log, and a copy of that log; also with many small places."""
    rows = []
    for places, size, limit in ((8, 512 * _KIB, 1.3), (100, 4 * _KIB, None)):
        copied, closed = _copied(folder, places, size), _closed(folder, places, size)
        took = interleaved({"copied": copied, "again": copied, "closed": closed}, rounds)
        rows += [
            Row(f"1 GiB of {places} places, {size // _KIB} KiB a value: its log copied", took.seconds["copied"], "s"),
            Row("  again (A/A)", took.ratio("again", "copied"), "×"),
            Row("  closed", took.ratio("closed", "copied"), "×", limit),
        ]
    return rows


def _live(folder: Path, windows: int = 3_600, places: int = 500, rounds: int = 7) -> list[Row]:
    """A log of an hour, with a window a second."""
    store = _store_of(folder, places, 64, windows * places * 64, steps=1)
    seconds = []
    for _ in range(rounds):
        start = perf_counter()
        with byname.open(folder / "closing.h5") as run:
            assert len(run.paths) == places
        seconds.append(perf_counter() - start)
    store.close()
    return [Row(f"a log of {places} places and {windows:,} windows, still written: opened", seconds, "s", 0.5)]


Context = Callable[[], Any]


def _steps(model: nn.Module, values: list[Tensor], times: int, context: Context) -> Variant:
    """Opening and closing do not count."""

    def run() -> float:
        with context() as after:
            for value in values:
                model(value)
                after()
            start = perf_counter()
            for number in range(times):
                model(values[number % len(values)])
                after()
            return perf_counter() - start

    return run


@contextmanager
def _nothing(model: nn.Module) -> Iterator[After]:
    yield lambda: None


@contextmanager
def _recorded(model: nn.Module, where: str, flushed: int = 0, **options: Any) -> Iterator[After]:
    with byname.record(model, where, **options) as recorder:
        number = 0

        def after() -> None:
            nonlocal number
            number += 1
            if flushed and not number % flushed:
                recorder.flush()

        yield after


@contextmanager
def _written(model: nn.Module, path: Path) -> Iterator[After]:
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    with _hooked(model, lambda _, value: os.write(descriptor, value.numpy().data.cast("B"))):
        yield lambda: None
    os.close(descriptor)


@contextmanager
def _kept(model: nn.Module) -> Iterator[After]:
    kept: list[Tensor] = []
    with _hooked(model, lambda _, value: kept.append(value.clone())):
        yield lambda: None


@contextmanager
def _in_blocks(model: nn.Module, path: Path) -> Iterator[After]:
    kept: dict[int, list[Tensor]] = {}
    with h5py.File(path, "w") as file:

        def keep(place: int, value: Tensor) -> None:
            mine = kept.setdefault(place, [])
            mine.append(value.clone())
            if len(mine) == _BLOCK:
                write(place, torch.stack(mine))
                mine.clear()

        def write(place: int, block: Tensor) -> None:
            if str(place) not in file:
                file.create_dataset(
                    str(place),
                    (0, *block.shape[1:]),
                    dtype="f4",
                    maxshape=(None, *block.shape[1:]),
                    chunks=tuple(block.shape),
                )
            data = file[str(place)]
            data.resize(len(data) + len(block), 0)
            data[-len(block) :] = block.numpy()

        with _hooked(model, keep):
            yield lambda: None


@contextmanager
def _hooked(model: nn.Module, take: Callable[[int, Tensor], object]) -> Iterator[None]:
    def of(place: int) -> Callable[[nn.Module, Any, Tensor], None]:
        def hook(module: nn.Module, args: Any, output: Tensor) -> None:
            take(place, output.detach())

        return hook

    layers = model.get_submodule("layers").children()
    hooks = [layer.register_forward_hook(of(place)) for place, layer in enumerate(layers)]
    yield
    for one in hooks:
        one.remove()


def _store_of(folder: Path, places: int, size: int, total: int, steps: int = 0) -> LogStore:
    """A log with so many bytes of values in it, which is not closed yet, in windows as a recorder writes them."""
    value, steps = torch.randn(size // 4), steps or _WINDOW // (places * size)
    store = LogStore(folder / "closing.h5", run={}, overwrite=True)
    for window in range(total // (places * size * steps)):
        iterations = [*range(window * steps, (window + 1) * steps)]
        store.append({f"layers.{place}": series_of(f"layers.{place}", value, iterations) for place in range(places)})
    store.flush()
    return store


def _closed(folder: Path, places: int, size: int) -> Variant:
    def run() -> float:
        store = _store_of(folder, places, size, 1024 * _MIB)
        start = perf_counter()
        store.close()
        took = perf_counter() - start
        (folder / "closing.h5").unlink()
        return took

    return run


def _copied(folder: Path, places: int, size: int) -> Variant:
    def run() -> float:
        store = _store_of(folder, places, size, 1024 * _MIB)
        start = perf_counter()
        shutil.copyfile(folder / "closing.h5.log", folder / "copy")
        took = perf_counter() - start
        (folder / "copy").unlink()
        store.close()
        (folder / "closing.h5").unlink()
        return took

    return run
