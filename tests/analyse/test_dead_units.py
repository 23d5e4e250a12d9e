"""Units that never fire are found for every activation function of PyTorch, whatever its rest is."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import byname
from byname.analyse import ClassVersusRest, DeadUnits, NameList, PerClass, Several
from byname.errors import BadArgumentError


def collected(model, module, batches):
    """What passes a module, by a plain hook, as float64 arrays."""
    values = []
    handle = module.register_forward_hook(lambda _, __, output: values.append(output.detach().double().numpy()))
    for batch in batches:
        model(batch)
    handle.remove()
    return values


def units_of(model, where, batches, **settings):
    analyser = DeadUnits(**settings)
    with byname.observe(model, where, analyser):
        for batch in batches:
            model(batch)
    return analyser


@pytest.mark.parametrize("size", [(), (5,), (4, 4), (2, 3, 2)], ids=str)
def test_units_that_fire_are_counted_over_batches_of_different_sizes(size):
    model = nn.Sequential(nn.Identity(), nn.ReLU())
    batches = [torch.randn(n, 6, *size) - 1.0 for n in (1, 7, 32)]
    for batch in batches:
        batch[:, 2] = -batch[:, 2].abs()
    figures = units_of(model, "1", batches).result()["1"]
    whole = np.concatenate(collected(model, model[1], batches))
    fired = (whole.reshape(40, 6, -1) > 0).any(2).sum(0)
    assert figures["fired"].tolist() == fired.tolist()
    assert figures["fired"].dtype is torch.int64
    assert (figures["dead"], figures["total"], figures["samples"]) == ((fired == 0).sum(), 6, 40)
    assert figures["dead"] >= 1


def test_positions_may_be_others_in_each_batch():
    model = nn.Sequential(nn.Conv2d(2, 5, 3), nn.ReLU())
    batches = [torch.randn(3, 2, size, size) for size in (3, 8, 5)]
    figures = units_of(model, "1", batches).result()["1"]
    values = collected(model, model[1], batches)
    assert figures["fired"].tolist() == sum((v.max((2, 3)) > 0).sum(0) for v in values).tolist()


SILENT = -50.0
ONE_SIDED = [
    nn.ReLU(), nn.ReLU6(), nn.GELU(), nn.GELU(approximate="tanh"), nn.SiLU(), nn.Mish(), nn.ELU(), nn.CELU(), nn.SELU(),
    nn.LeakyReLU(), nn.PReLU(), nn.RReLU(), nn.Hardswish(), nn.Hardsigmoid(), nn.Sigmoid(), nn.Softplus(),
    nn.LogSigmoid(), nn.Threshold(0.5, 0.1), nn.Threshold(0.5, 9.0), nn.Hardtanh(0.0, 4.0), nn.Hardtanh(1.0, 4.0),
]  # fmt: skip
TWO_SIDED = [
    nn.Tanh(), nn.Hardtanh(), nn.Softsign(), nn.Tanhshrink(), nn.Hardshrink(), nn.Softshrink(),
]  # fmt: skip


@pytest.mark.parametrize("activation", ONE_SIDED, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_a_unit_far_below_is_dead_and_one_above_is_not(activation, dtype):
    inputs = torch.tensor([[SILENT, 3.0], [SILENT, SILENT], [SILENT, 2.0]], dtype=dtype)
    figures = units_of(nn.Sequential(activation.to(dtype)).eval(), "0", [inputs]).result()["0"]
    assert figures["fired"].tolist() == [0, 2]


@pytest.mark.parametrize("activation", TWO_SIDED, ids=repr)
def test_a_unit_at_zero_is_dead_and_one_on_either_side_is_not(activation):
    inputs = torch.tensor([[0.0, 3.0, -3.0], [1e-5, 0.0, 0.0]])
    assert units_of(nn.Sequential(activation), "0", [inputs]).result()["0"]["fired"].tolist() == [0, 1, 1]


@pytest.mark.parametrize("activation", [nn.Softmax(1), nn.LogSoftmax(1), nn.Softmin(1)], ids=repr)
def test_a_share_of_nothing_is_dead(activation):
    sign = -1 if isinstance(activation, nn.Softmin) else 1
    inputs = torch.tensor([[0.0, 1.0, -40.0]]) * sign
    assert units_of(nn.Sequential(activation), "0", [inputs]).result()["0"]["fired"].tolist() == [1, 1, 0]


def test_softmax_over_many_channels_has_no_dead_ones():
    assert units_of(nn.Sequential(nn.Softmax(1)), "0", [torch.zeros(2, 5000)]).result()["0"]["dead"] == 0


def test_a_closed_gate_is_dead_whatever_its_sign():
    inputs = torch.tensor([[1.0, -1.0, 1.0, SILENT, 9.0, 9.0]]).reshape(1, 6)[:, [0, 1, 2, 3, 4, 5]]
    assert units_of(nn.Sequential(nn.GLU(1)), "0", [inputs]).result()["0"]["fired"].tolist() == [0, 1, 1]


class Functional(nn.Module):
    def forward(self, x):
        F.relu(x)
        F.sigmoid(x)
        torch.tanh(x)
        y = x.sigmoid()
        softmax = F.softplus(x)
        return F.log_softmax(y, 1) + softmax


def test_operations_fire_as_their_modules_do():
    inputs = torch.tensor([[SILENT, -1.0, 1.0]])
    places = ["relu", "sigmoid", "sigmoid_1", "tanh", "softplus", "log_softmax"]
    result = units_of(Functional(), places, [inputs]).result()
    assert {path: figures["fired"].tolist() for path, figures in result.items()} == {
        "relu": [0, 0, 1],
        "sigmoid": [0, 1, 1],
        "sigmoid_1": [0, 1, 1],
        "tanh": [1, 1, 1],
        "softplus": [0, 1, 1],
        "log_softmax": [1, 1, 1],
    }


def test_the_input_of_an_activation_function_fires_above_zero():
    model = nn.Sequential(nn.Tanh())
    places = ["0", "0.tanh", "0.forward.input"]
    result = units_of(model, places, [torch.tensor([[-1.0, 1.0]])]).result()
    assert all(result[path]["fired"].tolist() == [1, 1] for path in places[:-1])
    assert result["0.forward.input"]["fired"].tolist() == [0, 1]


def test_an_item_of_an_output_and_a_child_class_are_known():
    class Gate(nn.Sigmoid):
        def forward(self, x):
            return [super().forward(x)]

    result = units_of(nn.Sequential(Gate()), "0", [torch.tensor([[SILENT, 1.0]])]).result()
    assert result["0[0]"]["fired"].tolist() == [0, 1]


def test_a_module_that_is_called_like_a_function_is_none():
    model = nn.Sequential()
    model.add_module("tanh", nn.Linear(2, 2))
    model.tanh.weight.data = torch.eye(2)
    model.tanh.bias.data.zero_()
    assert units_of(model, "tanh", [torch.tensor([[-1.0, 1.0]])]).result()["tanh"]["fired"].tolist() == [0, 1]


def test_a_threshold_or_a_function_may_say_what_fires():
    inputs = torch.tensor([[0.2, 0.6], [0.3, float("nan")]])
    model = nn.Sequential(nn.Sigmoid())
    values = model(inputs)
    above = units_of(model, "0", [inputs], fires=0.6).result()["0"]
    asked = units_of(model, "0", [inputs], fires=lambda value: ~(value < 0.6)).result()["0"]
    assert above["fired"].tolist() == asked["fired"].tolist() == [0, 1]
    assert above["nans"] == asked["nans"] == 1


def test_channels_may_be_another_dimension():
    model = nn.Sequential(nn.ReLU())
    batches = [torch.randn(2, length, 4) - 1.5 for length in (3, 9)]
    figures = units_of(model, "0", batches, channel_dim=-1).result()["0"]
    assert figures["fired"].tolist() == sum((b.numpy().max(1) > 0).sum(0) for b in batches).tolist()


@pytest.mark.parametrize(
    "value",
    [torch.tensor([[0, 3], [0, -1]]), torch.tensor([[False, True], [False, False]]), torch.tensor([[0.0, torch.inf]])],
    ids=["int", "bool", "inf"],
)
def test_numbers_of_every_type_fire(value):
    assert units_of(nn.Sequential(nn.Identity()), "0", [value]).result()["0"]["fired"].tolist() == [0, 1]


def test_values_without_samples_or_positions_have_nothing_that_fires():
    figures = units_of(nn.Sequential(nn.ReLU()), "0", [torch.zeros(0, 3, 2), torch.ones(2, 3, 0)]).result()["0"]
    assert (figures["dead"], figures["fired"].tolist(), figures["samples"]) == (3, [0, 0, 0], 2)


def test_one_number_a_sample_is_one_unit():
    figures = units_of(nn.Sequential(nn.Identity()), "0", [torch.tensor([1.0, -1.0, 2.0])]).result()["0"]
    assert (figures["total"], figures["fired"].tolist()) == (1, [2])


def test_nan_never_fires_and_is_counted():
    batches = [torch.tensor([[[float("nan"), 1.0], [float("nan"), -1.0]]])]
    figures = units_of(nn.Sequential(nn.Identity()), "0", batches).result()["0"]
    assert (figures["fired"].tolist(), figures["nans"]) == ([1, 0], 2)


@pytest.mark.parametrize(
    "settings", [{"fires": "relu"}, {"fires": float("nan")}, {"fires": True}, {"channel_dim": 0}, {"channel_dim": 1.0}]
)
def test_what_is_no_setting_is_refused(settings):
    with pytest.raises(BadArgumentError, match="fires= takes|channel_dim is"):
        DeadUnits(**settings)


def test_another_number_of_units_is_refused_and_says_what_to_try():
    with pytest.raises(BadArgumentError, match=r"channel_dim=-1"):
        units_of(nn.Sequential(nn.ReLU()), "0", [torch.ones(2, 3, 4), torch.ones(2, 5, 4)])
    with pytest.raises(BadArgumentError, match="bools of shape"):
        units_of(nn.Sequential(nn.ReLU()), "0", [torch.ones(2, 3)], fires=lambda value: value.sum())


def test_counts_of_other_rules_are_not_put_together():
    model, batch = nn.Sequential(nn.ReLU()), [torch.ones(2, 3)]
    with pytest.raises(BadArgumentError, match="rule"):
        units_of(model, "0", batch).merge(units_of(model, "0", batch, fires=0.5))


def test_parts_put_together_and_saved_are_the_whole():
    model = nn.Sequential(nn.ReLU())
    batches = [torch.randn(n, 6, 2) - 1 for n in (3, 1, 8)]
    parts = [units_of(model, "0", [batch]) for batch in batches]
    kept = DeadUnits()
    kept.load_state_dict(parts[0].merge(parts[1]).merge(parts[2]).state_dict())
    whole = units_of(model, "0", batches).result()["0"]
    assert kept.result()["0"]["fired"].tolist() == whole["fired"].tolist()
    assert kept.result()["0"]["dead"] == whole["dead"]


def test_classes_are_counted_apart_and_against_the_rest():
    model, values = nn.Sequential(nn.ReLU()), torch.randn(12, 5) - 0.8
    targets = torch.arange(12) % 3
    each, versus, both = PerClass(DeadUnits()), ClassVersusRest(DeadUnits()), Several(DeadUnits(), NameList())
    with byname.observe(model, "0", each), byname.observe(model, "0", versus), byname.observe(model, "0", both):
        for at in (0, 6):
            each.targets = versus.targets = targets[at : at + 6]
            model(values[at : at + 6])
    array, labels = values.numpy() > 0, targets.numpy()
    for label in range(3):
        mine, rest = array[labels == label].sum(0).tolist(), array[labels != label].sum(0).tolist()
        assert each.result()["0"][label]["fired"].tolist() == mine
        assert versus.result()["0"][label]["class"]["fired"].tolist() == mine
        assert versus.result()["0"][label]["rest"]["fired"].tolist() == rest
    assert both.result()["0"]["fired"].tolist() == array.sum(0).tolist()
    assert both.result()["0"]["calls"] == 2


def test_names_are_the_places_something_passed():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    names = NameList()
    with byname.observe(model, ["*", "2.weight"], names):
        model(torch.ones(5, 3))
        model(torch.ones(2, 3))
        model.double()(torch.ones(2, 3, dtype=torch.float64))
    assert names.names == ("0", "1", "2", "2.weight")
    assert names.result()["0"] == {"calls": 3, "shape": (None, 4), "dtype": "float32, float64"}
    assert names.result()["2.weight"] == {"calls": 3, "shape": (2, 4), "dtype": "float32, float64"}


@pytest.mark.sees_nothing
def test_names_are_told_of_every_tensor_and_merge():
    class Odd(nn.Module):
        def forward(self, x):
            return {"loss": x.sum(), "parts": (x, x[:, 0].cfloat())}

    one, other = NameList(), NameList()
    with byname.observe(Odd(), "forward", one):
        Odd()
        model = Odd()
    with byname.observe(model, "forward", one):
        model(torch.ones(2, 3))
    with byname.observe(model, "forward", other):
        model(torch.ones(2, 3, 4))
    assert one.names == ("forward['loss']", "forward['parts'][0]", "forward['parts'][1]")
    merged = one.merge(other).result()
    assert merged["forward['loss']"] == {"calls": 2, "shape": (), "dtype": "float32"}
    assert merged["forward['parts'][0]"]["shape"] is None
    kept = NameList()
    kept.load_state_dict(one.state_dict())
    assert kept.result() == one.result()


def test_of_tokens_each_is_a_sample():
    model, values = nn.Sequential(nn.Linear(8, 16), nn.ReLU()), torch.randn(4, 5, 8)
    by_batch, by_token = DeadUnits(), DeadUnits(samples="tokens")
    with byname.observe(model, "1", by_batch), byname.observe(model, "1", by_token), torch.no_grad():
        fired = model(values) > 0
    figures = by_token.result()["1"]
    assert figures["samples"] == 20 and by_batch.result()["1"]["samples"] == 4
    assert torch.equal(figures["fired"], fired.sum((0, 1))) and figures["channel_dim"] == -1
    with pytest.raises(BadArgumentError, match="cannot merge"):
        by_batch.merge(by_token)
    with pytest.raises(BadArgumentError, match="samples is one of 'batch', 'tokens', not"):
        DeadUnits(samples="words")
