"""Modules are swapped in place, and put back."""

import gc
import itertools
import weakref

import pytest
import torch
from torch import nn

from byname import interject, replace, select
from byname.errors import BadArgumentError, NoMatchError, NothingSeenWarning


class Block(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.fc1 = nn.Linear(width, width)
        self.act = nn.ReLU()
        self.fc2 = nn.Linear(width, width)

    def forward(self, x):
        return x + self.fc2(self.act(self.fc1(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.heads = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(4, 2)})
        self.body = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        self.shared = self.body[2]

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        x = self.shared(self.body(x))
        return self.heads["a"](x) + self.heads["b"](x)


def state_of(model):
    """Everything that a replacement could leave behind."""
    return [
        (
            path,
            id(module),
            module.training,
            [(name, id(child)) for name, child in module._modules.items()],
            list(module.__dict__),
        )
        for path, module in model.named_modules(remove_duplicate=False)
    ] + [id(parameter) for parameter in model.parameters()]


class Scaled(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.scale * self.inner(x)


def test_a_path_is_replaced_and_the_output_is_that_of_the_new_module():
    model, x = Model(), torch.randn(3, 4)
    before = state_of(model)
    with replace(model, "blocks.1.act", lambda old: nn.Sigmoid()) as handle:
        assert handle.paths == ("blocks.1.act",)
        assert isinstance(model.blocks[1].act, nn.Sigmoid)
        assert isinstance(model.blocks[0].act, nn.ReLU)
        changed = model(x)
    assert state_of(model) == before
    assert not torch.equal(changed, model(x))


@pytest.mark.parametrize(
    ("where", "paths"),
    [
        ("blocks.*.act", ("blocks.0.act", "blocks.1.act")),
        (nn.ReLU, ("blocks.0.act", "blocks.1.act")),
        (["heads.a", nn.Tanh], ("heads.a", "body.1")),
        ("heads.b", ("heads.b",)),
        ("body.0", ("body.0",)),
        (Block, ("blocks.0", "blocks.1")),
    ],
)
def test_every_kind_of_where(where, paths):
    model = Model()
    before = state_of(model)
    handle = replace(model, where, lambda old: Scaled(old))
    assert handle.paths == paths
    assert all(isinstance(model.get_submodule(path), Scaled) for path in paths)
    handle.remove()
    handle.remove()
    assert state_of(model) == before


def test_a_module_instance_is_replaced():
    model = Model()
    with replace(model, model.heads["a"], lambda old: nn.Linear(4, 2)) as handle:
        assert handle.paths == ("heads.a",)


def test_a_shared_module_is_made_once_and_put_in_all_its_places():
    model, made = Model(), []
    handle = replace(model, "shared", lambda old: made.append(old) or nn.Linear(4, 4))
    assert len(made) == 1
    assert set(handle.paths) == {"body.2", "shared"}
    assert model.shared is model.body[2] is not made[0]
    handle.remove()
    assert model.shared is model.body[2] is made[0]


def test_new_parameters_are_the_models_parameters_and_are_trained():
    model = Model()
    handle = replace(model, "heads.a", lambda old: Scaled(old))
    scale = model.heads["a"].scale
    assert any(parameter is scale for parameter in model.parameters())
    assert "heads.a.scale" in model.state_dict()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    assert scale.item() != 2.0
    assert any("optimizer" in note for note in handle.notes)


def test_no_note_on_optimizers_without_new_parameters():
    assert replace(Model(), nn.ReLU, lambda old: nn.GELU()).notes == ()


@pytest.mark.parametrize("training", [True, False])
def test_the_new_module_trains_as_the_old_one_did(training):
    model = Model().train()
    model.blocks[0].train(training)
    with replace(model, "blocks.0.act", lambda old: nn.Sequential(nn.Dropout(), nn.ReLU())):
        assert model.blocks[0].act.training is training
        assert model.blocks[0].act[0].training is training


def test_a_wrapped_module_keeps_its_own_training_flags():
    model = Model().train()
    model.blocks[0].fc1.eval()
    before = state_of(model)
    with replace(model, "blocks.0", lambda old: Scaled(old)):
        assert model.blocks[0].training
        assert not model.blocks[0].inner.fc1.training
    assert state_of(model) == before


def test_make_may_keep_a_module():
    model = Model()
    before = state_of(model)
    handle = replace(model, nn.Linear, lambda old: None if old.out_features == 4 else old)
    assert handle.paths == ()
    assert handle.notes == ("make kept every module",)
    assert state_of(model) == before


def test_of_nested_modules_the_outermost_is_replaced():
    model, made = Model(), []
    handle = replace(model, [nn.Linear, "blocks.0"], lambda old: made.append(old) or nn.Identity())
    assert "blocks.0" in handle.paths
    assert not [path for path in handle.paths if path.startswith("blocks.0.")]
    assert {"blocks.1.fc1", "heads.a"} <= set(handle.paths)


def test_make_that_returns_no_module_is_refused_before_anything_changes():
    model = Model()
    before = state_of(model)
    answers = iter([nn.GELU(), torch.relu])
    with pytest.raises(BadArgumentError, match=r"builtin_function.*`blocks\.1\.act`.*nothing was replaced"):
        replace(model, nn.ReLU, lambda old: next(answers))
    assert state_of(model) == before


def test_make_that_raises_leaves_the_model_as_it_was():
    model = Model()
    before = state_of(model)
    with pytest.raises(ZeroDivisionError):
        replace(model, nn.ReLU, lambda old: 1 / 0)
    assert state_of(model) == before


def test_an_exception_inside_the_block_puts_everything_back():
    model = Model()
    before = state_of(model)
    with pytest.raises(ZeroDivisionError), replace(model, nn.Linear, lambda old: nn.Identity()):
        1 / 0
    assert state_of(model) == before


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_handles_of_one_place_may_be_removed_in_any_order(order):
    model = Model()
    before = state_of(model)
    news = [nn.GELU(), nn.SELU(), nn.Mish()]
    handles = [replace(model, "blocks.0.act", lambda old, new=new: new) for new in news]
    left = list(range(3))
    for one in order:
        handles[one].remove()
        left.remove(one)
        assert model.blocks[0].act is (news[left[-1]] if left else model.blocks[0].act)
    assert state_of(model) == before


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_handles_of_nested_places_may_be_removed_in_any_order(order):
    model = Model()
    before = state_of(model)
    handles = [
        replace(model, "blocks.0", lambda old: Scaled(old)),
        replace(model, "blocks.0.inner.act", lambda old: nn.GELU()),
    ]
    for one in order:
        handles[one].remove()
    assert state_of(model) == before


def test_a_handle_can_be_disabled_and_enabled():
    model = Model()
    below = replace(model, "blocks.0.act", lambda old: nn.GELU())
    above = replace(model, "blocks.0.act", lambda old: nn.SELU())
    below.enabled = False
    assert isinstance(model.blocks[0].act, nn.SELU)
    below.enabled = True
    assert isinstance(model.blocks[0].act, nn.SELU)
    above.remove()
    assert isinstance(model.blocks[0].act, nn.GELU)
    below.remove()
    assert isinstance(model.blocks[0].act, nn.ReLU)


def test_a_module_put_there_by_the_user_meanwhile_is_left_alone():
    model = Model()
    handle = replace(model, "blocks.0.act", lambda old: nn.GELU())
    model.blocks[0].act = mine = nn.Tanh()
    handle.remove()
    assert model.blocks[0].act is mine
    assert any("other code put another module" in note for note in handle.notes)


def test_the_model_itself_has_no_place():
    model = Model()
    for where in (model, "forward", Model):
        with pytest.raises(BadArgumentError, match="the model itself"):
            replace(model, where, lambda old: nn.Identity())


@pytest.mark.parametrize(
    ("where", "way"),
    [
        ("blocks.0.fc1.weight", "byname.interject and byname.patch put another value"),
        ("blocks.0.forward.x", "byname.rewrite"),
        ("blocks.0.relu", "byname.rewrite"),
        ("blocks.0.act.grad", "byname.rewrite"),
    ],
)
def test_what_is_no_module_is_refused_and_the_way_named(where, way):
    with pytest.raises(BadArgumentError, match=way):
        replace(Model(), where, lambda old: nn.Identity())


def test_what_matches_nothing_is_an_error():
    with pytest.raises(NoMatchError, match=r"blocks\.0\.act"):
        replace(Model(), "blocks.0.akt", lambda old: nn.Identity())
    with pytest.raises(NoMatchError, match="GELU"):
        replace(Model(), nn.GELU, lambda old: nn.Identity())


def test_make_must_be_callable():
    for make in (nn.GELU(), None, "gelu"):
        with pytest.raises(BadArgumentError, match="make takes each"):
            replace(Model(), nn.ReLU, make)


def test_the_output_projection_of_attention_is_swapped_with_a_note():
    model = nn.TransformerEncoderLayer(8, 2, 16)
    old = model.self_attn.out_proj
    handle = replace(model, "self_attn.out_proj", lambda old: nn.Linear(8, 8))
    assert model.self_attn.out_proj is not old
    assert any("never calls it" in note for note in handle.notes)
    handle.remove()
    assert model.self_attn.out_proj is old


def test_selectors_mean_modules_as_they_are_registered():
    with replace(Model(), select.linear[1:3], lambda old: nn.Identity()) as handle:
        assert handle.paths == ("blocks.0.fc2", "blocks.1.fc1")
    with pytest.raises(BadArgumentError, match="depends on how the model runs"):
        replace(Model(), select.linear.last, lambda old: nn.Identity())
    for functional in (select.op("add"), select.attention):
        with pytest.raises(NoMatchError, match="no module.*byname.rewrite"):
            replace(Model(), functional, lambda old: nn.Identity())


class Sine(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.ReLU()

    def forward(self, x):
        return torch.sin(self.act(x))


class CallsSine(nn.Module):
    def forward(self, x):
        return torch.sin(x) * 0 + 5


@pytest.mark.parametrize("ran_before", [False, True])
def test_an_operation_keeps_its_number_beside_a_module_that_is_put_in_while_it_is_attached(ran_before):
    model, x = Sine(), torch.ones(1)
    told = []
    with interject(model, "sin", lambda name, module, value: told.append(name) or value * 0) as handle:
        if ran_before:
            model(x)
        with replace(model, nn.ReLU, lambda old: CallsSine()):
            assert model(x).item() == 0
        assert model(x).item() == 0
        assert set(told) == {"sin"}
        assert handle.notes == ()
    assert not model.act._forward_pre_hooks


def test_a_selector_finds_the_operation_of_a_module_that_is_put_in_until_it_leaves():
    model, x, told = Sine(), torch.ones(1), []
    with interject(model, select.op("sin"), lambda name, module, value: told.append(name)):
        model(x)
        with replace(model, nn.ReLU, lambda old: CallsSine()):
            model(x)
        with pytest.warns(NothingSeenWarning, match="nothing is observed at `act.sin` from forward 2 on"):
            model(x)
    assert told == ["sin", "act.sin", "sin", "sin"]


def test_the_old_module_that_comes_back_is_told_of_without_a_note():
    model, told = Sine(), []
    replaced = replace(model, nn.ReLU, lambda old: CallsSine())
    replaced.enabled = False
    with interject(model, "act", lambda name, module, value: told.append(type(module).__name__)) as handle:
        replaced.enabled = True
        model(torch.ones(1))
        replaced.remove()
        model(torch.ones(1))
        assert (told, handle.notes) == (["CallsSine", "ReLU"], ())


def test_a_module_of_the_model_that_is_put_elsewhere_is_told_of_by_the_path_that_was_asked_for():
    model, told = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), []
    with interject(model, "1", lambda name, module, value: told.append(name)) as handle:
        model[1] = model[0]
        model(torch.ones(1, 2))
        assert (told, handle.notes) == (["1", "1"], ())


def test_what_was_put_in_and_has_left_again_is_let_go():
    model = Sine()
    with interject(model, "sin", lambda name, module, value: None):
        alive = []
        for _ in range(3):
            with replace(model, nn.ReLU, lambda old: CallsSine()):
                alive.append(weakref.ref(model.act))
                model(torch.ones(1))
        gc.collect()
        assert [one() for one in alive[:2]] == [None, None]
