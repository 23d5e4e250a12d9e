"""CKA over minibatches against the textbook formulas in numpy, and what it must not change with."""

import copy
import gc
import itertools
import math
from contextlib import suppress
from functools import partial

import numpy as np
import pytest
import torch
from interrupting import Calls, by_signal
from processes import run_forked_ranks
from torch import nn

import byname
from byname.analyse import PerClass, Similarity
from byname.errors import BadArgumentError


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 3))


def batches(sizes, features=5):
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(size, features, generator=generator) for size in sizes]


def hsic1(x, y):
    """The unbiased HSIC, equation 5 of Song et al. 2012."""
    k, m = (np.asarray(one, np.float64) @ np.asarray(one, np.float64).T for one in (x, y))
    n = len(k)
    np.fill_diagonal(k, 0)
    np.fill_diagonal(m, 0)
    one = np.ones(n)
    middle = one @ k @ one * (one @ m @ one) / ((n - 1) * (n - 2))
    return (np.trace(k @ m) + middle - 2 / (n - 2) * one @ k @ m @ one) / (n * (n - 3))


def by_tuples(x, y):
    """The same from its definition, over all quadruples."""
    k, m = x @ x.T, y @ y.T
    terms = [k[i, j] * (m[i, j] + m[p, q] - 2 * m[i, p]) for i, j, p, q in itertools.permutations(range(len(x)), 4)]
    return np.mean(terms)


def cka(xs, ys):
    xs, ys = ([np.asarray(one, np.float64).reshape(len(one), -1) for one in each] for each in (xs, ys))
    cross, mine, others = (sum(map(hsic1, *pair)) for pair in ((xs, ys), (xs, xs), (ys, ys)))
    return cross / math.sqrt(mine * others)


def kornblith(x, y):
    x, y = (np.asarray(one, np.float64) - np.asarray(one, np.float64).mean(0) for one in (x, y))
    return np.linalg.norm(y.T @ x) ** 2 / (np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y))


def passed(model, data):
    """What passes the layers: a list of batches for each."""
    outputs = [[] for _ in model]
    with torch.no_grad():
        for batch in data:
            for at, layer in enumerate(model):
                batch = layer(batch)
                outputs[at].append(batch)
    return outputs


def test_the_reference_is_the_definition():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(7, 3)), random.normal(size=(7, 2))
    assert hsic1(x, y) == pytest.approx(by_tuples(x, y), rel=1e-10)


@pytest.mark.parametrize("sizes", [[64], [16, 16, 7, 32, 4]])
def test_all_pairs_of_places_are_as_the_textbook_has_them(sizes):
    model, data, similarity = net(), batches(sizes), Similarity()
    with byname.observe(model, "*", similarity):
        for batch in data:
            model(batch)
    outputs = passed(model, data)
    found = similarity.result()
    paths, matrix = similarity.matrix()
    assert paths == similarity.paths == ("0", "1", "2", "3", "4")
    for i, j in itertools.product(range(5), repeat=2):
        value = cka(outputs[i], outputs[j])
        np.testing.assert_allclose(matrix[i, j], value, rtol=1e-9)
        if i != j:
            np.testing.assert_allclose(found[str(i)]["cka"][str(j)], value, rtol=1e-9)
    assert "0" not in found["0"]["cka"]


def test_the_biased_one_of_all_data_is_that_of_kornblith():
    model, data, similarity = net(), batches([50]), Similarity(biased=True)
    with byname.observe(model, "*", similarity):
        model(data[0])
    outputs = passed(model, data)
    assert similarity.result()["0"]["cka"]["4"] == pytest.approx(kornblith(outputs[0][0], outputs[4][0]), rel=1e-9)


@pytest.mark.slow
def test_minibatches_without_bias_come_near_to_all_data_and_biased_ones_do_not():
    data = batches([8] * 400)
    model, small, biased, whole = net(), Similarity(), Similarity(biased=True), Similarity()
    for similarity, each in ((small, data), (biased, data), (whole, [torch.cat(data)])):
        with byname.observe(model, ("0", "4"), similarity):
            for batch in each:
                model(batch)
    truth = whole.result()["0"]["cka"]["4"]
    assert small.result()["0"]["cka"]["4"] == pytest.approx(truth, abs=0.02)
    assert biased.result()["0"]["cka"]["4"] > truth + 0.1


class Same(nn.Module):
    """Representations that are alike but for a rotation, a scale, an offset, the shape."""

    def __init__(self):
        super().__init__()
        self.rotation = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))[0]

    def forward(self, x):
        itself = x * 1
        turned = x @ self.rotation
        scaled = x * -1000
        moved = x + 1e6
        shaped = x.reshape(len(x), 3, 2).transpose(1, 2)
        other = x.abs()
        return other


