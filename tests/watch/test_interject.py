"""Code is put in at places of a model: it sees values and gradients there, may change them, and goes without a trace."""

import copy
import dataclasses
import pickle
import threading
from contextlib import suppress
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from interrupting import Calls, by_signal
from torch import nn
from torch.utils.checkpoint import checkpoint

import byname
from byname import ForwardInterjection, WrappedForwardBackwardInterjection, WrappedForwardInterjection
from byname.errors import InterjectionError, NoMatchError, NotAnInterjectionError, NothingSeenWarning


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(-2, -1) / 8**0.5
        weights = F.softmax(scores, -1)
        return self.out(weights @ v)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.attn = Attention()
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Linear(16, 8))

    def forward(self, x):
        x = x + self.attn(self.norm(x))
        return x + self.mlp(x)


class Recording(WrappedForwardBackwardInterjection):
    def __init__(self, factor=None):
        self.forwards, self.backwards, self.factor = [], [], factor

    def process(self, name, module, inputs, outputs):
        self.forwards.append((name, module, inputs, outputs))

    def process_backward(self, name, module, grad_input, grad_output):
        self.backwards.append((name, module, grad_input, grad_output))
        if self.factor is not None:
            return tuple(None if one is None else one * self.factor for one in grad_input)


@pytest.fixture
def model():
    return nn.Sequential(Block(), Block())


@pytest.fixture
def x():
    return torch.randn(2, 3, 8)


def state_of(model):
    """All that an interjection could leave behind."""
    return [
        (
            {
                name: len(held) if "hooks" in name else held
                for name, held in vars(module).items()
                if name != "_parameters"
            },
            type(module).forward.__code__,
            [(id(one), one._backward_hooks, one._post_accumulate_grad_hooks) for one in module.parameters()],
        )
        for module in model.modules()
    ]


def test_a_function_sees_name_module_and_value(model, x):
    seen = []
    with byname.interject(model, "*.attn", lambda name, module, value: seen.append((name, module, value.shape))):
        model(x)
    assert seen == [("0.attn", model[0].attn, x.shape), ("1.attn", model[1].attn, x.shape)]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("0.mlp.1", True), ("0.attn.forward", True), ("0.attn.softmax", False), ("0.attn.forward.scores", False),
        ("0.attn.forward.x", False), ("0.attn.out.weight", False), ("forward", True),
    ],
)  # fmt: skip
def test_a_module_is_told_where_the_place_is_the_call_of_one(model, x, where, expected):
    seen = []
    with byname.interject(model, where, lambda name, module, value: seen.append(module)):
        model(x)
    assert seen and all((one is not None) == expected for one in seen)


def test_a_shared_module_is_told_under_each_name(x):
    shared = nn.Linear(8, 8)
    model = nn.ModuleDict({"a": shared, "b": shared})
    model.forward = lambda x: model["b"](model["a"](x))
    seen = []
    with byname.interject(model, "b", lambda name, module, value: seen.append(module)):
        model(x)
    assert seen and all(one is shared for one in seen)


def test_what_is_returned_takes_the_values_place(model, x):
    with byname.interject(model, "1.attn.softmax", lambda name, module, value: torch.zeros_like(value)):
        found = model(x)
    h = model[0](x)
    h = h + model[1].attn.out(torch.zeros_like(h))
    torch.testing.assert_close(found, h + model[1].mlp(h))


def test_each_kind_of_forward_interjection(model, x):
    class Double(ForwardInterjection):
        def process(self, name, module, inputs):
            return inputs * 2

    class Skip(WrappedForwardInterjection):
        def process(self, name, module, inputs, outputs):
            assert isinstance(inputs, tuple) and len(inputs) == 1
            return outputs + inputs[0]

    plain = model[0].norm(x)
    with byname.interject(model[0], "norm", Double()):
        torch.testing.assert_close(model[0].norm(x), model[0].norm(x))
        seen = []
        with byname.interject(model[0], "norm", lambda name, module, value: seen.append(value)):
            model[0](x)
    torch.testing.assert_close(seen[0], plain * 2)
    with byname.interject(model[0], "norm", Skip()), byname.interject(model[0], "norm", lambda n, m, v: seen.append(v)):
        model[0](x)
    torch.testing.assert_close(seen[1], plain + x)


