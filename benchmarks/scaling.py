"""What do many places and many iterations cost: recorded, opened, printed and read, against h5py by hand?"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import torch
from torch import Tensor, nn

import byname
from benchmarks.models import Layers
from benchmarks.timing import Row, Variant, interleaved

__all__ = ["scaling"]

_PLACES, _ITERATIONS = 500, 20
_MANY = 100_000
_ROUNDS = 9


def scaling() -> list[Row]:
    """A file of many places, a place of many iterations, and the size of a file of small values."""
    with tempfile.TemporaryDirectory() as inside:
        folder = Path(inside)
        return [*_many_places(folder), *_many_iterations(folder), *_small_values(folder)]


def _many_places(folder: Path) -> list[Row]:
    """Each value has 1 KiB."""
    model, x = Layers(_PLACES), torch.randn(256)
    file, by_hand = folder / "run.h5", folder / "by_hand.h5"
    took = interleaved(
        {
            "hand": _seconds(lambda: _recorded_by_hand(model, x, by_hand)),
            "again": _seconds(lambda: _recorded_by_hand(model, x, by_hand)),
            "memory": _seconds(lambda: _recorded(model, x, None, _ITERATIONS)),
            "recorded": _seconds(lambda: _recorded(model, x, file, _ITERATIONS)),
        },
        _ROUNDS,
    )
    opened = interleaved(
        {"hand": _seconds(lambda: _shapes_by_hand(by_hand)), "opened": _seconds(lambda: _printed(file))}, _ROUNDS
    )
    return [
        Row(f"{_PLACES} places, {_ITERATIONS} iterations: cloned by hooks, written by h5py", took.seconds["hand"], "s"),
        Row("  by hand again (A/A)", took.ratio("again", "hand"), "×"),
        Row("  recorded in memory", took.ratio("memory", "hand"), "×"),
        Row("  recorded to a file, closed", took.ratio("recorded", "hand"), "×"),
        Row("  shapes of all by h5py", opened.seconds["hand"], "s"),
        Row("  opened and printed", opened.seconds["opened"], "s", 0.1),
    ]


def _many_iterations(folder: Path) -> list[Row]:
    """Each value has 16 numbers."""
    model, x = Layers(1), torch.randn(16)
    file, by_hand = folder / "long.h5", folder / "long_by_hand.h5"
    _recorded(model, x, file, _MANY)
    _written_by_hand(by_hand, {"layers.0": [x] * _MANY})
    took = interleaved(
        {
            "hand": _seconds(lambda: _read_by_hand(by_hand)),
            "series": _seconds(lambda: _read(file, len)),
            "numpy": _seconds(lambda: _read(file, lambda series: series.to_numpy())),
            "at": _seconds(lambda: _read(file, lambda series: series.at(_MANY // 2))),
        },
        _ROUNDS,
    )
    return [
        Row(f"a place of {_MANY:,} iterations: numbers and iterations by h5py", took.seconds["hand"], "s"),
        Row("  its series, without a value", took.seconds["series"], "s"),
        Row("  all values as one array", took.seconds["numpy"], "s"),
        Row("  the value in force in the middle", took.seconds["at"], "s"),
    ]


def _small_values(folder: Path, places: int = 200, numbers: int = 1024) -> list[Row]:
    """One iteration, each value of 4 KiB."""
    file = folder / "small.h5"
    _recorded(Layers(places), torch.randn(numbers), file, 1)
    payload = places * numbers * 4
    return [Row(f"the file of {places} values of 4 KiB / these", [file.stat().st_size / payload] * 2, "×", 1.1)]


def _seconds(work: Callable[[], object]) -> Variant:
    def run() -> float:
        gc.collect()
        start = process_time()
        work()
        return process_time() - start

    return run


def _recorded(model: nn.Module, x: Tensor, file: Path | None, iterations: int) -> None:
    with byname.record(model, "layers.*", to=file, on_change=False, overwrite=True), torch.no_grad():
        for _ in range(iterations):
            model(x)


def _recorded_by_hand(model: Layers, x: Tensor, file: Path) -> None:
    kept: dict[str, list[Tensor]] = {f"layers.{number}": [] for number in range(len(model.layers))}

    def keeping(values: list[Tensor]) -> Callable[[nn.Module, Any, Tensor], None]:
        return lambda module, args, output: values.append(output.detach().clone())

    hooks = [layer.register_forward_hook(keeping(kept[f"layers.{at}"])) for at, layer in enumerate(model.layers)]
    with torch.no_grad():
        for _ in range(_ITERATIONS):
            model(x)
    for hook in hooks:
        hook.remove()
    _written_by_hand(file, kept)


def _written_by_hand(file: Path, kept: dict[str, list[Tensor]]) -> None:
    import h5py

    with h5py.File(file, "w") as target:
        for path, values in kept.items():
            group = target.create_group(path)
            group["values"] = torch.stack(values).numpy()
            group["iterations"] = range(len(values))


def _shapes_by_hand(file: Path) -> list[object]:
    import h5py

    with h5py.File(file, "r") as source:
        return [(path, group["values"].shape, group["iterations"][-1]) for path, group in source.items()]


def _printed(file: Path) -> str:
    with byname.open(file) as recording:
        return str(recording)


def _read_by_hand(file: Path) -> object:
    import h5py

    with h5py.File(file, "r") as source:
        return source["layers.0"]["values"][:], source["layers.0"]["iterations"][:]


def _read(file: Path, look: Callable[[Any], object]) -> object:
    with byname.open(file) as recording:
        return look(recording["layers.0"])
