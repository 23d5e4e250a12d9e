"""A way is written in words, and as the pattern that the entries of one list, table or cache share."""

import functools
import weakref

import pytest
import torch
from torch import nn

import byname
from byname.naming.names import find
from byname.naming.reference_path import pattern_of
from byname.naming.roots import all_roots
from byname.naming.search import Targets, search


def patterns(tensor):
    return [pattern_of(way) for way in search(all_roots()).ways_to(tensor) if way.root.text != "tensor"]


class Trainer:
    def __init__(self):
        self.history = [{"loss": torch.ones(1)} for _ in range(3)]
        self.by_size = {(1, 2): torch.ones(1), 3.5: [torch.ones(1)], object(): torch.ones(1)}


def test_positions_and_keys_that_are_no_text_are_left_open():
    trainer = Trainer()
    sized, floating, strange = trainer.by_size.values()
    sized, floating, strange = weakref.ref(sized), weakref.ref(floating[0]), weakref.ref(strange)
    assert "trainer.history[*]['loss']" in patterns(trainer.history[2]["loss"])
    assert "trainer.by_size[*]" in patterns(sized())
    assert "trainer.by_size[*][*]" in patterns(floating())
    assert "trainer.by_size[*]" in patterns(strange())


def test_the_layers_of_a_model_are_not():
    model = nn.ModuleDict({"a": nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))})
    layers = nn.ModuleList([nn.Linear(1, 1)])
    scales = nn.ParameterList([torch.ones(1)])
    assert "model['a'][1].weight" in patterns(model["a"][1].weight)
    assert "layers[0].bias" in patterns(layers[0].bias)
    assert "scales[0]" in patterns(scales[0])


def test_a_parametrized_weight_reads_as_its_name_does():
    layers = [nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))]
    original = layers[0].parametrizations["weight"].original0
    assert "layers[*].weight (original0)" in patterns(original)
    assert "layers[0].weight (original0)" in [str(name) for name in byname.names(original)]


def test_the_state_of_an_optimizer():
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.Adam([weight])
    weight.sum().backward()
    optimizer.step()
    average = weakref.ref(optimizer.state[weight]["exp_avg"])
    assert patterns(average()) == ["optimizer.state[*]['exp_avg']"]
    assert str(byname.name(average())) == "optimizer.state[weight]['exp_avg']"


def collector(count):
    acts = [[torch.ones(1)] for _ in range(count)]
    return lambda *_: acts and None


def test_hooks_closures_caches_and_errors():
    model = nn.Linear(1, 1)
    model.register_forward_hook(collector(4))
    hook = next(iter(model._forward_hooks.values()))
    third = weakref.ref(hook.__closure__[0].cell_contents[3][0])
    del hook
    assert patterns(third()) == ["acts[*][*] (closure of collector.<locals>.<lambda>, model._forward_hooks[*])"]
    name = byname.name(third())
    assert str(name).startswith("acts[3][0] (closure of collector.<locals>.<lambda>, model._forward_hooks[")
    assert eval(name.path) is third()

    model._forward_hooks[7] = functools.partial(print, torch.ones(1))
    assert "model._forward_hooks[*].args[*]" in patterns(model._forward_hooks[7].args[0])

    load = functools.cache(lambda position: [torch.ones(1)])
    assert "load (cached result)[*]" in patterns(load(3)[0])

    errors = [raised()]
    kept = weakref.ref(errors[0].__traceback__.tb_next.tb_frame.f_locals["batches"][1])
    assert patterns(kept()) == ["batches[*] (local of fail, kept by the traceback of errors[*])"]


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
    assert len(find(Targets([kept()]), deep=False).own_ways(kept())) == 0
    assert str(byname.name(kept())).startswith(end)
    assert len(deep) == 1