def test_inputs_given_by_keyword_follow_the_positional_ones(x):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            return self.inner(x, x * 2, value=x * 3)[0]

    model, seen = Model(), Recording()
    with byname.interject(model, "inner", seen):
        model(x.requires_grad_()).sum().backward()
    ((_, _, inputs, outputs),) = seen.forwards
    assert len(inputs) == 3 and torch.equal(inputs[2], x * 3) and isinstance(outputs, tuple)
    ((_, _, grad_input, grad_output),) = seen.backwards
    assert len(grad_input) == 3 and all(one is not None for one in grad_input) and len(grad_output) == 2


def test_several_run_in_order_and_leave_in_any(model, x):
    order = []
    first, second, third = (
        byname.interject(
            model, "0.norm", lambda name, module, value, number=number: order.append(number) or value + number
        )
        for number in range(3)
    )
    model(x)
    second.remove()
    model(x)
    first.enabled = False
    model(x)
    first.enabled = True
    model(x)
    assert order == [0, 1, 2, 0, 2, 2, 0, 2]
    first.remove()
    third.remove()


@pytest.mark.parametrize(
    "where", ["0.attn.softmax", "0.mlp.1", "0.attn.qkv", "0.attn", "0", "0.attn.matmul_1", "1.norm"]
)
def test_gradients_of_any_call(model, x, where):
    plain = copy.deepcopy(model)
    plain(x).pow(2).sum().backward()
    seen = Recording()
    with byname.interject(model, where, seen):
        model(x).pow(2).sum().backward()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
    ((name, module, inputs, output),) = seen.forwards
    ((_, _, grad_input, grad_output),) = seen.backwards
    tensors = [one for one in inputs if isinstance(one, torch.Tensor)]
    assert name == where and grad_output[0].shape == output.shape and len(grad_input) == len(tensors)
    if where == "0":
        assert grad_input == (None,)
    elif where == "0.attn.softmax":
        cut = tensors[0].detach().requires_grad_()
        (own,) = torch.autograd.grad(F.softmax(cut, -1), cut, grad_output)
        torch.testing.assert_close(grad_input[0], own)


def test_changed_gradients_of_a_function_reach_the_parameters(model, x):
    plain = copy.deepcopy(model)
    with byname.interject(model, "*.attn.softmax", Recording(0.0)):
        model(x).sum().backward()
    with byname.interject(plain, "*.attn.forward.scores", lambda name, module, value: value.detach()):
        plain(x).sum().backward()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_in_place_activations_change_what_they_pass_back(model, x):
    seen = Recording(0.0)
    with byname.interject(model, "0.mlp.1", seen):
        model(x).sum().backward()
    assert len(seen.backwards) == 1 and float(model[0].mlp[0].weight.grad.abs().sum()) == 0.0


def test_the_gradient_of_a_value_that_is_no_call(model, x):
    seen = Recording()
    whole = []
    with (
        byname.interject(model, "0.forward.x", seen),
        byname.interject(model, "0.forward.x.grad", lambda name, module, gradient: whole.append(gradient)),
    ):
        model(x.requires_grad_()).sum().backward()
    assert [(one[2], len(one[3])) for one in seen.backwards] == [((), 1)] * 2
    assert all(torch.equal(one[3][0], other) for one, other in zip(seen.backwards, whole, strict=True))
    with byname.interject(model, "0.forward.x", Answering((torch.zeros(2, 3, 8),))):
        with pytest.raises(InterjectionError, match=r"not a call.*`.grad`"):
            model(x).sum().backward()


