"""Listening again uses the code that was made before, and nobody is told of another's runs by it."""

import builtins

import pytest
import torch
from listening import Told, made, method, told_by
from torch import nn

from byname import attach
from byname.errors import NoMatchError

TWINS = """
    def twin(k):
        class Twin(nn.Module):
            def f(self, x):
                h = x + k
                return h
        return Twin()
"""


def test_listening_again_makes_no_new_code(monkeypatch):
    function = made("def f(self, x):\n  h = x + 1\n  return h")
    told_by(function, 1, only=["h"])
    monkeypatch.delattr(builtins, "compile")
    assert told_by(function, 2, only=["h"]) == ([("h", 3)], 3)


def test_functions_that_share_their_code_are_told_apart():
    twin = made(TWINS, "twin")
    one, other = twin(10), twin(20)
    assert type(one).f.__code__ is type(other).f.__code__
    mine, theirs = Told(), Told()
    with attach(one, "f.h", mine), attach(other, "f.h", theirs):
        assert (one.f(1), other.f(1)) == (11, 21)
    assert (mine, theirs) == ([("h", 11)], [("h", 21)])


def test_equal_code_of_two_files_keeps_its_file():
    one, other = (made("def f(self):\n  h = 1\n  return h") for _ in range(2))
    files = one.__code__.co_filename, other.__code__.co_filename
    assert one.__code__ == other.__code__ and files[0] != files[1]
    mine, theirs = method(one), method(other)
    with attach(mine, "f.h", Told()), attach(theirs, "f.h", Told()):
        assert (one.__code__.co_filename, other.__code__.co_filename) == files
        assert one.__code__ is not other.__code__


def test_a_number_of_the_program_is_not_taken_for_the_key():
    numbers = (0, 1, 2, 3, True, 1.0)
    told, result = told_by(made(f"def f(self):\n  h = {numbers}\n  return h"), only=["h"])
    assert repr(result) == repr(numbers)
    assert told == [("h", numbers)]


def test_who_does_not_want_the_last_values_is_not_told_them():
    module = method(made("def f(self, x):\n  h = x + 1\n  h += 1\n  return h"))
    without, last = Told(), Told()
    with attach(module, "f.h", without):
        module.f(1)
        with attach(module, "f.h@-1", last):
            module.f(1)
    assert last == [("h@-1", 3)]
    assert without == [("h", 2), ("h", 3)] * 2


class OfBase(nn.Module):
    def forward(self, x):
        h = x + 1
        return h


class OfMiddle(OfBase):
    pass


class Derived(OfMiddle):
    def forward(self, x):
        out = super().forward(x)
        return out * 10


@pytest.mark.parametrize("where", ["0.forward.h", "0.OfBase.forward.h"])
def test_a_variable_of_the_forward_of_a_base_class_that_super_runs(where):
    model, seen = nn.Sequential(Derived(), OfBase()), []

    def doubled(event):
        seen.append((event.path, event.module))
        return event.value * 2

    code = OfBase.forward.__code__
    with attach(model, where, doubled):
        assert model(torch.ones(1)).item() == 41
    assert seen == [(where, model[0])]
    assert model(torch.ones(1)).item() == 21 and OfBase.forward.__code__ is code
    with pytest.raises(NoMatchError):
        attach(model, "0.forward.nothing", doubled)
