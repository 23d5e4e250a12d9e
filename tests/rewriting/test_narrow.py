"""A narrowed forward turns the function mode on for some statements only, and finds what a mode around all of it finds."""

import contextlib
import copy
import functools
import math
import pickle
import traceback

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.functional import softmax

import byname
from byname import rewrite
from byname.rewriting.narrow import narrowed

NAMES = [
    f"{name}{number}" for name in ("softmax", "relu", "sigmoid") for number in ("", "_1", "_2", "_3", "_4", "_5", "_6")
]


def soften(x):
    return F.softmax(x, -1) + 1


class Base(nn.Module):
    scale = 2.0

    def __init__(self):
        super().__init__()
        self.fc, self.parts = nn.Linear(4, 4), nn.ModuleList([nn.Linear(4, 4), nn.Tanh()])
        self.act, self.heads, self.table = F.softmax, 2, {"soft": F.softmax}
        self.register_buffer("mask", torch.ones(4))

    @property
    def soft(self):
        return F.softmax(self.mask, -1)

    def helper(self, x):
        return F.softmax(x, -1)

    def rows(self, x):
        for row in x:
            yield F.softmax(row, -1)


class Plain(Base):
    def forward(self, x):
        rows, width = x.shape
        h = self.fc(x).view(rows, self.heads, width // self.heads).transpose(1, 2).reshape(rows, width)
        h = h * self.mask[:width] / math.sqrt(width)
        h = F.softmax(h, dim=-1)
        h += 1
        return torch.matmul(h, h.T) + F.softmax(h, dim=-1)


class Nested(Base):
    def forward(self, x, scale=2.0, *, power=1):
        if x.shape[0] > 2 and scale == 2.0:
            x = F.relu(x) * power
            for number in range(3):
                x = x + F.softmax(x * number, -1)
                if number == 1:
                    continue
        while x.dim() < 3:
            x = x.unsqueeze(0)
        for part in self.parts:
            x = part(x)
        return torch.sigmoid(F.softmax(x, -1)), F.softmax(F.relu(x), -1) if scale else None, None


class Helper(Base):
    def forward(self, x):
        return self.helper(self.fc(x)) + soften(x)


class Property(Base):
    def forward(self, x):
        return x * self.soft


class Held(Base):
    def forward(self, x):
        return self.act(self.table["soft"](x, -1), -1)


class Named(Base):
    def forward(self, x):
        soft = F.softmax
        x = soft(x, -1)
        return softmax(x, -1) + getattr(F, "softmax")(x, -1)  # noqa: B009 - as a program may


class Method(Base):
    def forward(self, x):
        return x.softmax(-1).relu() + torch.softmax(x, -1)


class Generator(Base):
    def forward(self, x):
        rows = self.rows(x)
        first, *others = rows
        return torch.stack([first, *others])


class Setter(Base):
    @property
    def kept(self):
        return self.mask

    @kept.setter
    def kept(self, value):
        self.mask = F.softmax(value, -1)

    def forward(self, x):
        self.kept = x * 2
        return F.softmax(self.mask, -1) * self.mask


class Hooked(Base):
    def __init__(self):
        super().__init__()
        self.fc.register_forward_hook(lambda module, args, value: F.softmax(value, -1))

    def forward(self, x):
        x = self.fc(x)
        return F.softmax(x, -1)


class Unpacked(Base):
    def forward(self, x):
        rows = self.rows(x)
        a, b, c, d = rows
        return a + b + c + d


class Iterated(Base):
    def forward(self, x):
        total = x.sum()
        rows = self.rows(x)
        for row in rows:
            total = total + row
        return total


class Mapped(Base):
    def forward(self, x):
        return torch.stack([*map(functools.partial(F.softmax, dim=-1), x)]) + torch.stack([F.relu(one) for one in x])


class Later(Base):
    def forward(self, x):
        def inner(one):
            return F.softmax(one, -1)

        other = lambda one: inner(one) + F.relu(one)  # noqa: E731 - as a program may
        return sum(other(row) for row in x)


class Shadowed(Base):
    def forward(self, x):
        class F:
            @staticmethod
            def softmax(one, dim):
                return torch.relu(one)

        return F.softmax(x, -1)


class ShadowedFloat(Base):
    def forward(self, x):
        float = self.helper
        return float(x)


class Renamed(Base):
    def forward(self, x):
        self = self.fc
        return F.softmax(self(x), -1)


class Calls(Base):
    def forward(self, x):
        return Plain.forward(self, x), super().helper(x)


class Child(Plain):
    def forward(self, x):
        return F.relu(super().forward(x))


class Tried(Base):
    def forward(self, x):
        try:
            x = F.softmax(x, -1)
            raise ValueError
        except ValueError:
            x = F.relu(x)
        with torch.no_grad():
            return F.softmax(x, -1)


class Looks(Base):
    def forward(self, x):
        y = F.softmax(x, -1)
        return y * len(locals())


class Walrus(Base):
    def forward(self, x):
        return (y := F.softmax(x, -1)) + y


class Asks(Base):
    def forward(self, x):
        assert F.relu(x).sum() >= 0
        return x if F.softmax(x, -1).sum() > 100 else F.relu(x)


class Views:
    def __init__(self, x):
        self.x = x

    @property
    def probs(self):
        return F.softmax(self.x, -1)

    def entropy(self):
        return F.softmax(self.x, -1).sum()

    def __add__(self, other):
        return self.x + other


class Objects(Base):
    def forward(self, x):
        one = Views(x)
        return one.probs * one.entropy() + (one + F.relu(x))


def decorated(function):
    @functools.wraps(function)
    def around(self, x):
        return F.relu(function(self, x))

    return around


class Decorated(Base):
    @decorated
    def forward(self, x):
        return F.softmax(x, -1)


FORWARDS = [one for base in (Base, Plain) for one in base.__subclasses__() if one.__module__ == __name__]


def double(name, module, value):
    return value * 2


def told(model, x, whole=False):
    """The outputs of a call with the values of all operations doubled, and the operations.

    With `whole` a variable of the forward is watched, so that the mode is on around all of it.
    """
    seen = []
    new = rewrite(model, NAMES, lambda name, module, value: seen.append(name) or value * 2)
    new(x)  # the first call looks for all of them, and so has the mode on
    seen.clear()
    with byname.watch.attach(new, "forward.x", lambda event: None) if whole else contextlib.nullcontext():
        out = new(x)
    return [one for one in (out if isinstance(out, tuple) else (out,)) if one is not None], seen


@pytest.mark.parametrize("make", FORWARDS)
def test_it_finds_what_a_mode_around_the_whole_forward_finds(make):
    model, x = make(), torch.randn(4, 4)
    outputs, seen = told(model, x)
    wanted, all_seen = told(model, x, whole=True)
    assert seen == all_seen and seen
    assert all(torch.equal(one, other) for one, other in zip(outputs, wanted, strict=True))
    with byname.interject(model, "{softmax,relu,sigmoid}*", double):
        wanted = model(x)
    wanted = [one for one in (wanted if isinstance(wanted, tuple) else (wanted,)) if one is not None]
    if {*seen} <= {*NAMES}:
        assert all(torch.equal(one, other) for one, other in zip(outputs, wanted, strict=True))


NARROW = {Plain, Nested, Unpacked, Iterated, Setter, Hooked}


@pytest.mark.parametrize("make", FORWARDS)
def test_which_forwards_are_narrowed(make):
    """Some have no statement to spare, and with others it is not known what is in a statement."""
    assert (narrowed(make(), ["softmax", "softmax_1"]) is not None) == (make in NARROW)
    assert narrowed(make(), ["softmax", "add"]) is None
    assert narrowed(make(), ["matmul"]) is None


def test_the_mode_is_off_in_other_statements():
    class Child(nn.Linear):
        def __call__(self, x):
            depths.append(torch._C._len_torch_function_stack())
            return super().__call__(x)

    depths, x = [], torch.randn(4, 4)
    model = Plain()
    model.fc = Child(4, 4)
    for where, depth in (("softmax", 0), ("matmul", 1)):
        new = rewrite(model, where, double, example=x)
        depths.clear()
        new(x)
        assert depths == [depth]


@pytest.mark.parametrize("before", [True, False])
def test_variables_of_a_narrowed_forward_can_be_watched(before):
    """Also from before its first call on, when it is not known yet whether it can be narrowed."""
    x, seen = torch.randn(4, 4), []
    model = Plain()
    new, plain = (rewrite(copy.deepcopy(model), "softmax", double, example=x) for _ in range(2))
    plain = plain(x)
    if not before:
        new(x)
    with byname.interject(new, "forward.h", lambda name, module, value: seen.append(name)):
        assert torch.equal(new(x), plain)
    assert seen
    assert torch.equal(new(x), plain)


def test_an_error_has_the_line_of_the_source():
    def fails(name, module, value):
        raise ZeroDivisionError

    x = torch.randn(4, 4)
    with pytest.raises(ZeroDivisionError) as error:
        rewrite(Plain(), "softmax_1", fails, example=x)(x)
    lines = [frame.line for frame in traceback.extract_tb(error.value.__traceback__)]
    assert "return torch.matmul(h, h.T) + F.softmax(h, dim=-1)" in lines


def test_a_narrowed_model_is_copied_and_pickled():
    x = torch.randn(4, 4)
    new = rewrite(Plain(), "softmax", double, example=x)
    wanted = new(x)
    for other in (pickle.loads(pickle.dumps(new)), copy.deepcopy(new), rewrite(new, "fc", lambda *_: None)):
        assert torch.equal(other(x), wanted)
        other.fc.weight.data *= 2
        assert not torch.equal(other(x), wanted)
        other.fc.weight.data /= 2
