"""Is the model as before when something went wrong while it was watched, and when handles go in another order?"""

import gc
import itertools
import weakref

import pytest
import torch
from models import specimens
from torch import nn
from watching import Log, differences, everything, quick_ones, run, run_plain, state

from byname import attach

SPECIMENS = {
    specimen.name: specimen
    for specimen in specimens()
    if specimen.name in ("nanogpt", "unet", "streaming", "tree", "decorated", "checkpointed_not_reentrant", "twins")
}
PLACES = {
    "nanogpt": ["layers.1.attn", "layers.1.attn.softmax", "layers.1.attn.forward.scores", "layers.1.ln_1.weight", "head.weight.grad", "layers.0.attn.softmax.grad"],
    "unet": ["up.conv", "up.cat", "up.forward.skip", "deeper.body.1"],
    "streaming": ["cell", "states.h", "forward.total", "cell.grad"],
    "tree": ["join", "fold.both", "fold", "cat"],
    "decorated": ["norm", "forward.y", "weight.w", "matmul"],
    "checkpointed_not_reentrant": ["layers.1.linear", "layers.1.forward.h", "layers.0.tanh", "layers.0.tanh.grad"],
    "twins": ["left", "act", "relu", "up.weight.grad"],
}  # fmt: skip
CASES = [(name, place) for name, places in PLACES.items() for place in places]


class Planted(Exception):
    pass


@pytest.fixture(params=quick_ones(SPECIMENS))
def specimen(request):
    return SPECIMENS[request.param]


@pytest.mark.parametrize(("name", "place"), CASES, ids=["-".join(case) for case in CASES])
def test_an_error_in_a_callback_names_the_place_and_leaves_the_model_usable(name, place):
    specimen = SPECIMENS[name]
    args, kwargs = specimen.inputs()
    plain = run_plain(specimen)
    model = specimen.model()
    run(model, args, kwargs)
    before = state(model)
    failing = True

    def callback(event):
        if failing:
            raise Planted("on purpose")

    handle = attach(model, place, callback)
    with pytest.raises(Planted, match="on purpose") as raised:
        run(model, args, kwargs)
    assert any(place in note for note in raised.value.__notes__)
    if torch.__version__.startswith(("2.10.", "2.11.")):
        del raised  # which would keep the hooks of a checkpoint in place
    failing = False
    model.load_state_dict(specimen.model().state_dict())
    assert differences(plain, run(model, args, kwargs)) == []
    handle.remove()
    assert state(model) == before


@pytest.mark.sees_nothing
def test_an_error_in_the_model_leaves_nothing(specimen):
    args, kwargs = specimen.inputs()
    model = specimen.model()
    run(model, args, kwargs)
    before = state(model)
    log = Log()
    handle = attach(model, everything(model, args, kwargs), log)
    inner = [module for module in model.modules() if not list(module.children())][-1]
    failing = inner.register_forward_pre_hook(_fail)
    with pytest.raises(Planted):
        run(model, args, kwargs)
    failing.remove()
    del log.seen[:]
    run(model, args, kwargs)
    after_failure = [(path, call, again) for path, _, call, again in log.keys]
    del log.seen[:]
    run(model, args, kwargs)
    assert [(path, call, again) for path, _, call, again in log.keys] == after_failure
    handle.remove()
    assert state(model) == before


def _fail(module, args):
    raise Planted


@pytest.mark.grid(fast=3)
@pytest.mark.sees_nothing
def test_removal_inside_the_forward_and_inside_the_backward_pass(specimen):
    args, kwargs = specimen.inputs()
    plain = run_plain(specimen)
    for last in range(1, 40, 13):
        model, log = specimen.model(), Log()
        before = state(model)
        handle = attach(model, everything(model, args, kwargs), lambda event: None)

        def callback(event):
            log(event)
            if len(log.seen) == last:
                handle.remove()
                second.remove()

        second = attach(model, everything(model, args, kwargs), callback)
        assert differences(plain, run(model, args, kwargs)) == []
        assert state(model) == before


PERMUTATIONS = [
    pytest.param(order, marks=[pytest.mark.slow] if order[0] else []) for order in itertools.permutations(range(4))
]
KINDS = {
    "modules": ["**"],
    "operations": ["**.softmax", "**.matmul"],
    "variables": ["**.forward.*"],
    "gradients": ["**.weight.grad", "**.forward.h.grad", "**.softmax.grad"],
}


@pytest.mark.sees_nothing
@pytest.mark.parametrize("order", PERMUTATIONS, ids=lambda order: "".join(map(str, order)))
def test_handles_of_every_kind_are_removed_in_any_order(order):
    specimen = SPECIMENS["nanogpt"]
    args, kwargs = specimen.inputs()
    model = specimen.model()
    run(model, args, kwargs)
    before = state(model)
    plain = run_plain(specimen)
    logs = [Log() for _ in KINDS]
    handles = [attach(model, where, log) for where, log in zip(KINDS.values(), logs, strict=True)]
    for number in order:
        for log in logs:
            del log.seen[:]
        assert differences(plain, run(model, args, kwargs)) == []
        assert [bool(log.seen) for log in logs] == [bool(handle.paths) and handle.enabled for handle in handles]
        handles[number].enabled = False
        handles[number].remove()
    assert state(model) == before


