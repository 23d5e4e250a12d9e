"""What a handle notes of variables: that they have no such item, and that one was changed several times in a call."""

import warnings

import pytest
import torch
from torch import nn

import byname
from byname.errors import NothingSeenWarning


class Cache:
    def __init__(self, keys):
        self.keys = keys
        self.layers = [{"k": keys}]

    @property
    def length(self):
        raise AssertionError("byname runs no property")


class Asked:
    def __getattr__(self, name):
        raise AssertionError("byname asks no __getattr__")


class Model(nn.Module):
    def forward(self, x):
        cache = Cache(x * 2)
        values = {"relu": x, "w": x}
        pair = (x, x)
        asked = Asked()
        nothing = None
        if x.sum() > 100:
            never = x
        return cache.keys + 1, {"a": x}


def notes_at(where, model=None):
    model = Model() if model is None else model
    handle = byname.interject(model, where, lambda name, module, value: None)
    model(torch.ones(1, requires_grad=True))
    notes = handle.notes
    with warnings.catch_warnings(action="ignore", category=NothingSeenWarning):  # which says it again at the end
        handle.remove()
    return notes


NO_CODE = "byname runs no code in order to look"


@pytest.mark.parametrize(
    ("where", "note"),
    [
        ("forward.cache.keyz", "`forward.cache` holds a Cache without `keyz`; it has keys, layers"),
        ("forward.cache.keyz.grad", "`forward.cache` holds a Cache without `keyz`; it has keys, layers"),
        ("forward.cache.length", f"`forward.cache` holds a Cache, whose `length` is computed by a property: {NO_CODE}"),
        ("forward.cache.layers[0]['q']", "`forward.cache.layers[0]` holds a dict without 'q'; it has 'k'"),
        ("forward.cache['keys']", "`forward.cache` holds a Cache, which has no items in a path; it has keys, layers"),
        ("forward.cache.layers[3]", "`forward.cache.layers` holds a list without 3; it has 0"),
        ("forward.values['nope']", "`forward.values` holds a dict without 'nope'; it has 'relu', 'w'"),
        ("forward.pair[7]", "`forward.pair` holds a tuple without 7; it has 0, 1"),
        ("forward.nothing.x", "`forward.nothing` holds None"),
        ("forward.x.foo", "`forward.x` holds a Tensor, which has no `foo`"),
        (
            "forward.asked.x",
            f"`forward.asked` holds an Asked, whose `x` is computed, if at all, by `__getattr__`: {NO_CODE}",
        ),
        ("forward.never.x", "the first forward did not reach it"),
        ("forward.never", "the first forward did not reach it"),
        ("forward[7]", "`forward` holds a tuple without 7; it has 0, 1"),
        ("forward[1]['z']", "`forward[1]` holds a dict without 'z'; it has 'a'"),
    ],
)
def test_the_note_says_what_the_value_is_and_has(where, note):
    assert notes_at(where) == (f"`{where}`: {note}",)


@pytest.mark.parametrize(
    "where", ["forward.cache.keys", "forward.values['w']", "forward.cache.layers[0][*]", "forward[0]"]
)
def test_an_item_that_is_there_has_no_note(where):
    assert notes_at(where) == ()


def test_of_two_items_only_the_missing_one_is_noted():
    assert notes_at(["forward.cache.keys", "forward.cache.keyz"]) == (
        "`forward.cache.keyz`: `forward.cache` holds a Cache without `keyz`; it has keys, layers",
    )


def test_a_pattern_that_some_variables_have_is_not_noted_of_the_others():
    assert notes_at("forward.*.keys") == ("`forward.never.keys`: the first forward did not reach it",)


def test_a_pattern_that_no_variable_has_is_noted():
    assert "`forward.cache.keyz`: `forward.cache` holds a Cache without `keyz`; it has keys, layers" in notes_at(
        "forward.*.keyz"
    )


class Filled(nn.Module):
    def forward(self, x):
        values = {}
        values["late"] = x
        return values["late"]


def test_an_item_that_comes_later_in_the_call_is_not_missing():
    assert notes_at("forward.values['late']", Filled()) == ()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, hidden):
        residual = hidden
        hidden = self.norm(hidden)
        hidden = self.mlp(hidden)
        hidden = residual + hidden
        return hidden


ENTERED = (
    "on entry, and each time it was assigned or changed in place; to change only the argument, change "
    "what the module is called with (`register_forward_pre_hook`), or use `byname.attach`, whose `event.call` counts the values"
)


def steered(where, change, model, x, calls=1):
    with byname.interject(model, where, lambda name, module, value: change(value)) as handle:
        for _ in range(calls):
            model(x)
    return handle.notes


@pytest.mark.parametrize("change", [lambda value: value + 1, lambda value: value.add_(1)])
def test_an_argument_that_is_assigned_again_is_said_to_be_changed_each_time(change):
    model, x = nn.Sequential(Block(), Block()), torch.randn(2, 4)
    with torch.no_grad():
        notes = steered("1.forward.hidden", change, model, x, calls=2)
    assert notes == (f"`1.forward.hidden` was changed 4 times in one call, {ENTERED}",)


def test_an_argument_that_is_not_assigned_again_has_no_note():
    class Plain(nn.Module):
        def forward(self, hidden):
            return hidden + 1

    assert steered("forward.hidden", lambda value: value + 1, Plain(), torch.ones(2, 4), calls=3) == ()


def test_a_variable_of_a_loop_is_counted_for_the_call_with_the_most():
    class Looped(nn.Module):
        def forward(self, x):
            for _ in range(int(x[0])):
                h = x * 2
            return h

    model = Looped()
    with byname.interject(model, "forward.h", lambda name, module, value: value + 1) as handle:
        for count in (1, 3, 2):
            model(torch.tensor([float(count)]))
    assert handle.notes == (
        "`forward.h` was changed 3 times in one call, each time it was assigned or changed in place",
    )


def test_who_only_looks_or_changes_once_is_told_nothing():
    model, x = Block(), torch.randn(2, 4)
    assert steered("forward.hidden", lambda value: None, model, x) == ()
    seen = []

    def first_alone(value):
        seen.append(value)
        return value + 1 if len(seen) == 1 else None

    assert steered("forward.hidden", first_alone, model, x) == ()
    assert len(seen) == 4


def test_an_item_of_a_variable_is_counted_by_its_own_path():
    class Pairs(nn.Module):
        def forward(self, x):
            pair = [x, x]
            pair[0] = x + 1
            return pair[0] + pair[1]

    notes = steered("forward.pair[0]", lambda value: value + 1, Pairs(), torch.ones(1))
    assert notes == (
        "`forward.pair[0]` was changed 2 times in one call, each time it was assigned or changed in place",
    )
