"""How much room a recording takes, in the file and in memory: some times what its values have."""

import h5py
import pytest
import torch
from stored_runs import Writer
from torch import nn

import byname


class Many(nn.Module):
    def __init__(self, make, count):
        super().__init__()
        self.make = make
        self.layers = nn.ModuleList(nn.Identity() for _ in range(count))

    def forward(self, x):
        for layer in self.layers:
            layer(self.make())
        return x


@pytest.mark.grid(fast=4)
@pytest.mark.parametrize("elements", [256, 1024, 5000, 60_000])
@pytest.mark.parametrize("closed", [True, False])
def test_a_few_values_of_many_places_take_little_room(elements, closed, tmp_path):
    model, file = Many(lambda: torch.randn(elements), 100), tmp_path / "run.h5"
    recorder = byname.record(model, "layers.*", to=file)
    model(torch.zeros(1))
    recorder.flush()
    if closed:
        recorder.close()
    size = (file if closed else file.with_name("run.h5.log")).stat().st_size
    recorder.close()
    assert size < 100 * (4 * 4 * elements + 10_000)


def test_small_values_in_containers_take_little_room_too(tmp_path):
    model, file = Many(lambda: {"h": torch.randn(512)}, 50), tmp_path / "run.h5"
    with byname.record(model, "layers.*", to=file):
        model(torch.zeros(1))
    assert file.stat().st_size < 50 * (4 * 2048 + 24_000)


MAKES = {
    "tensors": lambda number: torch.full((256,), float(number)),
    "bfloat16": lambda number: torch.full((16, 32), float(number % 200)).bfloat16(),
    "numbers": lambda number: float(number),
    "dicts": lambda number: {"k": torch.full((200,), float(number)), "n": number},
    "shapes": lambda number: torch.full((2 + number % 30, 20), float(number)),
    "texts": lambda number: f"step {number}",
}


@pytest.mark.grid(fast=2)
@pytest.mark.parametrize("kind", MAKES)
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_what_begins_small_and_becomes_long_is_whole_after_every_window(kind, compression, tmp_path):
    writer = Writer(tmp_path / "run.h5", "p", compression=compression)
    made = 0
    for count in (1, 1, 30, 700, 3, 2500):
        writer.window({"p": [*map(MAKES[kind], range(made, made + count))]})
        made += count
        with byname.open(tmp_path / "run.h5") as recording:
            found = recording["p"]
            assert found.iterations == list(range(made))
            for number in {0, 1, made // 2, made - 2, made - 1} & set(range(made)):
                value, expected = found.values[number], MAKES[kind](number)
                if isinstance(expected, dict):
                    assert value["n"] == expected["n"] and value["k"].equal(expected["k"])
                else:
                    assert value.equal(expected) if isinstance(expected, torch.Tensor) else value == expected
    writer.close()


def test_a_long_series_lies_in_one_piece_and_has_its_dimensions(tmp_path):
    writer = Writer(tmp_path / "run.h5", "p")
    for first, count in ((0, 1), (1, 1), (2, 2000)):
        writer.window({"p": [*map(MAKES["tensors"], range(first, first + count))]})
    writer.close()
    with h5py.File(tmp_path / "run.h5") as file:
        values = file["p/values"]
        assert values.chunks is None and values.shape == (2002, 256)
        assert [scale.name for dim in values.dims for scale in dim.values()] == ["/p/iterations", "/p/dim_0"]
        assert values.attrs["coordinates"] == "ranks calls modes"
        assert (values[:, 0] == range(2002)).all()
    assert (tmp_path / "run.h5").stat().st_size < 1.1 * 2002 * 1024
