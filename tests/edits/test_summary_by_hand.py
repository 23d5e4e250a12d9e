"""The figures of a summary against sums done by hand, what looking changes: nothing, and what it keeps: nothing."""

import gc
import time
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import byname

torch.set_num_threads(1)


def rows_of(model, *args):
    return {row["path"]: row for row in byname.summary(model, *args).rows()}


def figures(row):
    return tuple(row[name] for name in ("parameters", "flops", "output", "output_bytes", "saved_bytes"))


def picture_net():
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(100, 10))


def test_a_convolution_a_norm_and_a_linear_layer():
    image, map_of_4, statistics = 2 * 3 * 5 * 5 * 4, 2 * 4 * 5 * 5 * 4, 4 * 4
    rows = rows_of(picture_net(), torch.ones(2, 3, 5, 5))
    # a multiplication and an addition for each weight of the filter, at each of 25 points, in 2 pictures
    conv = 2 * 2 * 25 * (3 * 3 * 3) * 4
    linear = 2 * 2 * 100 * 10
    assert figures(rows["0"]) == (3 * 9 * 4 + 4, conv, (2, 4, 5, 5), map_of_4, image)
    # its input, the mean and the inverse deviation of the batch, and the two buffers
    assert figures(rows["1"]) == (8, 0, (2, 4, 5, 5), map_of_4, map_of_4 + 4 * statistics)
    assert figures(rows["2"]) == (0, 0, (2, 4, 5, 5), map_of_4, map_of_4)  # its output
    assert figures(rows["3"]) == (0, 0, (2, 100), map_of_4, 0)
    assert figures(rows["4"]) == (1010, linear, (2, 10), 80, map_of_4)  # its input
    # the output of the ReLU and the input of the linear layer are one storage
    saved = image + map_of_4 + 4 * statistics + map_of_4
    assert figures(rows[""]) == (112 + 8 + 1010, conv + linear, (2, 10), 80, saved)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24, bias=False), nn.Linear(8, 8, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        pattern = F.softmax(q @ k.mT, -1)
        return self.out(pattern @ v), pattern


def test_matrix_products_outside_of_layers_are_the_module_s_own():
    batch, length, width = 2, 5, 8
    rows = rows_of(Attention(), torch.ones(batch, length, width))
    products = 2 * (2 * batch * length * length * width)
    assert rows["qkv"]["flops"] == 2 * batch * length * width * 24
    assert rows["out"]["flops"] == 2 * batch * length * width * width
    assert rows[""]["own_flops"] == products
    assert rows[""]["flops"] == products + rows["qkv"]["flops"] + rows["out"]["flops"]
    x, qkv, pattern, mixed = (4 * batch * length * size for size in (width, 24, length, width))
    assert (rows["qkv"]["saved_bytes"], rows["out"]["saved_bytes"]) == (x, mixed)
    assert rows[""]["saved_bytes"] == x + qkv + pattern + mixed  # q, k and v are views of one storage
    assert rows[""]["output"] == ((batch, length, width), (batch, length, length))
    assert rows[""]["output_bytes"] == mixed + pattern


def test_a_layer_that_is_called_twice_counts_twice_and_its_parameters_once():
    layer = nn.Linear(3, 3)
    rows = rows_of(nn.Sequential(layer, nn.Sigmoid(), layer), torch.ones(4, 3))
    assert figures(rows["0"]) == (12, 2 * (2 * 4 * 3 * 3), (4, 3), 2 * 48, 48 + 48)
    assert rows[""]["parameters"] == 12


def test_dropout_saves_its_mask():
    rows = rows_of(nn.Sequential(nn.Linear(3, 5), nn.Dropout()).train(), torch.ones(4, 3))
    assert rows["1"]["saved_bytes"] in (4 * 5, 4 * 4 * 5)  # of one byte or four, by the version of PyTorch


class Slow(nn.Module):
    def __init__(self, seconds):
        super().__init__()
        self.seconds, self.inner = seconds, nn.Identity()

    def forward(self, x):
        time.sleep(self.seconds)
        return self.inner(x)


def test_the_time_of_a_module_has_that_of_those_inside():
    model = nn.Sequential(Slow(0.02), Slow(0.05))
    rows = rows_of(model, torch.ones(1))
    first, second = rows["0"]["seconds"], rows["1"]["seconds"]
    assert 0.02 <= first
    assert 0.05 <= second
    assert first + second <= rows[""]["seconds"] < 1
    assert rows["0.inner"]["seconds"] < 0.02


@pytest.mark.parametrize("look", ["summary", "points"])
def test_looking_changes_no_buffer_and_no_random_state(look):
    model = nn.Sequential(picture_net(), nn.Dropout()).train()
    x = torch.randn(2, 3, 5, 5)
    before = {name: (one.clone(), one._version, id(one)) for name, one in model.state_dict(keep_vars=True).items()}
    state = torch.get_rng_state()
    byname.summary(model, x) if look == "summary" else byname.points(model, example=x)
    assert torch.equal(torch.get_rng_state(), state)
    for name, one in model.state_dict(keep_vars=True).items():
        values, version, identity = before[name]
        assert torch.equal(one, values), name
        assert (one._version, id(one)) == (version, identity), name
        assert getattr(one, "grad", None) is None


def test_a_summary_keeps_no_tensor():
    seen = []

    class Telling(nn.Module):
        def forward(self, x):
            h = x.exp()
            seen.append(weakref.ref(h))
            return h.sin()

    x = torch.randn(3, requires_grad=True)
    seen.append(weakref.ref(x))
    gc.disable()
    try:
        found = byname.summary(Telling(), x)
        del x
        assert [one() for one in seen] == [None] * len(seen)
    finally:
        gc.enable()
    assert found.totals["saved_bytes"] == 12  # what exp returned is what sin was given


class Forces(nn.Module):
    """The gradient of an energy, which the next backward goes through again."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 4)
        self.found = []

    def forward(self, x):
        energy = self.fc(x).exp().sin().sum()
        (force,) = torch.autograd.grad(energy, x, create_graph=True)
        (slope,) = torch.autograd.grad(force.square().sum(), self.fc.weight)
        self.found += [force.tolist(), slope.tolist()]
        return force


def test_a_model_that_takes_gradients_in_its_forward_gets_the_same_ones():
    model, x = Forces(), torch.randn(2, 3, requires_grad=True)
    model(x)
    there = model.found
    model.found = told = [*there]
    byname.summary(model, x)
    assert model.found is told
    assert told == there  # the list is as before: what the runs have added is taken off again
    seen = []
    model.register_forward_hook(lambda module, args, output: seen.append(module.found[-2:]))
    byname.summary(model, x)
    assert seen == [there, there]
