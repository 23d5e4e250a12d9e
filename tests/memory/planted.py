"""Plants a storage of its own size in every kind of place, asks for censuses, and writes down what they said.

To be run in a Python of its own: ``main(way, file)``. What was planted is in `plants`; the ways are

- ``plain``: byname is not even imported before everything is planted;
- ``tracked``: all is planted inside ``byname.track(allocations=True)``;
- ``frozen``: as plain, and the heap is frozen before the census.
"""

import contextlib
import gc
import importlib
import json
import warnings
import weakref
from pathlib import Path

import torch
from plants import ground
from torch._subclasses.fake_tensor import FakeTensor

PARTS = ["modules", "saved", "containers", "waiting", "memories", "systems"]  # the last one leaves garbage: it is last
NODES = ("Backward", "Backward0", "CopySlices", "AccumulateGrad")


def main(way, file):
    torch.set_num_threads(1)
    torch.set_warn_always(True)
    warnings.simplefilter("ignore")  # what planting warns of is PyTorch's own
    gc.disable()  # until it is looked at, garbage is to stay
    with _tracked() if way == "tracked" else contextlib.nullcontext():
        for part in PARTS:
            importlib.import_module(f"plants.{part}")
        ground.plant_all()
        watched = _tensors()
        said, censuses = ground.while_running(lambda: _look(way))
    said |= {"expected": ground.facts(), "survivors": _survivors(watched), "censuses": len(censuses)}
    Path(file).write_text(json.dumps(said, default=str))


def _tracked():
    import byname

    return byname.track(allocations=True)


def _look(way):
    """What the censuses said, as plain data, and the censuses."""
    if way == "frozen":
        gc.freeze()
    import byname

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        first, second = byname.census(), byname.census()
        quick = byname.census(names=False)
        text = str(first)
    said = {
        "rows": first.rows(),
        "again": second.rows(),
        "quick": [row["bytes"] for row in quick.rows()],
        "bytes": first.bytes,
        "totals": {column: first.by(column) for column in ("kind", "name", "site", "dtype", "device", "module")},
        "notes": list(first.notes),
        "text": text,
        "warnings": [f"{one.category.__name__}: {one.message}" for one in warned],
        "still frozen": gc.get_freeze_count() > 0,
    }
    return said, (first, second, quick)


def _tensors():
    """Weak references to all tensors and storages that Python knows."""
    kinds = (torch.Tensor, torch.UntypedStorage)
    return [weakref.ref(one) for one in gc.get_objects() if issubclass(type(one), kinds)]


def _survivors(watched):
    """What of the plants lives on when they are uprooted: tensors with memory, and nodes of autograd's graphs."""
    ground.uproot()
    gc.unfreeze()
    gc.collect()
    sizes = {one.bytes for one in ground.EXPECTED}
    alive = [one for reference in watched if (one := reference()) is not None]
    real = [one for one in alive if type(one) is not FakeTensor and one.device.type != "meta"]
    tensors = [f"{type(one).__name__} of {_bytes(one)} bytes" for one in real if _bytes(one) in sizes]
    nodes = [type(one).__name__ for one in gc.get_objects() if type(one).__name__.endswith(NODES)]
    return tensors + nodes


def _bytes(one):
    return one.nbytes() if type(one) is torch.UntypedStorage else one.untyped_storage().nbytes()
