"""Slots: nodes with a freed or modified saved tensor are found without reading every slot."""

import sys

import pytest
import torch
from custom import Twice
from torch.utils.checkpoint import checkpoint

import byname

HELD = []


def leaf(*shape):
    """A leaf that a variable holds, so that no look goes through the whole heap for it."""
    HELD[:] = [torch.ones(shape, requires_grad=True)]
    return HELD[0]


def fresh():
    w = leaf(3)
    return ((w.exp() * 2).sigmoid() + w).sum()


def freed():
    loss = fresh()
    loss.backward()
    return loss


def partly_freed():
    h = leaf(3).exp()
    loss = h.sigmoid().sum()
    torch.autograd.grad(loss, h)
    return loss


def modified_input():
    h = leaf(3) * 1
    loss = (h * h).sum()
    h += 1
    return loss


def modified_result():
    h = leaf(3).exp()
    loss = h.sum()
    h += 1
    return loss


def freed_list():
    w = leaf(3)
    loss = w.exp()[torch.tensor([0, 2])].sum()
    loss.backward()
    return loss


def custom_freed():
    loss = Twice.apply(leaf(3)).sum()
    loss.backward()
    return loss


def custom_modified():
    h = leaf(3) * 1
    loss = Twice.apply(h).sum()
    h += 1
    return loss


def trained():
    """Tensors whose version is above 0, and which are as they were saved."""
    w = leaf(3, 3)
    with torch.no_grad():
        w += 1
    return (torch.ones(2, 3) @ w * w[0]).sum()


@pytest.mark.parametrize(
    ("make", "states", "causes"),
    [
        (fresh, {"live"}, []),
        (freed, {"freed"}, ["backward-twice"]),
        (partly_freed, {"live", "freed"}, ["backward-twice"]),
        (modified_input, {"live", "modified"}, ["modified-in-place"]),
        (modified_result, {"modified"}, ["modified-in-place"]),
        (freed_list, {"freed"}, ["backward-twice"]),
        (custom_freed, {"freed"}, []),  # its backward may not read what it has saved
        (custom_modified, {"live", "modified"}, []),
        (trained, {"live"}, []),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_no_freed_or_modified_slot_is_missed(make, states, causes):
    loss = make()
    assert [one.cause for one in byname.check(loss)] == causes
    assert {row.state for row in byname.saved(loss)} == states


def calls_to_check(count):
    """The number of calls of Python functions by which a number of healthy nodes are read."""
    loss, called = leaf(3), []
    for _ in range(count):
        loss = loss.sin()
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code) if event == "call" else None)
    try:
        assert byname.check(loss) == []
    finally:
        sys.setprofile(None)
    return len(called)


def test_healthy_nodes_need_no_closer_look():
    _, fewer, more = map(calls_to_check, (1, 100, 200))  # the first one has more to set up
    assert more - fewer < 5 * 100


def test_the_look_calls_no_hook():
    called = []

    def forward(x):
        called.append(x)
        return x.exp().sin()

    w = leaf(3)
    loss = checkpoint(forward, w, use_reentrant=False).sum()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone().add_(1), called.append):
        other = (w * 1).sigmoid().sum()
    byname.check([loss, other])
    assert len(byname.saved([loss, other])) > 0
    assert len(called) == 1
