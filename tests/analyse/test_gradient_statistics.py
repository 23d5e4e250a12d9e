"""GradientStatistics against numpy in float64, over many ways to get gradients; nothing of the training changes."""

import copy
import gc
import math
import weakref
from contextlib import suppress
from functools import partial

import numpy as np
import pytest
import torch
from interrupting import Calls, by_signal
from processes import run_forked_ranks
from torch import nn

import byname
from byname.analyse import GradientStatistics, NameList, PerClass, Several, Variance
from byname.errors import BadArgumentError


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("offset", [0, 1e3, 1e7])
@pytest.mark.parametrize("size", [1, 7, 300])
def test_the_moments_of_elements_are_those_of_numpy_also_merged(dtype, offset, size):
    samples = (torch.randn(300, 2, 3, dtype=torch.float64) * 3000 + offset).to(dtype)
    parts = [Variance() for _ in range(3)]
    for number, batch in enumerate(samples.split(size)):
        parts[number * number % 3].add(batch)
    whole = parts[2].merge(parts[0]).merge(parts[1])
    values = samples.double().numpy()
    np.testing.assert_allclose(whole.mean(), values.mean(0), rtol=1e-10, atol=1e-9)
    np.testing.assert_allclose(whole.variance(), values.var(0, ddof=1), rtol=1e-8)


def as_in_0_2_0(state):
    """A state in which the moments of elements had a class of their own, about their mean."""
    if "parts" in state:
        return {**state, "parts": [[key, as_in_0_2_0(one)] for key, one in state["parts"]]}
    if state["statistic"] == "byname.analyse:Variance":
        about = {"statistic": "byname.analyse:ElementMoments", "version": 1, "settings": {"nan": "propagate"}}
        moments = Variance()
        moments.load_state_dict(state)
        squares = moments.variance(ddof=0) * state["count"]
        return {**about, "count": state["count"], "nans": 0, "_mean": moments.mean(), "_squares": squares}
    return state


def test_states_of_0_2_0_with_moments_of_elements_are_read_and_go_on():
    model, once, now = net(), GradientStatistics(), GradientStatistics()
    with byname.observe(model, "0.weight", now):
        for batch in batches(3):
            model(batch).sum().backward()
    once.load_state_dict(as_in_0_2_0(now.state_dict()))
    for name in ("mean", "variance"):
        mine, theirs = (one.merge(one).result()["0.weight"][name] for one in (copy.deepcopy(once), copy.deepcopy(now)))
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)


def net():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def batches(count, size=8):
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(size, 4, generator=generator) for _ in range(count)]


def expected(samples):
    """The figures of gradients, from numpy."""
    samples = np.stack([np.asarray(one, dtype=np.float64) for one in samples])
    mean, variance = samples.mean(0), samples.var(0, ddof=1) if len(samples) > 1 else np.full(samples.shape[1:], np.nan)
    return {
        "mean": mean,
        "variance": variance,
        "norm": np.linalg.norm(samples.reshape(len(samples), -1), axis=1).mean(),
        "noise_scale": variance.sum() / (mean**2).sum(),
    }


def assert_figures(found, samples, **more):
    for figure, value in {**expected(samples), **more}.items():
        np.testing.assert_allclose(found[figure], value, rtol=1e-10, atol=1e-14, err_msg=figure)


def train(model, data, optimizer):
    """Plain steps; the gradients and the weights of each."""
    gradients, weights = [], []
    for batch in data:
        optimizer.zero_grad()
        weights.append([one.detach().clone() for one in model.parameters()])
        model(batch).square().mean().backward()
        gradients.append([one.grad.clone() for one in model.parameters()])
        optimizer.step()
    weights.append([one.detach().clone() for one in model.parameters()])
    return gradients, weights


def ratios(values):
    flat = [np.concatenate([np.asarray(one, np.float64).ravel() for one in step]) for step in values]
    return np.mean([np.linalg.norm(now - then) / np.linalg.norm(then) for then, now in zip(flat, flat[1:])])


