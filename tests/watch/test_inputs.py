"""`path.input` is what a module is called with, as a forward pre-hook sees it, and it can be changed."""

import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import byname
from byname.errors import NoMatchError, NothingSeenWarning

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x, cache=None, *, mask=None):
        x = self.lin(x)
        if cache is not None:
            x = x + cache["k"][0]
        return x if mask is None else x * mask


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Masked(), Masked()])

    def forward(self, x):
        mask = torch.ones(4)
        x = self.blocks[0](x, {"k": [x * 2]}, mask=mask)
        return self.blocks[1](x=x, mask=mask * 2)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model()


def by_hook(model, path, x, change=None):
    """What a pre-hook sees, and what the model returns when it changes the arguments."""
    seen = []

    def hook(module, args, kwargs):
        seen.append((args, kwargs))
        return None if change is None else change(args, kwargs)

    with model.get_submodule(path).register_forward_pre_hook(hook, with_kwargs=True):
        return seen, model(x)


def told(model, where, x):
    found = {}
    with byname.attach(model, where, lambda event: found.setdefault(event.path, []).append(event.value)):
        model(x)
    return found


def test_the_first_argument_is_seen_positional_or_by_keyword(model):
    ((args, _),), _ = by_hook(model, "blocks.0", X)
    ((_, kwargs),), _ = by_hook(model, "blocks.1", X)
    found = told(model, "blocks.*.input", X)
    assert torch.equal(found["blocks.0.input"][0], args[0])
    assert torch.equal(found["blocks.1.input"][0], kwargs["x"])
    assert [*told(model, "input", X)] == ["input"]


def test_arguments_by_number_and_by_keyword_and_items_of_them(model):
    where = ["blocks.0.input[0]", "blocks.0.input['mask']", "blocks.0.input[1]['k'][0]", "blocks.1.input['x']"]
    found = told(model, where, X)
    assert [*found] == where
    assert torch.equal(found[where[0]][0], X) and torch.equal(found[where[1]][0], torch.ones(4))
    assert torch.equal(found[where[2]][0], X * 2)


def test_every_argument(model):
    assert [*told(model, "blocks.0.input[*]", X)] == [f"blocks.0.input{key}" for key in ("[0]", "[1]", "['mask']")]


def test_it_is_changed_as_a_pre_hook_changes_it(model):
    _, first = by_hook(model, "blocks.0", X, lambda args, kwargs: ((args[0] * 0, *args[1:]), kwargs))
    with byname.interject(model, "blocks.0.input", lambda name, module, value: value * 0):
        assert torch.equal(model(X), first)
    _, mask = by_hook(model, "blocks.1", X, lambda args, kwargs: (args, {**kwargs, "mask": torch.zeros(4)}))
    with byname.interject(model, "blocks.1.input['mask']", lambda name, module, value: torch.zeros(4)):
        assert torch.equal(model(X), mask)


def test_an_interjection_gets_the_module_that_is_called(model):
    seen = []
    with byname.interject(model, "blocks.0.lin.input", lambda name, module, value: seen.append((name, module))):
        model(X)
    assert seen == [("blocks.0.lin.input", model.blocks[0].lin)]


def test_a_class_with_the_inputs_of_the_call_gets_all_of_them(model):
    seen = []

    class SelectionCache(byname.WrappedForwardBackwardInterjection):
        def process(self, name, module, inputs, outputs):
            seen.append((module, len(inputs), outputs))

        def process_backward(self, name, module, grad_input, grad_output):
            pass

    with byname.interject(model, "blocks.0.input", SelectionCache()):
        model(X.clone().requires_grad_()).sum().backward()
    assert seen[0][0] is model.blocks[0] and seen[0][1] == 3 and torch.equal(seen[0][2], X)


def test_several_who_change_it_are_called_in_order(model):
    with byname.interject(model, "blocks.0.lin.input", lambda name, module, value: value + 1):
        with byname.interject(model, "blocks.0.lin.input", lambda name, module, value: value * 3):
            (seen,) = told(model, "blocks.0.lin.input", X)["blocks.0.lin.input"]
    assert torch.equal(seen, (X + 1) * 3)


def test_an_item_of_an_argument_is_changed(model):
    zero = {"k": [torch.zeros(3, 4)]}
    _, expected = by_hook(model, "blocks.0", X, lambda args, kwargs: ((args[0], zero), kwargs))
    with byname.interject(model, "blocks.0.input[1]['k'][0]", lambda name, module, value: value * 0):
        assert torch.equal(model(X), expected)


