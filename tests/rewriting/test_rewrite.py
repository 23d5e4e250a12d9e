"""Interjections become part of a second model, and nothing else changes."""

import copy
import gc
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from forwards import (
    GPT,
    Attention,
    BasicBlock,
    Buffers,
    Decides,
    Layer,
    Modes,
    Recurrent,
    ResNet,
    Root,
    Several,
    SharedTwice,
    Stores,
    UNet,
    examples,
    shaken,
)
from torch import nn

from byname import (
    ForwardInterjection,
    WrappedForwardBackwardInterjection,
    WrappedForwardInterjection,
    interject,
    points,
    rewrite,
    select,
)
from byname.errors import BadExampleError, InterjectionError, NoMatchError, NotAnInterjectionError, RewriteError

NAMES = sorted(set(examples()) - {"encoder"})
QUICK = {"decides", "gpt", "several", "shared_twice", "signs", "unet"}
CORPUS = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]


def keep(name, module, value):
    """Changes nothing."""


class Noting(WrappedForwardInterjection):
    """Picklable, and keeps what it is told."""

    def __init__(self):
        self.seen = []

    def process(self, name, module, inputs, outputs):
        self.seen.append(name)


class Doubling(ForwardInterjection):
    def process(self, name, module, inputs):
        return inputs * 2