def test_rotations_scales_offsets_and_shapes_change_nothing():
    model, similarity = Same(), Similarity()
    with byname.observe(model, "forward.*", similarity):
        for batch in batches([9, 30, 12], 6):
            model(batch.double())
    paths, matrix = similarity.matrix()
    same = [paths.index(f"forward.{name}") for name in ("itself", "turned", "scaled", "moved", "shaped")]
    np.testing.assert_allclose(matrix[same][:, same], 1, rtol=1e-7)
    assert float(matrix[paths.index("forward.other"), same[0]]) < 0.5


def test_all_types_are_taken_in_double_precision():
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.int64):
        data = (batches([20], 6)[0] * 4).to(dtype)
        model, similarity = nn.Sequential(nn.Identity(), nn.Flatten()), Similarity()
        model.forward = lambda x, model=model: model[1](model[0](x)[:, :4])
        with byname.observe(model, "*", similarity):
            model(data)
        assert similarity.result()["0"]["cka"]["1"] == pytest.approx(
            cka([data.double()], [data.double()[:, :4]]), rel=1e-9
        )


def test_two_models_are_compared_place_by_place():
    first, second, data, similarity = net(0), net(1), batches([16, 9, 12]), Similarity()
    with (
        byname.observe(first, ("1", "4"), similarity, label="a"),
        byname.observe(second, ("1", "4"), similarity, label="b"),
    ):
        for batch in data:
            first(batch)
            second(batch)
        running = similarity.result()
        assert "a.1" in repr(similarity)
    assert similarity.result() == running
    one, other = passed(first, data), passed(second, data)
    for i, j in itertools.product((1, 4), repeat=2):
        assert running[f"a.{i}"]["cka"][f"b.{j}"] == pytest.approx(cka(one[i], other[j]), rel=1e-9)
        assert running[f"b.{j}"]["cka"][f"a.{i}"] == running[f"a.{i}"]["cka"][f"b.{j}"]
    assert running["a.1"]["cka"]["a.4"] == pytest.approx(cka(one[1], one[4]), rel=1e-9)


def test_one_model_may_run_on_all_batches_before_the_other_where_that_is_asked_for():
    first, second, data = net(0), net(1), batches([16, 9, 12])
    in_turn, ahead = Similarity(), Similarity(ahead=3)
    with byname.observe(first, "4", in_turn, label="a"), byname.observe(second, "4", in_turn, label="b"):
        for batch in data:
            second(batch)
            first(batch)
    with byname.observe(first, "4", ahead, label="a"), byname.observe(second, "4", ahead, label="b"):
        for model in (first, second):
            for batch in data:
                model(batch)
    assert ahead.result()["a.4"]["cka"]["b.4"] == pytest.approx(in_turn.result()["a.4"]["cka"]["b.4"], rel=1e-12)
    assert not ahead._waiting


@pytest.mark.sees_nothing
def test_models_that_run_out_of_step_are_an_error():
    first, second, similarity = net(0), net(1), Similarity()
    with byname.observe(first, "4", similarity, label="a"), byname.observe(second, "4", similarity, label="b"):
        first(torch.randn(8, 5))
        with pytest.raises(BadArgumentError, match=r"`b.4` has 9 samples where `a.4` has 8"):
            second(torch.randn(9, 5))
    with byname.observe(first, "4", similarity, label="a"), byname.observe(second, "4", similarity, label="b"):
        first(torch.randn(8, 5))
        with pytest.raises(BadArgumentError, match="2 forwards ahead"):
            first(torch.randn(8, 5))


def test_batches_of_fewer_than_four_samples_are_counted_and_told():
    model, similarity = net(), Similarity()
    data = batches([3, 12, 1, 8])
    with byname.observe(model, ("0", "4"), similarity):
        for batch in data:
            model(batch)
    outputs = passed(model, data)
    assert similarity.skipped == 2 and repr(Similarity()) == "<Similarity without data>"
    assert "without 2 batches with too few samples" in repr(similarity)
    wanted = cka(outputs[0][1::2], outputs[4][1::2])
    assert similarity.result()["0"]["cka"]["4"] == pytest.approx(wanted, rel=1e-9)


def test_batches_left_out_are_counted_through_a_merge_also_of_nothing_else():
    model, parts = net(), [Similarity(), Similarity(), Similarity()]
    for part, size in zip(parts, (3, 2, 8)):
        with byname.observe(model, "*", part):
            model(torch.randn(size, 5))
    first, second, third = parts
    assert first.merge(second).skipped == 2
    assert first.merge(third).skipped == third.merge(second).skipped + 1 == 2


