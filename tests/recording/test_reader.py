"""Reader: how much of a file is read for what is asked of it, counted in bytes."""

import time
from pathlib import Path

import pytest
import torch
from stored_runs import reads_of
from torch import nn

import byname

PLACES, VALUE = 20, 4096


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Identity() for _ in range(PLACES))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x + 1)
        return x


@pytest.fixture
def reads(monkeypatch):
    """Returns what was asked for, and the bytes that were read for it."""
    sizes = reads_of(monkeypatch)

    def asked(ask):
        before = sum(sizes)
        return ask(), sum(sizes) - before

    return asked


@pytest.mark.parametrize("forwards", [200, 800])
def test_the_results_of_a_place_read_its_iterations_and_nothing_else(forwards, reads, tmp_path, monkeypatch):
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)  # no window is closed because a second has passed
    model = Wide()
    with byname.record(model, "layers.*", to=tmp_path / "run.h5", on_change=False) as recorder:
        for number in range(forwards):
            model(torch.full((VALUE // 4,), float(number)))
        recorder.flush()
        for _ in range(3):
            series, took = reads(lambda: recorder.results["layers.7"])
            assert series.iterations == [*range(forwards)]
            assert 0 < took <= 17 * forwards + 3 * VALUE  # of 20 values each


def test_each_value_in_force_is_the_only_thing_that_is_read_for_it(reads, tmp_path):
    model = Wide()
    with byname.record(model, "layers.*", to=tmp_path / "run.h5", on_change=False) as recorder:
        for number in range(400):
            model(torch.full((VALUE // 4,), float(number)))
        series = recorder.results["layers.7"]
        for iteration in (0, 399, 200, 200):
            value, took = reads(lambda: series.at(iteration))  # noqa: B023 - asked at once
            assert value.eq(iteration + 8).all()
            assert took == VALUE


def test_the_size_and_the_paths_of_results_read_no_values_and_no_records(reads, tmp_path):
    model = Wide()
    with byname.record(model, "layers.*", to=tmp_path / "run.h5") as recorder:
        model(torch.zeros(8))
        recorder.flush()
        (size, paths), took = reads(lambda: (len(recorder.results), [*recorder.results]))
        assert (size, len(paths)) == (PLACES, PLACES) and took <= 2 * (64 * PLACES + VALUE)


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="counted by Linux")
def test_opening_a_file_and_printing_it_reads_none_of_its_values(tmp_path):
    file, model = tmp_path / "run.h5", Wide()
    with byname.record(model, "layers.*", to=file, on_change=False):
        for _ in range(100):
            model(torch.zeros(VALUE // 4))
    _printed(file)  # by which modules are imported
    before = _read_by_this_process()
    text = _printed(file)
    assert _read_by_this_process() - before < 80_000 < file.stat().st_size / 100
    assert "layers.19" in text and "0-99" in text


def _printed(file):
    with byname.open(file) as recording:
        return str(recording)


def _read_by_this_process():
    with Path("/proc/self/io").open() as counts:
        return int(counts.readline().removeprefix("rchar:"))