def test_its_gradient_is_the_whole_gradient_of_the_value(model):
    grads = []
    x = X.clone().requires_grad_()
    with byname.attach(model, "blocks.1.lin.input.grad", lambda event: grads.append(event.value)):
        model(x).sum().backward()
    ((args, _),), out = by_hook(model, "blocks.1.lin", x)
    (expected,) = torch.autograd.grad(out.sum(), args[0])
    assert len(grads) == 1 and torch.equal(grads[0], expected)


def test_a_gradient_that_is_replaced_flows_on(model):
    x = X.clone().requires_grad_()
    with byname.interject(model, "blocks.1.lin.input.grad", lambda name, module, grad: grad * 0):
        model(x).sum().backward()
    assert not x.grad.any()
    assert model.blocks[1].lin.weight.grad.any()


def test_calls_are_counted_and_a_module_called_twice_is_told_of_twice():
    lin = nn.Linear(4, 4)
    model = nn.Sequential(lin, nn.ReLU(), lin)
    calls = []
    with byname.attach(model, "0.input", lambda event: calls.append((event.call, event.value))):
        model(X)
    assert [number for number, _ in calls] == [0, 1]
    assert torch.equal(calls[1][1], lin(X).relu())


def test_a_checkpoint_tells_of_it_again_as_recomputed():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, x):
            return checkpoint(self.lin, x, use_reentrant=False)

    model, events = Checkpointed(), []
    with byname.attach(model, "lin.input", lambda event: events.append((event.recomputed, event.call))):
        model(X.clone().requires_grad_()).sum().backward()
    assert events == [(False, 0), (True, 0)]


def test_captured_recorded_observed_and_patched(model):
    cap = byname.capture(model, ["blocks.0.lin.input", "blocks.0.lin"])(X)
    assert torch.equal(model.blocks[0].lin(cap["blocks.0.lin.input"]), cap["blocks.0.lin"])
    with byname.record(model, "blocks.*.lin.input") as recorder:
        model(X)
    assert torch.equal(recorder.results["blocks.0.lin.input"].values[0], X)
    features = byname.analyse.FeatureStatistics()
    with byname.observe(model, "blocks.0.lin.input", features):
        model(X)
    assert torch.allclose(features.result()["blocks.0.lin.input"]["channel_mean"].float(), X.mean(0), atol=1e-6)
    with (
        byname.patch(model, "blocks.0.lin.input", X * 0, features=0),
        byname.steer(model, "blocks.0.lin.input", torch.ones(4)),
    ):
        (seen,) = told(model, "blocks.0.lin.input", X)["blocks.0.lin.input"]
    assert torch.equal(seen, torch.cat([X[:, :1] * 0, X[:, 1:]], 1) + 1)


def test_what_has_that_name_comes_first():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.input = nn.Linear(4, 2)

        def forward(self, x):
            return self.input(x)

    assert told(Named(), "input", X)["input"][0].shape == (3, 2)
    assert told(Named(), "input.input", X)["input.input"][0].shape == (3, 4)


def test_an_argument_that_is_not_given_says_which_are(model):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert told(model, "blocks.0.input['masks']", X) == {}
    (warning,) = [one for one in caught if issubclass(one.category, NothingSeenWarning)]
    assert "blocks.0.input['masks']" in str(warning.message) and "mask" in str(warning.message)


def test_a_module_called_without_arguments_says_so():
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Empty()

        def forward(self, x):
            return x + self.inner()

    class Empty(nn.Module):
        def forward(self):
            return torch.ones(4)

    with pytest.warns(NothingSeenWarning, match="called without an argument"):
        assert told(Constant(), "inner.input", X) == {}


def test_a_container_has_no_input(model):
    with pytest.raises(NoMatchError):
        byname.attach(model, "blocks.input", print)


def test_other_words_for_it_lead_there(model):
    with pytest.raises(NoMatchError, match=r"its arguments are `blocks.0.input`"):
        byname.attach(model, "blocks.0.inputs", print)


def test_nothing_is_left_behind(model):
    expected = model(X)
    handle = byname.interject(
        model, "**.input", lambda name, module, value: value * 0 if torch.is_tensor(value) else None
    )
    assert not torch.equal(model(X), expected)
    handle.remove()
    assert torch.equal(model(X), expected)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_it_is_listed_when_asked_for(model):
    points = byname.points(model, "blocks.*.lin.input")
    assert [(point.path, point.kind) for point in points] == [
        ("blocks.0.lin.input", "input"),
        ("blocks.1.lin.input", "input"),
    ]


def test_its_calls_in_a_model_that_was_copied_are_its_own(model):
    import copy

    with byname.interject(model, "input", lambda name, module, value: value * 0):
        other = copy.deepcopy(model)
        changed = model(X)
    assert torch.equal(other(X), model(X)) and not torch.equal(changed, model(X))