def test_a_gradient_is_changed_at_its_own_place(model, x):
    with byname.interject(model, "0.mlp.0.grad", lambda name, module, gradient: gradient * 0):
        model(x).sum().backward()
    assert float(model[0].mlp[0].weight.grad.abs().sum()) == 0.0
    with byname.interject(model, "1.mlp.0.weight.grad", lambda name, module, gradient: torch.ones_like(gradient)):
        model(x).sum().backward()
    assert torch.equal(model[1].mlp[0].weight.grad, torch.ones(16, 8))


class Answering(Recording):
    """Returns what it was told to."""

    def __init__(self, backward=None, forward=None):
        super().__init__()
        self.answers = forward, backward

    def process(self, *_):
        return self.answers[0]

    def process_backward(self, *_):
        return self.answers[1]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (torch.zeros(2, 3, 7), r"expected a tensor of shape \(2, 3, 8\); got a tensor of shape \(2, 3, 7\)"),
        (3.0, r"expected a tensor of shape \(2, 3, 8\); got float"),
        ((torch.zeros(2, 3, 8),), r"expected a tensor .*; got a tuple of 1"),
    ],
)
def test_a_value_of_another_shape_or_kind_is_refused_with_the_place(model, x, answer, message):
    before = state_of(model)
    with byname.interject(model, "*.norm", lambda name, module, value: answer if name == "1.norm" else None):
        with pytest.raises(InterjectionError, match=r"`1.norm`: " + message) as raised:
            model(x)
        with pytest.raises(InterjectionError):
            model(x)
    assert raised.value.__notes__ == ["byname: at `1.norm` (call 0 of iteration 0)"]
    assert state_of(model) == before and model(x).shape == x.shape


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda value: (value[0], value[1][0]), r"in \[1\]: expected a tuple of 2; got a tensor"),
        (lambda value: [*value], r"expected a tuple of 2; got a list of 2"),
        (lambda value: (value[0][:1], value[1]), r"in \[0\]: expected a tensor of shape \(5, 2, 4\)"),
        (lambda value: value[:1], "expected a tuple of 2; got a tuple of 1"),
    ],
)
def test_another_structure_is_refused_with_the_item(change, message):
    model = nn.Sequential(nn.LSTM(3, 4))
    with byname.interject(model, "0", lambda name, module, value: change(value)):
        with pytest.raises(InterjectionError, match=message):
            model(torch.randn(5, 2, 3))


def test_a_dict_keeps_its_keys(x):
    class Model(nn.Module):
        def forward(self, x):
            return {"logits": x, "hidden": [x]}

    model = nn.Sequential(Model())
    with byname.interject(model, "0", lambda name, module, value: {**value, "logits": value["logits"] + 1}):
        assert torch.equal(model(x)["logits"], x + 1)
    with byname.interject(model, "0", lambda name, module, value: {"logits": x}):
        with pytest.raises(InterjectionError, match="expected a dict of 'logits', 'hidden'; got a dict of 'logits'"):
            model(x)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            (torch.zeros(2, 3, 7),),
            r"`0.mlp.1`: expected a tensor of shape \(2, 3, 16\) of torch.float32 on cpu for input 0",
        ),
        ((torch.zeros(2, 3, 16, dtype=torch.float64),), "got a tensor of shape .* of torch.float64"),
        ((), "expected None or a tuple of 1 gradients; got a tuple of 0"),
        (torch.zeros(2, 3, 16), "a tuple of 1 gradients; got a tensor"),
        ((1.0,), "got float"),
    ],
)
def test_gradients_that_do_not_fit_are_refused_with_the_place(model, x, answer, message):
    with byname.interject(model, "0.mlp.1", Answering(answer)):
        with pytest.raises(InterjectionError, match=message) as raised:
            model(x).sum().backward()
    assert raised.value.__notes__ == ["byname: in the backward of `0.mlp.1` (call 0 of iteration 0)"]
    model(x).sum().backward()


def test_a_gradient_where_none_flows_is_refused(model, x):
    with byname.interject(model, "0.norm", Answering((x,))):
        with pytest.raises(InterjectionError, match="expected None for input 0, to which no gradient flows"):
            model(x).sum().backward()


