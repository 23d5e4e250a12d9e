"""Classes that other libraries write from scratch are known by their names: norms, linear maps and activations."""

import math

import pytest
import torch
import torch.nn.functional as F
from architectures import NAMES, architecture
from torch import nn

import byname
from byname import select
from byname.errors import NoMatchError

X = torch.randn(2, 4)


class LlamaRMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class MambaRMSNormGated(LlamaRMSNorm):
    def forward(self, x):
        return super().forward(x * F.silu(x))


class FrozenBatchNorm2d(LlamaRMSNorm):
    """Known by its own name."""


class L2Norm(nn.Module):
    def forward(self, x):
        return F.normalize(x)


class Conv1D(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.zeros(4))

    def forward(self, x):
        return torch.addmm(self.bias, x, self.weight)


class QuantLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("packed", torch.ones(4, 4))

    def forward(self, x):
        return F.linear(x, self.packed)


class NewGELUActivation(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class QuickGELU(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


class GELUTanh(nn.Module):
    def forward(self, x):
        return F.gelu(x, approximate="tanh")


class MemoryEfficientSwish(nn.Module):
    def forward(self, x):
        return x * x.sigmoid()


class ReLUSquaredActivation(nn.Module):
    def forward(self, x):
        return F.relu(x).square()


class PreNorm(nn.Module):
    def forward(self, x):
        return x + 1


class NoNorm(nn.Module):
    def forward(self, x):
        return x * 2


class LinearAttention(nn.Module):
    def forward(self, x):
        return x + 1


class LinearSchedule(nn.Module):
    def forward(self, x):
        return x + 1


class WithLinear(nn.Module):
    """A GELU after a layer, which is more than an activation."""

    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(4, 4)

    def forward(self, x):
        return F.gelu(self.proj(x))


class ProjGELU(WithLinear):
    """What a library may call a GELU: not a place of that kind as a whole."""


def paths(selector, *modules):
    model = nn.Sequential(*modules)
    found, online = [*byname.points(model, selector, example=X).paths], []
    with byname.watch.attach(model, selector, lambda event: online.append(event.path)):
        for _ in range(2):
            model(X)
    assert sorted(online) == sorted(found * 2), "in a first forward the same is found as by an example"
    return found


@pytest.mark.parametrize("kind", [LlamaRMSNorm, MambaRMSNormGated, FrozenBatchNorm2d, L2Norm])
def test_a_norm_that_somebody_else_wrote_is_one_norm(kind):
    assert paths(select.norm, nn.ReLU(), kind()) == ["1"]


@pytest.mark.parametrize("kind", [PreNorm, NoNorm])
def test_what_applies_a_norm_elsewhere_or_none_at_all_is_none(kind):
    assert paths(select.norm, nn.LayerNorm(4), kind()) == ["0"]


@pytest.mark.parametrize("kind", [Conv1D, QuantLinear])
def test_a_linear_map_that_somebody_else_wrote_is_one_linear_map(kind):
    assert paths(select.linear, nn.Linear(4, 4), kind()) == ["0", "1"]


@pytest.mark.parametrize("kind", [LinearAttention, LinearSchedule])
def test_linear_in_the_name_of_something_else_means_nothing(kind):
    assert paths(select.linear, nn.Linear(4, 4), kind()) == ["0"]


def test_a_conv1d_of_three_dimensions_would_need_a_matrix():
    class Conv1D(nn.Module):
        def forward(self, x):
            return x + 1

    assert paths(select.linear, nn.Linear(4, 4), Conv1D()) == ["0"]


def test_a_parametrized_one_stays_what_it_is():
    layer = nn.utils.parametrizations.weight_norm(Conv1D())
    assert paths(select.linear, layer) == ["0"]


@pytest.mark.parametrize("kind", [NewGELUActivation, QuickGELU, GELUTanh])
@pytest.mark.parametrize("selector", [select.gelu, select.activation], ids=str)
def test_a_composite_activation_is_one_activation(kind, selector):
    assert paths(selector, nn.Linear(4, 4), kind()) == ["1"]


def test_what_a_composite_activation_calls_is_no_second_activation():
    assert paths(select.tanh, nn.Tanh(), NewGELUActivation()) == ["0"]
    assert paths(select.sigmoid, nn.Sigmoid(), QuickGELU()) == ["0"]
    assert paths(select.op("tanh"), NewGELUActivation()) == ["0.tanh"]
    assert "0.pow" in paths(select.arithmetic, NewGELUActivation())


def test_other_spellings_of_an_activation():
    assert paths(select.silu, MemoryEfficientSwish()) == ["0"]
    assert paths(select.activation, MemoryEfficientSwish(), NewGELUActivation()) == ["0", "1"]


def test_an_activation_of_no_known_kind_is_one_activation_and_its_function_is_of_its_kind():
    assert paths(select.activation, ReLUSquaredActivation()) == ["0"]
    assert paths(select.relu, ReLUSquaredActivation()) == ["0.relu"]


def test_a_module_that_holds_others_is_more_than_its_name_says():
    assert paths(select.gelu, ProjGELU()) == ["0.gelu"]
    assert paths(select.linear, ProjGELU()) == ["0.proj"]


def test_a_norm_of_which_a_part_is_an_activation():
    assert paths(select.activation, MambaRMSNormGated()) == ["0.silu"]


def tiny(name):
    transformers = pytest.importorskip("transformers")
    small = {"vocab_size": 50, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    llama = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    settings = {
        "gpt2": {"n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2, "attn_implementation": "eager"},
        "llama": {**llama, "num_key_value_heads": 2},
        "t5": {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "dense_act_fn": "gelu_new"},
        "mixtral": {**llama, "num_key_value_heads": 2, "num_local_experts": 2},
        "bloom": {"hidden_size": 16, "n_layer": 2, "n_head": 2},
    }[name]
    config = transformers.AutoConfig.for_model(name, **small, **settings)
    model = transformers.AutoModel.from_config(config).eval()
    tokens = torch.randint(1, 40, (1, 6))
    return model, {"input_ids": tokens, **({"decoder_input_ids": tokens} if name == "t5" else {})}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "selector", "ending"),
    [
        ("gpt2", select.gelu, "NewGELUActivation"),
        ("gpt2", select.activation & ~select.softmax, "NewGELUActivation"),
        ("gpt2", select.linear, "Conv1D"),
        ("gpt2", select.norm, "LayerNorm"),
        ("llama", select.norm, "RMSNorm"),
        ("llama", select.silu, "SiLUActivation"),
        ("t5", select.norm, "T5LayerNorm"),
        ("t5", select.gelu, "NewGELUActivation"),
        ("mixtral", select.norm, "RMSNorm"),
        ("bloom", select.gelu, "BloomGelu"),
    ],
)
def test_layers_of_transformers_are_of_their_kinds(name, selector, ending):
    model, tokens = tiny(name)
    there = {path for path, module in model.named_modules() if type(module).__name__.endswith(ending)}
    if not there:
        pytest.skip(f"this version of transformers has no {ending} there")
    called = {one.path for one in byname.points(model, example=tokens) if one.calls}
    assert {*byname.points(model, selector, example=tokens).paths} == there & called
    with pytest.raises(NoMatchError):
        byname.points(model, select.tanh, example=tokens)


class MultiHead(nn.Module):
    """An attention that is written in Python, in one of several ways."""

    def __init__(self, softmax=None):
        super().__init__()
        self.qkv, self.out = nn.Linear(4, 12), nn.Linear(4, 4)
        self.attend = softmax or nn.Identity()
        self.functional = softmax is None

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (2, 2)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k)
        pattern = scores.softmax(-1) if self.functional else self.attend(scores)
        return self.out((pattern @ v).transpose(1, 2).flatten(2))


class Linearized(nn.Module):
    """An attention without scores: its first product is no output."""

    def forward(self, x):
        return x.softmax(-1) @ (x.softmax(-2).mT @ x)


class LinearizedAttention(Linearized):
    pass


SOFTMAXES = [None, nn.Softmax(-1), nn.Sequential(nn.Softmax(-1), nn.Dropout(0.0))]


@pytest.mark.parametrize("softmax", SOFTMAXES)
@pytest.mark.parametrize("example", [None, torch.ones(1, 3, 4)])
def test_the_output_of_an_attention_in_python_is_the_product_after_its_softmax(softmax, example):
    model = nn.Sequential(MultiHead(softmax), nn.ReLU(), MultiHead(softmax))
    found = []
    with byname.attach(model, select.attention, found.append, example=example):
        for _ in range(2):
            model(torch.ones(1, 3, 4))
    assert [event.path for event in found] == ["0.matmul", "2.matmul"] * 2
    assert all(event.value.shape == (1, 2, 3, 2) for event in found)


def test_the_pattern_may_be_the_result_of_a_child():
    model = nn.Sequential(MultiHead(nn.Softmax(-1)), MultiHead())
    cap = byname.capture(model, select.attention.pattern, attention="explicit")(torch.ones(1, 3, 4))
    assert [*cap] == ["0.attend", "1.softmax"]


def test_what_is_not_known_as_an_attention_is_named_in_the_error():
    unnamed = type("Mixer", (MultiHead,), {})()
    with pytest.raises(NoMatchError, match="`0.matmul` comes after a softmax in Mixer"):
        byname.points(nn.Sequential(unnamed), select.attention, example=torch.ones(1, 3, 4))
    with pytest.raises(NoMatchError, match="`0.softmax` is its pattern"):
        byname.points(nn.Sequential(LinearizedAttention()), select.attention, example=torch.ones(1, 3, 4))


ATTENTIVE = [name for name in NAMES if name not in ("mamba", "mamba2", "rwkv", "fnet", "convnext", "resnet")]


@pytest.mark.grid(fast=2)
@pytest.mark.parametrize("name", ATTENTIVE)
def test_every_backend_of_an_architecture_has_the_same_attention(name):
    outputs = {}
    for backend in ("eager", "sdpa"):
        torch.manual_seed(0)
        try:
            model, inputs = architecture(name, attn_implementation=backend)
        except ValueError:  # there is no such backend for it
            continue
        model.eval()
        torch.manual_seed(0)
        with torch.no_grad(), byname.capture(model, select.attention) as outputs[backend]:
            model(**inputs)
    eager, *others = ([one for path in cap for one in cap.calls(path)] for cap in outputs.values())
    assert eager
    for other in others:
        assert len(eager) == len(other)
        assert all(torch.allclose(mine, its, atol=1e-5) for mine, its in zip(eager, other, strict=True))