def test_every_figure_of_parameters_over_several_steps():
    model = net()
    statistics = GradientStatistics()
    with byname.observe(model, "**.weight", statistics):
        gradients, weights = train(model, batches(7), torch.optim.SGD(model.parameters(), lr=0.3))
    for at, path in ((0, "0.weight"), (2, "2.weight")):
        step = ratios([[one[at]] for one in weights])
        assert_figures(statistics.result()[path], [one[at] for one in gradients], update_ratio=step, nonfinite=0)


def test_the_gradient_of_an_output_is_taken_row_by_row_and_the_module_has_one_update_ratio():
    model = net()
    rows, statistics = [], GradientStatistics()
    model[0].register_forward_hook(lambda module, args, output: rows.append(output) or output.retain_grad())
    with byname.observe(model, ("0", "1"), statistics):
        _, weights = train(model, batches(5), torch.optim.SGD(model.parameters(), lr=0.3))
    own = ratios([one[:2] for one in weights])
    assert_figures(statistics.result()["0"], torch.cat([one.grad for one in rows]), update_ratio=own)
    assert math.isnan(statistics.result()["1"]["update_ratio"])


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 3)

    def forward(self, x):
        grad = self.lin(x)
        h = grad * 2
        return h.sum()


def test_a_variable_has_gradients_and_no_update_ratio():
    model, statistics = Inner(), GradientStatistics()
    with byname.observe(model, ("forward.h", "forward.grad", "forward"), statistics):
        model(torch.ones(5, 4)).backward()
    found = statistics.result()
    assert_figures(found["forward.h"], np.ones((5, 3)))
    assert math.isnan(found["forward.h"]["update_ratio"])
    assert float(found["forward"]["mean"]) == 1  # a value without dimensions is one sample


def test_places_of_gradients_tell_the_gradient_itself():
    model, statistics = net(), GradientStatistics()
    with byname.observe(model, ("0.weight.grad", "0.grad", "0"), statistics):
        gradients, _ = train(model, batches(3), torch.optim.SGD(model.parameters(), lr=0.1))
    found = statistics.result()
    assert_figures(found["0.weight.grad"], [one[0] for one in gradients])
    for figure in ("mean", "variance", "norm", "noise_scale"):
        np.testing.assert_array_equal(found["0.grad"][figure], found["0"][figure])


def test_a_backward_is_a_sample_of_its_own_gradient_when_gradients_accumulate():
    model, data, statistics, alone = net(), batches(4), GradientStatistics(), []
    plain = copy.deepcopy(model)
    for batch in data:
        alone.append(torch.autograd.grad(plain(batch).sum(), plain[0].weight)[0])
    with byname.observe(model, "0.weight", statistics):
        for batch in data:
            model(batch).sum().backward()
    assert_figures(statistics.result()["0.weight"], alone)
    assert math.isnan(statistics.result()["0.weight"]["update_ratio"])  # nothing was updated


def test_forwards_that_share_a_backward_are_one_sample_and_a_kept_graph_gives_two():
    model, data = net(), batches(2)
    together, twice = GradientStatistics(), GradientStatistics()
    with byname.observe(model, "0.weight", together):
        (model(data[0]).sum() + model(data[1]).sum()).backward()
    whole = model[0].weight.grad.clone()
    np.testing.assert_allclose(together.result()["0.weight"]["mean"], whole, rtol=1e-6)
    with byname.observe(model, "0.weight", twice):
        loss = model(data[0]).sum()
        loss.backward(retain_graph=True)
        loss.backward()
    assert float(twice.result()["0.weight"]["variance"].sum()) == 0


def test_evaluation_and_accumulation_are_no_steps():
    model, statistics = net(), GradientStatistics()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    weights = []
    with byname.observe(model, ("0.weight", "0"), statistics):
        for batch in batches(4):
            weights.append([one.detach().clone() for one in model[0].parameters()])
            for _ in range(2):
                model(batch).sum().backward()
            optimizer.step()
            with torch.no_grad():
                model.eval()(batch)
            with torch.inference_mode():
                model.train()(batch)
    weights.append([one.detach().clone() for one in model[0].parameters()])
    np.testing.assert_allclose(statistics.result()["0"]["update_ratio"], ratios(weights), rtol=1e-10)
    np.testing.assert_allclose(
        statistics.result()["0.weight"]["update_ratio"], ratios([one[:1] for one in weights]), rtol=1e-10
    )


