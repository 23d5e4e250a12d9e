"""Leaves of every module of torch.nn, every optimizer, and whole families of models."""

import architectures
import pytest
import torch
from torch import nn

import byname

MODULES = {
    "Linear": (lambda: nn.Linear(4, 3), (2, 4)),
    "Bilinear": (lambda: nn.Bilinear(4, 4, 3), (2, 4), (2, 4)),
    "Conv1d": (lambda: nn.Conv1d(2, 3, 2), (1, 2, 5)),
    "Conv2d": (lambda: nn.Conv2d(2, 3, 2), (1, 2, 5, 5)),
    "Conv3d": (lambda: nn.Conv3d(2, 3, 2), (1, 2, 5, 5, 5)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(2, 3, 2), (1, 2, 5, 5)),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(4), (3, 4)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(2), (3, 2, 4, 4)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), (3, 4)),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(2, affine=True), (3, 2, 4, 4)),
    "LayerNorm": (lambda: nn.LayerNorm(4), (3, 4)),
    "RMSNorm": (lambda: nn.RMSNorm(4), (3, 4)),
    "PReLU": (lambda: nn.PReLU(), (3, 4)),
    "RNN": (lambda: nn.RNN(4, 3, 2), (3, 1, 4)),
    "LSTM": (lambda: nn.LSTM(4, 3, 2, bidirectional=True), (3, 1, 4)),
    "GRU": (lambda: nn.GRU(4, 3), (3, 1, 4)),
    "RNNCell": (lambda: nn.RNNCell(4, 3), (3, 4)),
    "LSTMCell": (lambda: nn.LSTMCell(4, 3), (3, 4)),
    "GRUCell": (lambda: nn.GRUCell(4, 3), (3, 4)),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(4, 2), (3, 1, 4), (3, 1, 4), (3, 1, 4)),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(4, 2, 8), (3, 1, 4)),
    "TransformerDecoderLayer": (lambda: nn.TransformerDecoderLayer(4, 2, 8), (3, 1, 4), (3, 1, 4)),
    "Transformer": (lambda: nn.Transformer(4, 2, 1, 1, 8), (3, 1, 4), (3, 1, 4)),
    "weight_norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), (2, 4)),
    "spectral_norm": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)), (2, 4)),
    "orthogonal": (lambda: nn.utils.parametrizations.orthogonal(nn.Linear(4, 3)), (2, 4)),
}


def total(output):
    return output.sum() if isinstance(output, torch.Tensor) else sum(total(part) for part in output if part is not None)


def check(loss, model):
    found = byname.leaves(loss, model=model)
    parameters = {id(parameter) for parameter in model.parameters()}
    mine = [leaf for leaf in found if id(leaf.tensor) in parameters]
    assert len({id(leaf.tensor) for leaf in found}) == len(found)
    for leaf in mine:
        assert leaf.kind == "parameter"
        assert leaf.name.exact
        assert eval(leaf.name.path, {"model": model}) is leaf.tensor, leaf.name
    graph = byname.graph(loss)
    assert sum(node.name == "AccumulateGrad" for node in graph) == len(found)
    saved = byname.saved(loss)
    storages = {row.card.storage: row.card.storage_bytes for row in saved if row.card is not None}
    assert saved.bytes == sum(storages.values())
    assert not [row for row in saved if row.state != "live"]
    loss.backward()
    reached = {id(leaf.tensor) for leaf in mine}
    assert reached == {id(parameter) for parameter in model.parameters() if parameter.grad is not None}
    assert {row.state for row in byname.saved(loss)} <= {"freed", "live"}
    return mine


@pytest.mark.grid(fast=8)
@pytest.mark.filterwarnings("ignore")  # PyTorch's own, about its modules
@pytest.mark.parametrize("name", MODULES)
def test_every_module_with_parameters(name):
    make, *shapes = MODULES[name]
    model = make()
    with byname.track():
        loss = total(model(*(torch.randn(shape) for shape in shapes)))
        assert check(loss, model)


OPTIMIZERS = [
    "SGD",
    "Adam",
    "AdamW",
    "NAdam",
    "RAdam",
    "Adamax",
    "Adagrad",
    "Adadelta",
    "ASGD",
    "RMSprop",
    "Rprop",
    "Adafactor",
]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizers_state_is_named(name):
    model = nn.Linear(3, 2)
    options = {"momentum": 0.9} if name == "SGD" else {}
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, **options)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    tensors = [
        value for entry in optimizer.state.values() for value in entry.values() if isinstance(value, torch.Tensor)
    ]
    assert tensors
    for index in range(len(tensors)):
        found = [one for one in byname.names(tensors[index], roots=[optimizer, model]) if one.how == "optimizer"]
        assert found[0].exact
        assert eval(found[0].path, {"optimizer": optimizer, "model": model}) is tensors[index]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # transformers' own
@pytest.mark.parametrize("name", architectures.TEXTS)
def test_transformers_with_random_weights(name):
    model, inputs = architectures.architecture(name)
    with byname.track():
        loss = model(**inputs).last_hidden_state.sum()
        assert check(loss, model)
