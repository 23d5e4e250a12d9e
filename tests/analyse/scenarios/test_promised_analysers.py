"""What the design promises of every analyser, asked as a user would who has read nothing else."""

import copy
import io
import pickle
import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import byname
from byname.analyse import (
    DeadUnits,
    Evaluation,
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

EVERY = {
    "FeatureStatistics": FeatureStatistics,
    "DeadUnits": DeadUnits,
    "Rank": Rank,
    "Spectrum": Spectrum,
    "Outliers": Outliers,
    "NameList": NameList,
    "GradientStatistics": GradientStatistics,
    "Similarity": Similarity,
    "LinearProbe": lambda: LinearProbe(3),
    "Several": lambda: Several(DeadUnits(), GradientStatistics()),
    "PerClass": lambda: PerClass(Outliers()),
}
every = pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(6, 8)
        self.act = nn.ReLU()
        self.inner = nn.Identity()
        self.fc2 = nn.Linear(8, 3)

    def forward(self, x, targets=None):
        h = self.act(self.fc1(x))
        return self.fc2(self.inner(h))


class Calls(nn.Module):
    """Does something in the middle of a forward."""

    def __init__(self, what):
        super().__init__()
        self.what = what

    def forward(self, x):
        self.what()
        return x


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


def batches(count=4, size=25):
    generator = torch.Generator().manual_seed(1)
    x = [torch.randn(size, 6, generator=generator) for _ in range(count)]
    return [(one, torch.randint(0, 3, (size,), generator=generator)) for one in x]


def run(model, data, analyser=None):
    for x, y in data:
        if analyser is not None:
            analyser.targets = y
        model(x)


def features(net, data):
    with torch.no_grad():
        return torch.cat([net.act(net.fc1(x)) for x, _ in data]).double().numpy()


def ratio(now, then):
    return float((now.double() - then.double()).norm() / then.double().norm())


@pytest.mark.parametrize("where", ["fc1.weight", "fc1.weight.grad", "fc1", "fc1.grad"])
def test_one_step_has_an_update_ratio(net, where):
    (x, y), *_ = batches(1)
    optimizer, gradients = torch.optim.SGD(net.parameters(), lr=0.1), GradientStatistics()
    before = torch.cat([one.detach().flatten() for one in net.fc1.parameters()])
    with byname.observe(net, where, gradients):
        F.cross_entropy(net(x), y).backward()
        assert np.isnan(gradients.result()[where]["update_ratio"])
        optimizer.step()
        after = torch.cat([one.detach().flatten() for one in net.fc1.parameters()])
        weight = slice(0, 48 if "weight" in where else None)
        expected = ratio(after[weight], before[weight])
        for found in (gradients.result(), gradients.result(), gradients.reduce().result()):
            assert found[where]["update_ratio"] == pytest.approx(expected, rel=1e-9)
    assert gradients.result()[where]["update_ratio"] == pytest.approx(expected, rel=1e-9)
    with torch.no_grad():
        net.fc1.weight.mul_(2)  # by now nobody looks
    assert gradients.result()[where]["update_ratio"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("where", ["fc1.weight", "fc1.weight.grad"])
@pytest.mark.parametrize("looking", [False, True])
def test_to_look_in_between_changes_no_update_ratio(net, where, looking):
    optimizer, gradients = torch.optim.SGD(net.parameters(), lr=0.1), GradientStatistics()
    both = Several(gradients, DeadUnits())
    steps = []
    with byname.observe(net, where, both):
        for x, y in batches(5):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            before = net.fc1.weight.detach().clone()
            optimizer.step()
            steps.append(ratio(net.fc1.weight.detach(), before))
            if looking:
                both.result()
    assert both.result()[where]["update_ratio"] == pytest.approx(np.mean(steps), rel=1e-9)


@every
def test_a_copy_has_seen_the_same_and_is_observed_nowhere(net, make):
    analyser, data = make(), batches()
    with byname.observe(net, ["act", "fc1"], analyser):
        for x, y in data:
            analyser.targets = y
            net(x).sum().backward()
        copies = [copy.deepcopy(analyser), pickle.loads(pickle.dumps(analyser))]
        seen = str(analyser.result())
        for one in copies:
            assert str(one.result()) == seen
            assert not one.watching
        run(net, data, analyser)
        assert [str(one.result()) for one in copies] == [seen, seen]
    for one in copies:  # and can be used again
        one.enabled = True
        with byname.observe(net, ["act", "fc1"], one):
            for x, y in data:
                one.targets = y
                net(x).sum().backward()
        assert set(one.result()) == {"act", "fc1"}


@pytest.mark.sees_nothing
@every
def test_copies_of_an_observed_model_tell_nothing(net, make):
    analyser, data = make(), batches(1)
    with byname.observe(net, ["act", "fc1"], analyser):
        run(net, data, analyser)
        file = io.BytesIO()
        torch.save(net, file)
        file.seek(0)
        copies = copy.deepcopy(net), pickle.loads(pickle.dumps(net)), torch.load(file, weights_only=False)
        seen = str(analyser.result())
        for one in copies:
            run(one, data)
        assert str(analyser.result()) == seen


def test_one_model_may_run_in_several_threads(net):
    analyser, data = Several(FeatureStatistics(), DeadUnits()), batches(20)
    with byname.observe(net, "act", analyser):
        threads = [threading.Thread(target=run, args=(net, data)) for _ in range(4)]
        for one in threads:
            one.start()
        while any(one.is_alive() for one in threads):
            analyser.result()
        for one in threads:
            one.join()
    values, found = features(net, data), analyser.result()["act"]
    assert found["FeatureStatistics.samples"] == 2000
    np.testing.assert_allclose(found["mean"], values.mean(0), rtol=1e-9)
    assert found["fired"].tolist() == (4 * (values > 0).sum(0)).tolist()


def test_threads_may_begin_to_observe_variables_at_once(net):
    models = [copy.deepcopy(net) for _ in range(4)]
    analysers, data = [FeatureStatistics() for _ in models], batches(3)

    def work(model, analyser):
        with byname.observe(model, "forward.h", analyser):
            run(model, data)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(models, analysers)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    for analyser in analysers:
        np.testing.assert_allclose(analyser.result()["forward.h"]["mean"], features(net, data).mean(0), rtol=1e-9)


@every
def test_a_forward_that_fails_half_way_leaves_nothing_behind(net, make):
    analyser, failing = make(), [True]

    def fail():
        if failing:
            raise RuntimeError("half way")

    net.inner = Calls(fail)
    (x, y), *_ = batches(1)
    analyser.targets = y
    with byname.observe(net, ["act", "fc2"], analyser):
        with pytest.raises(RuntimeError, match="half way"):
            net(x)
        failing.clear()
        net(x).sum().backward()
        assert set(analyser.result()) == {"act", "fc2"}
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in net.modules())
    assert net(x).shape == (25, 3)


def test_a_result_in_the_middle_of_a_forward_has_what_has_passed(net):
    analyser, seen = FeatureStatistics(), []
    net.inner = Calls(lambda: seen.append({path: one["samples"] for path, one in analyser.result().items()}))
    with byname.observe(net, ["act", "fc2"], analyser):
        run(net, batches(2))
    assert seen == [{"act": 25}, {"act": 50, "fc2": 25}]


def test_a_reset_in_the_middle_of_a_forward_forgets_what_has_passed(net):
    analyser = FeatureStatistics()
    net.inner = Calls(analyser.reset)
    with byname.observe(net, ["act", "fc2"], analyser):
        run(net, batches(2))
    assert {path: one["samples"] for path, one in analyser.result().items()} == {"fc2": 25}


@every
def test_what_inference_mode_gave_can_be_used_outside_of_it(net, make):
    analyser, data = make(), batches(2)
    with byname.observe(net, ["act", "fc1"], analyser):
        with torch.inference_mode():
            run(net, data, analyser)
            analyser.result()
        for x, y in data:
            analyser.targets = y
            net(x).sum().backward()
    other = make()
    other.load_state_dict(copy.deepcopy(analyser.state_dict()))
    assert str(other.result()) == str(analyser.result())


def test_training_and_random_numbers_are_the_same_with_every_analyser():
    def train(watched):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3))
        optimizer = torch.optim.Adam(model.parameters())
        analysers = [make() for make in EVERY.values()] if watched else []
        handles = [byname.observe(model, ["1", "3"], analyser) for analyser in analysers]
        assert [name for name, _ in model.named_modules()] == ["", "0", "1", "2", "3", "4"]
        for x, y in batches():
            for analyser in analysers:
                analyser.targets = y
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        for handle in handles:
            handle.remove()
        return [*model.state_dict().values(), torch.get_rng_state()]

    for plain, watched in zip(train(False), train(True), strict=True):
        assert torch.equal(plain, watched)


