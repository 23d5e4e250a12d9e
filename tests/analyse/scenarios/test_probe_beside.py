"""A probe leaves the model, its training and the memory as they are; what it keeps can be saved, merged and sent."""

import gc
import weakref

import pytest
import torch
from processes import run_forked_ranks
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import byname
from byname.analyse import FeatureStatistics, LinearProbe, Several
from byname.errors import BadArgumentError


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(4 * 36, 3)

    def forward(self, x, targets=None):
        x = self.drop(torch.relu(self.norm(self.conv(x))))
        return self.head(checkpoint(torch.tanh, x, use_reentrant=False).flatten(1))


def data(samples=16):
    return torch.randn(samples, 1, 8, 8), torch.arange(samples) % 3


def trained(model, probe=None, where=("conv", "drop", "head")):
    """Everything that a short training leaves: losses, parameters and buffers, the next random number."""
    torch.manual_seed(3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    handle = byname.observe(model, list(where), probe) if probe else None
    losses = []
    for _ in range(4):
        value, targets = data()
        if probe:
            probe.targets = targets
        optimizer.zero_grad()
        loss = cross_entropy(model(value, targets), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    if handle:
        handle.remove()
    gradients = [parameter.grad for parameter in model.parameters()]
    return [*losses, *gradients, *model.state_dict().values(), torch.rand(3)]


def same(one, other):
    return len(one) == len(other) and all(map(torch.equal, one, other))


def test_training_goes_bit_for_bit_as_without_it():
    torch.manual_seed(0)
    model, observed = Net(), Net()
    observed.load_state_dict(model.state_dict())
    before = {name: dict(vars(module)) for name, module in observed.named_modules()}
    probe = LinearProbe()
    assert same(trained(model), trained(observed, probe))
    assert [*probe.result()] == ["conv", "drop", "head"] and probe.result()["drop"]["steps"] == 4
    assert [*observed.state_dict()] == [*model.state_dict()]
    assert len([*observed.parameters()]) == len([*model.parameters()])
    assert {name: set(vars(module)) for name, module in observed.named_modules()} == {
        name: set(attributes) for name, attributes in before.items()
    }
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in observed.modules())


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)


def test_inside_of_a_checkpoint_it_trains_once_and_does_not_disturb_the_backward():
    plain, observed = Checkpointed(), Checkpointed()
    observed.load_state_dict(plain.state_dict())
    value, targets = torch.randn(9, 4), torch.arange(9) % 3
    probe = LinearProbe(loss=lambda logits, classes: cross_entropy(logits, classes) * 2)
    probe.targets = targets
    with byname.observe(observed, "inner.*", probe):
        cross_entropy(observed(value), targets).backward()
    cross_entropy(plain(value), targets).backward()
    assert probe.result()["inner.1"]["steps"] == 1
    assert same([p.grad for p in plain.parameters()], [p.grad for p in observed.parameters()])


@pytest.mark.parametrize("mode", ["no_grad", "inference", "autocast", "eval", "saved tensors on hooks"])
def test_it_learns_the_same_in_every_mode_of_the_model(mode):
    value, targets = torch.randn(24, 4), torch.arange(24) % 3
    modes = {
        "no_grad": torch.no_grad(),
        "inference": torch.inference_mode(),
        "autocast": torch.autocast("cpu", torch.bfloat16),
        "eval": torch.enable_grad(),
        "saved tensors on hooks": torch.autograd.graph.saved_tensors_hooks(lambda x: 1 / 0, lambda x: x),
    }
    model = nn.Sequential(nn.ReLU(), nn.Identity()).train(mode != "eval")
    plain, probe = LinearProbe(), LinearProbe(standardise=True)
    for one, context in ((plain, torch.enable_grad()), (probe, modes[mode])):
        with byname.observe(model, "0", one), context:
            for part, labels in zip(value.split(8), targets.split(8), strict=True):
                one.targets = labels  # made in the mode, too
                model(part.clone())
    assert all(map(torch.equal, plain.weights("0"), probe.weights("0")))
    assert probe.result()["0"] == plain.result()["0"]


def test_targets_are_read_from_a_path_of_the_model():
    model, probe = Net(), LinearProbe(features="pool")
    probe.targets = "forward.targets"
    with byname.observe(model, "conv", probe):
        for _ in range(3):
            model(*data())
    assert probe.result()["conv"]["steps"] == 3 and probe.weights("conv")[0].shape == (3, 4)


def test_no_graph_and_no_batch_is_kept_alive(no_collection):
    model, probe = nn.Sequential(nn.Linear(4, 8), nn.ReLU()), LinearProbe()
    value, targets = torch.randn(9, 4), torch.arange(9) % 3
    probe.targets = targets
    with byname.observe(model, "1", probe):
        output = model(value)
        probe.targets = None
    alive = [weakref.ref(output), weakref.ref(value), weakref.ref(targets)]  # the graph has saved the value
    del output, value, targets
    assert [ref() for ref in alive] == [None] * 3
    kept = probe.state_dict()["parts"][0][1]
    assert kept["weight"].shape == (3, 8) and not kept["weight"].requires_grad