@pytest.mark.parametrize("where", ["0.attn", "0.attn.softmax", "0.attn.forward.scores", "0.attn.grad"])
def test_an_error_of_the_interjection_comes_out_with_the_place(model, x, where):
    before = state_of(model)

    def fail(name, module, value):
        raise ZeroDivisionError("mine")

    handle = byname.interject(model, where, fail)
    for iteration in range(2):
        with pytest.raises(ZeroDivisionError, match="mine") as raised:
            model(x).sum().backward()
        assert raised.value.__notes__ == [f"byname: at `{where}` (call 0 of iteration {iteration})"]
    handle.remove()
    model(x).sum().backward()
    assert state_of(model) == before


class Incomplete(ForwardInterjection):
    def process(self, name, inputs):
        return None


@pytest.mark.parametrize(
    ("interjection", "message"),
    [
        (Recording, r"Recording is an interjection, not an instance; did you mean Recording\(\)\?"),
        (dict, "dict is a class, not an instance"),
        (None, "not NoneType"),
        ("relu", "not str"),
        (lambda value: value, r"cannot be called as f\(name, module, value\)"),
        (Incomplete(), r"Incomplete.process\(name, inputs\) cannot be called as process\(self, name, module, inputs\)"),
    ],
)
def test_what_is_no_interjection_is_refused_before_anything_is_put_in(model, interjection, message):
    before = state_of(model)
    with pytest.raises(NotAnInterjectionError, match=message):
        byname.interject(model, "0.attn", interjection)
    assert state_of(model) == before


def test_a_place_that_is_not_there(model):
    with pytest.raises(NoMatchError):
        byname.interject(model, "0.attention", lambda name, module, value: None)


def test_an_interjection_without_process_cannot_be_made():
    class Empty(WrappedForwardBackwardInterjection):
        pass

    with pytest.raises(TypeError, match="process_backward"):
        Empty()


def test_nothing_is_left_behind(model, x):
    before = state_of(model)
    wheres = [
        "0.attn",
        "0.attn.softmax",
        "0.attn.forward.scores",
        "0.attn.out.weight",
        "0.attn.out.weight.grad",
        "0.grad",
    ]
    handles = [byname.interject(model, wheres, Recording()) for _ in range(2)]
    model(x).sum().backward()
    loss = model(x).sum()
    for handle in handles:
        handle.remove()
    assert state_of(model) == before
    loss.backward()
    assert state_of(model) == before


def test_disabled_and_removed_interjections_hear_nothing_of_earlier_graphs(model, x):
    seen = Recording()
    handle = byname.interject(model, ["0.attn.softmax", "0.forward.x"], seen)
    loss = model(x.requires_grad_()).sum()
    handle.enabled = False
    loss.backward(retain_graph=True)
    assert seen.backwards == []
    handle.enabled = True
    loss.backward()
    assert seen.backwards != []
    handle.remove()


def test_a_leaf_that_is_watched_is_told_once_a_backward(x):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))
            self.identity = nn.Identity()

        def forward(self, x):
            weight = self.identity(self.weight)
            return x * weight

    model = Model()
    for where, inputs in (("identity", 1), ("forward.weight", 0)):
        seen = Recording()
        with byname.interject(model, where, seen):
            for _ in range(3):
                loss = model(x).sum()  # no backward
            loss.backward()
        assert len(seen.backwards) == 1 and len(seen.backwards[0][2]) == inputs
        assert model.weight._backward_hooks is None


def test_without_gradients_the_forward_is_seen_all_the_same(model, x):
    seen = Recording()
    with byname.interject(model, ["0.attn", "0.forward.x"], seen) as handle:
        with torch.no_grad():
            model(x)
        assert len(seen.forwards) >= 2 and handle.notes == ()
        model(x).sum().backward()
        assert any("`0.forward.x`: no gradient flows there" in note for note in handle.notes)