@pytest.mark.parametrize("first_out", [0, 1])
def test_two_handles_at_one_place_run_in_order_and_go_in_any_order(first_out):
    specimen = SPECIMENS["nanogpt"]
    args, kwargs = specimen.inputs()
    model = specimen.model().eval()
    run(model, args, kwargs)
    before = state(model)
    for where in ("layers.0.attn", "layers.0.attn.softmax", "layers.0.attn.forward.weights", "head.weight.grad"):
        order = []
        handles = [attach(model, where, lambda event, number=number: order.append(number)) for number in (0, 1)]
        run(model, args, kwargs)
        assert order == [0, 1]
        handles[first_out].remove()
        run(model, args, kwargs)
        assert order == [0, 1, 1 - first_out]
        handles[1 - first_out].remove()
        run(model, args, kwargs)
        assert len(order) == 3
        assert state(model) == before


@pytest.mark.sees_nothing
def test_no_tensor_outlives_the_step(specimen, no_collection):
    args, kwargs = specimen.inputs()
    model = specimen.model()
    kept = []
    with attach(model, everything(model, args, kwargs), lambda event: kept.extend(_weakly(event.value, model))):
        run(model, args, kwargs)
        model.zero_grad(set_to_none=True)
        gc.collect()
        assert kept
        assert [reference().shape for reference in kept if reference() is not None] == []


def _weakly(value, model):
    own = {id(tensor) for tensor in [*model.parameters(), *model.buffers()]}
    is_own = isinstance(value, torch.Tensor) and (
        id(value) in own or value.untyped_storage().data_ptr() in _storages(model)
    )
    return [weakref.ref(value)] if isinstance(value, torch.Tensor) and not is_own else []


def _storages(model):
    return {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]}


class Wrong(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        h = self.fc(x)
        return h + x


@pytest.mark.parametrize("where", ["fc", "forward.h", "fc.linear", "forward.x"])
def test_an_edit_of_the_wrong_shape_surfaces_as_pytorchs_error_and_can_be_undone(where):
    model = Wrong()
    x = torch.randn(2, 4)
    before, plain = state(model), model(x)
    with attach(model, where, lambda event: event.value[:, :3]):
        with pytest.raises(Exception, match=r"size|shape"):
            model(x)
    assert torch.equal(model(x), plain)
    assert state(model) == before


class Small(nn.Module):
    """Operations only: one of the name of a method that every module has, one in place whose result is saved."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        h = x.float() * self.weight
        return h.sin().relu_().exp()


def test_a_handle_may_be_removed_by_its_own_callback():
    model = Small()
    before = state(model)
    for where in ("sin", "exp", "forward.h", "forward", "relu_"):
        handle = attach(model, where, lambda event: handle.remove())
        model(torch.ones(3))
        assert state(model) == before, where


def test_an_operation_named_like_a_method_of_every_module_is_found():
    model, log = Small(), Log()
    with attach(model, "float", log):
        model(torch.ones(3))
    assert log.keys == [("float", 0, 0, False)]


@pytest.mark.sees_nothing
def test_the_gradient_of_a_frozen_parameter_never_comes_and_is_no_error():
    model, log = Small(), Log()
    model.weight.requires_grad_(False)
    with attach(model, ["weight.grad", "sin.grad"], log):
        model(torch.ones(3, requires_grad=True)).sum().backward()
    assert {key[0] for key in log.keys} == {"sin.grad"}


@pytest.mark.parametrize("where", ["relu_", "sin"])
def test_an_edit_of_an_operation_in_place_has_the_gradient_of_what_was_put_there(where):
    model, x = Small(), torch.tensor([1.0, 4.0, 2.0], requires_grad=True)
    h = torch.sin(x * model.weight)
    h = h.square() if where == "sin" else h
    h = torch.relu(h)
    h = h.square() if where == "relu_" else h
    (expected,) = torch.autograd.grad(h.exp().sum(), x)
    with attach(model, where, lambda event: event.value.square()):
        model(x).sum().backward()
    assert torch.allclose(x.grad, expected)


def test_the_gradient_of_a_parameter_under_another_name_comes_once_in_every_run():
    model, log = Holding(), Log()
    with attach(model, "forward.w.grad", log):
        for _ in range(3):
            model(torch.ones(3)).sum().backward()
    assert [key[1] for key in log.keys] == [0, 1, 2]


class Holding(Small):
    def forward(self, x):
        w = self.weight
        return w * x
