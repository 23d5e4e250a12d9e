"""A place is a name: what stands there at each forward is observed."""

import contextlib
import copy
import gc
import sys
import weakref

import pytest
import torch
import torch.nn.utils.parametrizations as parametrizations
from torch import nn
from torch.nn.utils import parametrize, prune

import byname
from byname import attach, interject, select
from byname.errors import NothingSeenWarning

HOOKS = ("_forward_hooks", "_forward_pre_hooks")


def net():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))


class Adapter(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base, self.low = base, nn.Linear(4, 4)

    def forward(self, x):
        return self.base(x) + self.low(x)


def left_on(model):
    """byname's hooks that are left on a model."""
    hooks = [hook for module in model.modules() for name in HOOKS for hook in getattr(module, name).values()]
    return [hook for hook in hooks if type(hook).__module__.startswith("byname")]


def told(where, change, model=None, after=2, **options):
    """The places and shapes told in a forward before the change, and in each of those after it; the handle."""
    model = model or net()
    events = []
    handle = attach(model, where, lambda event: events.append((event.path, tuple(event.value.shape))), **options)
    forwards = []
    for number in range(1 + after):
        if number == 1:
            change(model)
        model(torch.randn(2, 4)).sum().backward()
        forwards.append(dict(events))
        events.clear()
    handle.remove()
    assert not left_on(model)
    assert not torch.nn.modules.module._global_module_registration_hooks
    return forwards, handle


def put(name, make):
    return lambda model: setattr(model, name, make(getattr(model, name)))


FOLLOWED = {
    "assigned": ("4", put("4", lambda _: nn.Linear(4, 7)), {"4": (2, 7)}),
    "deleted before": ("3", lambda model: model.__delitem__(2), {"3": (2, 3)}),
    "wrapped": ("2", put("2", Adapter), {"2": (2, 4)}),
    "of another class": ("2", put("2", lambda _: nn.Identity()), {"2": (2, 4)}),
    "input": ("4.input", put("4", lambda _: nn.Linear(4, 7)), {"4.input": (2, 4)}),
    "variable": ("4.forward.input", put("4", lambda _: nn.Linear(4, 7)), {"4.forward.input": (2, 4)}),
    "parameter": ("4.weight", put("4", lambda _: nn.Linear(4, 7)), {"4.weight": (7, 4)}),
    "gradients": (
        ["4.grad", "4.weight.grad"],
        put("4", lambda _: nn.Linear(4, 7)),
        {"4.grad": (2, 7), "4.weight.grad": (7, 4)},
    ),
    "appended": ("*", lambda model: model.append(nn.Linear(3, 5)), {"5": (2, 5)}),
    "inserted at the end": ("*", lambda model: model.insert(5, nn.Linear(3, 5)), {"5": (2, 5)}),
    "selected": (select.relu, lambda model: model.append(nn.ReLU()), {"5": (2, 3)}),
    "of a class": (nn.ReLU, lambda model: model.append(nn.ReLU()), {"5": (2, 3)}),
    "all of a model": (["forward", "input"], put("4", lambda _: nn.Linear(4, 7)), {"forward": (2, 7), "input": (2, 4)}),
    "operation": ("2.relu", put("2", lambda _: nn.ReLU()), {"2.relu": (2, 4)}),
}


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("name", [*FOLLOWED])
def test_what_stands_at_the_name_is_told(name, reads, recwarn):
    where, change, expected = FOLLOWED[name]
    model = net()
    if name == "operation":
        model[2] = nn.ReLU()
    forwards, handle = told(where, change, model, reads=reads)
    assert [expected.items() <= one.items() for one in forwards[1:]] == [True, True]
    assert not [one for one in recwarn if issubclass(one.category, NothingSeenWarning)]
    assert handle.notes == ()


COMPUTED = {
    "pruned": lambda module: prune.l1_unstructured(module, "weight", 0.5),
    "norm by a hook": lambda module: nn.utils.weight_norm(module),
    "norm": parametrizations.weight_norm,
    "spectral norm": parametrizations.spectral_norm,
}


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
@pytest.mark.parametrize("before", [False, True], ids=["meanwhile", "before"])
@pytest.mark.parametrize("name", [*COMPUTED])
def test_a_computed_weight_is_told_with_its_gradient(name, before):
    model, values = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), {}
    if before:
        COMPUTED[name](model[0])
    with attach(
        model, ["0.weight", "0.weight.grad"], lambda event: values.update({event.path: event.value}), reads=True
    ):
        model(torch.randn(2, 4))
        if not before:
            COMPUTED[name](model[0])
        values.clear()
        x = torch.randn(2, 4)
        out = model(x)
        values["0.weight"].retain_grad()
        out.sum().backward()
    torch.testing.assert_close(values["0.weight"] @ x.T + model[0].bias[:, None], out.atanh().T)
    assert torch.equal(values["0.weight.grad"], values["0.weight"].grad)
    assert not left_on(model)


