"""Forwards of any kind are rewritten: they branch on data, count, keep things, checkpoint, and call what they like."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import byname
from byname import rewrite


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.steps = 0
        self.log = []
        self.cache = None


class Branches(Base):
    def forward(self, x):
        if x.sum() > 0:
            return self.fc(x)
        return x


class Loops(Base):
    def forward(self, x):
        for row in x:
            x = self.fc(row)
        return x


class Counts(Base):
    def forward(self, x):
        for _ in range(x.size(0)):
            x = self.fc(x)
        return x


class While(Base):
    def forward(self, x):
        while x.norm() > 1:
            x = x / 2
        return self.fc(x)


class Steps(Base):
    def forward(self, x):
        self.steps += 1
        return self.fc(x)


class Logs(Base):
    def forward(self, x):
        self.log.append(x)
        return self.fc(x)


class Caches(Base):
    def forward(self, x):
        if self.cache is None:
            self.cache = x
        return self.fc(x + self.cache)


class Checkpoints(Base):
    def forward(self, x):
        return checkpoint(self.fc, x, use_reentrant=False)


class CheckpointsAgain(Base):
    def forward(self, x):
        return checkpoint(lambda one: self.fc(one), x, use_reentrant=True)


class Casts(Base):
    def forward(self, x):
        with torch.autocast("cpu"):
            return self.fc(x)


class Infers(Base):
    def forward(self, x):
        with torch.inference_mode():
            return self.fc(x)


class Converts(Base):
    def forward(self, x):
        return self.fc(torch.tensor([one.item() for one in x.detach().flatten()]).view_as(x))


class Asserts(Base):
    def forward(self, x):
        assert x.shape[1] == 4
        return self.fc(x)


class Measures(Base):
    def forward(self, x):
        return self.fc(x) * len(x)


class Boxes(Base):
    def forward(self, x):
        self.box = Box(x)
        return self.fc(self.box.x)


class Box:
    def __init__(self, x):
        self.x = x


class Slots:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


class Returns(Base):
    def forward(self, x):
        return Slots(self.fc(x))


class KeepsABox(Base):
    def __init__(self):
        super().__init__()
        self.box = Box(0)

    def forward(self, x):
        self.box.x = self.fc(x)
        return self.box


class AsksForTheType(Base):
    def forward(self, x):
        n = x.shape[0]
        return self.fc(x) * (n if isinstance(n, int) else 2)


class InHelper(Base):
    def forward(self, x):
        return self.helper(self.fc(x))

    def helper(self, h):
        return h if h.max() > 1 else -h


ALL = [one for one in Base.__subclasses__() if one.__module__ == __name__]


class Catches(Base):
    def forward(self, x):
        try:
            scale = float(x.detach().sum())
        except Exception:
            scale = 0.0
        return self.fc(x) * scale


class Generates(Base):
    """A part of the forward is a generator, and another a closure."""

    def forward(self, x):
        scale = x.abs().max()

        def part(one):
            return one / scale

        return self.fc(torch.stack([part(row) for row in self.rows(x)]))

    def rows(self, x):
        yield from x.unbind()


def double(name, module, value):
    return value * 2


def value_of(output):
    output = output.x if isinstance(output, Slots | Box) else output
    return output[None] if output.dim() == 1 else output


def results(model, x, calls=3):
    """The outputs of several calls, with the gradients of all of them."""
    model.zero_grad()
    outputs = [value_of(model(x + call)) for call in range(calls)]
    if outputs[0].requires_grad:
        sum(one.square().sum() for one in outputs).backward()
    return [*outputs, *[one.grad.clone() for one in model.parameters() if one.grad is not None]]


@pytest.mark.parametrize("where", ["fc", "fc.linear", byname.select.linear | byname.select.op("relu")])
@pytest.mark.parametrize("make", [*ALL, Catches, Generates])
def test_it_computes_what_the_model_computes_with_the_interjection_in_it(make, where):
    torch.manual_seed(0)
    model, x = make(), torch.randn(4, 4, requires_grad=True)
    new, plain = rewrite(model, where, double), copy.deepcopy(model)
    found = results(new, x)
    with byname.interject(plain, where, double, example=None if isinstance(where, str) else x):
        wanted = results(plain, x)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    assert (model.steps, model.log, model.cache) == (0, [], None)


def test_a_branch_that_depends_on_data_is_taken_anew_in_each_call():
    model = Branches()
    new, x = rewrite(model, "fc", double), torch.ones(2, 4)
    assert torch.equal(new(x), 2 * model.fc(x))
    assert new(-x).tolist() == (-x).tolist()


def test_operations_in_a_branch_that_the_first_call_does_not_take():
    class Signed(nn.Module):
        def forward(self, x):
            return x.relu() if x.sum() > 0 else x.sigmoid()

    new, x = rewrite(Signed(), ["relu", "sigmoid"], double), torch.ones(2)
    assert new(-x).tolist() == (2 * (-x).sigmoid()).tolist()
    assert new(x).tolist() == [2, 2]


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_of_a_layer_with_operations_runs_them_twice_alike(reentrant):
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            return self.fc(x).sigmoid().tanh()

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = Layer()
            self.saving = True

        def forward(self, x):
            return checkpoint(self.layer, x, use_reentrant=reentrant) if self.saving else self.layer(x)

    model, x, seen = Model(), torch.randn(3, 4, requires_grad=True), []
    new = rewrite(model, ["layer.sigmoid", "layer.fc"], lambda name, module, value: seen.append(name) or value * 2)
    found = []
    for saving in (True, False):
        new.saving = saving
        new.zero_grad()
        x.grad = None
        new(x).sum().backward()
        found.append([x.grad, *[one.grad.clone() for one in new.parameters()]])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    assert seen == ["layer.fc", "layer.sigmoid"] * 3


@pytest.mark.parametrize("reentrant", [False, True])
def test_an_operation_in_a_checkpoint_of_a_function_is_refused_where_gradients_flow(reentrant):
    class Model(Base):
        def forward(self, x):
            return self.fc(checkpoint(lambda one: one.relu().sigmoid(), x, use_reentrant=reentrant))

    model, x = Model(), torch.ones(2, 4, requires_grad=True)
    new = rewrite(model, "relu", double)
    with pytest.raises(byname.errors.RewriteError, match="`relu` runs inside torch.utils.checkpoint"):
        new(x)
    with torch.no_grad(), byname.interject(model, "relu", double), warnings.catch_warnings(action="ignore"):
        assert torch.equal(new(x.detach()), model(x.detach()))
    new = rewrite(model, "fc", double)
    assert torch.equal(new(x), 2 * model(x))


def test_an_error_of_the_forward_is_its_own():
    class Raises(Base):
        def forward(self, x):
            raise ValueError("not today")

    new = rewrite(Raises(), "fc", double)
    with pytest.raises(ValueError, match="not today"):
        new(torch.ones(1, 4))


def test_what_the_model_keeps_is_kept_by_each_for_itself():
    model = Steps()
    new, x = rewrite(model, "fc", double), torch.ones(1, 4)
    new(x), new(x), model(x)
    assert (new.steps, model.steps) == (2, 1)


def test_what_an_interjection_calls_itself_is_not_told():
    seen = []

    class Calls(byname.WrappedForwardInterjection):
        def process(self, name, module, inputs, outputs):
            seen.append(name)
            return new.fc(inputs[0]).relu() + outputs

    new, x = rewrite(Plain(), ["fc", "relu"], Calls()), torch.randn(2, 4)
    assert new(x).shape == (2, 4)
    assert seen == ["fc", "relu"]


class Plain(Base):
    def forward(self, x):
        return self.fc(x).relu()


def test_modes_of_the_users_inside_of_a_forward():
    class Counting(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            counted.append(func)
            return func(*args, **(kwargs or {}))

    class Model(Base):
        def forward(self, x):
            x = x.relu()
            with Counting():
                x = self.fc(x.relu())
            return x.relu()

    counted, seen = [], []
    new = rewrite(Model(), ["relu*", "linear*"], lambda name, module, value: seen.append(name))
    new(torch.ones(1, 4))
    assert seen == ["relu", "relu_1", "relu_2"]
    assert len(counted) == 2
