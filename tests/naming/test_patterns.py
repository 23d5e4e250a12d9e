"""A way is written in words, and as the pattern that the entries of one list, table or cache share."""

import functools
import weakref

import pytest
import torch
from torch import nn

import byname


class Trainer:
    def __init__(self):
        self.history = [{"loss": torch.ones(1)} for _ in range(3)]
        self.by_size = {(1, 2): torch.ones(1), 3.5: [torch.ones(1)], object(): torch.ones(1)}


def collector(count):
    acts = [[torch.ones(1)] for _ in range(count)]
    return lambda *_: acts and None


def test_positions_and_keys_that_are_no_text_are_left_open_and_layers_of_a_model_are_not():
    load = functools.cache(lambda position: [torch.ones(1)])
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.Adam([weight])
    model, hooked = nn.ModuleDict(), nn.Linear(1, 1)
    layers, scales, normed, errors = nn.ModuleList(), nn.ParameterList(), [], []
    with byname.growth() as growth:
        trainer = Trainer()
        model["a"] = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
        layers.append(nn.Linear(1, 1))
        scales.append(torch.ones(1))
        normed.append(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2, bias=False)))
        weight.sum().backward()
        optimizer.step()
        hooked.register_forward_hook(collector(4))
        hooked._forward_hooks[7] = functools.partial(print, torch.ones(1))
        load(3)
        errors.append(raised())
    assert trainer
    assert {row.name: row.count for row in growth} == {
        "trainer.history[*]['loss']": 3,
        "trainer.by_size[*]": 2,
        "trainer.by_size[*][*]": 1,
        "model['a'][0].weight": 1,
        "model['a'][1].weight": 1,
        "layers[0].weight": 1,
        "layers[0].bias": 1,
        "scales[0]": 1,
        "normed[*].weight (original0)": 1,
        "normed[*].weight (original1)": 1,
        "weight.grad": 1,
        "optimizer.state[*]['step']": 1,
        "optimizer.state[*]['exp_avg']": 1,
        "optimizer.state[*]['exp_avg_sq']": 1,
        "acts[*][*] (closure of collector.<locals>.<lambda>, hooked._forward_hooks[*])": 4,
        "hooked._forward_hooks[*].args[*]": 1,
        "load (cached result)[*]": 1,
        "batches[*] (local of fail, kept by the traceback of errors[*])": 2,
    }


def test_a_name_has_what_a_pattern_leaves_open():
    layers = [nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))]
    original = weakref.ref(layers[0].parametrizations["weight"].original0)
    assert "layers[0].weight (original0)" in [str(name) for name in byname.names(original())]
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.Adam([weight])
    weight.sum().backward()
    optimizer.step()
    average = weakref.ref(optimizer.state[weight]["exp_avg"])
    assert str(byname.name(average())) == "optimizer.state[weight]['exp_avg']"
    model = nn.Linear(1, 1)
    model.register_forward_hook(collector(4))
    hook = next(iter(model._forward_hooks.values()))
    third = weakref.ref(hook.__closure__[0].cell_contents[3][0])
    del hook
    name = byname.name(third())
    assert str(name).startswith("acts[3][0] (closure of collector.<locals>.<lambda>, model._forward_hooks[")
    assert eval(name.path) is third()


def fail():
    batches = [torch.ones(1), torch.ones(1)]
    raise ValueError(len(batches))


def raised():
    try:
        fail()
    except ValueError as error:
        return error


def nested(thing, depth=9):
    for _ in range(depth):
        thing = [thing]
    return thing


@pytest.mark.grid(fast=1)
@pytest.mark.parametrize("held", ["error", "cache"])
def test_a_way_too_long_for_the_search_is_found_from_below(held):
    if held == "error":
        error = raised()
        kept = weakref.ref(error.__traceback__.tb_next.tb_frame.f_locals["batches"][1])
        deep, end = nested(error), "batches[1] (local of fail, kept by the traceback of deep"
        del error
    else:
        load = functools.cache(lambda position: [torch.ones(1)])
        kept = weakref.ref(load(3)[0])
        deep, end = nested(load), "deep[0][0]"
        del load
    assert byname.name(kept(), roots=[deep]).how == "unnamed"  # where byname only goes down from the variables
    assert str(byname.name(kept())).startswith(end)
    assert len(deep) == 1
