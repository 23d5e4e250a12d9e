"""Two models on one batch: parameters first, then the first output that differs, as plain hooks find it; nothing stays."""

import copy
from collections import OrderedDict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import byname
from byname.errors import BadExampleError


class Attention(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out((q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1) @ v)


class Block(nn.Module):
    def __init__(self, size, eps=1e-5):
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(size, eps=eps), Attention(size)
        self.up, self.down = nn.Linear(size, 2 * size), nn.Linear(2 * size, size)

    def forward(self, x):
        x = x + self.attn(self.norm(x))
        return x + self.down(torch.relu(self.up(x)))


class Reference(nn.Module):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 8), nn.Linear(8, 7)
        self.blocks = nn.ModuleList(Block(8, eps) for _ in range(2))

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Port(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.lm_head = nn.Embedding(7, 8), nn.Linear(8, 7)
        self.layers = nn.ModuleList(Block(8) for _ in range(2))

    def forward(self, tokens):
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(x)


NAMES = {"embed": "tokens", "blocks": "layers", "head": "lm_head"}
TOKENS = torch.arange(10).view(2, 5) % 7


def made(kind=Reference, **options):
    torch.manual_seed(0)
    return kind(**options)


def ported():
    """A port with the weights of the reference, under its own names."""
    port = made(Port)
    state = {".".join([NAMES[key.split(".")[0]], *key.split(".")[1:]]): one for key, one in made().state_dict().items()}
    port.load_state_dict(state)
    return port


def by_hooks(model, batch):
    """The outputs of all modules in the order of the run, by plain hooks."""
    found = []
    paths = {id(module): path or "forward" for path, module in model.named_modules()}
    hooks = [
        module.register_forward_hook(lambda module, _, out: found.append((paths[id(module)], out.detach().clone())))
        for module in model.modules()
    ]
    model(batch)
    for hook in hooks:
        hook.remove()
    return found


def first_by_hooks(a, b, batch):
    pairs = zip(by_hooks(a, batch), by_hooks(b, batch), strict=True)
    differ = ((path, (one - other).abs().max().item()) for (path, one), (_, other) in pairs if (one != other).any())
    return next(differ, None)


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_a_planted_parameter_and_the_first_output_that_it_changes(data):
    a, b = made(), made()
    names = [name for name, _ in a.named_parameters() if name != "embed.weight"]
    name = data.draw(st.sampled_from(names))
    parameter = b.get_parameter(name)
    with torch.no_grad():
        parameter.view(-1)[data.draw(st.integers(0, parameter.numel() - 1))] += 1.0
    found = byname.diff(a, b, example=TOKENS)
    assert found.first.path == name and found.first.error == pytest.approx(1.0, rel=1e-6)
    assert [row.path for row in found if row.kind == "parameter" and row.state != "equal"] == [name]
    by_hand = first_by_hooks(a, b, TOKENS)
    first = found.first_value
    assert (first and (first.path, first.error)) == (by_hand and (by_hand[0], pytest.approx(by_hand[1], rel=1e-6)))


def test_a_transposed_weight_says_so():
    a, b = made(), made()
    with torch.no_grad():
        b.blocks[1].attn.out.weight.copy_(a.blocks[1].attn.out.weight.T.clone())
    found = byname.diff(a, b, example=TOKENS)
    assert found.first.path == "blocks.1.attn.out.weight" and found.first.what == "b is the transpose of a"
    assert found.first_value.path == "blocks.1.attn.out"
    assert found.before == ("blocks.1.attn.matmul_1", "blocks.1.attn.softmax", "blocks.1.attn.div")
    assert "b is the transpose of a" in repr(found).splitlines()[0]


def test_another_epsilon_is_found_at_the_norm_and_named():
    a, b = made(), made(eps=1e-3)
    found = byname.diff(a, b, example=TOKENS)
    assert (found.first.path, found.before) == ("blocks.0.norm", ("embed",))
    assert found.first.error == pytest.approx(first_by_hooks(a, b, TOKENS)[1], rel=1e-6)
    assert found.first.what == "eps is 1e-05 in a, 0.001 in b"


def test_a_setting_of_the_module_in_which_the_first_operation_differs_is_named():
    class RMSNorm(nn.Module):
        def __init__(self, epsilon):
            super().__init__()
            self.epsilon = epsilon

        def forward(self, x):
            return x * (x.square().mean(-1, keepdim=True) + self.epsilon).rsqrt()

    a, b = (nn.Sequential(nn.Identity(), RMSNorm(epsilon)) for epsilon in (1e-6, 1e-5))
    found = byname.diff(a, b, example=torch.randn(2, 4))
    assert (found.first.path, found.first.what) == ("1.add", "")
    assert "\nit runs in `1`, where epsilon is 1e-06 in a, 1e-05 in b\n" in repr(found)


def test_a_module_of_another_class_is_named():
    a = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    b = nn.Sequential(a[0], nn.GELU()).eval()
    found = byname.diff(a, b, example=torch.randn(2, 4))
    assert (found.first.path, found.first.what) == ("1", "class is 'ReLU' in a, 'GELU' in b")


def test_a_port_with_other_names_is_aligned_by_the_content_of_its_weights():
    reference, port = made(), ported()
    found = byname.diff(port, reference, example=TOKENS)
    assert found.equal and {row.path: row.path_b for row in found}["layers.0.attn.softmax"] == "blocks.0.attn.softmax"
    with torch.no_grad():
        port.layers[1].attn.out.weight.copy_(reference.blocks[1].attn.out.weight.T.clone())
    found = byname.diff(port, reference, example=TOKENS)
    assert found.first.path == "layers.1.attn.out.weight" and found.first.what == "b is the transpose of a"
    assert found.first_value.path == "layers.1.attn.out"
    assert not found.only


class Wrapped(nn.Module):
    """A model inside another, as a checkpoint of a task has it."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        return self.model(tokens)


@pytest.mark.parametrize("turned", [False, True])
def test_a_model_inside_another_is_aligned_with_it(turned):
    pair = made(), Wrapped(made())
    with torch.no_grad():
        pair[1].model.blocks[1].norm.bias += 0.1  # the norms are untrained: known by what lies around them
    a, b = reversed(pair) if turned else pair
    found = byname.diff(a, b, example=TOKENS)
    prefix = "model." * turned
    assert found.first.path == f"{prefix}blocks.1.norm.bias" and found.first_value.path == f"{prefix}blocks.1.norm"
    assert {row.path for row in found if row.state.startswith("only")} == {"model"}


def test_layers_that_could_be_others_are_listed_and_not_aligned():
    a, b = made(), made(Port)
    torch.manual_seed(1)
    for parameter in b.parameters():
        nn.init.normal_(parameter)
    found = byname.diff(a, b, example=TOKENS)
    assert not any(row.path_b for row in found)
    assert any("only in a" in sentence for sentence in found.only)


def test_norms_that_were_not_trained_are_no_evidence():
    a = nn.Sequential(OrderedDict(before=nn.LayerNorm(3), layer=nn.Linear(3, 3)))
    b = nn.Sequential(OrderedDict(dense=nn.Linear(3, 3), after=nn.LayerNorm(3)))
    found = byname.diff(a, b, example=torch.randn(2, 3))
    assert not any(row.path_b for row in found)


class Swapped(nn.Module):
    """Two layers of one shape under other names, called in the other order."""

    def __init__(self, first, second, order):
        super().__init__()
        self.add_module(first, nn.Linear(3, 3))
        self.add_module(second, nn.Linear(3, 3))
        self.order = order

    def forward(self, x):
        for name in self.order:
            x = self.get_submodule(name)(x)
        return x


def test_layers_in_another_order_are_known_by_their_content():
    torch.manual_seed(0)
    a, b = Swapped("q", "k", "qk"), Swapped("query", "key", ["key", "query"])
    b.query.load_state_dict(a.q.state_dict())
    b.key.load_state_dict(a.k.state_dict())
    found = byname.diff(a, b, example=torch.ones(2, 3))
    assert {("q", "query"), ("k", "key")} <= {(row.path, row.path_b) for row in found}
    assert found.first.path in ("q", "k")


def test_models_buffers_batch_and_random_state_stay():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    other = copy.deepcopy(model)
    model.eval()[1].train()
    before = [copy.deepcopy(one.state_dict()) for one in (model, other)]
    batch = torch.randn(6, 4)
    kept, state = batch.clone(), torch.get_rng_state()
    modes = [[module.training for module in one.modules()] for one in (model, other)]
    hooks = [[*one._forward_hooks] for one in model.modules()]
    byname.diff(model, other, example=batch)
    for one, own in zip((model, other), before, strict=True):
        assert all(torch.equal(value, own[key]) for key, value in one.state_dict().items())
        assert all(parameter.grad is None for parameter in one.parameters())
    assert torch.equal(batch, kept) and torch.equal(torch.get_rng_state(), state)
    assert modes == [[module.training for module in one.modules()] for one in (model, other)]
    assert hooks == [[*one._forward_hooks] for one in model.modules()]


def test_dropout_draws_the_same_in_both_and_a_recorder_hears_nothing():
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5))
    with byname.record(model, "0") as recorder:
        assert byname.diff(model, copy.deepcopy(model), example=torch.randn(6, 4)).equal
        assert byname.diff(model, model, example=torch.randn(6, 4)).equal
        model(torch.randn(1, 4))
    assert len(recorder.results["0"]) == 1
    assert not byname.diff(model, copy.deepcopy(model).eval(), example=torch.randn(6, 4)).equal


class Undecided(nn.Module):
    """A model that is another at every second call."""

    calls = 0

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        Undecided.calls += 1
        return self.two(self.one(x) + 1e-4 * (Undecided.calls % 2))


def test_a_model_that_is_not_deterministic_differs_from_itself():
    model = Undecided()
    found = byname.diff(model, model, example=torch.ones(1, 2))
    assert found.first.path == "add" and found.before[-1] == "one"


class Filling(nn.Module):
    """Joins two halves in memory that it fills piece by piece, as caches and latent attentions do."""

    def __init__(self, given, second=2.0):
        super().__init__()
        self.given, self.second = given, second

    def forward(self, x):
        joined = x.new_empty(2, 6)
        joined.copy_(self.given)  # stands for what lay there before
        joined[:, :3].copy_(x)
        joined[:, 3:] = x * self.second
        return joined + 1


def test_memory_that_is_not_filled_yet_is_not_compared_and_what_is_computed_from_it_is():
    x, given = torch.ones(2, 3), torch.rand(2, 6)
    assert byname.diff(Filling(given), Filling(given + 1), example=x).equal
    assert byname.diff(Filling(given, 2.0), Filling(given, 3.0), example=x).first.path == "mul"


def test_a_bfloat16_copy_gets_the_batch_in_its_dtype_and_rounding_is_no_difference():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    half = copy.deepcopy(model).bfloat16()
    found = byname.diff(model, half, example=torch.randn(3, 4), tolerance=0.1)
    assert found.equal and {row.state for row in found} <= {"within tolerance", "equal"}
    with torch.no_grad():
        half[2].bias += 1
    found = byname.diff(model, half, example=torch.randn(3, 4))
    assert found.first.path == "2.bias" and found.first.what == "float32 and bfloat16"


def test_attention_backends_differ_by_rounding_at_most():
    class Sdpa(nn.Module):
        def __init__(self, explicit):
            super().__init__()
            self.proj, self.explicit = nn.Linear(8, 8), explicit

        def forward(self, x):
            if self.explicit:
                h = (x @ x.transpose(-1, -2) / 8**0.5).softmax(-1) @ x
            else:
                h = nn.functional.scaled_dot_product_attention(x, x, x)
            return self.proj(h)

    torch.manual_seed(0)
    a = Sdpa(True)
    b = copy.deepcopy(a)
    b.explicit = False
    found = byname.diff(a, b, example=torch.randn(2, 3, 5, 8), tolerance={})
    assert found.equal and found.notes[0].startswith("operations differ in a and b")
    assert {row.path for row in found if row.kind == "value"} == {"proj", "forward"}


class Padded(nn.Module):
    """A model that adds twice, or three times: `add_1` of the one is not that of the other."""

    def __init__(self, more):
        super().__init__()
        self.inner, self.more = nn.Linear(2, 2), more

    def forward(self, x):
        x = self.inner(x)
        return (x + 0.0) + 1.0 if self.more else x + 1.0


def test_operations_that_are_counted_otherwise_are_not_compared():
    torch.manual_seed(0)
    a = Padded(True)
    b = copy.deepcopy(a)
    b.more = False
    found = byname.diff(a, b, example=torch.ones(1, 2))
    assert found.equal and not any("add" in row.path for row in found)
    assert found.notes[0] == "operations differ in a and b and are not compared: those of the model itself"


def test_outputs_in_containers_have_places_of_their_own():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(3, 4)

        def forward(self, x, *, scale):
            out, (hidden, _) = self.lstm(x)
            return {"out": out * scale, "hidden": hidden}

    torch.manual_seed(0)
    a = Two()
    b = copy.deepcopy(a)
    with torch.no_grad():
        b.lstm.bias_hh_l0 += 1
    found = byname.diff(a, b, example=((torch.randn(2, 1, 3),), {"scale": 2.0}))
    assert found.first.path == "lstm.bias_hh_l0" and found.first_value.path == "lstm[0]"
    assert {"forward['out']", "forward['hidden']", "lstm[1][0]"} <= {row.path for row in found}


def test_a_number_of_calls_that_differs_and_the_order_of_a_loop():
    class Loop(nn.Module):
        def __init__(self, times):
            super().__init__()
            self.cell, self.times = nn.Linear(2, 2), times

        def forward(self, x):
            for _ in range(self.times):
                x = torch.tanh(self.cell(x))
            return x

    torch.manual_seed(0)
    a = Loop(3)
    b = copy.deepcopy(a)
    b.times = 4
    found = byname.diff(a, b, example=torch.ones(1, 2))
    assert {row.path: row.what for row in found}["cell"] == "recorded only in b"
    assert (found.first.path, found.first.call) == ("cell", 3)


def test_an_example_of_a_wrong_form_and_a_model_that_raises():
    with pytest.raises(BadExampleError):
        byname.diff(made(), made(), example=3)
    with pytest.raises(IndexError) as raised:
        byname.diff(made(), made(), example=torch.full((1, 2), 99))
    assert "while Reference ran the given example=" in "".join(raised.value.__notes__)