@pytest.mark.parametrize("reentrant", [True, False])
def test_within_a_checkpoint(model, x, reentrant):
    seen = Recording()
    with byname.interject(model, "1.attn.softmax", seen):
        checkpoint(model[1], model[0](x), use_reentrant=reentrant).sum().backward()
    assert len(seen.forwards) == 2 and len(seen.backwards) == 1


@pytest.mark.parametrize("reentrant", [True, False])
def test_an_operation_in_a_checkpoint_of_a_function_is_not_replaced_where_gradients_flow(reentrant):
    class Checkpointed(nn.Linear):
        def forward(self, x):
            return checkpoint(lambda x: super(Checkpointed, self).forward(x).softmax(-1), x, use_reentrant=reentrant)

    model, x = Checkpointed(3, 3), torch.ones(2, 3, requires_grad=True)
    seen = []
    with byname.interject(model, "softmax", lambda path, module, value: seen.append(path)):
        model(x).sum().backward()
    assert seen == ["softmax"]
    with byname.interject(model, "softmax", lambda path, module, value: 2 * value):
        with pytest.raises(InterjectionError, match="`softmax` runs inside torch.utils.checkpoint"):
            model(x)
        with torch.no_grad():
            doubled = model(x)
    assert torch.equal(doubled, 2 * model(x))


@dataclasses.dataclass(slots=True)
class Output:
    hidden: torch.Tensor
    others: tuple


class Boxing(nn.Linear):
    def forward(self, x):
        h = super().forward(x)
        return Output(h.sin(), (h.detach(), None))


@pytest.mark.parametrize("how", [byname.interject, byname.rewrite])
def test_the_gradients_of_tensors_in_a_dataclass_are_observed_and_changed(how):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.box = Boxing(2, 2)

        def forward(self, x):
            return (self.box(x).hidden * 5).sum()

    class Halved(byname.WrappedForwardBackwardInterjection):
        def process_backward(self, name, module, grad_input, grad_output):
            assert [None if one is None else one.tolist() for one in grad_output] == [[[5.0, 5.0]], None]
            return (grad_input[0] / 2,)

    model, x, seen = Model(), torch.ones(1, 2, requires_grad=True), {}
    (plain,) = torch.autograd.grad(model(x), x)
    with byname.attach(model, "box.grad", lambda event: seen.update({event.path: event.value.tolist()})):
        model(x).backward()
    assert seen == {"box['hidden'].grad": [[5.0, 5.0]]}
    changed = how(model, "box", Halved())
    (found,) = torch.autograd.grad((changed if isinstance(changed, nn.Module) else model)(x), x)
    assert torch.equal(found, plain / 2)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_are_without(model, x, copied):
    seen = Recording()
    said = pytest.warns(NothingSeenWarning, match="no backward reached the parameter")  # only to that of the copy
    with said, byname.interject(model, ["0.attn", "0.attn.out.weight.grad", "1.attn.forward.scores"], seen):
        twin = copied(model)
        twin(x).sum().backward()
        assert seen.forwards == seen.backwards == []
        model(x)
        assert seen.forwards


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
@pytest.mark.parametrize("grad", [True, False])
def test_a_copy_that_a_forward_makes_has_the_parameters_of_the_model_and_not_those_put_in_their_place(copied, grad):
    """As a forward makes its target network the first time."""
    model, copies = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), []
    model[1].register_forward_hook(lambda module, args, output: copies.append(copied(model[0])))
    with (
        torch.set_grad_enabled(grad),
        byname.interject(model, "0.weight", lambda name, module, value: value * 2),
        byname.interject(model, "*.{weight,bias}", lambda name, module, value: value * 3),
    ):
        model(torch.ones(1, 2))
    found = copies[0]
    assert all(torch.equal(getattr(found, name), one) for name, one in model[0].named_parameters())
    assert type(found.weight) is nn.Parameter and not found._state_dict_pre_hooks and not found._forward_pre_hooks


def test_one_forward_is_interjected_while_another_runs_inside_the_interjection(model, x):
    """An interjection may use the model's own parts: its calls are not places."""
    seen = []

    def look(name, module, value):
        seen.append(name)
        with torch.no_grad():
            F.softmax(value, -1)

    with byname.interject(model, "0.attn.softmax*", look):
        model(x)
    assert seen == ["0.attn.softmax"]


