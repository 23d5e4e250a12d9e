"""Recording on a GPU with `on_change`: one record of what does not change, also with streams and pinned memory."""

import time

import pytest
import torch
from torch import nn

import byname
from byname.recording.values.copy import Copies

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("held", torch.arange(4.0))

    def forward(self, x):
        table = {"held": self.held, "n": 1}
        return self.norm(self.frozen(x))


WHERE = ["frozen.weight", "frozen.bias", "norm.running_mean", "norm.num_batches_tracked", "held", "forward.table"]


def recorded(device, **how):
    model = Model().to(device)
    with byname.record(model, WHERE, mode="both", **how) as recorder:
        for number in range(6):
            if number == 3:
                model.frozen.weight.data.mul_(2)
            if number == 4:
                model.eval()
            model(torch.full((4, 3), float(number), device=device))
            if number % 2:
                recorder.flush()
    return recorder.results


@pytest.mark.parametrize("how", [{}, {"every": 2}, {"reduce": "norm"}, {"on_change": False}], ids=str)
def test_the_records_are_those_of_a_cpu(how):
    here, there = recorded("cpu", **how), recorded("cuda", **how)
    assert list(here) == list(there)
    for path in here:
        assert here[path].iterations == there[path].iterations, path
        assert here[path].modes == there[path].modes, path
        torch.testing.assert_close(list(there[path]), list(here[path]))
    if how.get("on_change", True):
        assert there["frozen.bias"].iterations == [0] and there["held"].iterations == [0]


def test_a_frozen_weight_is_in_the_file_once(tmp_path):
    recorded("cuda", to=tmp_path / "run.h5")
    with byname.open(tmp_path / "run.h5") as recording:
        assert recording["frozen.bias"].iterations == [0]
        assert recording["frozen.weight"].iterations == [0, 3]
        assert recording["frozen.weight"].values[1].device.type == "cpu"


@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
def test_a_step_that_records_a_frozen_weight_waits_for_nothing(monkeypatch):
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)  # no window ends within it
    model = Model().cuda()
    x = torch.ones(4, 3, device="cuda")
    with byname.record(model, WHERE, mode="both") as recorder:
        model(x)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(3):
                model(x)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert recorder.results["frozen.weight"].iterations == [0]


def test_values_of_a_forward_in_a_side_stream_are_those_of_its_moment():
    model, stream = nn.Sequential(nn.Identity()).cuda(), torch.cuda.Stream()
    with byname.record(model, "0", mode="both") as recorder:
        for number in range(20):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(2_000_000)  # the values are still being made when they are recorded
                value = torch.full((1 << 16,), float(number), device="cuda")
                model(value)
                value.fill_(-1)
    series = recorder.results["0"]
    assert series.iterations == list(range(20))
    assert all(value.eq(number).all() for number, value in enumerate(series))


def test_streams_may_take_turns_from_forward_to_forward():
    model, streams = nn.Sequential(nn.Identity()).cuda(), [torch.cuda.Stream() for _ in range(3)]
    with byname.record(model, "0", mode="both") as recorder:
        for number in range(12):
            with torch.cuda.stream(streams[number % 3]):
                torch.cuda._sleep(1_000_000)
                model(torch.full((1000,), float(number), device="cuda"))
    assert [float(value[0]) for value in recorder.results["0"]] == [float(number) for number in range(12)]


def test_pinned_tensors_of_the_program_are_recorded_as_ordinary_memory():
    model = nn.Sequential(nn.Identity())
    pinned = torch.arange(8.0).pin_memory()
    with byname.record(model, "0", mode="both") as recorder:
        model(pinned)
        model(pinned)
        pinned.add_(1)
        model(pinned)
    series = recorder.results["0"]
    assert series.iterations == [0, 2] and not any(value.is_pinned() for value in series)
    assert series.values[0].equal(torch.arange(8.0)) and series.values[1].equal(torch.arange(8.0) + 1)


def test_a_pinned_tensor_that_a_copy_is_still_filling_is_recorded_whole_once_the_program_has_waited():
    model, there = nn.Sequential(nn.Identity()), torch.full((1 << 20,), 7.0, device="cuda")
    pinned = torch.zeros(1 << 20, pin_memory=True)
    pinned.copy_(there, non_blocking=True)
    torch.cuda.synchronize()
    with byname.record(model, "0", mode="both") as recorder:
        model(pinned)
    assert recorder.results["0"].values[0].eq(7).all()


def test_the_pinned_memory_of_copies_is_given_back_and_used_again():
    copies, value = Copies(), torch.ones(1 << 20, device="cuda")
    for _ in range(3):
        copies.take(value, "x")
        copies.settle()
    assert not copies._under_way
    before = torch.cuda.memory_allocated()
    for _ in range(20):
        made = copies.take(value, "x")
        copies.settle()
        assert not made.is_pinned()
    assert torch.cuda.memory_allocated() == before