@pytest.mark.parametrize("name", ["pruned", "norm"])
def test_a_computed_weight_can_be_changed(name):
    model, x = nn.Sequential(nn.Linear(4, 4)), torch.randn(2, 4)
    with interject(model, "0.weight", lambda name, module, value: value * 0):
        assert torch.equal(model(x), model[0].bias.expand(2, 4))
        COMPUTED[name](model[0])
        plain = model[0].weight.clone()
        for again in range(3):
            if again == 1 and name == "pruned":
                COMPUTED[name](model[0])  # by another hook, which comes last
                plain = model[0].weight.clone()
            assert torch.equal(model(x), model[0].bias.expand(2, 4))
        if name == "pruned":
            assert torch.equal(model[0].weight, plain)
    assert torch.equal(model(x), nn.functional.linear(x, plain, model[0].bias))


def test_a_parameter_comes_back_where_pruning_or_a_parametrization_is_removed():
    for add, remove in (
        (COMPUTED["pruned"], prune.remove),
        (COMPUTED["norm"], parametrize.remove_parametrizations),
    ):
        model, values = nn.Sequential(nn.Linear(4, 4)), []
        with attach(model, "0.weight", lambda event: values.append(event.value), reads=True):
            add(model[0])
            model(torch.randn(2, 4))
            remove(model[0], "weight")
            model(torch.randn(2, 4))
        assert [value is model[0].weight for value in values] == [False, True]


ENDS = {
    "parameter of what was wrapped": ("2.weight", put("2", Adapter)),
    "gradient of it": ("2.weight.grad", put("2", Adapter)),
    "no bias": ("2.bias", lambda model: setattr(model[2], "bias", None)),
    "last of several": ("4", lambda model: model.__delitem__(2)),
    "of several": ("*", lambda model: model.__delitem__(2)),
    "class": (nn.ReLU, put("1", lambda _: nn.Tanh())),
    "selected": (select.relu, put("1", lambda _: nn.Tanh())),
    "selected, deleted": (select.relu, lambda model: model.__delitem__(2)),
    "operation": ("1.relu", put("1", lambda _: nn.Tanh())),
    "variable": ("2.forward.input", put("2", lambda _: Adapter(nn.Identity()))),
}
LOST = {"of several": "4", "class": "1", "selected": "1", "selected, deleted": "3"}


@pytest.mark.parametrize("name", [*ENDS])
def test_where_nothing_of_the_kind_stands_any_more_it_is_said_once(name):
    where, change = ENDS[name]
    with pytest.warns(NothingSeenWarning) as warned:
        forwards, handle = told(where, change, reads=True)
    path = LOST.get(name, where)
    assert path in forwards[0] and path not in {**forwards[1], **forwards[2]}
    said = [str(one.message) for one in warned]
    assert len(said) == 1 and f"nothing is observed at `{path}` from forward 1 on" in said[0]
    assert [f"byname: {note}" for note in handle.notes] == said


def test_a_module_that_does_not_run_in_the_next_forward_has_not_ended(recwarn):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.turn = nn.ReLU(), nn.ReLU(), 0

        def forward(self, x):
            self.turn += 1
            return (self.first if self.turn % 2 else self.second)(x)

    model, paths = Two(), []
    with interject(model, select.relu, lambda name, module, value: paths.append(name)) as handle:
        model(torch.ones(1)), model(torch.ones(1))
        model.second = nn.ReLU()
        model(torch.ones(1)), model(torch.ones(1))
    assert (paths, handle.notes) == (["first", "second"] * 2, ())
    assert not recwarn.list


