"""Do features=, positions= and heads= of an edit take the dimension that the modules around the place mean?"""

import pytest
import torch
from tiny import by_hook, logits
from torch import nn
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
)

import byname
from byname.errors import InterjectionError

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}
GROUPED = {**SIZES, "num_key_value_heads": 2}
IDS = torch.tensor([[5, 9, 2, 7, 1], [4, 4, 8, 3, 6]])
LATENT = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 6}
ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 16}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**GROUPED)),
    "phi3": lambda: Phi3ForCausalLM(Phi3Config(**GROUPED, pad_token_id=0)),
    "mixtral": lambda: MixtralForCausalLM(MixtralConfig(**GROUPED, num_local_experts=4)),
    "deepseek": lambda: DeepseekV3ForCausalLM(DeepseekV3Config(**SIZES, num_key_value_heads=4, **LATENT, **ROUTED)),
    "neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**SIZES)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=64)),
}


def zero(*index):
    def change(value):
        value = value.clone()
        value[index] = 0
        return value

    return change


def ablated(model, path, x, **selection):
    with byname.ablate(model, path, **selection):
        return logits(model(x))


def refused(model, path, x, match, **selection):
    with byname.ablate(model, path, **selection), pytest.raises(InterjectionError, match=match):
        model(x)


@pytest.mark.parametrize(
    ("name", "layer", "width"),
    [
        ("llama", "model.layers.0.self_attn.o_proj", 8),
        ("phi3", "model.layers.0.self_attn.o_proj", 8),
        ("mixtral", "model.layers.0.self_attn.o_proj", 8),
        ("deepseek", "model.layers.0.self_attn.o_proj", 6),
        ("neox", "gpt_neox.layers.0.attention.dense", 8),
        ("gpt2", "transformer.h.0.attn.c_proj", 8),
    ],
)
def test_the_heads_of_an_attention_are_those_before_its_output_projection(name, layer, width):
    torch.manual_seed(0)
    model, place = MODELS[name]().eval(), f"{layer}.input"
    expected = by_hook(model, layer, zero(..., slice(2 * width, 3 * width)), IDS, pre=True)
    assert torch.equal(ablated(model, place, IDS, heads=2), expected)
    assert torch.equal(ablated(model, place, IDS, features=slice(2 * width, 3 * width)), expected)
    assert torch.equal(
        ablated(model, layer, IDS, positions=-1, features=3), by_hook(model, layer, zero(slice(None), -1, 3), IDS)
    )
    refused(model, place, IDS, rf"dimension -1 is not that.*features=slice\(0, {width}\)", heads=(-1, [2]))
    refused(model, layer.rpartition(".")[0].rpartition(".")[0], IDS, r"dimension -1 is not that", heads=(-1, [2]))


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("neox", "gpt_neox.layers.0.attention.query_key_value"),
        ("phi3", "model.layers.0.self_attn.qkv_proj"),
        ("gpt2", "transformer.h.0.attn.c_attn"),
    ],
)
def test_a_fused_projection_has_no_heads_and_the_features_that_the_error_names_work(name, layer):
    model = MODELS[name]().eval()
    refused(model, layer, IDS, r"Name the features of a head, as features=slice\(0, 8\)", heads=0)
    assert torch.equal(
        ablated(model, layer, IDS, features=slice(0, 8)), by_hook(model, layer, zero(..., slice(0, 8)), IDS)
    )


@pytest.mark.parametrize(("layer", "width"), [("q_b_proj", 8), ("kv_b_proj", 10)])
def test_the_heads_of_latent_queries_keys_and_values_have_another_width(layer, width):
    model, path = MODELS["deepseek"]().eval(), f"model.layers.0.self_attn.{layer}"
    expected = by_hook(model, path, zero(..., slice(width, 2 * width)), IDS)
    assert torch.equal(ablated(model, path, IDS, heads=1), expected)


def cnn():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, 2)
    return nn.Sequential(*layers).eval(), torch.randn(2, 3, 8, 8)


@pytest.mark.parametrize("path", ["0", "1", "2"])
def test_the_features_of_what_convolutions_give_are_its_channels(path):
    model, x = cnn()
    assert torch.equal(ablated(model, path, x, features=3), by_hook(model, path, zero(slice(None), 3), x))
    assert torch.equal(ablated(model, "4", x, features=1), by_hook(model, "4", zero(..., 1), x))
    pair = by_hook(model, path, zero(slice(None), [1, 5]), x)
    assert torch.equal(ablated(model, path, x, features=[1, 5]), pair)


