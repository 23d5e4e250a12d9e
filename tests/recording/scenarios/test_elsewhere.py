"""Values whose content is not there to be asked (on a GPU): what is stored is what a CPU would have stored."""

import pytest
import torch
from stored_runs import bits
from torch import nn

import byname
from byname.recording.values.change import ChangeDetector


@pytest.fixture
def elsewhere(monkeypatch):
    """While a program runs, no content can be compared, as on a GPU; returns how often that was wanted."""
    asked = []

    def doubts(self, value, copy):
        asked.append(value)
        self.doubtful = True
        return True

    def switch(on):
        monkeypatch.undo()
        if on:
            monkeypatch.setattr(ChangeDetector, "_differs", doubts)
        return asked

    return switch


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.norm = nn.BatchNorm1d(3)
        self.cache = {"k": torch.zeros(2), "n": 1}
        self.calls = 0

    def forward(self, x):
        cache = self.cache
        for _ in range(2):
            h = self.frozen(x)
        self.calls += 1
        if self.calls == 3:
            self.frozen.weight.data.mul_(2)
            self.cache["k"].data.add_(1)
        if self.calls == 5:
            self.frozen.weight.copy_(self.frozen.weight.clone())  # new version, old content
        return self.norm(h)


WHERE = [
    "frozen.weight",
    "frozen.bias",
    "norm.running_mean",
    "norm.num_batches_tracked",
    "forward.cache",
    "forward.self.calls",
]
HOW = {
    "as they are": {},
    "reduced": {"reduce": "norm"},
    "several figures": {"reduce": ["mean", "max"]},
    "converted": {"dtype": "float64"},
    "by steps": {"count": "step"},
    "every second": {"every": 2},
    "all": {"on_change": False},
    "by a callback": {"on_value": lambda path, value, iteration: str(type(value))},
}


def recorded(how, *, to=None, flush=()):
    model = Model()
    where = (
        [path for path in WHERE if path != "forward.cache"]
        if how in ("reduced", "several figures", "converted")
        else WHERE
    )
    with byname.record(model, where, to=to, mode="both", **HOW[how]) as recorder:
        for number in range(7):
            if number == 5:
                model.eval()
            model(torch.ones(4, 3) * number)
            if number in flush:
                recorder.flush()
            if "count" in HOW[how] and number % 2:
                recorder.step()
    return {
        path: (series.iterations, series.calls, series.modes, list(series)) for path, series in recorder.results.items()
    }


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("flush", [(), (0, 1, 2, 3, 4, 5)], ids=["one window", "many windows"])
def test_what_is_stored_is_what_a_cpu_would_store(how, flush, elsewhere):
    here = recorded(how, flush=flush)
    asked = elsewhere(True)
    there = recorded(how, flush=flush)
    elsewhere(False)
    assert asked or how == "all"
    assert here.keys() == there.keys()
    for path in here:
        assert here[path][:3] == there[path][:3], path
        assert bits(there[path][3]) == bits(here[path][3])


def test_a_frozen_weight_has_one_record_and_one_for_each_change(elsewhere, tmp_path):
    elsewhere(True)
    found = recorded("as they are", to=tmp_path / "run.h5", flush=(1, 3))
    assert found["frozen.weight"][0] == [0, 2, 4] and found["frozen.bias"][0] == [0]
    with byname.open(tmp_path / "run.h5") as recording:
        assert recording["frozen.bias"].iterations == [0] and recording.complete