def test_the_default_device_has_no_say():
    model, data = net(), batches([8, 8])
    with torch.device("meta"):
        similarity = Similarity()
        for batch in data:
            with byname.observe(model, "*", similarity):
                model(batch)
    assert similarity.matrix()[1].diagonal().tolist() == pytest.approx([1.0] * 5)


def test_without_a_usable_batch_there_is_no_figure():
    model, similarity = net(), Similarity()
    with byname.observe(model, "*", similarity):
        model(torch.randn(3, 5))
    assert not similarity.result() and similarity.skipped == 1 and similarity.matrix()[1].shape == (0, 0)


def test_places_that_tell_samples_not_apart_or_have_nan_have_no_figure():
    model, similarity = net(), Similarity()
    nn.init.zeros_(model[2].weight)
    with byname.observe(model, ("0", "1", "2"), similarity):
        model(torch.randn(8, 5))
    assert math.isnan(similarity.result()["0"]["cka"]["2"]) and similarity.result()["0"]["cka"]["1"] > 0
    similarity.reset()
    model[2].weight.data.fill_(math.nan)
    with byname.observe(model, ("0", "1", "2"), similarity):
        model(torch.randn(8, 5))
    assert math.isnan(similarity.result()["0"]["cka"]["2"]) and similarity.result()["0"]["cka"]["1"] > 0


class Sometimes(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, 4), nn.Linear(5, 4), nn.Linear(5, 4)

    def forward(self, x, which):
        return self.a(x) + self.a(x * 2) + (self.b(x) if which else self.c(x))


def test_a_pair_is_of_the_batches_in_which_both_pass_and_of_the_first_call():
    model, data, similarity = Sometimes(), batches([8, 10, 12]), Similarity()
    with byname.observe(model, ("a", "b", "c"), similarity):
        for number, batch in enumerate(data):
            model(batch, number % 2)
    even = data[0::2]
    wanted = cka([model.a(one).detach() for one in even], [model.c(one).detach() for one in even])
    assert similarity.result()["a"]["cka"]["c"] == pytest.approx(wanted, rel=1e-9)
    assert "b" not in similarity.result()["c"]["cka"]


@pytest.mark.sees_nothing
def test_places_without_common_samples_are_refused():
    model, similarity = Same(), Similarity()
    model.rotation = nn.Parameter(model.rotation)
    with (
        byname.observe(model, "rotation", similarity),
        pytest.raises(BadArgumentError, match=r"`rotation` has no samples"),
    ):
        model(torch.randn(8, 6, dtype=torch.float64))
    with pytest.raises(BadArgumentError, match="give it to byname.observe alone"):
        PerClass(Similarity())


def test_merged_parts_are_the_whole_also_of_other_places():
    model, data = net(), batches([8, 10, 12, 5])
    first, second, whole = Similarity(), Similarity(), Similarity()
    for similarity, part, where in ((first, data[:2], ("0", "4")), (second, data[2:], ("4", "0", "2"))):
        with byname.observe(model, where, similarity):
            for batch in part:
                model(batch)
    with byname.observe(model, ("0", "4"), whole):
        for batch in data:
            model(batch)
    first.merge(second)
    assert first.result()["0"]["cka"]["4"] == pytest.approx(whole.result()["0"]["cka"]["4"], rel=1e-10)
    assert first.result()["2"] == second.result()["2"]
    loaded = Similarity()
    loaded.load_state_dict(first.state_dict())
    assert loaded.result() == first.result()
    with pytest.raises(BadArgumentError, match="biased"):
        first.merge(_biased_of(model))


def _biased_of(model):
    biased = Similarity(biased=True)
    with byname.observe(model, ("0", "4"), biased):
        model(batches([8])[0])
    return biased


def test_observing_changes_nothing_and_keeps_no_batch():
    plain = net()
    watched, similarity, ends = copy.deepcopy(plain), Similarity(), []
    for model in (plain, watched):
        torch.manual_seed(1)
        optimizer = torch.optim.Adam(model.parameters())
        handle = byname.observe(model, "*", similarity) if model is watched else None
        for batch in batches([8, 8, 8]):
            optimizer.zero_grad()
            model(nn.functional.dropout(batch)).square().sum().backward()
            optimizer.step()
        ends.append(torch.get_rng_state())
    handle.remove()
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), watched.parameters()))
    assert torch.equal(*ends) and not similarity._waiting
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in watched.modules())