def tensors_of(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    elif hasattr(value, "__dataclass_fields__"):
        value = list(vars(value).values())
    return [one for part in value for one in tensors_of(part)] if isinstance(value, list | tuple) else []


def facts_of(model, args, kwargs, training):
    """Outputs, gradients and buffers after one call with the same random numbers."""
    model.train(training)
    model.zero_grad()
    torch.manual_seed(3)
    outputs = tensors_of(model(*copy.deepcopy(args), **kwargs))
    total = sum(one.sum() for one in outputs if one.requires_grad)
    if isinstance(total, torch.Tensor):
        total.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [one.detach().clone() for one in (*outputs, *gradients, *model.buffers())]


def assert_same(some, others):
    assert len(some) == len(others)
    for one, other in zip(some, others, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def everything_of(model):
    """All that a rewrite could leave behind in the model."""
    return [
        (path, {name: id(value) for name, value in vars(module).items()}, [*module._modules], module.training)
        for path, module in model.named_modules(remove_duplicate=False)
    ]


def contents_of(model):
    return [
        {name: list(value) for name, value in vars(module).items() if isinstance(value, dict | list)}
        for module in model.modules()
    ]


@pytest.mark.parametrize("name", NAMES)
def test_with_every_place_watched_the_model_does_what_it_did(name):
    model, args, kwargs = examples()[name]
    plain = copy.deepcopy(shaken(model))
    seen = []
    new = rewrite(model, ["forward", select.all], lambda name, module, value: seen.append(name), example=(args, kwargs))
    for training in (True, False, True):
        assert_same(facts_of(new, args, kwargs, training), facts_of(plain, args, kwargs, training))
    assert "forward" in seen


@pytest.mark.parametrize("name", CORPUS)
def test_the_model_itself_is_left_as_it_was(name):
    model, args, kwargs = examples()[name]
    model.train()
    next(model.modules()).eval()
    before, inside, values = everything_of(model), contents_of(model), copy.deepcopy(model.state_dict())
    new = rewrite(model, select.all, keep, example=(args, kwargs))
    new.eval()
    new.requires_grad_(True)
    assert everything_of(model) == before
    assert contents_of(model) == inside
    assert_same(tensors_of(values), tensors_of(model.state_dict()))


@pytest.mark.parametrize("name", CORPUS)
def test_parameters_and_buffers_are_the_very_same_under_the_same_keys(name):
    model, args, kwargs = examples()[name]
    new = rewrite(model, "forward", keep, example=(args, kwargs))
    assert list(new.state_dict()) == list(model.state_dict())
    for named in ("named_parameters", "named_buffers"):
        ours = [(path, id(value)) for path, value in getattr(new, named)(remove_duplicate=False)]
        assert ours == [(path, id(value)) for path, value in getattr(model, named)(remove_duplicate=False)]
    assert [path for path, _ in new.named_modules()] == [path for path, _ in model.named_modules()]
    assert new.load_state_dict(copy.deepcopy(model.state_dict())) == ([], [])


@pytest.mark.parametrize("name", [name for name in CORPUS if "custom_gradient" not in str(name)])
def test_places_have_the_names_that_a_run_gives_them(name):
    model, args, kwargs = examples()[name]
    for training in (True, False):
        seen = []
        new = rewrite(
            model.train(training), select.all, lambda name, module, value: seen.append(name), example=(args, kwargs)
        )
        new(*copy.deepcopy(args), **kwargs)
        called = []
        points(model, select.where(lambda call: called.append(call.path) or True), example=(args, kwargs))
        assert sorted(one for one in seen if one != "forward") == sorted(one for one in called if one)


def test_it_is_told_what_interject_is_told():
    model, x = Layer(), torch.randn(2, 3, 8)
    told = {"interject": [], "rewrite": []}

    class Subscription(WrappedForwardInterjection):
        def __init__(self, seen):
            self.seen = seen

        def process(self, name, module, inputs, outputs):
            self.seen.append((name, type(module).__name__, len(inputs), outputs.sum().item()))

    model.eval()
    where = ["attn", "attn.softmax", "attn.dropout", "mlp", "add_1", "norm1", "attn.matmul_1", "attn.view_2"]
    with interject(model, where, Subscription(told["interject"])):
        model(x)
    rewrite(model, where, Subscription(told["rewrite"]))(x)
    assert told["rewrite"] == told["interject"]
    assert len(told["rewrite"]) == 8


# what is returned takes the value's place


def test_an_edit_changes_the_output_as_computed_by_hand():
    model, x = Root(), torch.randn(2, 4)
    new = rewrite(model, "relu", lambda name, module, value: value * 2)
    h = 2 * F.relu(F.linear(x, model.weight, model.bias))
    torch.testing.assert_close(new(x), F.softmax(h * 4, -1) + h @ model.weight)


def test_an_edit_of_a_module_that_returns_several_values():
    class Two(nn.Module):
        def forward(self, x):
            return x, {"twice": x * 2}

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.two = Two()

        def forward(self, x):
            same, more = self.two(x)
            return x, same + more["twice"]

    def change(name, module, value):
        return value[0] + 10, {"twice": value[1]["twice"] * 0}

    x = torch.ones(2)
    left, right = rewrite(Model(), "two", change)(x)
    assert left is x
    assert right.tolist() == [11, 11]


def test_what_a_module_passes_through_is_replaced_only_for_its_caller():
    class Skip(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential()

        def forward(self, x):
            return x - self.inner(x)

    x = torch.ones(2)
    assert rewrite(Skip(), "inner", lambda name, module, value: value * 3)(x).tolist() == [-2, -2]


def test_wrapped_interjections_get_inputs_and_outputs():
    class Keyword(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, a, b):
            return torch.add(a, other=b, alpha=2) @ self.fc(input=a)

    seen = {}

    class Wrapped(WrappedForwardInterjection):
        def process(self, name, module, inputs, outputs):
            seen[name] = (module, inputs, outputs)

    model, a, b = Keyword(), torch.randn(4, 4), torch.randn(4, 4)
    new = rewrite(model, ["add", "fc", "matmul", "forward"], Wrapped())
    out = new(a, b)
    assert seen["add"][0] is None
    assert seen["add"][1][0] is a and seen["add"][1][1] is b and seen["add"][1][2] == 2
    assert seen["fc"][0] is new.fc and seen["fc"][1][0] is a
    assert seen["matmul"][1] == (seen["add"][2], seen["fc"][2])
    assert seen["forward"][1][1] is b and seen["forward"][2] is out


def test_the_second_interjection_at_a_place_gets_what_the_first_made():
    model, x = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.randn(3, 2)
    once = rewrite(model, "0", lambda name, module, value: value + 1)
    twice = rewrite(once, "0", lambda name, module, value: value * 2)
    assert_same([once(x), twice(x)], [F.relu(model[0](x) + 1), F.relu((model[0](x) + 1) * 2)])


@pytest.mark.parametrize("name", CORPUS)
def test_a_rewritten_model_can_be_rewritten(name):
    model, args, kwargs = examples()[name]
    shaken(model)
    first, second = Noting(), Noting()
    once = rewrite(model, select.all, first, example=(args, kwargs))
    twice = rewrite(once, [select.all, "forward"], second, example=(args, kwargs))
    plain = copy.deepcopy(model)
    assert_same(facts_of(twice, args, kwargs, True), facts_of(plain, args, kwargs, True))
    assert first.seen == second.seen
    seen = len(second.seen)
    once(*args, **kwargs)
    assert len(second.seen) == seen


def test_one_interjection_is_shared_not_copied():
    noting = Noting()
    model = ResNet()
    new = rewrite(model, select.conv, noting)
    new(torch.randn(1, 3, 8, 8))
    assert len(noting.seen) == len([one for one in model.modules() if isinstance(one, nn.Conv2d)])


def test_an_interjection_of_another_shape_is_refused_and_named():
    new = rewrite(nn.Sequential(nn.Linear(2, 3)), "0", lambda name, module, value: value.sum())
    with pytest.raises(InterjectionError, match=r"`0`.*shape \(1, 3\).*shape \(\)"):
        new(torch.ones(1, 2))
    new = rewrite(NestedPair(), "pair", lambda name, module, value: value[0])
    with pytest.raises(InterjectionError, match="`pair`"):
        new(torch.ones(2))


class Pairs(nn.Module):
    def forward(self, x):
        return x + 1, x + 2


class NestedPair(nn.Module):
    def __init__(self):
        super().__init__()
        self.pair = Pairs()

    def forward(self, x):
        a, b = self.pair(x)
        return a * b


def test_an_error_in_an_interjection_comes_out_with_the_place():
    new = rewrite(ResNet(), "layers.layer1.0.conv1", lambda name, module, value: 1 / 0)
    with pytest.raises(ZeroDivisionError) as error:
        new(torch.randn(1, 3, 8, 8))
    assert any("layers.layer1.0.conv1" in note for note in error.value.__notes__)


def test_an_error_in_the_model_is_the_models_own_and_nothing_is_printed(capfd):
    new = rewrite(Root(), "relu", keep)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        new(torch.randn(2, 7))
    assert capfd.readouterr() == ("", "")


# gradients


class Scaling(WrappedForwardBackwardInterjection):
    def __init__(self):
        self.seen = []

    def process_backward(self, name, module, grad_input, grad_output):
        self.seen.append((name, [one.clone() for one in grad_output if one is not None]))
        return tuple(None if one is None else one * 10 for one in grad_input)


@pytest.mark.parametrize("where", ["attn.softmax", "mlp.0", "attn", "mlp", "attn.matmul", "add"])
def test_gradients_of_any_call_are_told_and_changed_as_by_interject(where):
    model, x = Layer().eval(), torch.randn(2, 3, 8)
    results = []
    for put_in in (interject, rewrite):
        model.zero_grad()
        scaling = Scaling()
        found = put_in(model, where, scaling)
        (found if put_in is rewrite else model)(x).pow(2).sum().backward()
        results.append([*(grad for _, grads in scaling.seen for grad in grads), *(p.grad for p in model.parameters())])
        assert [name for name, _ in scaling.seen] == [where]
        if put_in is interject:
            found.remove()
    assert_same(*results)


def test_gradients_of_calls_that_work_in_place():
    model, x = BasicBlock(3, 3, 1), torch.randn(2, 3, 4, 4)
    scaling = Scaling()
    new = rewrite(model, ["bn2", "add_", "relu"], scaling)
    new(x).sum().backward()
    assert [name for name, _ in scaling.seen] == ["relu", "add_", "bn2", "relu"]


def test_forwards_with_leaves_of_their_own_are_all_followed():
    """One backward follows several forwards."""
    scaling = Scaling()
    new = rewrite(nn.Sequential(nn.Identity()), "0", scaling)
    first, second = (torch.ones(2, requires_grad=True) for _ in range(2))
    (new(first) * 2 + new(second) * 3).sum().backward()
    assert [name for name, _ in scaling.seen] == ["0", "0"]
    assert [first.grad.tolist(), second.grad.tolist()] == [[20.0] * 2, [30.0] * 2]


def test_nothing_keeps_the_graph_alive(no_collection):
    import weakref

    new = rewrite(Layer(), ["attn.softmax", "mlp"], Scaling())
    out = new(torch.randn(1, 3, 8))
    node = weakref.ref(out)
    out.sum().backward()
    del out
    assert node() is None


def test_a_forward_that_fails_keeps_nothing_alive(no_collection):
    import weakref

    class Fails(nn.Module):
        def forward(self, x):
            raise ValueError

    new = rewrite(nn.Sequential(nn.Linear(2, 2), Fails()), ["1", "forward"], Scaling())
    inner = []
    new[0].register_forward_hook(lambda module, args, output: inner.append(weakref.ref(output)))
    for _ in range(2):
        try:
            new(torch.ones(1, 2))
        except ValueError:
            pass
    gc.collect()
    assert [one() for one in inner] == [None, None]


# training, evaluation, and other ways to call it


def test_functional_dropout_follows_the_training_flag_of_its_module():
    model = nn.Sequential(Attention(), Attention())
    new = rewrite(model, "1.dropout", keep)
    x = torch.randn(2, 3, 8)
    new.eval()
    assert torch.equal(new(x), new(x))
    new.get_submodule("0").train()
    assert not torch.equal(new(x), new(x))
    assert model.training


def test_a_wrapped_functional_dropout_drops():
    class Drop(nn.Module):
        def forward(self, x):
            return F.dropout(x, 0.5, training=self.training)

    class Wrapped(WrappedForwardInterjection):
        def process(self, name, module, inputs, outputs):
            return outputs

    new, x = rewrite(Drop(), "dropout", Wrapped()), torch.ones(1000)
    assert 0.3 < (new(x) == 0).float().mean() < 0.7
    assert torch.equal(new.eval()(x), x)


def test_a_decision_on_the_training_flag_is_made_in_each_call():
    model = shaken(Decides())
    new = rewrite(model, "parts.1.mul", Doubling())
    plain, x = copy.deepcopy(model), torch.randn(4, 4)
    plain.parts[1].eval()
    new.train().get_submodule("parts.1").eval()
    for one in (plain, new):
        torch.manual_seed(0)
        one.result = one(x)
    assert new.result.shape == plain.result.shape
    assert not torch.equal(new.result, plain.result)


def test_optional_arguments_are_optional_still():
    model, a, b = Several().eval(), torch.randn(4, 4), torch.randn(4, 4)
    new = rewrite(model, "mul", keep).eval()
    mask = torch.rand(4, 4) > 0.5
    for kwargs in ({}, {"mask": mask}, {"scale": 0.5}, {"extra": True, "mask": mask}, {"scale": torch.tensor(3.0)}):
        assert_same(tensors_of(new(a, b, **kwargs)), tensors_of(model(a, b, **kwargs)))
        assert new(a=a, b=b, **kwargs)["scale"] == kwargs.get("scale", 2.0)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'b'"):
        new(a)


def test_any_number_of_arguments():
    class Many(nn.Module):
        def forward(self, *xs, **named):
            total = sum(xs)
            for one in named.values():
                total = total * one
            return total

    new = rewrite(Many(), "mul", Doubling(), example=((torch.ones(1), torch.ones(1)), {"a": torch.ones(1)}))
    x = torch.tensor([3.0])
    assert new(x).item() == 3
    assert new(x, x, x, a=x).item() == 54
    assert new(x, a=x, b=x).item() == 27 * 2


def test_an_example_chooses_the_way_to_call_in_which_places_are_looked_for():
    model, x = Several(), torch.randn(4, 4)
    with pytest.raises(NoMatchError, match="`masked_fill` matches nothing that ran with example="):
        rewrite(model, "masked_fill", keep, example=(x, x))
    for example in (((x, x), {"mask": x > 0}), None):
        new = rewrite(model, "masked_fill", Doubling(), example=example)
        assert not torch.equal(new(x, x, mask=x < 0)["parts"][0], model(x, x, mask=x < 0)["parts"][0])
    with pytest.raises(TypeError, match="takes 3 positional arguments but 4 were given") as error:
        rewrite(model, "add", keep, example=(x, x, x))
    assert error.value.__notes__ == ["byname: raised while the model ran the given example="]
    with pytest.raises(BadExampleError):
        rewrite(model, "add", keep, example=3)


# in place, buffers, modes


def test_statements_in_place_are_kept():
    model, x = shaken(UNet()), torch.randn(1, 1, 8, 8)
    new = rewrite(model, ["relu_", "add_", "relu__1"], keep)
    assert_same([new(x)], [model(x)])
    new = rewrite(model, ["relu_", "add_", "relu__1"], Doubling())
    with interject(model, ["relu_", "add_", "relu__1"], Doubling()):
        assert_same([new(x)], [model(x)])


@pytest.mark.parametrize("where", ["act", "act.relu*", "1", "1.relu*"])
def test_modules_that_work_in_place_and_whose_result_nobody_reads(where):
    class Dropped(nn.Sequential):
        def __init__(self):
            super().__init__(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))
            self.act = nn.ReLU(inplace=True)

        def forward(self, x):
            h = self[1](self[0](x))
            h = self[2](h.square())
            self.act(h)
            return h

    model, x = shaken(Dropped()), torch.randn(3, 4)
    new, plain = rewrite(model, where, Doubling()), copy.deepcopy(model)
    with interject(plain, where, Doubling()):
        assert_same(facts_of(new, (x,), {}, True), facts_of(plain, (x,), {}, True))
    with torch.no_grad():
        assert not torch.equal(new(x), model(x))


def test_buffers_are_not_touched_by_rewriting_and_change_with_every_call():
    model = Buffers()
    scale = model.scale
    new = rewrite(model, "div", keep)
    assert model.count.item() == 0 and scale[0].item() == 3
    for call in range(3):
        new(torch.randn(2, 4))
        assert model.count.item() == new.count.item() == call + 1
        assert scale[0].item() == 4 + call
    assert new.count is model.count and new.scale is scale


def test_the_gradient_mode_is_the_callers_and_comes_back_after_an_exception():
    new, x = rewrite(Modes(), "frozen", keep), torch.randn(2, 4)
    assert new.frozen.weight.grad is None
    new(x).sum().backward()
    assert new.frozen.weight.grad is None and new.head.weight.grad is not None
    with torch.no_grad():
        new(x)
        assert not torch.is_grad_enabled()
    failing = rewrite(Modes(), "frozen", lambda name, module, value: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        failing(x)
    assert torch.is_grad_enabled()


def test_stored_attributes_are_those_of_the_last_call():
    model = Stores()
    new = rewrite(model, "fc", Doubling())
    x = torch.randn(2, 4)
    new(x)
    assert torch.equal(new.last, model.fc(x) * 2)
    assert model.last is None


def test_tied_weights_stay_tied_and_train_with_the_model():
    model = GPT()
    new = rewrite(model, "layers.*.attn.softmax", keep)
    assert new.head.weight is new.wte.weight is model.head.weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens = torch.randint(11, (2, 6))
    before = new.eval()(tokens)
    new(tokens).logsumexp(-1).sum().backward()
    optimizer.step()
    assert not torch.equal(new(tokens), before)
    assert torch.equal(new(tokens), model.eval()(tokens))


def test_modules_stay_of_their_classes_with_their_own_flags():
    model = ResNet()
    new = rewrite(model, "fc", keep)
    assert type(new.get_submodule("layers.layer1.0")) is BasicBlock
    assert new.get_submodule("stem.1") is not model.stem[1]
    new.eval()
    assert model.training and model.stem[1].training
    assert model.stem[2].inplace and new.get_submodule("stem.2").inplace
    assert new.training is False and rewrite(model.eval(), "fc", keep).training is False


# where


@pytest.mark.parametrize(
    ("where", "paths"),
    [
        ("layers.layer1.0.conv1", ["layers.layer1.0.conv1"]),
        ("layers.layer1.0", ["layers.layer1.0"]),
        ("layers.layer?.1.bn2", ["layers.layer1.1.bn2", "layers.layer2.1.bn2"]),
        ("layers.layer2.*.add_", ["layers.layer2.0.add_", "layers.layer2.1.add_"]),
        ("stem", ["stem"]),
        (nn.Linear, ["fc"]),
        (select.conv[-1], ["layers.layer2.1.conv2"]),
        (select.pool, ["adaptive_avg_pool2d"]),
        (select.linear | select.op("flatten"), ["flatten", "fc"]),
        (select.relu.after(select.op("add_"), within=1)[0], ["layers.layer1.0.relu"]),
        (["fc", "flatten"], ["flatten", "fc"]),
        ("forward", ["forward"]),
        (BasicBlock, ["layers.layer1.0", "layers.layer1.1", "layers.layer2.0", "layers.layer2.1"]),
    ],
)
def test_every_kind_of_where(where, paths):
    noting = Noting()
    rewrite(ResNet(), where, noting)(torch.randn(2, 3, 8, 8))
    assert list(dict.fromkeys(noting.seen)) == paths


def test_a_module_of_the_model_may_be_given():
    model, noting = SharedTwice(), Noting()
    rewrite(model, model.again, noting)(torch.randn(2, 4))
    assert noting.seen == ["cell.0"] * 4


def test_a_shared_module_fires_at_every_call():
    noting = Noting()
    rewrite(SharedTwice(), ["cell", "again", "add_2"], noting)(torch.randn(2, 4))
    assert noting.seen.count("cell") == 3 and noting.seen.count("add_2") == 1
    assert len(noting.seen) == 8


def test_a_class_of_modules_and_what_is_inside_of_one():
    noting = Noting()
    rewrite(ResNet(), [BasicBlock, "layers.layer2.0.conv1"], noting)(torch.randn(1, 3, 8, 8))
    blocks = [f"layers.layer{layer}.{number}" for layer in (1, 2) for number in (0, 1)]
    assert noting.seen == [*blocks[:2], "layers.layer2.0.conv1", *blocks[2:]]


@pytest.mark.parametrize("leaf", [Attention, [Attention], "0", "nowhere", ()])
def test_leaf_modules_have_no_effect_any_more(leaf):
    model, noting = nn.Sequential(Attention(), nn.ReLU()).eval(), Noting()
    with pytest.warns(DeprecationWarning, match="leaf_modules=.*no longer has an effect"):
        new = rewrite(model, "0.softmax", noting, leaf_modules=leaf)
    x = torch.randn(2, 3, 8)
    assert torch.equal(new(x), model(x))
    assert noting.seen == ["0.softmax"]


def test_operations_inside_of_the_layers_of_pytorch_are_reached():
    model, x = ResNet(), torch.randn(2, 3, 8, 8)
    new = rewrite(model, ["fc.linear", "stem.0.conv2d"], Doubling())
    with interject(model, ["fc.linear", "stem.0.conv2d"], Doubling()):
        assert torch.equal(new.eval()(x), model.eval()(x))


def test_what_matches_nothing_names_the_closest():
    x, image = torch.randn(2, 3, 8), torch.randn(2, 3, 8, 8)
    with pytest.raises(NoMatchError, match=r"layers\.layer1\.0\.conv1"):
        rewrite(ResNet(), "layers.layer1.0.conv3", keep)
    with pytest.raises(NoMatchError, match=r"`attn\.softmax_1` .* with example=; close to it: `attn\.softmax`"):
        rewrite(Layer(), "attn.softmax_1", keep, example=x)
    with pytest.raises(NoMatchError, match="select.embedding"):
        rewrite(ResNet(), ["fc", select.embedding], keep, example=image)
    with pytest.raises(NoMatchError, match="`attn` matches nothing that ran with example="):
        rewrite(Passing(), "attn", keep, example=x)


class Passing(Layer):
    """A layer that does not call what it has."""

    def forward(self, x):
        return x.relu()


def test_what_matches_nothing_is_told_in_the_first_call_without_an_example():
    x, image = torch.randn(2, 3, 8), torch.randn(2, 3, 8, 8)
    new = rewrite(Layer().eval(), "attn.softmax_1", keep)
    with pytest.raises(NoMatchError, match=r"`attn\.softmax_1` .* in the first call; close to it: `attn\.softmax`"):
        new(x)
    assert new(x).shape == x.shape
    new = rewrite(ResNet(), ["fc", select.embedding], keep)
    for _ in range(2):
        with pytest.raises(NoMatchError, match="select.embedding"):
            new(image)
    new = rewrite(Layer().eval(), ["attn.softmax", "attn.softmax_1"], keep)
    assert new(x).shape == x.shape


def test_operations_of_a_module_that_does_not_run_are_awaited():
    class Optional(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = Attention()

        def forward(self, x, mixed=False):
            return self.attn(x) if mixed else x

    noting = Noting()
    new, x = rewrite(Optional(), "attn.softmax", noting), torch.randn(2, 3, 8)
    new(x)
    assert noting.seen == []
    new(x, mixed=True)
    assert noting.seen == ["attn.softmax"]


@pytest.mark.parametrize("where", [select.softmax, select.softmax | select.linear[0], select.op("softmax").last])
def test_a_selector_takes_the_first_call_as_its_example(where):
    model, x, seen = Layer().eval(), torch.randn(2, 3, 8), []
    new = rewrite(model, where, lambda name, module, value: seen.append(name) or value * 2)
    state = torch.get_rng_state()
    first = new(x)
    assert torch.equal(torch.get_rng_state(), state)
    told = list(seen)
    second = new(x)
    assert "attn.softmax" in told and seen == [*told, *told]
    known = rewrite(model, where, lambda name, module, value: value * 2, example=x)
    assert torch.equal(first, second) and torch.equal(first, known(x)) and not torch.equal(first, model(x))


def test_a_place_that_is_meant_twice_is_told_once():
    noting = Noting()
    where = [
        "attn.softmax",
        "attn.soft*",
        "attn.{softmax,dropout}",
        select.softmax,
        select.op("softmax"),
        "attn",
        "attn",
    ]
    for example in (torch.randn(1, 3, 8), None):
        noting.seen.clear()
        rewrite(Layer(), where, noting, example=example)(torch.randn(1, 3, 8))
        assert noting.seen == ["attn.softmax", "attn.dropout", "attn"]


@pytest.mark.parametrize(
    ("where", "what"),
    [
        ("fc.weight", "a parameter"),
        ("fc.grad", "the gradient of a value"),
        ("layers.layer1.0.forward.identity", "a variable"),
        ("forward.x", "a variable"),
    ],
)
def test_what_only_interject_reaches_is_said_to_be_so(where, what):
    with pytest.raises(RewriteError, match=f"{what}.*byname.interject"):
        rewrite(ResNet(), where, keep)


class Encoding(nn.Module):
    def encode(self, x):
        return x.relu()

    def forward(self, x):
        return self.encode(x)


def test_what_a_method_returns_is_not_called_a_variable():
    with pytest.raises(RewriteError, match="`encode` is what encode returns; rewrite reaches .* PyTorch's functions"):
        rewrite(Encoding(), "encode", keep)


@pytest.mark.parametrize("interjection", [None, 3, "relu", Doubling])
def test_what_is_no_interjection_is_refused(interjection):
    with pytest.raises(NotAnInterjectionError):
        rewrite(ResNet(), "fc", interjection)


# what is made can be used as any model


def test_it_is_of_the_same_class_and_prints_its_interjections():
    model = Layer()
    new = rewrite(rewrite(model, ["attn.softmax", "mlp.1"], Doubling()), "forward", keep)
    assert type(new) is Layer
    shown = str(new).splitlines()
    assert shown[1] == "  interjected={forward: keep}"
    assert "    interjected={attn.softmax: Doubling}" in shown
    assert "    (1): GELU(approximate='none', interjected={mlp.1: Doubling})" in shown
    assert [line for line in shown if "interjected=" not in line] == [
        line for line in str(model).splitlines() if "GELU" not in line
    ]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda new: pickle.loads(pickle.dumps(new)), "save"])
@pytest.mark.parametrize(
    "name",
    [
        *("gpt", "decides", "several", "buffers"),
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("resnet", "modes", "recurrent", "unet")),
    ],
)
def test_it_can_be_copied_pickled_and_saved(name, copied, monkeypatch):
    model, args, kwargs = examples()[name]
    noting, told = Noting(), []
    new = rewrite(shaken(model), [select.all, "forward"], noting, example=(args, kwargs))
    if copied == "save":
        file = io.BytesIO()
        torch.save(new, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    else:
        other = copied(new)
    assert_same(facts_of(other, args, kwargs, True), facts_of(new, args, kwargs, True))
    assert_same(facts_of(other, args, kwargs, False), facts_of(new, args, kwargs, False))
    assert not {id(one) for one in other.parameters()} & {id(one) for one in model.parameters()}
    monkeypatch.setattr(Noting, "process", lambda self, *given: told.append(self))
    other(*args, **kwargs)
    assert len(told) > 1 and all(one is told[0] is not noting for one in told)
    assert told[0].seen
    assert rewrite(other, "forward", keep, example=(args, kwargs)) is not None


@pytest.mark.grid(fast=1)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(
    "name", ["several", *(pytest.param(one, marks=pytest.mark.slow) for one in ("resnet", "gpt", "unet"))]
)
def test_it_can_be_compiled(name, backend):
    import torch._dynamo

    torch._dynamo.reset()
    model, args, kwargs = examples()[name]
    new = rewrite(
        shaken(model).eval(),
        select.all[1:6],
        lambda name, module, value: value * 2 if value.is_floating_point() else None,
        example=(args, kwargs),
    )
    compiled = torch.compile(new, backend=backend)
    with torch.no_grad():
        for _ in range(2):
            for one, other in zip(tensors_of(compiled(*args, **kwargs)), tensors_of(new(*args, **kwargs)), strict=True):
                torch.testing.assert_close(one, other)
    torch._dynamo.reset()


def test_it_can_be_retraced_and_moved_by_others():
    new, x = rewrite(Root(), "relu", Doubling()), torch.randn(2, 4)
    outer = nn.Sequential(new, nn.ReLU())
    again = rewrite(outer, "1", keep)
    assert torch.equal(again(x), outer(x))
    assert new.double()(x.double()).dtype is torch.float64


def test_hooks_of_the_model_run_when_it_runs_and_not_while_it_is_traced():
    model, seen = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Tanh()), []
    model[0].register_forward_hook(lambda module, args, output: seen.append("inner"))
    model.register_forward_pre_hook(lambda module, args: seen.append("outer"))
    new = rewrite(model, "1", keep)
    assert seen == []
    new(torch.ones(1, 2))
    assert seen == ["outer", "inner"]


def test_what_was_attached_to_the_model_does_not_come_along():
    model, seen = ResNet(), []
    with interject(model, "fc", lambda name, module, value: seen.append(name)):
        new = rewrite(model, "fc", keep)
        new(torch.randn(2, 3, 8, 8))
        assert seen == []
        model(torch.randn(2, 3, 8, 8))
        assert seen == ["fc"]


def test_pytorch_is_as_before_after_a_rewrite_and_after_one_that_failed():
    def state():
        patched = ("__call__", "__getattr__", "__setattr__", "__getattribute__")
        held = [vars(nn.Module).get(name) for name in patched]
        return [*held, torch._C._len_torch_function_stack(), torch.is_grad_enabled()]

    before, x = state(), torch.randn(1, 3, 8)
    rewrite(Layer(), ["attn.softmax", "mlp"], keep)(x)
    assert state() == before
    for fails in (Failing(), Failing(KeyboardInterrupt)):
        new = rewrite(Layer(), ["attn.softmax", "mlp"], fails)
        for _ in range(2):
            with pytest.raises(fails.error):
                new(x)
            assert state() == before
    noting = Noting()
    rewrite(new, "mlp", noting)
    rewrite(Layer(), ["attn.softmax", "mlp"], noting)(x)
    assert noting.seen == ["attn.softmax", "mlp"]


class Failing(ForwardInterjection):
    def __init__(self, error=ZeroDivisionError):
        self.error = error

    def process(self, name, module, inputs):
        raise self.error


def test_nothing_of_a_model_stays_alive(no_collection):
    import weakref

    model = Recurrent()
    new = rewrite(model, "head", keep)
    new(torch.randn(2, 3, 4))
    refs = [weakref.ref(model), weakref.ref(new)]
    del model, new
    gc.collect()
    assert [one() for one in refs] == [None, None]


def test_wrappers_of_the_model_are_seen_through():
    model = ResNet()
    new = rewrite(nn.DataParallel(model), "fc", Doubling())
    assert list(new.state_dict()) == list(model.state_dict())


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(4, 4)) for _ in range(3))
        self.named = nn.ParameterDict({"bias": torch.randn(4)})
        self.register_parameter("nothing", None)

    def forward(self, x):
        for weight in self.weights:
            x = x @ weight
        return x + self.named["bias"] * len(self.weights) if self.nothing is None else x


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        self.conv = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))

    def forward(self, x):
        return self.conv(self.fc(x).relu())