@pytest.mark.sees_nothing
def test_changes_through_data_are_steps_and_those_from_zeros_are_not():
    model, statistics = net(), GradientStatistics()
    nn.init.zeros_(model[0].weight)
    with byname.observe(model, "0.weight", statistics):
        for value in (0.0, 1.0, 1.5):
            model[0].weight.data.fill_(value)
            model(torch.ones(1, 4))
    assert statistics.result()["0.weight"]["update_ratio"] == 0.5


@pytest.mark.sees_nothing
def test_frozen_tied_and_unused_parameters():
    model = nn.ModuleDict({"a": nn.Linear(4, 4, bias=False), "b": nn.Linear(4, 4), "c": nn.Linear(4, 4)})
    model["b"].weight = model["a"].weight
    model["b"].bias.requires_grad_(False)
    model.forward = lambda x: model["b"](model["a"](x))
    statistics = GradientStatistics()
    with byname.observe(model, ("**.weight", "**.bias"), statistics) as handle:
        model(batches(1)[0]).sum().backward()
    found = statistics.result()
    whole = model["a"].weight.grad
    for path in ("a.weight", "b.weight"):
        np.testing.assert_allclose(found[path]["mean"][: len(whole)], whole, rtol=1e-6)
    assert math.isnan(found["b.bias"]["mean"]) and math.isnan(found["c.weight"]["mean"])
    assert any("b.bias" in note for note in handle.notes)


def test_samples_that_are_not_finite_are_left_out_and_counted():
    model, statistics = net(), GradientStatistics()
    good = []
    with byname.observe(model, "2.bias", statistics):
        for scale in (1.0, math.inf, 3.0, math.nan):
            model.zero_grad()
            (model(torch.ones(2, 4)).sum() * scale).backward()
            good += [model[2].bias.grad.clone()] if math.isfinite(scale) else []
    assert_figures(statistics.result()["2.bias"], good, nonfinite=2)


def test_gradients_in_half_precision_are_summed_in_full():
    model, statistics = nn.Linear(3, 2).to(torch.bfloat16), GradientStatistics()
    gradients = []
    with byname.observe(model, "weight", statistics):
        for scale in (1.0, 3.0, 1024.0):
            model.zero_grad()
            (model(torch.randn(4, 3, dtype=torch.bfloat16)) * scale).sum().backward()
            gradients.append(model.weight.grad.double())
    assert_figures(statistics.result()["weight"], gradients)


