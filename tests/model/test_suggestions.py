"""What errors suggest: paths that can be asked for, whole lists or how many more there are, and where a function is hidden."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import byname
from byname import select
from byname.errors import BynameError, NoMatchError


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(4, 12), nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(1))

    def heads(self, hidden):
        return torch.relu(hidden).split(4, -1)

    def from_pretrained(self, hidden):
        scores = hidden
        return scores

    def forward(self, hidden):
        q, k, v = self.heads(self.qkv(hidden))
        scores = F.softmax(q @ k.transpose(-2, -1), -1) * self.scale
        return self.out(scores @ v)


def a_model():
    return nn.Sequential(nn.ModuleDict({"attn": Attention()})["attn"], nn.Linear(4, 4), nn.ReLU())


X = torch.ones(1, 3, 4)


def refusal(path):
    model = a_model()
    try:
        with byname.interject(model, path, lambda name, module, value: None) as handle:
            model(X)
            assert handle.paths
            return " ".join(handle.notes)
    except BynameError as error:
        return str(error)


MISTAKEN = [
    "0.inputs", "0.output", "0.output[0]", "x[0].qkv.output", "0.out_put", "1.inputs", "1.out", "output", "inputs", "args", "0.sofmax", "0.relv", "0.headz",
    "0.form_pretrained", "0.from_pretrain", "0.forward.score", "0.forward.hiden", "0.heads.hiddn", "0.scal", "0.qvk",
    "0.qkv.wieght", "0.qkv.linaer", "0.rest_parameters", "0.extra_rep", "1.weigth", "2.rleu", "atn.out", "forward.inpt",
    "0.splitt", "0.tranpose", "0.mamtul", "0.fmax",
]  # fmt: skip


@pytest.mark.parametrize("path", MISTAKEN)
def test_each_path_that_an_error_suggests_can_be_asked_for(path):
    words = refusal(path)
    assert "matches no" in words
    suggested = [one for one in re.findall(r"`([^`(]+)`", words) if one != path]
    assert [one for one in suggested if refusal(one)] == []


class Bucketing(nn.Module):
    """A list of layers, which is never called, and a static method, which does not get the module."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4)])

    @staticmethod
    def buckets(positions, last):
        return positions.clamp(max=last)

    def forward(self, x):
        return self.buckets(self.layers[0](x), 1.0)


@pytest.mark.parametrize("path", ["erfinv", "layers.0.erfinv", "bucket", "layer"])
def test_lists_of_modules_and_static_methods_are_not_suggested(path):
    model = Bucketing()
    with pytest.raises(NoMatchError) as raised, byname.interject(model, path, lambda name, module, value: None):
        model(X)
    assert not re.search("`(layers|buckets)`", str(raised.value))


def test_where_no_operation_ran_there_are_none():
    with pytest.raises(NoMatchError, match="is not an operation that ran; there are none"):
        byname.points(nn.Identity(), "relu", example=X)


def test_the_words_of_other_libraries_are_known():
    assert "; what `0` returns is `0`." in refusal("0.output")
    assert "; its arguments are `0.input`." in refusal("0.inputs")
    assert "; what the model returns is `forward`." in refusal("output")
    assert "; its arguments are `input`." in refusal("inputs")
    assert "; what `0` returns is `0`." in refusal("0.output[0]")
    assert "close to it: `0.qkv`" in refusal("qkv.output[0]")


def test_a_function_of_the_owner_is_suggested_and_others_are_not():
    assert "close to it: `0.softmax`, `0.scale`." in refusal("0.sofmax")
    assert "close to it: `0.qkv.linear`" in refusal("0.qkv.linaer")
    assert "`1.softmax`" not in refusal("1.softmx")


class Long(nn.Module):
    def forward(self, x):
        y = x.sin().cos().exp().neg().abs().sqrt().square().tanh().sigmoid().floor().ceil().round()
        y = torch.cat([y, y]).view(1, 4, 8).transpose(1, 2).contiguous()
        return F.scaled_dot_product_attention(y, y, y)


FIRST = "sin, cos, exp, neg, abs, sqrt, square, tanh, sigmoid, floor, ceil, round, and 5 more"
WITHIN = (
    'the {} is inside `scaled_dot_product_attention`: select.attention, or attn_implementation="eager" for a model of '
    "transformers"
)


def told(where, model=None, x=None):
    with pytest.raises(NoMatchError) as raised:
        byname.points(Long() if model is None else model, where, example=torch.ones(2, 8) if x is None else x)
    return str(raised.value)


def test_a_list_of_functions_says_how_many_more_there_are():
    assert told(select.pad).partition("its functions ")[2].count(", ") == 12
    assert f"its functions {FIRST}" in told(select.loss & select.pool)


@pytest.mark.parametrize(
    ("where", "name"),
    [
        (select.softmax, "softmax"),
        (select.op("softmax"), "softmax"),
        (select.path("**.softmax"), "softmax"),
        (select.softmax & select.path("blocks.**"), "softmax"),
        (select.dropout.first, "dropout"),
        (select.matmul, "matmul"),
    ],
    ids=str,
)
def test_a_function_inside_another_is_told_with_that_one(where, name):
    assert told(where).endswith(f"; {WITHIN.format(name)}")


def test_a_path_of_an_operation_inside_another_is_told_with_that_one():
    model = Long()
    with pytest.raises(NoMatchError) as raised, byname.interject(model, "softmax", lambda name, module, value: None):
        model(torch.ones(2, 8))
    assert WITHIN.format("softmax") in str(raised.value)
    assert "and 11 more" in str(raised.value)


def test_what_is_not_inside_another_has_no_such_sentence():
    for where in (select.conv, select.relu, select.where(lambda call: False)):
        assert " is inside " not in told(where)


def test_a_part_that_matches_is_not_said_to_be_hidden():
    model = nn.Sequential(nn.Softmax(-1), Long())
    assert " is inside " not in told(select.softmax & select.path("nowhere.**"), model)


class NewGELU(nn.Module):
    def forward(self, x):
        return x * torch.tanh(x)


def test_a_step_of_a_composite_activation_is_told_with_that_one():
    expected = "; the tanh is a step inside NewGELU, which is one place: select.op('tanh')"
    assert told(select.tanh, nn.Sequential(NewGELU())).endswith(expected)


def test_a_gate_inside_a_recurrent_layer():
    assert "the tanh is inside `GRU`: select.recurrent" in told(select.tanh, nn.GRU(8, 8))
