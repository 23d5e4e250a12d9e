"""Is what may be spoilt in a graph found without a closer look at everything?"""

import pytest
import torch
from custom import Twice
from torch.utils.checkpoint import checkpoint

from byname.autograd.slots import doubtful, slots_of
from byname.autograd.walk import Walk, by_kind, nodes_behind
from byname.reading.quiet import DisableTorchFunction


def fresh():
    w = torch.ones(3, requires_grad=True)
    return ((w.exp() * 2).sigmoid() + w).sum()


def freed():
    loss = fresh()
    loss.backward()
    return loss


def partly_freed():
    h = torch.ones(3, requires_grad=True).exp()
    loss = h.sigmoid().sum()
    torch.autograd.grad(loss, h)
    return loss


def modified_input():
    h = torch.ones(3, requires_grad=True) * 1
    loss = (h * h).sum()
    h += 1
    return loss


def modified_result():
    h = torch.ones(3, requires_grad=True).exp()
    loss = h.sum()
    h += 1
    return loss


def freed_list():
    w = torch.ones(3, requires_grad=True)
    loss = w.exp()[torch.tensor([0, 2])].sum()
    loss.backward()
    return loss


def custom_freed():
    loss = Twice.apply(torch.ones(3, requires_grad=True)).sum()
    loss.backward()
    return loss


def custom_modified():
    h = torch.ones(3, requires_grad=True) * 1
    loss = Twice.apply(h).sum()
    h += 1
    return loss


def trained():
    """Tensors whose version is above 0, and which are as they were saved."""
    w = torch.ones(3, 3, requires_grad=True)
    with torch.no_grad():
        w += 1
    return (torch.ones(2, 3) @ w * w[0]).sum()


GRAPHS = [
    fresh,
    freed,
    partly_freed,
    modified_input,
    modified_result,
    freed_list,
    custom_freed,
    custom_modified,
    trained,
]


@pytest.mark.parametrize("make", GRAPHS, ids=lambda make: make.__name__)
def test_no_freed_or_modified_slot_is_missed(make):
    loss = make()
    walk = Walk(loss)
    with DisableTorchFunction():
        spoilt = {walk.nodes[slot.number] for slot in slots_of(walk) if slot.state in ("freed", "modified")}
        assert spoilt <= set(doubtful(by_kind(nodes_behind([loss]))))
    assert bool(spoilt) == (make not in (fresh, trained))


@pytest.mark.parametrize("make", [fresh, trained], ids=lambda make: make.__name__)
def test_a_healthy_graph_needs_no_closer_look(make):
    loss = make()
    with DisableTorchFunction():
        assert doubtful(by_kind(nodes_behind([loss]))) == []


def test_the_look_calls_no_hook():
    called = []

    def forward(x):
        called.append(x)
        return x.exp().sin()

    w = torch.ones(3, requires_grad=True)
    loss = checkpoint(forward, w, use_reentrant=False).sum()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone().add_(1), called.append):
        other = (w * 1).sigmoid().sum()
    with DisableTorchFunction():
        doubtful(by_kind(nodes_behind([loss, other])))
    assert len(called) == 1


@pytest.mark.parametrize("make", GRAPHS, ids=lambda make: make.__name__)
def test_nodes_come_in_the_order_of_the_walk(make):
    loss, other = make(), fresh()
    assert nodes_behind([loss, other, loss]) == Walk([loss, other, loss]).nodes[1:]