class Directly(nn.Module):
    """Its gradient is what it is given."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size, dtype=torch.float64))

    def forward(self, x):
        return self.weight @ x


@pytest.mark.parametrize("unbiased", [False, True])
def test_the_noise_scale_of_gradients_with_known_covariance(unbiased):
    random = np.random.default_rng(5)
    model, statistics = Directly(20), GradientStatistics(unbiased=unbiased)
    mean, spread = random.normal(size=20), random.uniform(0.5, 3, size=20)
    with byname.observe(model, "weight", statistics):
        for _ in range(500):
            model(torch.from_numpy(mean + spread * random.normal(size=20))).backward()
    truth = (spread**2).sum() / (mean**2).sum()
    assert statistics.result()["weight"]["noise_scale"] == pytest.approx(truth, rel=0.1)


def test_pure_noise_has_no_unbiased_noise_scale_or_a_large_one():
    model, statistics = Directly(50), GradientStatistics(unbiased=True)
    with byname.observe(model, "weight", statistics):
        for sign in (1.0, -1.0):
            model(torch.full((50,), sign, dtype=torch.float64)).backward()
    assert math.isnan(statistics.result()["weight"]["noise_scale"])


def test_a_part_that_a_checkpoint_runs_again_is_counted_once():
    from torch.utils.checkpoint import checkpoint

    for reentrant in (False, True):
        model, statistics = net(), GradientStatistics()
        model.forward = lambda x, model=model, reentrant=reentrant: model[2](
            checkpoint(lambda y: model[1](model[0](y)), x, use_reentrant=reentrant)
        )
        rows = []
        plain = copy.deepcopy(model)
        with byname.observe(model, ("0", "0.grad", "0.weight"), statistics):
            for batch in batches(3):
                given = batch.requires_grad_()
                model(given).square().sum().backward()
                hidden = nn.functional.linear(given, plain[0].weight, plain[0].bias)
                loss = plain[2](torch.tanh(hidden)).square().sum()
                rows.append(torch.autograd.grad(loss, hidden)[0])
        for path in ("0", "0.grad"):
            found = statistics.result()[path]
            np.testing.assert_allclose(found["mean"], expected(torch.cat(rows))["mean"], rtol=1e-5, atol=1e-7)
            np.testing.assert_allclose(found["norm"], expected(torch.cat(rows))["norm"], rtol=1e-5)


def test_merged_halves_are_the_whole_and_states_go_to_another():
    model, data = net(), batches(6)
    first, second, whole = GradientStatistics(), GradientStatistics(), GradientStatistics()
    for statistics in (whole, first, second):
        part = {id(whole): data, id(first): data[:2], id(second): data[2:]}[id(statistics)]
        with byname.observe(model, ("0.weight", "1"), statistics):
            for batch in part:
                model(batch).sum().backward()
    first.merge(second)
    loaded = GradientStatistics()
    loaded.load_state_dict(first.state_dict())
    for path in ("0.weight", "1"):
        for figure in ("mean", "variance", "norm", "noise_scale"):
            np.testing.assert_allclose(first.result()[path][figure], whole.result()[path][figure], rtol=1e-10)
            np.testing.assert_array_equal(first.result()[path][figure], loaded.result()[path][figure])


def test_classes_have_the_gradients_of_their_samples_and_each_step_once():
    model, statistics = net(), PerClass(GradientStatistics())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    weights, rows, data = [], [], batches(3)
    model[0].register_forward_hook(lambda module, args, output: rows.append(output) or output.retain_grad())
    statistics.targets = torch.tensor([0, 1, 0, 1, 1, 1, 1, 1])
    with byname.observe(model, "0", statistics):
        for batch in data:
            weights.append([one.detach().clone() for one in model[0].parameters()])
            optimizer.zero_grad()
            model(batch).square().sum().backward()
            optimizer.step()
        weights.append([one.detach().clone() for one in model[0].parameters()])
    for label, found in statistics.result()["0"].items():
        chosen = statistics.targets == label
        assert_figures(found, torch.cat([one.grad[chosen] for one in rows]), update_ratio=ratios(weights))


@pytest.mark.sees_nothing
def test_a_parameter_has_no_classes():
    model, statistics = net(), PerClass(GradientStatistics())
    statistics.targets = torch.arange(6)  # as many as the weight has rows
    with (
        byname.observe(model, "0.weight", statistics),
        pytest.raises(BadArgumentError, match=r"`0.weight` is a parameter"),
    ):
        model(batches(1, 6)[0])


class Refusing(GradientStatistics):
    listens = frozenset({"gradient"})

    def take(self, kept, sample):
        raise BadArgumentError("not this one")


@pytest.mark.sees_nothing
def test_what_goes_wrong_in_a_backward_is_told_with_its_place():
    model = net()
    with byname.observe(model, "1", Refusing()), pytest.raises(BadArgumentError) as raised:
        model(torch.ones(2, 4)).sum().backward()
    assert raised.value.__notes__ == ["byname: at the gradient of `1` in a backward"]


def test_rows_of_several_shapes_have_a_norm_and_no_figures_of_elements():
    model, statistics, rows = nn.ReLU(), GradientStatistics(), []
    with byname.observe(model, "forward", statistics):
        for length in (3, 4, 3):
            given = torch.ones(2, length, requires_grad=True)
            model(given).square().sum().backward()
            rows += [2 * math.sqrt(length)] * 2
    found = statistics.result()["forward"]
    assert found["norm"] == pytest.approx(np.mean(rows)) and math.isnan(found["mean"])
    assert math.isnan(found["noise_scale"]) and found["note"] == "samples of several shapes, such as (3,) and (4,)"
    loaded = GradientStatistics()
    loaded.load_state_dict(statistics.state_dict())
    assert loaded.merge(statistics).result()["forward"]["norm"] == pytest.approx(found["norm"])


@pytest.mark.sees_nothing
def test_only_values_without_a_gradient_are_noted_not_forwards_without_gradients():
    model, statistics = net(), GradientStatistics()
    with byname.observe(model, "*", statistics) as handle:
        with torch.no_grad():
            model(torch.ones(1, 4))
        assert not handle.notes
        model.requires_grad_(False)(torch.ones(1, 4))
        assert "`1`: no gradient flows there, since the value does not require grad" in handle.notes


def test_it_goes_with_others():
    model, several = net(), Several(GradientStatistics(), GradientStatistics(unbiased=True))
    with byname.observe(model, "0.weight", several):
        train(model, batches(3), torch.optim.SGD(model.parameters(), lr=0.1))
    found = several.result()["0.weight"]
    assert found["GradientStatistics.noise_scale"] < found["GradientStatistics_2.noise_scale"]


@pytest.mark.sees_nothing
def test_a_pause_is_no_step():
    model, statistics = net(), GradientStatistics()
    with byname.observe(model, "0.weight", statistics):
        model(torch.ones(1, 4))
        statistics.enabled = False
        model[0].weight.data.mul_(3)
        statistics.enabled = True
        model(torch.ones(1, 4))
    assert math.isnan(statistics.result()["0.weight"]["update_ratio"])


def test_training_is_the_same_to_the_last_bit_and_nothing_is_left():
    plain = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 2))
    watched = copy.deepcopy(plain)
    before = set(watched.state_dict()), {id(one) for one in watched.parameters()}
    statistics, states = GradientStatistics(), []
    for model in (plain, watched):
        torch.manual_seed(1)
        handle = byname.observe(model, ("*", "**.weight", "**.bias"), statistics) if model is watched else None
        train(model, batches(5), torch.optim.Adam(model.parameters()))
        states.append(torch.get_rng_state())
    handle.remove()
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), watched.parameters()))
    assert torch.equal(*states)
    assert (set(watched.state_dict()), {id(one) for one in watched.parameters()}) == before
    assert not any(one._backward_hooks for one in watched.parameters())
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in watched.modules())
    assert not statistics._weights


def test_no_value_is_kept_for_a_backward_that_is_yet_to_come():
    model, statistics, seen = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Dropout(0.5)), GradientStatistics(), []

    def look(module, args, output):
        seen.append(weakref.ref(output.untyped_storage()))
        output.register_hook(lambda gradient: seen.append(weakref.ref(gradient.untyped_storage())) and None)

    model[1].register_forward_hook(look)
    with byname.observe(model, ("1", "**.weight"), statistics):
        loss = model(torch.ones(2, 4)).sum()  # dropout keeps its mask, not what it is given
        gc.collect()
        gone = seen[0]() is None
        loss.backward()
        del loss
        gc.collect()
        assert len(seen) == 2 and seen[1]() is None
    assert gone and statistics.result()["1"]["norm"] > 0


def test_targets_are_not_kept_by_the_hooks_of_parameters():
    model, statistics = net(), GradientStatistics()
    with byname.observe(model, ("0", "**.weight"), statistics):
        statistics.targets = torch.arange(8)
        alive = weakref.ref(statistics.targets.untyped_storage())
        model(batches(1)[0]).sum().backward()
        statistics.targets = None
        gc.collect()
        assert alive() is None


def test_a_model_that_is_still_observed_is_freed():
    model, statistics = net(), GradientStatistics()
    byname.observe(model, ("*", "**.weight"), statistics)
    model(torch.ones(2, 4)).sum().backward()
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("iterations", [20, pytest.param(2000, marks=pytest.mark.slow)])
def test_many_iterations_add_nothing(iterations):
    model, statistics = net(), GradientStatistics()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tensors = []
    with byname.observe(model, ("0", "1", "**.weight"), statistics):
        for batch in batches(1) * 2:
            for _ in range(iterations // 2):
                train(model, [batch], optimizer)
            gc.collect()
            tensors.append(sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects()))
    assert tensors[0] == tensors[1]


RANKS = """
import torch, byname
from torch import distributed, nn
distributed.init_process_group("gloo")
rank = distributed.get_rank()
torch.manual_seed(0)
model = nn.Linear(3, 2)
data = torch.randn(6, 5, 3)
mine, whole = byname.analyse.GradientStatistics(), byname.analyse.GradientStatistics()
for statistics, part in ((mine, data[rank::2]), (whole, torch.cat([data[0::2], data[1::2]]))):
    with byname.observe(model, ("forward", "weight"), statistics):
        for batch in part:
            model(batch).square().sum().backward()