def test_replaced_and_put_back_and_copied():
    model, paths = net(), []
    with interject(model, "2", lambda name, module, value: paths.append(type(module))) as handle:
        with byname.replace(model, "2", lambda old: nn.Identity()):
            model(torch.ones(1, 4))
        model(torch.ones(1, 4))
        assert (paths, handle.notes) == ([nn.Identity, nn.Linear], ())
        assert not left_on(copy.deepcopy(model))
        gone = weakref.ref(model[2])
        model[2] = nn.Identity()
        model(torch.ones(1, 4))
        gc.collect()
        assert gone() is None


def test_a_module_that_is_replaced_in_a_forward_is_told_of_in_the_next():
    class Swaps(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = nn.ReLU()

        def forward(self, x):
            x = self.act(x)
            if type(self.act) is nn.ReLU:
                self.act = nn.Tanh()
            return x

    model, kinds = Swaps(), []
    with interject(model, "act", lambda name, module, value: kinds.append(type(module))):
        model(torch.ones(1)), model(torch.ones(1))
    assert kinds == [nn.ReLU, nn.Tanh]


def test_several_attachments_keep_their_order_at_a_new_module_and_iterations_go_on():
    model, order = net(), []
    one = attach(model, ["4", "forward"], lambda event: order.append((1, event.path, event.iteration)))
    two = attach(model, ["4", "forward"], lambda event: order.append((2, event.path, event.iteration)))
    model(torch.ones(1, 4))
    model[4] = nn.Linear(4, 2)
    order.clear()
    model(torch.ones(1, 4))
    assert order == [(1, "4", 1), (2, "4", 1), (1, "forward", 1), (2, "forward", 1)]
    one.remove()
    two.remove()
    assert not left_on(model)


def test_a_disabled_attachment_follows_once_it_is_enabled_again():
    model, shapes = net(), []
    with attach(model, "4", lambda event: shapes.append(tuple(event.value.shape))) as handle:
        handle.enabled = False
        model[4] = nn.Linear(4, 2)
        model(torch.ones(1, 4))
        handle.enabled = True
        model(torch.ones(1, 4))
    assert shapes == [(1, 2)]


def test_a_forward_that_assigns_modules_is_not_looked_at_again_and_again():
    class Assigns(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])

        def forward(self, x):
            for layer in self.layers:
                self.current = layer
                x = self.current(x)
            return x

    model, paths = Assigns(), []
    handle = attach(model, "layers.*", lambda event: paths.append(event.path))
    model(torch.ones(1, 2))
    hooks = [*model.layers[0]._forward_hooks.values()]
    model(torch.ones(1, 2))
    assert [*model.layers[0]._forward_hooks.values()] == hooks
    assert paths == ["layers.0", "layers.1"] * 2
    handle.remove()


@pytest.mark.parametrize(
    ("where", "same"), [(select.linear, True), (nn.Linear, True), (select.linear | select.buffer, False)]
)
def test_a_forward_that_registers_a_buffer_is_looked_at_again_only_where_buffers_may_be_meant(where, same):
    class Masks(nn.Linear):
        def forward(self, x):
            self.register_buffer("mask", torch.ones(len(x)))
            return super().forward(x)

    model, paths = nn.Sequential(Masks(2, 2), nn.Linear(2, 2)), []
    handle = attach(model, where, lambda event: paths.append(event.path))
    model(torch.ones(1, 2))
    hooks = [*model[1]._forward_hooks.values()]
    paths.clear()
    model(torch.ones(1, 2))
    assert ([*model[1]._forward_hooks.values()] == hooks) is same
    assert {*paths} == {"0", "1"} | (set() if same else {"0.mask"})
    handle.remove()


def test_modules_are_seen_after_one_of_a_sequential_was_deleted():
    model = net()
    del model[2]  # PyTorch makes another kind of dict of the modules
    paths = []
    with interject(model, select.relu, lambda name, module, value: paths.append(name)):
        model(torch.ones(1, 4))
    assert paths == ["1", "2"]


def test_a_removal_by_another_thread_as_a_forward_begins_leaves_no_hooks(monkeypatch):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    handle = interject(model, "*", lambda name, module, value: None)
    model(torch.ones(1, 4))
    model[1] = nn.Linear(4, 4)
    with monkeypatch.context() as meanwhile:

        def removed():  # after the forward has seen the new module, and before it changes hooks
            meanwhile.undo()
            handle.remove()
            return contextlib.nullcontext()

        meanwhile.setattr(sys.modules["byname.watch.attach"], "defer_signals", removed)
        model(torch.ones(1, 4))
    assert not any(getattr(module, hooks) for module in model.modules() for hooks in HOOKS)