def unwrappable(x):
    return x * 2 if x.sum() > 0 else x


torch.fx.wrap("unwrappable")


class WrapsFunctions(nn.Module):
    def forward(self, x):
        return unwrappable(x).relu()


class Unregistered(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = [nn.Linear(4, 4)]

    def forward(self, x):
        return self.hidden[0](x).relu()


@pytest.mark.parametrize("kind", [Listed, Normed, WrapsFunctions, Unregistered])
def test_less_common_ways_to_write_a_model(kind):
    model, x = kind(), torch.randn(3, 4)
    where = "add" if kind is Listed else "relu"
    seen = []
    new = rewrite(model, where, lambda name, module, value: seen.append(name))
    plain = copy.deepcopy(model)
    for training in (True, False):
        assert_same(facts_of(new, (x,), {}, training), facts_of(plain, (x,), {}, training))
    assert seen == [where] * 2


def test_other_threads_run_their_models_meanwhile():
    import threading

    model, x = GPT().eval(), torch.randint(11, (1, 6))
    wanted, wrong, stop = model(x), [], threading.Event()

    def run():
        while not stop.is_set():
            if not torch.equal(model(x), wanted):
                wrong.append(1)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for one in threads:
        one.start()
    news = [rewrite(model, "layers.0.attn.softmax", keep) for _ in range(5)]
    stop.set()
    for one in threads:
        one.join()
    assert not wrong
    assert torch.equal(news[-1](x), wanted)


def test_it_runs_in_several_threads():
    import threading

    model = shaken(Decides()).eval()
    new, x, found = rewrite(model, "parts.0.mul", Doubling()), torch.randn(4, 4), []
    threads = [threading.Thread(target=lambda: found.append(new(x))) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(found) == 4 and all(torch.equal(one, new(x)) for one in found)


def test_a_forward_put_in_place_of_the_classs_is_the_one_that_is_traced():
    from functools import partial
    from types import MethodType

    def forward(self, x):
        return self.fc(x).tanh()

    model, x = Stores(), torch.randn(2, 4)
    for replaced in (MethodType(forward, model), partial(forward, model)):
        model.forward = replaced
        new = rewrite(model, "tanh", Doubling())
        assert torch.equal(new(x), model(x) * 2)
        assert new.eval().fc.training is False and model.fc.training
    inner = model.forward
    model.forward = lambda x: model.fc(x) if True else inner(x)
    with pytest.raises(RewriteError, match="closure"):
        rewrite(model, "fc", keep)


class ExtraState(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.epoch = nn.Linear(4, 4), 3

    def get_extra_state(self):
        return self.epoch

    def set_extra_state(self, state):
        self.epoch = state

    def forward(self, x):
        return self.fc(x)


def test_state_of_the_models_own_is_saved_and_loaded():
    model = ExtraState()
    new = rewrite(model, "fc", keep)
    state = new.state_dict()
    assert list(state) == list(model.state_dict()) and state["_extra_state"] == 3
    assert new.load_state_dict({**state, "fc.bias": torch.ones(4)}) == ([], [])
    assert model.fc.bias.tolist() == [1] * 4
    outer = nn.Sequential(new)
    assert list(outer.state_dict()) == [f"0.{key}" for key in state]
    outer.load_state_dict({key: value * 2 for key, value in outer.state_dict().items()})
    assert model.fc.bias.tolist() == [2] * 4


def test_none_for_an_argument_that_is_needed():
    class Masked(nn.Module):
        def forward(self, x, mask):
            return x * 3 if mask is None else x * mask

    new, x = rewrite(Masked(), "mul", Doubling()), torch.ones(2)
    assert new(x, torch.tensor(2.0)).tolist() == [4, 4]
    assert new(x, None).tolist() == [6, 6]
    assert new(x, mask=torch.tensor(5.0)).tolist() == [10, 10]


def test_an_argument_may_have_ever_new_values():
    class Shifts(nn.Module):
        def forward(self, x, by=0):
            return x + by

    new, x = rewrite(Shifts(), "add", keep), torch.zeros(1)
    for by in range(100):
        assert new(x, by=by).item() == by


def test_a_property_sets_what_it_is_made_of():
    class Computed(nn.Module):
        @property
        def state(self):
            return self.kept + 1

        @state.setter
        def state(self, value):
            self.kept = value * 2

        def forward(self, x):
            self.state = x
            return self.state.relu()

    x = torch.ones(2)
    assert rewrite(Computed(), "relu", keep)(x).tolist() == [3, 3]
