"""Files of format 1 open as before: those in `format_1/` were written by the last version of byname that wrote it.

They were made by calling `fill` below for each of the names in `FILES`, at the commit before format 2.
"""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from stored_runs import bits, series

import byname
from byname.recording.distributed.dtensor import Shard
from byname.recording.sampling import Sampling
from byname.recording.stores.writer import Hdf5Store

FILES = {"plain": None, "gzip": "gzip"}
FOLDER = Path(__file__).parent / "format_1"
SHARD = Shard((2,), ("x",), (0,), ("Shard(0)",), (4,), (0,))
ASKED = Sampling("fc*", every=2, stop=9, reduce=("norm", "mean"), dtype="float32")


def values():
    return {
        "fc1.weight": [torch.arange(6.0).reshape(2, 3) + one for one in range(4)],
        "half": [torch.tensor([1.5, float("nan")], dtype=torch.bfloat16)] * 2,
        "quarter": [torch.tensor([1.5, 2.0]).to(torch.float8_e5m2)] * 2,
        "nested": [{"k": [torch.ones(2), (None, 2.5j)]}, {}],
        "text": ["", "ä", "x" * 40],
        "sizes": [torch.arange(one) for one in range(11)],
        "mixed['a/b%']": [1, 2.5, True, None, 2**70, 3],
        "part": [torch.ones(2)] * 2,
    }


def fill(path, compression):
    store = Hdf5Store(path, run={"note": {"k": [1, "x"]}}, compression=compression)
    places = {name: series(name, many, shard=SHARD if name == "part" else None) for name, many in values().items()}
    places["fc1.weight"] = replace(places["fc1.weight"], sampling=ASKED)
    store.append(places)
    store.flush()
    store.append({"text": series("text", ["late"], start=7, rank=3, call=2, mode="eval")})
    store.close()


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_format_1_reads_as_it_was_written(name, tmp_path):
    path = tmp_path / "run.h5"
    shutil.copy(FOLDER / f"{name}.h5", path)
    expected = values()
    expected["text"].append("late")
    with byname.open(path) as recording:
        assert recording.complete and recording.ended and recording.missing == ()
        assert recording.run["note"] == {"k": [1, "x"]}
        assert {one: list(map(bits, recording[one])) for one in recording.paths} == {
            one: list(map(bits, many)) for one, many in expected.items()
        }
        rows = {row["path"]: row for row in recording.rows()}
        text = recording["text"]
        assert (text.iterations[-1], text.ranks[-1], text.calls[-1], text.modes[-1]) == (7, 3, 2, "eval")
        assert recording["fc1.weight"].sampling == ASKED
        assert list(recording["part"].shards) == [SHARD] * 2
    assert list(rows) == [*expected]
    assert rows["text"] == {
        "path": "text", "kind": "str", "shape": None, "records": 4, "iterations": "0-7", "ranks": (0, 3), "bytes": 32
    }  # fmt: skip
    assert rows["fc1.weight"]["shape"] == (2, 3) and rows["fc1.weight"]["records"] == 4
    assert rows["fc1.weight"]["how"] == str(ASKED)
    assert rows["sizes"]["shape"] == "ragged" and rows["sizes"]["iterations"] == "0-10"
    if name == "plain":
        assert rows["fc1.weight"]["bytes"] == 96
