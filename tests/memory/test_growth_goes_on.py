"""Growth is what goes on growing: not what comes once, stops, or belongs to each parameter of an optimizer."""

import torch
from torch import nn

import byname


def test_what_comes_once_or_stops_growing_is_no_growth():
    best, cache, history = {}, {}, []
    with byname.growth() as growth:
        for step in range(12):
            cache.setdefault(step % 4, torch.ones(100))
            if step == 6:
                best["weight"] = torch.ones(1000)
            history.append(torch.ones(10))
            growth.mark()
    assert [row.name for row in growth] == ["history[*]"]


def test_the_state_of_a_parameter_that_is_used_late_is_no_growth():
    used_at = [nn.Linear(3, 3) for _ in range(10)]
    optimizer = torch.optim.Adam([one for layer in used_at for one in layer.parameters()])
    x = torch.ones(2, 3)
    with byname.growth() as growth:
        for layer in used_at:
            layer(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            growth.mark()
    assert [row.name for row in growth] == []


def test_state_of_parameters_that_are_gone_is_growth():
    optimizer = torch.optim.Adam([torch.ones(3, requires_grad=True)])
    with byname.growth() as growth:
        for _ in range(8):
            fresh = torch.ones(3, requires_grad=True)
            optimizer.param_groups[0]["params"][:] = [fresh]
            (fresh * 2).sum().backward()
            optimizer.step()
            growth.mark()
    assert (
        sum(row.bytes for row in growth) >= 7 * 2 * 12
    )  # no variable leads to these parameters: their rows have no name
