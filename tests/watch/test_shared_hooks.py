"""Are gradients told in order, and changed rightly, where an outer module returns the very tensor of an inner one?"""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch
from torch import nn

import byname


class Outer(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


class Doubling(nn.Module):
    def forward(self, x):
        return x * 2


class InPlaceAfter(Outer):
    """Changes what it was given in place: it returns the same tensor with another value."""

    def forward(self, x):
        return self.inner(x).mul_(3)


PLACES = ["inner.grad", "inner.inner.grad"]

MODELS = {
    "a tensor": lambda: (Outer(Outer(Doubling())), torch.ones(2)),
    "a view of a hidden base": lambda: (Outer(Outer(nn.Linear(2, 2))), torch.ones(1, 3, 2)),
    "a tensor changed in place": lambda: (Outer(InPlaceAfter(Doubling())), torch.ones(2)),
    "a view changed in place": lambda: (Outer(InPlaceAfter(nn.Linear(2, 2))), torch.ones(1, 3, 2)),
}


def told(seen, who, add):
    def callback(event):
        seen.append((who, event.path, event.call, event.iteration, float(event.value.flatten()[0]), event.value.shape))
        return event.value + add

    return callback


@pytest.mark.parametrize("kind", MODELS)
def test_each_sees_what_those_inside_of_it_have_made_of_the_gradient(kind):
    torch.manual_seed(0)
    model, given = MODELS[kind]()
    x = given.requires_grad_()
    seen, shape = [], model(x).shape
    with ExitStack() as stack:
        for number, who in enumerate("ab"):
            stack.enter_context(byname.watch.attach(model, PLACES, told(seen, who, 10.0**number)))
        for iteration in range(3):
            seen.clear()
            model(x).sum().backward()
            assert {one[3] for one in seen} == {iteration}
            assert {one[5] for one in seen} == {shape}
            paths = [one[:2] for one in seen]
            values = [one[4] for one in seen]
            if "in place" not in kind:
                assert paths == [(who, path) for path in ("inner.inner.grad", "inner.grad") for who in "ab"]
                assert values == [1.0, 2.0, 12.0, 13.0]
            else:
                assert paths == [(who, path) for path in ("inner.grad", "inner.inner.grad") for who in "ab"]
                assert values == [1.0, 2.0, 36.0, 37.0]


@pytest.mark.parametrize("kind", ["a tensor", "a view of a hidden base"])
def test_a_hook_of_the_users_in_between_keeps_its_turn(kind):
    model, given = MODELS[kind]()
    x, seen = given.requires_grad_(), []
    with byname.watch.attach(model, PLACES, told(seen, "a", 1.0)):
        is_view = model(x)._is_view()  # what is there to note was noted; newer PyTorch returns no view of a Linear
        model.inner.inner.register_forward_hook(
            lambda module, args, output: output.register_hook(lambda gradient: gradient * 5) and None
        )
        for _ in range(2):
            seen.clear()
            model(x).sum().backward()
            assert [one[1] for one in seen] == ["inner.inner.grad", "inner.grad"]
            assert [one[4] for one in seen] == ([5.0, 6.0] if is_view else [1.0, 10.0])


@pytest.mark.parametrize("kind", ["a tensor", "a view of a hidden base"])
def test_one_that_was_removed_before_the_backward_hears_nothing_and_the_others_do(kind):
    model, given = MODELS[kind]()
    x, seen = given.requires_grad_(), []
    first = byname.watch.attach(model, PLACES, told(seen, "a", 1.0))
    with byname.watch.attach(model, PLACES, told(seen, "b", 1.0)):
        for _ in range(2):
            model(x).sum().backward()
        loss = model(x).sum()
        first.remove()
        seen.clear()
        loss.backward()
        assert [(one[0], one[4]) for one in seen] == [("b", 1.0), ("b", 2.0)]


def test_torchscript_says_that_hooks_of_an_attachment_cannot_be_compiled():
    model = nn.Sequential(nn.ReLU())
    with byname.watch.attach(model, "0", print), pytest.raises(AttributeError, match="script the model before"):
        torch.jit.script(model)
    assert torch.jit.script(model)(torch.ones(1)) == 1
