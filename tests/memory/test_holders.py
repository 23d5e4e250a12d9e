"""Holders: every reference path that a person can follow, and the owners in C++."""

import functools
import gc
import queue
import sys
import threading

import pytest
import torch
from torch import nn

import byname


def paths(found):
    return [(holder.kind, holder.path) for holder in found]


KEPT = {}


def test_variables_attributes_items_and_queues_are_told_the_shortest_first():
    class Box:
        pass

    tensor = torch.ones(3)
    box = Box()
    box.found = {"best": [tensor]}
    jobs = queue.Queue()
    jobs.put((1, tensor))
    KEPT["last"] = tensor
    try:
        assert paths(byname.holders(tensor)) == [
            ("local", "tensor"),
            ("global", "KEPT['last']"),
            ("local", "box.found['best'][0]"),
            ("local", "jobs.queue[0][1]"),
        ]
        assert "a variable of test_variables" in str(byname.holders(tensor)[0])
        assert str(byname.holders(tensor)[1]) == "`KEPT['last']`, from `KEPT`, a global of test_holders"
    finally:
        KEPT.clear()


def test_each_object_that_holds_it_is_told_once():
    tensor = torch.ones(3)
    holder = [tensor]
    again = {"same": holder}
    assert paths(byname.holders(tensor)) == [("local", "tensor"), ("local", "holder[0]")]
    assert again["same"] is holder


def test_a_holder_too_deep_for_the_variables_is_told_beside_one_that_holds_it_and_the_tensor():
    kept = torch.zeros(3)
    outer = [kept, inner := []]
    for _ in range(14):
        inner.append(inner := [])
    inner.append(kept)
    del inner
    found = [holder.path for holder in byname.holders(kept)]
    assert found == ["kept", "outer[0]", f"outer[1]{'[0]' * 15}"]


def test_closures_caches_hooks_errors_generators_and_threads_are_told_as_such():
    def waiting(value):
        kept = value
        ready.set()
        done.wait(10)
        return kept

    def generated(value):
        yield value

    @functools.lru_cache
    def load(key):
        return tensor_of[key]

    def failing(value):
        raise ValueError

    tensor = torch.ones(3)
    tensor_of = {"a": tensor}
    load("a")
    layer = nn.Linear(2, 2)
    layer.register_forward_hook(functools.partial(print, tensor))
    generator = generated(tensor)
    next(generator)
    stored = None
    try:
        failing(tensor)
    except ValueError as error:
        stored = error
    ready, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=waiting, args=(tensor,))
    thread.start()
    ready.wait(10)
    try:
        found = byname.holders(tensor, limit=50)
        kinds = {holder.kind for holder in found}
        assert {"local", "cache", "hook", "generator", "traceback"} <= kinds
        assert any("in another thread" in holder.text for holder in found)
        assert any(holder.path.startswith("stored.__traceback__") for holder in found if holder.kind == "traceback")
        for holder in found:
            if holder.kind == "traceback":
                assert eval(holder.path) is tensor
    finally:
        done.set()
        thread.join()


def test_autograd_accounts_for_its_owners():
    layer = nn.Linear(4, 4)
    x = torch.randn(2, 4)
    loss = layer(x).sum()
    texts = [holder.text for holder in byname.holders(layer.weight)]
    assert texts[0].startswith("`layer.weight`, from `layer`, a variable of")
    assert "AccumulateGrad.variable in the graph of `loss`" in texts
    assert [(one.kind, one.text) for one in byname.holders(x)][1:] == [
        ("graph", "AddmmBackward0.mat1 in the graph of `loss`")
    ]


def test_a_view_and_a_gradients_owner_are_told():
    base = torch.ones(10, requires_grad=True)
    part = base[:2]
    part.sum().backward()
    assert ("view", "base of `part`") in [(one.kind, one.text) for one in byname.holders(base)]
    assert ("grad", "grad of `base`") in [(one.kind, one.text) for one in byname.holders(base.grad)]


def test_references_that_nobody_explains_are_counted():
    tensor = torch.ones(3)
    future = torch.futures.Future()
    module = torch.jit.script(nn.Linear(2, 2))
    scripted = dict(module.named_parameters())["weight"]
    assert [one.text for one in byname.holders(scripted)][-1] == "1 unexplained C++ reference"
    assert byname.holders(tensor)[-1].kind != "unexplained"
    assert not future.done()


@pytest.mark.slow
def test_many_tensors_in_one_pass_have_their_holders_in_order():
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(20)))
    found = byname.holders([layer.weight for layer in model])
    assert [each[0].path for each in found] == [f"model[{number}].weight" for number in range(20)]
    assert byname.holders([]) == []


@pytest.mark.slow
def test_no_more_than_asked_for_are_told():
    tensor = torch.ones(3)
    kept = [[tensor] for _ in range(30)]
    assert len(byname.holders(tensor)) == 10
    assert len(byname.holders(tensor, limit=31)) == 31
    assert kept


@pytest.mark.parametrize(
    "given", [None, 3, nn.Linear(2, 2), "loss", {1: torch.ones(1)}], ids=lambda one: type(one).__name__
)
def test_what_is_no_tensor_is_refused(given):
    with pytest.raises(byname.BynameError, match="expects a tensor or a list of tensors, but got"):
        byname.holders(given)
    with pytest.raises(TypeError, match="expects tensors, but one of these is of type"):
        byname.holders([torch.ones(1), given])


@pytest.mark.parametrize("limit", [0, -1, 2.5, True, "3"])
def test_an_impossible_limit_is_refused(limit):
    with pytest.raises(byname.BynameError, match="limit is how many holders"):
        byname.holders(torch.ones(1), limit=limit)


def test_a_parameter_that_a_model_and_an_optimizer_hold_costs_one_pass_over_the_heap():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    passes = []
    sys.setprofile(lambda _, event, called: event == "c_call" and called is gc.get_referrers and passes.append(event))
    try:
        found = byname.holders(model.weight)
    finally:
        sys.setprofile(None)
    assert len(passes) <= 1, "none where another thread runs"
    assert paths(found) == [("module", "model.weight"), ("local", "optimizer.param_groups[0]['params'][0]")]
