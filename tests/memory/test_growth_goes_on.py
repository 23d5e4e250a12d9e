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


def trained(after, length=lambda step: 1, steps=12):
    """The growth over steps of a training, each followed by `after(step, loss)`, which keeps or drops what it likes."""
    layer = nn.Linear(4, 4)
    with byname.growth() as growth:
        for step in range(steps):
            value = torch.ones(2, 4)
            for _ in range(length(step)):
                value = layer(value)
            loss = value.square().mean()
            loss.backward()
            after(step, loss)
            growth.mark()
    return growth


def test_a_running_total_grows_by_nodes_though_backward_has_freed_what_they_saved():
    total = torch.zeros(())

    def add(_, loss):
        nonlocal total
        total = total + loss

    (row,) = trained(add).rows()
    assert (row["name"], row["cause"], row["count"], row["bytes"]) == ("total", "retained-graph", 0, 0)
    assert "loss.item()" in row["remedy"]


def test_the_title_speaks_of_a_graph_only_where_it_is_a_graph_that_grows():
    total, parts = torch.zeros(()), [torch.ones(64)]

    def add(_, loss):
        nonlocal total
        total = total + loss

    assert "a graph became longer" in str(trained(add))

    def split(step, _):
        parts[:] = torch.ones(64).chunk(2 + step)  # a new block of the old size

    growth = trained(split, steps=6)
    assert [(row.name, row.count, row.bytes) for row in growth] == [("parts[*]", 6, 0)]
    assert "graph" not in str(growth)


def test_the_nodes_of_a_running_total_are_counted():
    total = torch.zeros(())

    def add(_, loss):
        nonlocal total
        total = total + loss

    def count(node, seen):
        if node is not None and node not in seen:
            seen.add(node)
            for below, _ in node.next_functions:
                count(below, seen)
        return len(seen)

    first = []
    (row,) = trained(lambda step, loss: (add(step, loss), first.append(count(total.grad_fn, set())))).rows()
    assert f"its graph became longer by {first[-1] - first[0]} nodes" in row["remedy"]


def test_a_graph_that_is_longer_each_time_but_new_is_no_growth():
    last = None

    def keep(_, loss):
        nonlocal last
        last = loss

    assert trained(keep, length=lambda step: 1 + step).rows() == []


def test_a_total_that_begins_anew_soon_is_no_growth():
    total = torch.zeros(())

    def add(step, loss):
        nonlocal total
        total = loss if step % 3 == 0 else total + loss

    assert trained(add).rows() == []


def test_a_total_of_an_epoch_is_told_after_it_began_anew():
    total = torch.zeros(())

    def add(step, loss):
        nonlocal total
        total = loss if step % 10 == 0 else total + loss

    assert [row.name for row in trained(add)] == ["total"]
