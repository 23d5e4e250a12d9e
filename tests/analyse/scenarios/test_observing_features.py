"""A training under observation is bit for bit the one without, and nothing of it is kept alive or left behind."""

import copy
import gc
import pickle
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from processes import run_forked_ranks
from torch import nn

import byname
from byname.analyse import (
    DeadUnits,
    FeatureStatistics,
    GradientStatistics,
    LinearProbe,
    NameList,
    Outliers,
    PerClass,
    Rank,
    Several,
    Similarity,
    Spectrum,
)
from byname.errors import BadArgumentError

EACH = {
    "features": lambda: FeatureStatistics(),
    "units": lambda: DeadUnits(),
    "outliers": lambda: Outliers(),
    "rank": lambda: Rank(),
    "spectrum": lambda: Spectrum(),
    "names": lambda: NameList(),
    "several": lambda: Several(FeatureStatistics(), DeadUnits(), Outliers(), Rank(), Spectrum(), NameList()),
    "classes": lambda: PerClass(Several(FeatureStatistics(), DeadUnits())),
}
PLACES = ["conv", "norm", "act", "drop", "out", "forward.x", "relu", "out.weight", "norm.running_mean"]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.act = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.3)
        self.out = nn.Linear(6 * 16, 3)
        self.passed = []

    def forward(self, x):
        h = F.relu(self.drop(self.act(self.norm(self.conv(x)))) - 0.1)
        self.passed += [weakref.ref(x), weakref.ref(h), weakref.ref(h.untyped_storage())]
        return self.out(h.flatten(1))


def places_of(analyser):
    return PLACES[:-2] if isinstance(analyser, PerClass) else PLACES


def trained(model, analyser=None, steps=3):
    """Trains, and returns all there is to compare."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    outputs = []
    for step in range(steps):
        x, y = torch.randn(5 + step, 2, 6, 6), torch.randint(3, (5 + step,))
        if analyser is not None:
            analyser.targets = y
        output = model(x)
        optimizer.zero_grad()
        F.cross_entropy(output, y).backward()
        optimizer.step()
        outputs.append(output.detach())
    grads = [parameter.grad for parameter in model.parameters()]
    return [*outputs, *grads, *model.state_dict().values(), torch.get_rng_state()]


def traces(model):
    """What something may be left on."""
    hooks = [
        {key: len(value) for key, value in vars(module).items() if key.endswith("hooks")} for module in model.modules()
    ]
    names = [sorted(vars(module)) for module in model.modules()]
    return hooks, names, [*model.state_dict()], [name for name, _ in model.named_parameters()], type(model).forward


@pytest.mark.parametrize("make", EACH.values(), ids=EACH)
def test_a_training_is_bitwise_the_same_and_nothing_is_left(make):
    plain = Net()
    model = copy.deepcopy(plain)
    before, parameters = traces(model), [*map(id, model.parameters())]
    wanted = trained(plain)
    analyser = make()
    with byname.observe(model, places_of(analyser), analyser):
        found = trained(model, analyser)
    assert all(torch.equal(one, other) for one, other in zip(wanted, found, strict=True))
    assert traces(model) == before
    assert [*map(id, model.parameters())] == parameters
    assert set(analyser.paths) == set(places_of(analyser))


@pytest.mark.parametrize("make", EACH.values(), ids=EACH)
def test_no_activation_is_kept_alive(make):
    model, analyser = Net(), make()
    with byname.observe(model, places_of(analyser), analyser):
        trained(model, analyser, steps=2)
        gc.collect()
        alive = [one() for one in model.passed if one() is not None]
        assert not alive
    assert analyser.result()


def stored(value, found):
    """The storages of all tensors in what an analyser keeps."""
    if isinstance(value, torch.Tensor):
        found.add(value.untyped_storage().data_ptr())
    elif isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            stored(one, found)
    elif hasattr(value, "__dict__"):
        stored(vars(value), found)
    return found


@pytest.mark.parametrize("make", [*EACH.values()][:-1], ids=[*EACH][:-1])
@pytest.mark.parametrize("shape", [(1, 3), (4, 3), (1, 3, 1, 1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64], ids=str)
def test_what_is_kept_is_no_view_of_a_value(make, shape, dtype):
    model, analyser = nn.Sequential(nn.Identity()), make()
    value = (torch.randn(shape) * 9).to(dtype)
    copied = value.clone()
    with byname.observe(model, "0", analyser):
        model(value)
    assert value.untyped_storage().data_ptr() not in stored(analyser._places, set())
    before = repr(analyser.state_dict())
    value.fill_(77)
    assert repr(analyser.state_dict()) == before
    assert not torch.equal(copied, value)


@pytest.mark.parametrize("make", EACH.values(), ids=EACH)
def test_one_that_is_disabled_is_given_nothing(make):
    model, analyser = Net(), make()
    before = traces(model)
    with byname.observe(model, places_of(analyser), analyser) as handle:
        analyser.enabled = False
        assert traces(model) == before
        trained(model, analyser)
        assert analyser.paths == ()
        analyser.enabled = True
        trained(model, analyser, steps=1)
        assert analyser.paths
        assert handle.enabled
        analyser.reset()
        assert analyser.paths == ()


def test_figures_under_autocast_and_inference_are_those_of_the_values():
    model, features = Net().eval(), FeatureStatistics()
    x = torch.randn(4, 2, 6, 6)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), byname.observe(model, "out", features):
        output = model(x)
    features.result()
    assert output.dtype is torch.bfloat16
    assert torch.allclose(features.result()["out"]["mean"], output.double().mean(0))
    with byname.observe(model, "out", features):
        model(x)
    assert features.result()["out"]["samples"] == 8


RANKS = """
import numpy as np, torch
from torch import distributed, nn

