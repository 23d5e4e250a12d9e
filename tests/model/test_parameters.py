"""Parameters and buffers as places: `select.parameter`, `select.buffer`, and the tensors themselves."""

import pickle
import warnings

import numpy
import pytest
import torch
from architectures import NAMES, architecture
from processes import run_forked
from torch import nn
from torch.nn.utils import parametrizations, prune

import byname
from byname import select
from byname.errors import BadArgumentError, RecordingWarning, RewriteError

torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.fc = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x + self.fc(self.norm(x)).relu()


class Tied(nn.Module):
    """The weight of the head is that of the embedding, as in a language model."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


TOKENS = torch.tensor([[1, 2, 3], [4, 5, 6]])


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Tied()


def paths(model, where):
    return [*byname.points(model, where).paths]


def of_layers(*names):
    return [f"layers.{i}.{name}" for i in range(2) for name in names]


PARTS = ("norm.weight", "norm.bias", "fc.weight", "fc.bias")


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        (select.parameter, ["embed.weight", *of_layers(*PARTS)]),
        (select.buffer, of_layers("calls")),
        (select.parameter & select.path("layers.*"), of_layers(*PARTS)),
        (select.path("layers.*") & select.parameter, of_layers(*PARTS)),
        (select.parameter.path("**.bias"), of_layers("norm.bias", "fc.bias")),
        (select.parameter & select.norm, of_layers("norm.weight", "norm.bias")),
        (select.parameter & ~select.norm, ["embed.weight", *of_layers("fc.weight", "fc.bias")]),
        (select.parameter & (select.linear & select.path("layers.1.**")), ["layers.1.fc.weight", "layers.1.fc.bias"]),
        (select.parameter & ~select.parameter.path("layers.*"), ["embed.weight"]),
        (select.parameter & select.module(Block) & select.path("**.0.norm.*"), ["layers.0.norm.weight", "layers.0.norm.bias"]),
        (select.parameter ^ select.parameter.path("layers.*"), ["embed.weight"]),
        (select.parameter & select.where(lambda one: "bias" not in one.path and one.kind == "parameter"), ["embed.weight", *of_layers("norm.weight", "fc.weight")]),
        (select.parameter.path("head"), ["head.weight"]),
        (select.parameter.first, ["embed.weight"]),
        (select.parameter[-2:], ["layers.1.fc.weight", "layers.1.fc.bias"]),
        (select.parameter.path("layers.0.*").grad, [f"layers.0.{name}.grad" for name in PARTS]),
        (select.parameter.grad & select.norm, of_layers("norm.weight.grad", "norm.bias.grad")),
        (select.norm | select.parameter.path("head"), [*of_layers("norm"), "head.weight"]),
        (~select.parameter & select.linear, [*of_layers("fc"), "head"]),
    ],
)  # fmt: skip
def test_an_expression_means_states_by_their_paths_and_the_modules_around_them(model, selector, expected):
    assert paths(model, selector) == expected


def test_it_prints_as_it_is_written_compares_and_is_pickled():
    asked = select.parameter & ~select.norm | select.buffer
    assert str(asked) == "select.parameter & ~select.norm | select.buffer"
    assert str(select.parameter.path("a.*").grad) == "select.parameter.grad & select.path('a.*')"
    assert (select.parameter[1:] & ~select.norm).grad == select.parameter.grad[1:] & ~select.norm
    assert pickle.loads(pickle.dumps(asked)) == asked
    assert {"parameter", "buffer"} <= {*dir(select)}


@pytest.mark.parametrize(
    ("selector", "said"),
    [
        (select.parameter.path("layer.*"), "matches no parameter of this Tied; it has `embed.weight`"),
        (select.buffer.grad, "buffers have no gradient"),
        (select.relu.after(select.parameter), "not part of the data flow"),
        (select.parameter & select.linear.last, "depends on how the model runs"),
    ],
)
def test_what_means_nothing_says_why(model, selector, said):
    with pytest.raises(byname.BynameError, match=said):
        byname.record(model, selector)


def test_the_gradient_of_what_a_module_returns_is_asked_for_by_path():
    with pytest.raises(BadArgumentError, match=r"'layers\.\*\.grad'"):
        _ = (select.relu | select.parameter).grad


def test_tensors_of_the_model_stand_for_their_paths(model):
    embed, first = model.embed.weight, model.layers[0]
    assert paths(model, model.head.weight) == ["embed.weight"]
    assert {*paths(model, [first.fc.bias, "head", first.calls])} == {"layers.0.fc.bias", "head", "layers.0.calls"}
    assert paths(model, model.parameters()) == paths(model, select.parameter)
    with byname.record(model, {embed: {"reduce": "norm"}, first.fc.bias: {"every": 2}}) as recorder:
        for _ in range(2):
            model(TOKENS)
    assert torch.equal(recorder.results["embed.weight"].values[0], embed.detach().norm())
    assert recorder.results["layers.0.fc.bias"].iterations == [0]
    assert f"{recorder.results['embed.weight']}".count("tensor(") == 0  # nothing printed the tensor as its name


def test_a_tensor_of_another_model_is_named():
    words = run_forked(  # to find that a tensor has no name takes a look at the whole heap
        """
        import torch, byname
        from torch import nn
        model, other = nn.Linear(2, 2), nn.Linear(2, 2)
        model(torch.ones(2)).sum().backward()
        for record in (
            lambda: byname.record(model, other.parameters()),
            lambda: byname.record(model, [nn.Parameter(torch.ones(1))]),
            lambda: byname.record(model, model.weight.grad),
        ):
            try:
                record()
            except byname.BynameError as error:
                print(type(error).__name__, error)
        """
    )
    told = " ".join(words)
    assert told.count("NoMatchError") == 3
    assert "`other.weight` is not a parameter or buffer of this Linear" in told
    assert (
        "a tensor without a name is not a parameter or buffer" in told
        and "`model.weight.grad` is not a parameter or buffer" in told
    )


def test_a_tied_parameter_is_read_once_under_its_first_name_and_replaced_under_each(model):
    with byname.record(model, select.parameter) as recorder:
        model(TOKENS)
    assert "head.weight" not in recorder.results
    assert recorder.notes == (
        "`head.weight` is the same place as `embed.weight`, and is reported once, as `embed.weight`",
    )
    with byname.ablate(model, select.parameter.path("{embed,head}")):
        assert not model(TOKENS).any()
    with byname.interject(model, select.parameter.path("{embed,head}"), lambda name, module, value: value * 0):
        assert not model(TOKENS).any()


def test_the_untied_parameter_gets_its_name_back(model):
    with byname.record(model, select.parameter) as recorder:
        model(TOKENS)
        model.head.weight = nn.Parameter(torch.ones(7, 4))
        model(TOKENS)
    assert recorder.results["head.weight"].iterations == [1]


def test_verbs_that_read_take_parameters(model):
    with byname.capture(model, select.parameter.grad) as gradients:
        model(TOKENS).sum().backward()
    assert {*gradients} == {f"{name}.grad" for name, _ in model.named_parameters()}
    assert all(torch.equal(gradients[f"{name}.grad"], one.grad) for name, one in model.named_parameters())
    captured = byname.capture(model, [select.parameter, model.layers[0].calls])(TOKENS)
    assert all(torch.equal(captured[name], one) for name, one in model.named_parameters())
    analyser = byname.analyse.FeatureStatistics()
    with byname.observe(model, select.parameter & select.linear, analyser):
        model(TOKENS)
    assert [*analyser.result()] == of_layers("fc.weight", "fc.bias") + ["head.weight"]


def test_edits_of_parameters_last_one_forward_and_verbs_for_modules_refuse(model):
    plain, state = model(TOKENS), {name: one.clone() for name, one in model.named_parameters()}
    with byname.patch(model, select.parameter & select.linear & select.path("layers.*"), torch.zeros_like):
        assert torch.equal(model(TOKENS), model.head(model.embed(TOKENS)))
    assert torch.equal(model(TOKENS), plain)
    assert all(torch.equal(state[name], one) for name, one in model.named_parameters())
    for verb in (byname.skip, lambda model, where: byname.replace(model, where, lambda old: old)):
        with pytest.raises(
            BadArgumentError, match=r"`embed.weight` is not a module; byname.interject and byname.patch"
        ):
            verb(model, select.parameter)
    with pytest.raises(RewriteError, match=r"byname\.interject\(model, where, interjection\) reaches it"):
        byname.rewrite(model, model.embed.weight, lambda name, module, value: value)


def trained(model, steps, change=lambda step: None, where=select.parameter.grad, **options):
    x = torch.randn(2, 3)
    with byname.record(model, where, **options) as recorder:
        for step in range(steps):
            change(step)
            model(x).sum().backward()
    return recorder


def layers():
    return nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))


def test_what_is_registered_later_is_followed_by_its_name():
    model = layers()

    def change(step):
        if step == 1:
            model[0].weight = nn.Parameter(torch.ones(3, 3))
        elif step == 2:
            model[0].register_parameter("scale", nn.Parameter(torch.ones(1)))
            model.append(nn.Linear(3, 1, bias=False))

    found = trained(model, 3, change, [select.parameter, model[2].bias]).results
    assert found["0.weight"].iterations == [0, 1]
    assert found["0.scale"].iterations == found["3.weight"].iterations == [2]


def test_pruning_in_mid_run_ends_one_name_and_begins_another():
    model = layers()

    def change(step):
        if step == 1:
            prune.l1_unstructured(model[0], "weight", 2)

    with pytest.warns(RecordingWarning, match=r"`0.weight.grad`: nothing is recorded from train iteration 1 on"):
        found = trained(model, 3, change, [select.parameter.grad, model[0].weight]).results
    assert found["0.weight.grad"].iterations == [0]
    assert found["0.weight_orig.grad"].iterations == [1, 2]
    assert int((found["0.weight"].values[2] == 0).sum()) == 2


def test_parametrized_pruned_and_lazy_parameters():
    model = layers()
    parametrizations.weight_norm(model[0])
    prune.l1_unstructured(model[2], "weight", 2)
    assert {*trained(model, 1).results} == {f"{name}.grad" for name, _ in model.named_parameters()}
    assert [*trained(model, 1, where=model[2].weight).results] == ["2.weight"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lazy = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2))
    assert {*trained(lazy, 1).results} == {"0.weight.grad", "0.bias.grad", "1.weight.grad", "1.bias.grad"}


def test_frozen_and_unreached_parameters_are_in_the_notes():
    model = layers()
    model[0].bias.requires_grad_(False)
    model[1].register_parameter("spare", nn.Parameter(torch.ones(1)))
    recorder = trained(model, 1)
    assert "0.bias.grad" not in recorder.results
    assert recorder.notes == (
        "`0.bias.grad`: no gradient flows there, since the parameter does not require grad",
        "`1.spare.grad`: no backward reached the parameter",
    )


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cell, self.head = kind(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.cell(x)[0])


def own_models():
    picture, series = torch.randn(2, 3, 8, 8), torch.randn(2, 5, 3)
    yield nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)), (picture,)
    yield Recurrent(nn.LSTM), (series,)
    yield nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), nn.Linear(4, 2)), (torch.randn(2, 5, 4),)
    yield Tied(), (TOKENS,)


def norms_by_hand(model, run, steps):
    """The norm of each accumulated gradient, from hooks; as torch.linalg.vector_norm has it."""
    found = {}

    def note(name):
        return lambda one: found.setdefault(f"{name}.grad", []).append(torch.linalg.vector_norm(one.grad))

    hooks = [
        one.register_post_accumulate_grad_hook(note(name))
        for name, one in model.named_parameters()
        if one.requires_grad
    ]
    run(steps)
    for hook in hooks:
        hook.remove()
    return found


def accumulating(model, forward):
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.01)

    def run(steps):
        torch.manual_seed(1)
        numpy.random.seed(1)  # by which transformers masks sound
        for step in range(steps):
            forward().backward()
            if step % 2:
                optimizer.step()
                optimizer.zero_grad()

    return run


def check_norms(model, forward):
    for number, one in enumerate(model.parameters()):
        one.requires_grad_(number % 3 != 1)
    state = {name: one.clone() for name, one in model.state_dict().items()}
    run = accumulating(model, forward)
    expected = norms_by_hand(model, run, 4)
    model.load_state_dict(state)
    model.zero_grad()
    with byname.record(model, select.parameter.grad, reduce="norm", on_change=False) as recorder:
        run(4)
    assert {*recorder.results} == {*expected}
    for path, norms in expected.items():
        assert torch.equal(torch.stack([*recorder.results[path].values]), torch.stack(norms)), path


@pytest.mark.grid(fast=1)
@pytest.mark.parametrize("name", NAMES)
def test_the_norms_of_all_gradients_of_an_architecture_are_those_of_hooks_by_hand(name):
    torch.manual_seed(0)
    model, inputs = architecture(name)
    check_norms(model, lambda: model(**inputs)[0].float().square().sum())


@pytest.mark.parametrize("number", range(4))
def test_the_norms_of_all_gradients_are_those_of_hooks_by_hand(number):
    torch.manual_seed(0)
    model, inputs = [*own_models()][number]
    check_norms(model, lambda: model(*inputs).square().sum())
