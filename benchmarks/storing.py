"""How fast are recorded values written to a file, against a plain write of the same bytes, and how soon is it open?"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from time import perf_counter

import torch

import byname
from benchmarks.timing import Row, Variant, interleaved
from byname.recording.log_file import LogStore
from byname.recording.series import Series

__all__ = ["series_of", "storing"]

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30
_WINDOW = 32 * _MIB
"""So many bytes a recorder collects before it writes."""

_MEMORY = Path("/dev/shm")


def storing() -> list[Row]:
    """Few large values and many small ones, to memory that looks like a disk and to a disk; then opening."""
    rows = []
    for where, folder in _folders():
        with tempfile.TemporaryDirectory(dir=folder) as inside:
            rows += _writing(f"12 places of 512 KiB, {where}", Path(inside), places=12, size=512 * _KIB)
            rows += _writing(f"100 places of 4 KiB, {where}", Path(inside), places=100, size=4 * _KIB)
    return [*rows, *_opening()]


def _folders() -> Iterator[tuple[str, str | None]]:
    if _MEMORY.is_dir():
        yield "tmpfs", str(_MEMORY)
    yield "disk", None


def _writing(title: str, folder: Path, places: int, size: int, rounds: int = 7) -> list[Row]:
    """A run of 512 MiB, making the file and closing it included; seconds on the wall, for a write may wait."""
    windows = _windows(places, size, 512 * _MIB)
    total = sum(tensor.nbytes for window in windows for series in window.values() for tensor in series.values)
    variants = {
        "raw": _raw(folder / "raw", windows),
        "again": _raw(folder / "raw", windows),
        "stored": _stored(folder / "run.h5", windows),
    }
    took = interleaved(variants, rounds)
    return [
        Row(f"{title}: plain write", [total / one / _MIB for one in took.seconds["raw"]], "MiB/s"),
        Row("plain write again (A/A)", took.ratio("again", "raw"), "×"),
        Row("recorded: share of the plain write's speed", took.ratio("raw", "stored"), "×"),
        Row("recorded: the plain write's time (a share of 0.35)", took.ratio("stored", "raw"), "×", 1 / 0.35),
    ]


def _windows(places: int, size: int, total: int) -> list[Mapping[str, Series]]:
    """What a recorder hands to its store, window by window."""
    values = [torch.randn(size // 4) for _ in range(places)]
    steps = max(1, _WINDOW // (places * size))
    numbers = count()
    windows: list[Mapping[str, Series]] = []
    for _ in range(total // (steps * places * size)):
        iterations = [next(numbers) for _ in range(steps)]
        paths = (f"blocks.{i}.attn.forward.w" for i in range(places))
        windows.append({path: series_of(path, value, iterations) for path, value in zip(paths, values, strict=True)})
    return windows


def series_of(path: str, value: torch.Tensor, iterations: list[int]) -> Series:
    """Return a series that has the same value in each of these iterations."""
    many = len(iterations)
    return Series(
        path=path,
        values=[value] * many,
        iterations=iterations,
        ranks=[0] * many,
        calls=[0] * many,
        modes=["train"] * many,
        shapes=[tuple(value.shape)] * many,
        shards=[None] * many,
    )


def _raw(path: Path, windows: list[Mapping[str, Series]]) -> Variant:
    """The floor: each array in one go, one behind the other."""
    buffers = [
        [memoryview(tensor.numpy()).cast("B") for series in window.values() for tensor in series.values]
        for window in windows
    ]

    def run() -> float:
        path.unlink(missing_ok=True)
        start = perf_counter()
        file = os.open(path, os.O_CREAT | os.O_WRONLY)
        for window in buffers:
            for buffer in window:
                os.write(file, buffer)
        os.close(file)
        return perf_counter() - start

    return run


def _stored(path: Path, windows: list[Mapping[str, Series]]) -> Variant:
    def run() -> float:
        path.unlink(missing_ok=True)
        start = perf_counter()
        _store(path, windows)
        return perf_counter() - start

    return run


def _store(path: Path, windows: list[Mapping[str, Series]]) -> None:
    store = LogStore(path, run={})
    for window in windows:
        store.append(window)
        store.flush()
    store.close()


def _opening() -> list[Row]:
    """Opens a large run, and reads one value of it; 10 GiB where there is plenty of room, else 2."""
    with tempfile.TemporaryDirectory() as folder:
        size = 10 if shutil.disk_usage(folder).free > 50 * _GIB else 2
        path = Path(folder) / "run.h5"
        one = _windows(12, 512 * _KIB, 128 * _MIB)
        steps = len(next(iter(one[0].values()))) * len(one)
        _store(path, [_later(window, part * steps) for part in range(size * 8) for window in one])
        seconds = {"open": list[float](), "read": list[float]()}
        for _ in range(7):
            start = perf_counter()
            with byname.open(path) as run:
                assert len(run.paths) == 12
                seconds["open"].append(perf_counter() - start)
                start = perf_counter()
                assert run["blocks.7.attn.forward.w"].values[size * 8 * steps // 2].nbytes == 512 * _KIB
                seconds["read"].append(perf_counter() - start)
    return [
        Row(f"a run of {size} GiB: opened", seconds["open"], "s", 1),
        Row("  a value from its middle, the first of its place", seconds["read"], "s"),
    ]


def _later(window: Mapping[str, Series], by: int) -> Mapping[str, Series]:
    return {
        path: series_of(path, series.values[0], [one + by for one in series.iterations])
        for path, series in window.items()
    }