@pytest.mark.parametrize("batches", [50, pytest.param(2000, marks=pytest.mark.slow)])
def test_memory_stays_flat_however_many_batches_pass(batches):
    model, probe = nn.Sequential(nn.Identity()), LinearProbe(3)
    value, targets = torch.randn(4, 5), torch.arange(4) % 3
    probe.targets = targets
    tensors = lambda: sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
    with byname.observe(model, "0", probe), torch.no_grad():
        model(value)
        gc.collect()  # the garbage of other tests
        before = tensors()
        for _ in range(batches):
            model(value)
    assert tensors() == before and probe.result()["0"]["steps"] == batches + 1


WRONG = {
    "too few": (torch.zeros(5, dtype=torch.int64), "24 samples; targets must be one class number each"),
    "numbers": (torch.zeros(24), "of torch.float32"),
    "negative": (torch.full((24,), -100), "class numbers go from 0 to 2; .* from -100 to -100"),
    "too large": (torch.full((24,), 3), "class numbers go from 0 to 2; .* from 3 to 3"),
    "none": (None, "set analyser.targets"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_targets_are_refused_and_leave_everything_as_it_was(what):
    model, probe = nn.Sequential(nn.Identity()), LinearProbe(3)
    value = torch.randn(24, 4)
    probe.targets = torch.arange(24) % 3
    with byname.observe(model, "0", probe):
        model(value)
        before = probe.result()["0"], probe.weights("0")
        probe.targets, message = WRONG[what]
        with pytest.raises(BadArgumentError, match=message):
            model(value)
    assert probe.result()["0"] == before[0] and all(map(torch.equal, probe.weights("0"), before[1]))


@pytest.mark.sees_nothing
def test_values_that_cannot_be_learnt_from_are_refused():
    model, probe = nn.Sequential(nn.Identity(), nn.Linear(4, 4)), LinearProbe(3, limit=100)
    probe.targets = torch.arange(6) % 3
    for where, value, message in [
        ("0", torch.randn(6, 4, dtype=torch.complex64), "real values"),
        ("0", torch.tensor(1.0), "real values"),
        ("1.weight", torch.randn(6, 4), "a parameter"),
        ("0", torch.randn(6, 40), "would have 120 weights, for 40 features per sample and 3 classes"),
    ]:
        with byname.observe(model, where, probe), pytest.raises(BadArgumentError, match=message):
            model(value)
    with byname.observe(model, "0", probe):
        model(torch.randn(6, 4))
        with pytest.raises(BadArgumentError, match="had 4 features per sample, now it has 5"):
            model(torch.randn(6, 5))


@pytest.mark.sees_nothing
def test_a_probe_that_was_not_trained_is_not_evaluated():
    model, probe = nn.Sequential(nn.Identity()), LinearProbe().eval()
    probe.targets = torch.arange(6) % 3
    with byname.observe(model, "0", probe), pytest.raises(BadArgumentError, match=r"call probe.train\(\) first"):
        model(torch.randn(6, 4))
    with pytest.raises(BadArgumentError, match="no probe was trained at '0'"):
        probe.weights("0")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"classes": 0}, "classes is an integer"),
        ({"optimizer": torch.optim.SGD([torch.zeros(1)], lr=1)}, "optimizer= takes a function that makes"),
        ({"optimizer": lambda parameters: parameters}, "returns an optimizer"),
        ({"optimizer": lambda parameters: torch.optim.SGD([torch.zeros(1)], lr=1)}, "exactly the given parameters"),
        ({"metrics": {"loss": print}}, "already has a figure 'loss'"),
        ({"metrics": {"acc": "accuracy"}}, "must be a function of logits and targets"),
        ({"features": "flat"}, "features= takes None"),
        ({"nan": "propagate"}, "nan is one of 'omit', 'raise'"),
    ],
)
def test_bad_settings_are_refused_when_it_is_made(settings, message):
    with pytest.raises(BadArgumentError, match=message):
        LinearProbe(**settings)


def stepped(probe, batches):
    model = nn.Sequential(nn.Identity())
    with byname.observe(model, "0", probe):
        for value, targets in batches:
            probe.targets = targets
            model(value)
    return probe


def batches(count=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(12, 5, generator=generator), torch.arange(12) % 3) for _ in range(count)]


@pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop", "LBFGS"])
def test_a_training_goes_on_from_its_state_as_if_it_had_not_stopped(name, tmp_path):
    settings = {"momentum": 0.9} if name == "SGD" else {}
    make = lambda parameters: getattr(torch.optim, name)(parameters, lr=0.01, **settings)
    whole = stepped(LinearProbe(3, optimizer=make), batches(6))
    half = stepped(LinearProbe(3, optimizer=make), batches(6)[:3])
    torch.save(half.state_dict(), tmp_path / "probe.pt")
    resumed = LinearProbe(3, optimizer=make)
    with torch.inference_mode():
        resumed.load_state_dict(torch.load(tmp_path / "probe.pt"))
    stepped(resumed, batches(6)[3:])
    assert all(map(torch.equal, whole.weights("0"), resumed.weights("0")))
    assert resumed.result()["0"] == whole.result()["0"]
    stepped(half, batches(6)[3:])  # its state was not shared
    assert all(map(torch.equal, whole.weights("0"), half.weights("0")))


def test_what_is_kept_of_a_place_is_saved_in_one_file(tmp_path):
    probe = stepped(LinearProbe(), batches())
    kept = probe._places["0"]
    kept.save(tmp_path / "probe.safetensors")
    loaded = type(kept).load(tmp_path / "probe.safetensors")
    assert all(map(torch.equal, loaded.result(), kept.result()))
    assert probe.figures(loaded) == probe.figures(kept)


def test_held_out_scores_of_one_classifier_are_added_and_those_of_two_are_not():
    from torchmetrics.classification import MulticlassAccuracy

    probe = stepped(LinearProbe(3, metrics={"micro": MulticlassAccuracy(3, average="micro")}), batches())
    twin = LinearProbe(3, metrics={"micro": MulticlassAccuracy(3, average="micro")})
    twin.load_state_dict(probe.state_dict())
    with pytest.raises(BadArgumentError, match="only scores from after eval"):
        probe.merge(twin)
    whole = LinearProbe(3)
    whole.load_state_dict(probe.state_dict())
    stepped(probe.eval(), batches(3, seed=1)[:2]), stepped(twin.eval(), batches(3, seed=1)[2:])
    figures = probe.merge(twin).result()["0"]
    expected = stepped(whole.eval(), batches(3, seed=1)).result()["0"]
    assert figures["accuracy"] == expected["accuracy"] == pytest.approx(figures["micro"])
    assert figures["loss"] == pytest.approx(expected["loss"]) and figures["samples"] == 36
    with pytest.raises(BadArgumentError, match="trained separately cannot be merged"):
        probe.merge(stepped(LinearProbe(3), batches(2)).eval())


RANKS = """
import torch, byname
from torch import distributed, nn

distributed.init_process_group("gloo")
rank = distributed.get_rank()
generator = torch.Generator().manual_seed(0)
values, targets = torch.randn(60, 5, generator=generator), torch.arange(60) % 3
model, probe = nn.Sequential(nn.Identity()), byname.analyse.LinearProbe(3)
with byname.observe(model, "0", probe):
    if rank == 0:
        probe.targets = targets[:20]
        model(values[:20])
    state = [probe.state_dict()]
    distributed.broadcast_object_list(state)
    probe.load_state_dict(state[0])
    probe.eval()
    probe.targets = targets[20 + rank :: 2]
    model(values[20 + rank :: 2])
    whole = probe.reduce().result()["0"]
    probe.eval()
    probe.targets = targets[20:]
    model(values[20:])
alone = probe.result()["0"]
print(whole["accuracy"] == alone["accuracy"], abs(whole["loss"] - alone["loss"]) < 1e-6, whole["samples"])
distributed.destroy_process_group()
"""


def test_ranks_that_have_one_classifier_score_their_parts_together(tmp_path):
    for printed in run_forked_ranks(tmp_path, RANKS, "train.py"):
        assert printed == ["True True 40"]


def test_it_works_beside_other_analysers_and_begins_each_evaluation_anew_there():
    probe = LinearProbe(3)
    both = Several(probe, FeatureStatistics())
    stepped(both, batches())
    assert both.result()["0"]["steps"] == 4 and "sparsity" in both.result()["0"]
    probe.eval(), stepped(both, batches(1))
    probe.eval(), stepped(both, batches(1))
    assert both.result()["0"]["scored"] == "held out" and both.state_dict()["parts"]


def test_scores_that_were_merged_are_added_to_and_those_of_another_mode_are_not():
    model, x = nn.Sequential(nn.Linear(3, 4)), torch.randn(40, 3)
    trained = LinearProbe(2)
    trained.targets = (x[:, 0] > 0).long()
    with byname.observe(model, "0", trained):
        model(x), model(x)
        trained.eval(), model(x)
    held_out = LinearProbe(2).eval().merge(trained)
    again = LinearProbe(2)
    again.load_state_dict(trained.state_dict())
    for probe in (held_out, again):
        probe.targets = trained.targets
        with byname.observe(model, "0", probe):
            model(x)
    assert (held_out.result()["0"]["scored"], held_out.result()["0"]["samples"]) == ("held out", 80)
    assert (again.result()["0"]["scored"], again.result()["0"]["samples"]) == ("progressive", 40)
