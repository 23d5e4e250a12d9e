"""Paths to a tensor: all without a circle, however many variables hold the objects on the way."""

import random

import pytest
import torch
from torch import nn

import byname


def linked(chance):
    """Lists that hold each other in any way, circles included, and a tensor in some of them."""
    tensor, lists = torch.ones(1), [[] for _ in range(chance.randint(3, 7))]
    for one in lists:
        one += chance.choices([*lists, tensor], k=chance.randint(1, 2))
    return tensor, lists


def followed(held, tensor, source, passed):
    """The sources of all paths to a tensor, no object twice on one."""
    for position, one in enumerate(held):
        path = f"{source}[{position}]"
        if one is tensor:
            yield path
        elif all(one is not before for before in passed):
            yield from followed(one, tensor, path, [*passed, one])


@pytest.mark.parametrize("seed", range(150))
def test_the_paths_are_those_that_are_found_by_following_every_one(seed):
    chance = random.Random(seed)
    tensor, lists = linked(chance)
    a, b, c, *_ = lists
    variables = dict(zip("abc"[: chance.randint(1, 3)], (a, b, c), strict=False))
    found = [name.path for name in byname.names(tensor, roots=[*variables.values()]) if name.path]
    wanted = [path for name, one in variables.items() for path in followed(one, tensor, name, [one])]
    assert sorted(found) == sorted(wanted)
    assert [path.count("[") for path in found] == sorted(path.count("[") for path in found)


def test_a_variable_that_holds_a_block_hides_no_name_of_its_parameters():
    net = nn.ModuleDict({"blocks": nn.ModuleList(nn.Sequential(nn.Linear(2, 2)) for _ in range(2))})
    best, cache = net["blocks"][0], {"x": net["blocks"][1]}
    names = [*map(str, byname.names(best[0].weight))]
    assert names == ["best[0].weight", "net['blocks'][0][0].weight"]
    names = [*map(str, byname.names(cache["x"][0].weight))]
    assert names == ["cache['x'][0].weight", "net['blocks'][1][0].weight"]


def test_what_is_on_the_way_through_a_suspended_function_has_the_name_that_the_program_writes():
    net = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))
    weights = (layer.weight for layer in net)
    next(weights)
    assert str(byname.name(net[0].weight)) == "net[0].weight"