@pytest.mark.parametrize("iterations", [20, pytest.param(2000, marks=pytest.mark.slow)])
def test_many_iterations_add_nothing(iterations):
    model, similarity, tensors = net(), Similarity(), []
    with byname.observe(model, ("0", "4"), similarity):
        for _ in range(2):
            for _ in range(iterations // 2):
                model(torch.ones(4, 5))
            gc.collect()
            tensors.append(sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects()))
    assert tensors[0] == tensors[1]


RANKS = """
import torch, byname
from torch import distributed, nn
distributed.init_process_group("gloo")
rank = distributed.get_rank()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
data = torch.randn(6, 9, 3)
mine, whole = byname.analyse.Similarity(), byname.analyse.Similarity()
for similarity, part in ((mine, data[rank::2]), (whole, data)):
    with byname.observe(model, "*", similarity):
        for batch in part:
            model(batch)
paths, matrix = mine.reduce().matrix()
torch.testing.assert_close(matrix, whole.matrix()[1], rtol=1e-12, atol=0)
print("equal")
distributed.destroy_process_group()
"""


def test_two_ranks_reduce_to_what_one_process_has(tmp_path):
    outputs = run_forked_ranks(tmp_path, RANKS, "ranks.py")
    assert [output[-1].strip() for output in outputs] == ["equal", "equal"]


@pytest.mark.parametrize(("biased", "size", "needed"), [(False, 3, 4), (True, 1, 2)])
def test_where_all_batches_were_too_small_the_result_says_so(biased, size, needed):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
    similarity = Similarity(biased=biased)
    with byname.observe(model, "*", similarity):
        for _ in range(3):
            model(torch.randn(size, 4))
        inside = similarity.result()
    for found in (inside, similarity.result()):
        (note,) = found.notes
        assert f"3 batches with {3 * size} samples in all were left out" in note
        assert f"at least {needed}: run larger batches" in note
        assert ("Similarity(biased=True) needs 2" in note) is not biased
        with pytest.raises(KeyError, match=rf"has no figures of `0`; too few samples .* at least {needed}"):
            found["0"]
    with byname.observe(model, "*", similarity):
        model(torch.randn(needed, 4))
    assert similarity.result().notes == ()
    assert set(similarity.result()) == {"0", "1"}
    with pytest.raises(byname.BynameError, match="no figures of `2`; there are those of 0, 1"):
        similarity.result()["2"]
    assert similarity.result().get("2") is None


@pytest.mark.parametrize("biased", [True, False])
def test_of_tokens_each_is_a_sample_whose_features_are_the_channels(biased):
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    tokens, flat = Similarity(biased=biased, samples="tokens"), Similarity(biased=biased)
    with torch.no_grad():
        for _ in range(2):
            value = torch.randn(3, 7, 6)
            with byname.observe(model, "*", tokens):
                model(value)
            with byname.observe(model, "*", flat):
                model(value.reshape(21, 6))
    np.testing.assert_allclose(tokens.matrix()[1], flat.matrix()[1], rtol=1e-12)
    found = tokens.result()
    assert found["0"]["channel_dim"] == found["2"]["channel_dim"] == -1
    assert any("the last dimension, of 8" in note for note in found.notes)
    again = Similarity(biased=biased, samples="tokens")
    again.load_state_dict(tokens.state_dict())
    assert again.result() == found
    assert again.merge(tokens).matrix()[0] == ("0", "1", "2")
    with pytest.raises(BadArgumentError, match="this is the state of a Similarity with .*samples='tokens'"):
        Similarity(biased=biased).load_state_dict(tokens.state_dict())
    with pytest.raises(BadArgumentError, match='give samples="tokens" too'):
        Similarity(channel_dim=-1)


def test_ctrl_c_as_a_forward_begins_loses_no_earlier_one():
    torch.manual_seed(0)
    model, batches = nn.Sequential(nn.Linear(3, 4), nn.Tanh()), torch.randn(3, 6, 3)
    similarity, expected = Similarity(), []
    with byname.observe(model, "*", similarity):
        for batch in batches:
            model(batch)
            expected.append(similarity.result()["0"]["cka"]["1"])
    for moment in range(0, 60, 2):
        similarity, calls = Similarity(), Calls(moment, by_signal)
        with byname.observe(model, "*", similarity):
            for batch in batches[:2]:
                model(batch)
            with suppress(KeyboardInterrupt):
                calls(partial(model, batches[2]))
        assert similarity.result()["0"]["cka"]["1"] in expected[1:], calls.thrown