together = mine.reduce()
for path in ("forward", "weight"):
    for figure in ("mean", "variance", "norm", "noise_scale"):
        one, other = together.result()[path][figure], whole.result()[path][figure]
        torch.testing.assert_close(torch.as_tensor(one), torch.as_tensor(other), rtol=1e-10, atol=0)
print("equal")
distributed.destroy_process_group()
"""


def test_two_ranks_reduce_to_what_one_process_has(tmp_path):
    outputs = run_forked_ranks(tmp_path, RANKS, "ranks.py")
    assert [output[-1].strip() for output in outputs] == ["equal", "equal"]


def test_a_reset_of_a_group_forgets_the_weights_of_the_forward_before():
    model, gradients = nn.Sequential(nn.Linear(2, 1)), Several(GradientStatistics(), NameList())
    with byname.observe(model, "0.weight", gradients):
        model(torch.ones(1, 2))
        with torch.no_grad():
            model[0].weight.mul_(2)
        gradients.reset()
        model(torch.ones(1, 2))
    assert math.isnan(gradients.result()["0.weight"]["update_ratio"])


class Rotation(nn.Module):
    def __init__(self):
        super().__init__()
        self.turn = nn.Parameter(torch.tensor([3 + 4j, 0j]))

    def forward(self, x):
        return (self.turn * x).abs()


def test_complex_gradients_are_refused_and_complex_weights_move_as_a_whole():
    model, gradients = Rotation(), GradientStatistics()
    with pytest.raises(BadArgumentError, match="complex"), byname.observe(model, "turn", GradientStatistics()):
        model(torch.ones(2)).sum().backward()
    with byname.observe(model, "forward", gradients):
        model(torch.ones(2)).sum().backward()
        with torch.no_grad():
            model.turn.add_(0.5j)
        model(torch.ones(2)).sum().backward()
    assert gradients.result()["forward"]["update_ratio"] == pytest.approx(math.sqrt(0.5) / 5)


def test_ctrl_c_in_a_forward_leaves_no_hook_that_counts_each_gradient_twice():
    x = torch.ones(2, 3)
    for moment in range(0, 400, 12):
        model, analyser, calls = nn.Sequential(nn.Linear(3, 1)), GradientStatistics(), Calls(moment, by_signal)
        with byname.observe(model, "0.weight", analyser):
            model(x).sum().backward()
            with suppress(KeyboardInterrupt):
                calls(partial(model, x))
            (model(x).sum() * 4).backward()
        norms = analyser.result()["0.weight"]["norm"]
        assert norms == pytest.approx(2.5 * torch.full((3,), 2.0).norm().item()), calls.thrown
        assert not model[0].weight._backward_hooks, calls.thrown
        if calls.thrown is None:
            break
