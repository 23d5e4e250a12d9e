"""Layers of torch.nn are rewritten, also those that PyTorch computes by a fast path: as interject has them."""

import copy

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import byname

X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
PADDED = torch.zeros(2, 5, dtype=torch.bool).index_fill(1, torch.tensor([4]), True)
MADE = {
    "encoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
    "transformer": lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True),
    "lstm": lambda: nn.Sequential(nn.LSTM(8, 4, batch_first=True)),
    "gru": lambda: nn.GRU(8, 4, batch_first=True, bidirectional=True),
    "attention": lambda: nn.MultiheadAttention(8, 2, batch_first=True),
    "convolutions": lambda: nn.Sequential(
        nn.Conv1d(5, 4, 3), nn.BatchNorm1d(4), nn.ReLU6(inplace=True), nn.Dropout(), nn.Softmax(-1)
    ),
}
CALLS = {
    "encoder": ((X,), {"src_key_padding_mask": PADDED}),
    "transformer": ((X, X), {}),
    "attention": ((X, X, X), {}),
}
WHERE = {
    "encoder": [
        "layers.0.self_attn.multi_head_attention_forward",
        "layers.1.relu",
        "layers.0.linear1",
        "layers.1.linear2.linear",
        "layers.0",
    ],
    "transformer": [
        "encoder.layers.0.linear1",
        "decoder.layers.0.multihead_attn",
        "decoder.norm.layer_norm",
        "encoder",
    ],
    "lstm": ["0.lstm"],
    "gru": ["forward"],
    "attention": ["forward", "multi_head_attention_forward"],
    "convolutions": ["0.conv1d", "1", "2", "2.hardtanh*", "4.softmax"],
}
CASES = [(name, where) for name, places in WHERE.items() for where in (*places, places)]


def double(name, module, value):
    if isinstance(value, tuple):
        return tuple(None if one is None else double(name, module, one) for one in value)
    return value * 2


def outputs(model, name, calls=2):
    args, kwargs = CALLS.get(name, ((X,), {}))
    torch.manual_seed(1)
    found = [model(*args, **kwargs) for _ in range(calls)]
    return [one for one in pytree.tree_leaves(found) if isinstance(one, torch.Tensor)]


@pytest.mark.grid(fast=24)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize(("name", "where"), CASES)
def test_it_computes_what_interject_computes(name, where, gradients, training):
    torch.manual_seed(0)
    model = MADE[name]().train(training)
    with torch.set_grad_enabled(gradients):
        plain = copy.deepcopy(model)
        found = outputs(byname.rewrite(model, where, double), name)
        with byname.interject(plain, where, double):
            wanted = outputs(plain, name)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    assert len(found) > 0