import byname
from byname.analyse import ClassVersusRest, DeadUnits, FeatureStatistics, NameList, Outliers, Rank, Several, Spectrum

distributed.init_process_group("gloo")
rank, world = distributed.get_rank(), distributed.get_world_size()
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(2, 5, 3), nn.ReLU())
data = [torch.randn(3 + step, 2, 5, 5) for step in range(9)]
chunks = [data[:4], data[4:5], data[5:5], data[5:]] if world == 4 else [data[:4], data[4:]]

def seen(batches):
    each = Several(FeatureStatistics(), DeadUnits(), Outliers(), Rank(), Spectrum(), NameList())
    classes = ClassVersusRest(DeadUnits())
    with byname.observe(model, ["1", "0.weight"], each), byname.observe(model, "1", classes):
        for batch in batches:
            classes.targets = torch.arange(len(batch)) % 3
            model(batch)
    return each, classes

def compare(one, other):
    assert one.keys() == other.keys(), (one.keys(), other.keys())
    for name, value in one.items():
        if isinstance(value, dict):
            compare(value, other[name])
        elif isinstance(value, torch.Tensor | float):
            np.testing.assert_allclose(np.asarray(value), np.asarray(other[name]), rtol=1e-9, atol=1e-9)
        else:
            assert value == other[name], (name, value, other[name])

for mine, whole in zip(seen(chunks[rank]), seen(data), strict=True):
    found, wanted = mine.reduce().result(), whole.result()
    compare({"1": found["1"]}, {"1": wanted["1"]})
    assert [*found] == [*wanted]
print("equal")
distributed.destroy_process_group()
"""


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_what_ranks_have_seen_together_is_what_one_would_have(world, tmp_path):
    outputs = run_forked_ranks(tmp_path, RANKS, "ranks.py", world=world)
    assert [output[-1].strip() for output in outputs] == ["equal"] * world


def test_forwards_in_several_threads_are_all_counted():
    model, features = nn.Sequential(nn.Linear(3, 4)), FeatureStatistics()
    batches = torch.randn(1500, 3).split(5)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with byname.observe(model, "0", features), ThreadPoolExecutor(4) as pool:
            [*pool.map(model, batches)]
    finally:
        sys.setswitchinterval(before)
    found, values = features.result()["0"], model(torch.cat(batches)).double()
    assert found["samples"] == 1500
    torch.testing.assert_close(found["channel_mean"], values.mean(0), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
@pytest.mark.parametrize(
    "make", [*EACH.values(), lambda: Similarity(), lambda: LinearProbe(2), lambda: GradientStatistics()]
)
def test_a_copy_of_an_analyser_has_seen_the_same_and_is_observed_nowhere(make, duplicate):
    model, analyser = nn.Sequential(nn.Linear(3, 4), nn.ReLU()), make()
    analyser.targets = torch.tensor([0, 1, 1, 0, 1])
    with byname.observe(model, "*", analyser):
        model(torch.randn(5, 3)).sum().backward()
        twin = duplicate(analyser)
        told = analyser.result()
        assert twin.result() == told
        model(torch.randn(5, 3)).sum().backward()
        assert twin.result() == told
        assert (twin.watching, analyser.watching) == (False, True)
    with byname.observe(model, "*", twin):
        model(torch.randn(5, 3)).sum().backward()
    assert twin.paths == analyser.paths
    assert twin.result() != told


def test_a_place_that_is_observed_twice_by_one_analyser_is_refused_since_its_values_would_count_twice():
    model, analyser = nn.Sequential(nn.Linear(4, 3), nn.ReLU()), FeatureStatistics()
    with byname.observe(model, "1", analyser), byname.observe(model, "1", analyser, label="again"):
        with pytest.raises(BadArgumentError, match="observes `1` already, and would count each value twice"):
            byname.observe(model, nn.ReLU, analyser)
        model(torch.ones(2, 4))
    assert {path: figures["samples"] for path, figures in analyser.result().items()} == {"1": 2, "again.1": 2}
    with byname.observe(model, "1", analyser):
        model(torch.ones(2, 4))
    assert analyser.result()["1"]["samples"] == 4


def test_two_models_with_the_same_paths_are_told_apart():
    one, other = nn.Sequential(nn.Linear(3, 2)), nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    features, x = FeatureStatistics(), torch.randn(20, 3)
    with byname.observe(one, "0", features), byname.observe(other, "*", features):
        other(x), one(x)
        one(x)
    found = features.result()
    assert {path: figures["samples"] for path, figures in found.items()} == {"0": 40, "1": 20, "model2.0": 20}
    torch.testing.assert_close(found["model2.0"]["mean"], other[0](x).detach().double().mean(0), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(found["0"]["mean"], one[0](x).detach().double().mean(0), rtol=1e-6, atol=1e-7)
