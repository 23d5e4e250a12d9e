"""Models that use the language: generators, inheritance, decorators, properties, nested functions, own forwards."""

import functools
import types

import torch
from torch import nn
from torch.nn import functional as F

from models import Specimen


class Rootwise(nn.Module):
    """Has no modules at all, only functions in the root's forward."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 4))

    def forward(self, x):
        def attend(values, *, sharp=2.0):
            nonlocal rounds
            rounds += 1
            weights = F.softmax(values * sharp, dim=-1)
            return weights @ values

        rounds = 0
        h = x @ self.weight
        h = attend(h) + attend(x, sharp=0.5)
        pieces = [piece.exp() for piece in h.unbind(0)]
        return torch.stack(pieces) * rounds


def rootwise_by_hand(model, note, x):
    x = note(x, "forward.x")
    h = note(x @ model.weight, "matmul", "forward.h")
    results = []
    for index, (values, sharp) in enumerate([(h, 2.0), (x, 0.5)]):
        values = note(values, "forward.attend.values")
        weights = note(F.softmax(values * sharp, dim=-1), "softmax" + f"_{index}" * index, "forward.attend.weights")
        results.append(note(weights @ values, f"matmul_{index + 1}"))
    h = note(results[0] + results[1], "add", "forward.h")
    pieces = [note(piece.exp(), "exp" + f"_{index}" * (index > 0)) for index, piece in enumerate(h.unbind(0))]
    return note(note(torch.stack(pieces), "stack") * 2, "forward")


class Base(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        h = self.linear(x)
        return torch.tanh(h)


class Middle(Base):
    def forward(self, x):
        h = super().forward(x) * 2
        return self.finish(h)

    def finish(self, h):
        return h


class Derived(Middle):
    """Three classes deep; each `forward` calls the one above it."""

    def forward(self, x):
        x = x + 1
        h = super().forward(x)
        return h - x

    def finish(self, h):
        h = h.abs()
        return h


def derived_by_hand(model, note, x):
    x = note(x, "forward.x")
    x = note(note(x + 1, "add"), "forward.x")
    inner = note(torch.tanh(note(model.linear(x), "linear")), "tanh")
    h = note(note(inner * 2, "mul"), "finish.h")
    h = note(h.abs(), "abs", "finish.h", "finish")
    return note(note(h, "forward.h") - x, "sub", "forward")


class Streaming(nn.Module):
    """A method that yields, one that takes what is yielded, and a forward that drains both."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(3, 3)

    def states(self, xs):
        h = torch.zeros_like(xs[0])
        for x in xs:
            h = self.cell(x, h)
            yield h

    def shifted(self, xs):
        yield xs[:1]
        state = yield from self.states(xs)
        assert state is None

    def forward(self, xs):
        total = 0
        for state in self.shifted(xs):
            total = total + state.sum(0)
        return total


def streaming_by_hand(model, note, xs):
    xs = note(xs, "forward.xs", "shifted.xs")
    total = note(0, "forward.total") + note(xs[:1], "forward.state").sum(0)
    total = note(total, "forward.total")
    h = note(torch.zeros_like(note(xs, "states.xs")[0]), "states.h")
    for x in xs:
        h = note(model.cell(note(x, "states.x"), h), "cell", "states.h")
        total = note(total + note(h, "forward.state").sum(0), "forward.total")
    return note(total, "forward")


def scaled(by):
    def decorate(function):
        @functools.wraps(function)
        def wrapper(self, *args, **kwargs):
            result = function(self, *args, **kwargs)
            return result * by

        return wrapper

    return decorate


class Decorated(nn.Module):
    """A decorated forward, a property that computes, a method of the class and one that is static."""

    def __init__(self):
        super().__init__()
        self.raw = nn.Parameter(torch.zeros(4, 4))
        self.norm = nn.LayerNorm(4)

    @property
    def weight(self):
        w = self.raw.tril()
        return w + torch.eye(4)

    @staticmethod
    def squash(x):
        return x / (1 + x.abs())

    @classmethod
    def twice(cls, x):
        y = cls.squash(x)
        return cls.squash(y)

    @scaled(3)
    @scaled(2)
    def forward(self, x, power=1):
        y = self.norm(x @ self.weight)
        y = self.twice(y)
        return y**power


def decorated_by_hand(model, note, x, power=1):
    w = note(model.raw.tril(), "tril", "weight.w")
    y = note(model.norm(note(note(x, "forward.x") @ (w + torch.eye(4)), "matmul")), "norm", "forward.y")
    for _ in range(2):
        y = y / (1 + y.abs())
    y = note(y, "forward.y")
    return note(y**power, "pow") * 2 * 3


class Replaced(nn.Module):
    """Its forward is replaced on the instance, as wrappers of other libraries do."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x):
        return self.body(x)


def replacement(self, x):
    h = self.body(x)
    return h + x


def replaced():
    model = nn.Sequential(Replaced(), Replaced())
    model[0].forward = types.MethodType(replacement, model[0])
    return model


def replaced_by_hand(model, note, x):
    x = note(x, "0.forward.x")
    h = note(model[0].body(x), "0.body", "0.forward.h")
    x = note(note(h + x, "0.add", "0"), "1.forward.x")
    return note(F.relu(model[1].body[0](x)), "1.body.1", "1.body", "1", "forward")


def half(value):
    return value * 0.5


SPECIMENS = [
    Specimen(
        "rootwise",
        make=Rootwise,
        example=lambda: (torch.randn(4, 4),),
        by_hand=rootwise_by_hand,
        edits=(("softmax", torch.zeros_like), ("forward.attend.weights", half), ("matmul", half), ("exp_2", half)),
    ),
    Specimen(
        "inheriting",
        make=lambda: Derived(4),
        example=lambda: (torch.randn(3, 4),),
        by_hand=derived_by_hand,
        edits=(("finish.h", half), ("linear", half), ("forward.x", half), ("tanh", half)),
    ),
    Specimen(
        "streaming",
        make=Streaming,
        example=lambda: (torch.randn(4, 2, 3),),
        by_hand=streaming_by_hand,
        edits=(("states.h", half), ("forward.state", half), ("cell", half)),
    ),
    Specimen(
        "decorated",
        make=Decorated,
        example=lambda: (torch.randn(3, 4),),
        keywords=lambda: {"power": 2},
        by_hand=decorated_by_hand,
        edits=(("forward.y", half), ("weight.w", half), ("norm", half)),
    ),
    Specimen(
        "replaced_forward",
        make=replaced,
        example=lambda: (torch.randn(3, 4),),
        by_hand=replaced_by_hand,
        edits=(("0.forward.h", half), ("0.add", half), ("1.body", half)),
    ),
]