def test_the_mean_of_a_channel_is_over_samples_and_pixels():
    model, x = cnn()
    mean = model[0](x).mean((0, 2, 3))

    def change(value):
        value = value.clone()
        value[:, 3] = mean[3]
        return value

    with byname.ablate(model, "0", "mean", features=3, reference=[x]):
        found = model(x)
    assert torch.allclose(found, by_hook(model, "0", change, x))


def test_a_picture_has_no_positions_and_no_heads():
    model, x = cnn()
    refused(model, "0", x, r"positions= has no known dimension.*use patch\(model, '0', f\)", positions=2)
    refused(model, "0", x, "dimension 1 is that of its channels; use channels=", heads=1)
    refused(model[0], "forward", x[0], "features= has no known dimension", features=1)


def test_a_series_of_channels_has_its_positions_last():
    model, x = nn.Sequential(nn.Conv1d(4, 6, 3, padding=1), nn.ReLU()), torch.randn(2, 4, 9)
    for path in ("0", "1"):
        assert torch.equal(ablated(model, path, x, features=5), by_hook(model, path, zero(slice(None), 5), x))
        assert torch.equal(ablated(model, path, x, positions=-1), by_hook(model, path, zero(..., -1), x))


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("path", ["layers.0", "layers.1.linear1", "layers.1.norm2", "layers.0.dropout1"])
def test_positions_are_those_of_the_layers_of_pytorch_around_them(path, batch_first):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=batch_first)
    model, x = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(), torch.randn(5, 3, 8)
    last = (slice(None), -1) if batch_first else (-1,)
    assert torch.equal(ablated(model, path, x, positions=-1), by_hook(model, path, zero(*last), x))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("batch_first", [False, True])
def test_positions_of_recurrent_layers(kind, batch_first):
    torch.manual_seed(0)
    model, x = kind(4, 6, batch_first=batch_first), torch.randn(5, 3, 4)
    last = (slice(None), -1) if batch_first else (-1,)
    with byname.ablate(model, "forward[0]", positions=-1):
        found = model(x)[0]
    assert torch.equal(found, zero(*last)(model(x)[0]))
    state = "forward[1][0]" if kind is nn.LSTM else "forward[1]"
    refused(model, state, x, "positions= has no known dimension", positions=-1)


def test_the_weights_of_an_attention_have_the_query_before_the_key():
    model, x = nn.MultiheadAttention(8, 2), torch.randn(5, 3, 8)
    with byname.ablate(model, "forward[1]", positions=-1):
        found = model(x, x, x)[1]
    assert not found[:, -1].any() and found[:, :-1].all()


class Turned(nn.Module):
    """Has samples first, and turns them around the attention of PyTorch."""

    def __init__(self):
        super().__init__()
        self.attention, self.out = nn.MultiheadAttention(8, 2), nn.Linear(8, 8)

    def forward(self, x):
        x = x.transpose(0, 1)
        return self.out(self.attention(x, x, x)[0].transpose(0, 1))


def test_where_the_positions_are_cannot_be_known_a_mask_works():
    model, x = Turned(), torch.randn(3, 5, 8)
    refused(model, "out", x, r"a mask of shape \(3, 5\) as positions=", positions=-1)
    mask = torch.zeros(3, 5, dtype=torch.bool)
    mask[:, -1] = True
    assert torch.equal(ablated(model, "out", x, positions=mask), by_hook(model, "out", zero(slice(None), -1), x))
    last = by_hook(model, "attention", lambda value: (zero(-1)(value[0]), value[1]), x)
    assert torch.equal(ablated(model, "attention[0]", x, positions=-1), last)


class Untransposed(nn.Module):
    """Has queries of shape (batch, positions, heads, features), as those of Qwen3 and TransformerLens."""

    def __init__(self):
        super().__init__()
        self.num_heads, self.q, self.norm, self.hook = 2, nn.Linear(8, 8), nn.LayerNorm(4), nn.Identity()

    def forward(self, x):
        q = self.hook(self.q(x).unflatten(-1, (2, 4)))
        q = self.norm(q)
        return q.transpose(1, 2).clone()