def test_forwards_in_several_threads_and_one_backward(model, x):
    """Threads number their nodes each for themselves."""
    plain = copy.deepcopy(model)
    sum(plain(x * factor).sin().sum() for factor in (1, 2)).backward()
    seen, results = Recording(), {}

    def work(factor):
        [torch.ones(1, requires_grad=True) * 1 for _ in range(500 * (factor - 1))]
        results[factor] = model(x * factor)

    with byname.interject(model, ["0", "*.attn", "1.attn.softmax", "0.mlp.1"], seen):
        threads = [threading.Thread(target=work, args=(factor,)) for factor in (1, 2)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        sum(one.sin().sum() for one in results.values()).backward()
    assert len(seen.backwards) == 2 * 5
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


class Late(nn.Module):
    """A view that is not new any more when a variable gets it, and is then changed in place."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def both(self, x):
        return self.a(x).view(x.shape), self.b(x)

    def forward(self, x):
        p, q = self.both(x)
        return F.relu_(p) + q


@pytest.mark.parametrize("where", ["forward.p.grad", "forward.p", "both"])
def test_a_gradient_that_is_out_of_reach_is_said_in_the_notes(x, where):
    model, seen = Late(), Recording()
    interjection = (lambda name, module, gradient: None) if where.endswith("grad") else seen
    with byname.interject(model, where, interjection) as handle:
        model(x).sum().backward()
        assert [note.split(":")[0] for note in handle.notes if "changed in place later" in note]


def test_the_gradient_of_a_leaf_is_told_once_a_backward(x):
    told = []

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))

        def forward(self, x):
            weight = self.weight
            return x * weight

    model = Model()
    with byname.interject(model, "forward.weight.grad", lambda name, module, gradient: told.append(gradient)):
        for _ in range(3):
            loss = model(x).sum()
        loss.backward()
        assert len(told) == 1
        model(x).sum().backward()
        assert len(told) == 2
    assert model.weight._backward_hooks is None


@pytest.mark.parametrize("where", ["0.attn.out.weight.grad", "0.attn.softmax.grad"])
def test_a_place_that_is_a_gradient_has_no_backward_of_its_own_and_that_is_said(model, x, where):
    recording = Recording()
    with byname.interject(model, where, recording) as handle:
        model(x).sum().backward()
    assert [forward[0] for forward in recording.forwards] == [where] and not recording.backwards
    assert any(f"`{where}` is itself a gradient" in note for note in handle.notes)


def test_what_cannot_be_put_into_a_variable_without_source_is_an_error_and_not_lost():
    held = {"nn": nn}
    exec("class Sourceless(nn.Module):\n    def forward(self, x):\n        h = x * 2\n        return h + 1\n", held)
    model, seen = held["Sourceless"](), []
    with byname.interject(model, "forward.h", lambda name, module, value: seen.append(name)):
        model(torch.ones(1))
    assert seen == ["forward.h"]
    with byname.interject(model, "forward.h", lambda name, module, value: -value):
        with pytest.raises(InterjectionError, match=r"`forward\.h`.* source .* cannot be read"):
            model(torch.ones(1))
    assert model(torch.ones(1)) == 3


def test_ctrl_c_in_a_forward_leaves_no_hook_on_a_leaf_that_changes_its_gradient_for_good():
    class Leaf(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            value = self.weight
            return (value * x).sum()

    for moment in range(30, 130, 4):
        model, calls = Leaf(), Calls(moment, by_signal)
        with byname.interject(model, "forward.value.grad", lambda name, module, gradient: gradient * 2):
            with suppress(KeyboardInterrupt):
                calls(partial(model, torch.ones(3)))
            model(torch.ones(3)).backward()
        assert torch.equal(model.weight.grad, torch.full((3,), 2.0)), calls.thrown
        assert not model.weight._backward_hooks, calls.thrown
