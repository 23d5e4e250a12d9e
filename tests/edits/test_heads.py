"""heads= at places of models of transformers: where the heads are mixed already, the error names the place before."""

import pytest
import torch
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2Model,
    LlamaConfig,
    LlamaModel,
    T5Config,
    T5Model,
    ViTConfig,
    ViTModel,
)

import byname
from byname.errors import InterjectionError

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
IDS = torch.tensor([[5, 9, 2, 7, 1]])


def bert():
    return BertModel(BertConfig(**SIZES, vocab_size=64)).eval(), {"input_ids": IDS}


def gpt2():
    return GPT2Model(GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=64)).eval(), {"input_ids": IDS}


def llama():
    config = LlamaConfig(**SIZES, vocab_size=64, num_key_value_heads=2)
    return LlamaModel(config).eval(), {"input_ids": IDS}


def t5():
    config = T5Config(d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, vocab_size=64, decoder_start_token_id=0)
    return T5Model(config).eval(), {"input_ids": IDS, "decoder_input_ids": IDS}


def vit():
    config = ViTConfig(**SIZES, image_size=8, patch_size=4)
    return ViTModel(config).eval(), {"pixel_values": torch.randn(1, 3, 8, 8)}


BERT_DENSE = "encoder.layer.1.attention.output.dense"


@pytest.mark.parametrize(
    ("make", "path", "layer"),
    [
        (bert, BERT_DENSE, BERT_DENSE),
        (bert, "encoder.layer.1.attention.output", BERT_DENSE),
        (bert, "encoder.layer.1.attention.output.LayerNorm", BERT_DENSE),
        (bert, "encoder.layer.1.attention[0]", BERT_DENSE),
        (gpt2, "h.1.attn.resid_dropout", "h.1.attn.c_proj"),
        (gpt2, "h.1.attn.resid_dropout.input", "h.1.attn.c_proj"),
        (gpt2, "h.1.attn[0]", "h.1.attn.c_proj"),
        (llama, "layers.0.self_attn.o_proj", "layers.0.self_attn.o_proj"),
        (t5, "encoder.block.1.layer.0.SelfAttention.o", "encoder.block.1.layer.0.SelfAttention.o"),
        (t5, "decoder.block.1.layer.1.EncDecAttention[0]", "decoder.block.1.layer.1.EncDecAttention.o"),
        (vit, "layers.1.attention.o_proj", "layers.1.attention.o_proj"),
    ],
)
def test_where_the_heads_are_mixed_the_error_names_the_place_before(make, path, layer):
    model, inputs = make()
    with byname.ablate(model, path, heads=1), pytest.raises(InterjectionError) as raised:
        model(**inputs)
    assert str(raised.value) == f"`{path}` has no heads: `{layer}` has mixed them; use `{layer}.input`"
    hook = model.get_submodule(layer).register_forward_pre_hook(lambda module, args: (without_head(args[0], 1),))
    expected = model(**inputs)[0]
    hook.remove()
    with byname.ablate(model, f"{layer}.input", heads=1):
        assert torch.equal(model(**inputs)[0], expected)
    assert not torch.equal(model(**inputs)[0], expected)


def without_head(value, head):
    value = value.clone().unflatten(-1, (4, -1))
    value[..., head, :] = 0
    return value.flatten(-2)


@pytest.mark.parametrize(
    ("make", "path", "layer"),
    [
        (bert, "encoder.layer.1.output.dense", "encoder.layer.1.attention.output.dense"),
        (gpt2, "h.1", "h.1.attn.c_proj"),
        (t5, "encoder.block.1.layer.0[0]", "encoder.block.1.layer.0.SelfAttention.o"),
    ],
)
def test_of_a_place_around_an_attention_the_error_says_where_its_heads_are(make, path, layer):
    model, inputs = make()
    with (
        byname.ablate(model, path, heads=1),
        pytest.raises(InterjectionError, match=rf"side by side in `{layer}.input`\n"),
    ):
        model(**inputs)


def test_of_a_multi_head_attention_the_error_names_its_pattern_since_it_never_calls_its_projection():
    attention, x = torch.nn.MultiheadAttention(8, 2, batch_first=True, bias=False), torch.randn(1, 5, 8)
    with byname.ablate(attention, "forward[0]", heads=1), pytest.raises(InterjectionError) as raised:
        attention(x, x, x)
    assert str(raised.value).endswith('use `multi_head_attention_forward.pattern` with attention="explicit"')
    by_head = torch.cat([attention.in_proj_weight[16:20] @ x[0].T, torch.zeros(4, 5)]).T
    weights = attention(x, x, x, average_attn_weights=False)[1][0, 0]
    with byname.ablate(attention, "multi_head_attention_forward.pattern", heads=1, attention="explicit"):
        found = attention(x, x, x)[0][0]
    assert torch.allclose(found, weights @ by_head @ attention.out_proj.weight.T, atol=1e-6)
    with (
        byname.ablate(attention, "out_proj.input", heads=1) as handle,
        pytest.warns(byname.errors.NothingSeenWarning, match="reads its weight and bias and never calls it"),
    ):
        attention(x, x, x)
        handle.remove()


def test_channels_of_a_convolution_are_no_heads_and_the_error_says_what_they_are():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
    for path in "01":
        with byname.ablate(model, path, heads=1), pytest.raises(InterjectionError) as raised:
            model(torch.randn(2, 3, 5, 5))
        assert str(raised.value) == f"`{path}` has no heads: dimension 1 is that of its channels; use channels="
