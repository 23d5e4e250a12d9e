"""Flush: when a window is written, by the memory that its values take, whatever they are in."""

import itertools
import time
from dataclasses import dataclass

import pytest
import torch
from processes import run_alone
from torch import nn

import byname

MIB = 1 << 20


@dataclass
class State:
    keys: torch.Tensor
    values: torch.Tensor


class Made(nn.Module):
    """Computes something anew in each forward."""

    def __init__(self, make):
        super().__init__()
        self.make = make
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        made = self.make()
        return x * self.weight


def numbers(mebibytes):
    return torch.zeros(int(mebibytes * MIB) // 4)


OF_ONE_MEBIBYTE = {
    "tensor": lambda: numbers(1),
    "dict": lambda: {"k": numbers(1)},
    "list": lambda: [numbers(0.5), (numbers(0.25), [numbers(0.25)])],
    "dataclass": lambda: State(numbers(0.5), numbers(0.5)),
    "dataclasses": lambda: {"layers": [State(numbers(0.25), numbers(0.25)), State(numbers(0.25), numbers(0.25))]},
    "text": lambda: "x" * MIB,
    "letters of two bytes": lambda: "\u4e2d" * (MIB // 2),
    "texts": lambda: {"tokens": ["\u4e2d" * (MIB // 8), "\u6587" * (MIB // 8)], "word": "x" * (MIB // 2)},
    "bytes": lambda: {"text": b"x" * MIB},
}


def stored(file):
    with byname.open(file) as recording:
        return len(recording["forward.made"]) if "forward.made" in recording else 0


def pending(model, file, forwards):
    """How many of the values that came were not in the file, after each forward."""
    waiting = []
    for number in range(1, forwards + 1):
        model(torch.zeros(1))
        waiting.append(number - stored(file))
    return waiting


@pytest.fixture
def no_hurry(monkeypatch):
    """A window does not end because it is old."""
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)


@pytest.mark.grid(fast=1)
@pytest.mark.parametrize("make", OF_ONE_MEBIBYTE.values(), ids=OF_ONE_MEBIBYTE)
def test_up_to_15_mebibytes_wait_to_be_written_whatever_they_are_in(make, tmp_path, no_hurry):
    model, file = Made(make), tmp_path / "run.h5"
    with byname.record(model, "forward.made", to=file, on_change=False):
        waiting = pending(model, file, 70)
    assert max(waiting) in (15, 16)
    assert sum(after < before for before, after in itertools.pairwise(waiting)) == 4


@pytest.mark.slow
def test_the_values_of_one_step_wait_no_longer_than_those_of_several(tmp_path, no_hurry):
    model, file = Made(lambda: {"k": numbers(1)}), tmp_path / "run.h5"
    with byname.record(model, "forward.made", to=file, on_change=False, count="step"):
        waiting = pending(model, file, 70)
    assert max(waiting) in (14, 15)
    with byname.open(file) as recording:
        assert recording["forward.made"].iterations == [0] * 70
        assert recording["forward.made"].calls == [*range(70)]


def test_the_gradients_of_one_step_are_numbered_together_however_large_they_are(tmp_path, no_hurry):
    model, file = Made(lambda: numbers(1)), tmp_path / "run.h5"
    places = ["forward.made", "forward.x.grad"]
    with byname.record(model, places, to=file, on_change=False, count="step") as recorder:
        losses = []
        for number in range(40):
            losses.append(model(torch.tensor([float(number)], requires_grad=True)).square())
            if number == 0:
                losses.pop().backward()
        for loss in losses:
            loss.backward()
        assert stored(file) == 0
        recorder.step()
        model(torch.zeros(1))
        assert stored(file) == 40
    with byname.open(file) as recording:
        gradients = recording["forward.x.grad"]
        assert gradients.to_numpy()[:, 0].tolist() == [2.0 * gradients.calls[at] for at in range(40)]


SMALL = """
    import gc, resource
    import torch
    from torch import nn
    import byname
    from byname.recording import flush

    flush._SECONDS = 1e9

    class Made(nn.Module):
        def forward(self, x):
            made = {make}
            return x

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    torch.set_num_threads(1)
    model, x = Made(), torch.zeros(1)
    with byname.record(model, "forward.made", to={to!r}, on_change=False) as recorder:
        for _ in range(100):
            model(x)
        recorder.flush()
        gc.collect()
        before = most = resident()
        for number in range({forwards}):
            model(x)
            if not number % 100:
                most = max(most, resident())
    print(most - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "forwards"),
    [("torch.zeros(())", 100_000), ("[torch.zeros(()) for _ in range(50)]", 3_000), ("[0.5 + i for i in range(1000)]", 2_000)],
    ids=["numbers as tensors", "many in a list", "numbers of Python"],
)  # fmt: skip
def test_small_values_count_with_the_objects_that_hold_them(make, forwards, tmp_path):
    """Without these a number would count 4 bytes, of some 700."""
    (most,) = run_alone(SMALL.format(make=make, forwards=forwards, to=str(tmp_path / "run.h5")))
    assert 8 * MIB < int(most) < 32 * MIB