@pytest.mark.parametrize("path", ["hook", "norm", "forward.q"])
def test_positions_are_not_the_heads_where_these_are_before_the_features(path):
    torch.manual_seed(0)
    model, x = Untransposed(), torch.randn(3, 5, 8)
    refused(model, path, x, r"positions= has no known .* \(3, 5, 2, 4\); use a mask of shape \(3, 5, 2\)", positions=1)
    mask = torch.zeros(3, 5, 2, dtype=torch.bool)
    mask[:, 1] = True
    assert not ablated(model, path, x, positions=mask)[:, :, 1].sub(model.norm.bias).any()
    refused(model, "norm", x[:, :2], r"positions= has no known", positions=1)  # as many heads as positions
    for place in ("forward", "clone"):
        assert not ablated(model, place, x, positions=1)[:, :, 1].any()


class Embedded(nn.Module):
    """Ids and a mask, (samples, positions), into an embedding and an attention."""

    def __init__(self, **kwargs):
        super().__init__()
        self.embed, self.attention = nn.Embedding(10, 8), nn.MultiheadAttention(8, 2, **kwargs)

    def forward(self, ids):
        x = self.embed(ids)
        return self.attention(x, x, x)[0]


@pytest.mark.parametrize("path", ["input", "forward.ids", "embed.input"])
def test_ids_have_their_positions_last_and_no_features(path):
    torch.manual_seed(0)
    model, ids = Embedded(batch_first=True), torch.tensor([[5, 9, 2], [4, 8, 6]])
    corrupt = torch.tensor([[5, 9, 0], [4, 8, 0]])
    mask = torch.tensor([[False, False, True], [False, False, True]])
    for positions in (2, -1, [2], [False, False, True], mask):
        assert torch.equal(ablated(model, path, ids, positions=positions), model(corrupt))
    with byname.patch(model, path, corrupt, positions=2):
        assert torch.equal(model(ids), model(corrupt))
    refused(model, path, ids, r"shape .* \(2, 3\); this one has \(3, 1\)", positions=mask.T[:, :1])
    refused(model, path, ids, "has one number for each position, and no features", features=1)
    refused(model, path, ids, "has one number for each position, and no features", channels=1)
    refused(Embedded(), path, ids, "positions= has no known dimension", positions=1)


def test_samples_of_a_reference_are_samples_where_positions_come_first():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
    model, x = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).train(), torch.randn(5, 2, 8)
    with byname.ablate(model, "layers.0", "resample", reference=[x]):
        found = model(x)
    assert torch.equal(found, by_hook(model, "layers.0", lambda value: value.flip(1), x))


class Fused(nn.Module):
    def __init__(self):
        super().__init__()
        self.num_heads, self.qkv, self.q = 2, nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        return self.q(x) + self.qkv(x)[..., :8]


def test_an_attention_that_does_not_say_the_width_of_a_head():
    model, x = nn.Sequential(Fused()), torch.randn(2, 5, 8)
    assert torch.equal(ablated(model, "0.q", x, heads=1), by_hook(model, "0.q", zero(..., slice(4, 8)), x))
    refused(model, "0.qkv", x, "24 features are not 2 heads", heads=1)


def test_the_features_of_a_head_are_not_advised_where_the_heads_are_among_the_samples():
    sizes = {"hidden_size": 16, "n_layer": 1, "n_head": 2, "vocab_size": 32}
    model, place = BloomForCausalLM(BloomConfig(**sizes)).eval(), "transformer.h.0.self_attention.bmm"
    refused(model, place, IDS, r"\(4, 5, 8\).*; use patch\(model, .*whole value", heads=1)


def test_positions_of_a_mask_in_floats_are_refused_and_not_taken_from_the_batch():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 9)

        def forward(self, ids, mask):
            return self.head(self.embed(ids) * mask[..., None])

    model, ids = Masked(), torch.ones(2, 5, dtype=torch.long)
    with (
        byname.ablate(model, "input['mask']", positions=-1),
        pytest.raises(InterjectionError, match=r"no known dimension in a value of shape \(2, 5\)"),
    ):
        model(ids, mask=torch.ones(2, 5))
    with byname.ablate(model, "input['mask']", positions=-1):
        assert torch.equal(model(ids, mask=torch.ones(2, 5).int())[:, -1], model.head.bias.expand(2, 9))