def test_prepare_may_set_the_targets(net):
    units, data = PerClass(DeadUnits()), batches()
    byname.observe(net, "act", units)

    def prepare(batch):
        units.targets = batch[1]
        return batch[0]

    given = Evaluation(units, data).take(net).result["act"]
    own = Evaluation(units, data, prepare=prepare).take(net).result["act"]
    assert {label: one["fired"].tolist() for label, one in own.items()} == {
        label: one["fired"].tolist() for label, one in given.items()
    }


@pytest.mark.sees_nothing
def test_complex_values_are_not_compared_by_their_real_parts():
    model = nn.Sequential(nn.Identity())
    with byname.observe(model, "0", Similarity()), pytest.raises(BadArgumentError, match="complex"):
        model(torch.randn(8, 3, dtype=torch.complex64))


def test_two_models_without_labels_are_told_apart(net):
    torch.manual_seed(9)
    other, plain, labelled = Net(), Similarity(), Similarity()
    with (
        byname.observe(net, "act", plain),
        byname.observe(other, "act", plain),
        byname.observe(net, "act", labelled, label="a"),
        byname.observe(other, "act", labelled, label="b"),
    ):
        for x, _ in batches():
            net(x)
            other(x)
    expected = labelled.result()["a.act"]["cka"]["b.act"]
    assert plain.result() == {
        "act": {"cka": {"model2.act": expected}},
        "model2.act": {"cka": {"act": expected}},
    }
    assert 0 < expected < 0.99


def test_a_model_that_is_observed_again_keeps_its_paths(net):
    whole, parts, data = Similarity(), Similarity(), batches()
    with byname.observe(net, ["fc1", "act"], whole):
        run(net, data)
    for some in (data[:2], data[2:]):
        with byname.observe(net, ["fc1", "act"], parts):
            run(net, some)
    assert parts.result() == whole.result()
