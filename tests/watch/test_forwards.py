"""Forwards are followed without looking at values, and a pause keeps what a backward still has to tell."""

import pytest
from small import footprint, net, nothing_left

from byname import attach
from byname.watch.forwards import watch_forwards


def test_each_outermost_forward_is_told_when_it_begins_and_when_it_is_over():
    model, x = net()
    told = []
    with nothing_left(model):
        with watch_forwards(model, begun=told.append, ended=lambda: told.append("over")) as follower:
            follower.enabled = True
            model(x)
            with pytest.raises(RuntimeError):
                model(x[..., :2])
            model(x)
        model(x)
    assert told == [0, "over", 1, "over", 2, "over"]


def test_what_is_attached_later_is_told_of_a_forward_later():
    model, x = net()
    told = []
    follower = watch_forwards(model, lambda number: told.append("follower"), lambda: None)
    handle = attach(model, "head", lambda event: None, begun=lambda number: told.append("attached"))
    follower.enabled = True
    model(x)
    handle.remove()
    follower.remove()
    assert told == ["follower", "attached"]


def test_who_only_reads_is_told_of_a_parameter_as_it_is_when_the_forward_ends():
    model, x = net()
    hook = model.embed.register_forward_pre_hook(lambda module, args: (module.bias.data.fill_(7), None)[1])
    seen = {}
    with nothing_left(model):
        with attach(model, "head.bias", lambda event: seen.update(end=event.value.clone()), reads=True):
            with attach(model, "embed.bias", lambda event: seen.update(begin=event.value.clone())):
                with attach(model, "embed.bias", lambda event: seen.update(late=event.value.clone()), reads=True):
                    model(x)
    hook.remove()
    assert (seen["late"] == 7).all() and not (seen["begin"] == 7).any()
    assert seen["end"].equal(model.head.bias)


def test_while_paused_nothing_new_is_told_but_gradients_of_earlier_values_are():
    model, x = net()
    told = []
    places = ["head", "blocks.0.forward.scores.grad", "blocks.*.softmax", "embed.weight.grad", "seen"]
    with nothing_left(model):
        with attach(model, places, lambda event: told.append(event.path)) as handle:
            first = model(x)
            handle.paused = True
            assert handle.paused and handle.enabled
            told.clear()
            second = model(x)
            assert told == []
            (first + second).sum().backward()
            assert sorted(told) == ["blocks.0.forward.scores.grad", "embed.weight.grad"]
            handle.paused = False
            told.clear()
            model(x)
            assert sorted(told) == ["blocks.0.softmax", "blocks.1.softmax", "blocks.2.softmax", "head", "seen"]


@pytest.mark.filterwarnings("ignore:byname. nothing was seen")  # no backward runs
def test_a_paused_attachment_leaves_nothing_when_it_is_removed_or_disabled():
    model, x = net()
    before = footprint(model)
    for leave in ("remove", "disable"):
        handle = attach(model, ["**", "embed.weight.grad"], lambda event: None)
        model(x)
        handle.paused = True
        if leave == "remove":
            handle.remove()
        handle.enabled = False
        assert not handle.paused
        assert footprint(model) == before


def test_a_pause_of_what_is_not_enabled_is_none():
    model, x = net()
    handle = attach(model, "head", lambda event: None, enabled=False)
    handle.paused = True
    assert not handle.paused
    handle.remove()
