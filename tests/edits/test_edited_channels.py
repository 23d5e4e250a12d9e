"""Do channels= of an edit take the dimension of the channels, as a hook by hand does, on models of many kinds?"""

import pytest
import torch
from tiny import at, by_hook
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    ConvNextConfig,
    ConvNextModel,
    GPT2Config,
    GPT2LMHeadModel,
    MambaConfig,
    MambaForCausalLM,
    MobileNetV2Config,
    MobileNetV2Model,
    RegNetConfig,
    RegNetModel,
    ResNetConfig,
    ResNetModel,
    T5Config,
    T5Model,
    ViTConfig,
    ViTModel,
    WhisperConfig,
    WhisperModel,
)

import byname
from byname.errors import BadArgumentError, InterjectionError

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
IDS, PIXELS = torch.tensor([[5, 9, 2, 7, 1], [4, 4, 8, 3, 6]]), torch.randn(2, 3, 32, 32)
STAGES = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
WHISPER = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "vocab_size": 64}
WHISPER |= {"decoder_attention_heads": 4, "num_mel_bins": 8, "max_source_positions": 20, "pad_token_id": 0}
WHISPER |= {"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
MODELS = {
    "resnet": lambda: ResNetModel(ResNetConfig(**STAGES, layer_type="basic")),
    "convnext": lambda: ConvNextModel(ConvNextConfig(hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1])),
    "mobilenet": lambda: MobileNetV2Model(MobileNetV2Config(depth_multiplier=0.25, min_depth=4)),
    "regnet": lambda: RegNetModel(RegNetConfig(**STAGES, groups_width=8)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=64)),
    "bert": lambda: BertModel(BertConfig(**SIZES, vocab_size=64)),
    "vit": lambda: ViTModel(ViTConfig(**SIZES, image_size=32, patch_size=8)),
    "t5": lambda: T5Model(T5Config(d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, vocab_size=64)),
    "whisper": lambda: WhisperModel(WhisperConfig(**WHISPER)),
    "mamba": lambda: MambaForCausalLM(MambaConfig(hidden_size=32, num_hidden_layers=2, state_size=4, vocab_size=64)),
}
INPUTS = {"t5": (IDS, None, IDS), "whisper": (torch.randn(2, 8, 40), None, IDS)}
CASES = [
    ("resnet", "embedder.embedder.convolution", 1),
    ("resnet", "encoder.stages.1.layers.0", 1),
    ("resnet", "encoder.stages.0.layers.0.layer.1.normalization", 1),
    ("convnext", "encoder.stages.0.layers.0.dwconv", 1),
    ("convnext", "encoder.stages.0.layers.0.pwconv1", -1),
    ("convnext", "encoder.stages.1.layers.0", 1),
    ("mobilenet", "layer.3.conv_3x3.activation", 1),
    ("regnet", "encoder.stages.1.layers.0", 1),
    ("gpt2", "transformer.h.1", -1),
    ("gpt2", "transformer.h.1.mlp.c_fc", -1),
    ("bert", "encoder.layer.1.intermediate", -1),
    ("vit", "embeddings.patch_embeddings.projection", 1),
    ("vit", "layers.1", -1),
    ("t5", "encoder.block.1.layer.1.DenseReluDense.wi", -1),
    ("whisper", "encoder.conv1", 1),
    ("whisper", "encoder.layers.0.fc1", -1),
    ("mamba", "backbone.layers.0.mixer.in_proj", -1),
]


def inputs_of(model, name):
    return INPUTS.get(name, (PIXELS,) if model.main_input_name == "pixel_values" else (IDS,))


def first(output):
    return output[0] if isinstance(output, tuple) or hasattr(output, "to_tuple") else output


@pytest.mark.grid(fast=8)
@torch.no_grad()
@pytest.mark.parametrize(("name", "path", "dim"), CASES)
def test_channels_are_those_of_what_made_the_value(name, path, dim):
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    x = inputs_of(model, name)
    last = torch.zeros(byname.capture(model, path)(*x)[path].shape[dim], dtype=torch.bool)
    last[-1] = True
    plain = first(model(*x))
    for ch in (3, [1, 5], slice(2, 4), last):
        for edit, how in (
            (lambda ch: byname.ablate(model, path, channels=ch), torch.zeros_like),
            (lambda ch: byname.patch(model, path, lambda part: part * 2 + 1, channels=ch), lambda part: part * 2 + 1),
            (lambda ch: byname.steer(model, path, torch.tensor(5.0), scale=2, channels=ch), lambda part: part + 10.0),
        ):
            with edit(ch):
                found = first(model(*x))
            assert torch.equal(found, first(by_hook(model, path, at(dim, ch, how), *x)))
    assert torch.equal(first(model(*x)), plain)


def cnn(*more):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), *more).eval()


@pytest.mark.parametrize("path", ["0", "1", "2"])
@pytest.mark.parametrize("more", [(), (nn.Flatten(0), nn.Linear(8 * 30, 2))])
def test_channels_of_an_image_without_a_batch(path, more):
    model, x = cnn(*more), torch.randn(3, 10, 12)
    with byname.ablate(model, path, channels=2):
        found = model(x)
    assert torch.equal(found, by_hook(model, path, at(0, 2, torch.zeros_like), x))
    mean = byname.capture(model, path)(x)[path].mean((1, 2))[2]
    with byname.ablate(model, path, "mean", reference=[x], channels=2):
        found = byname.capture(model, path)(x)[path]
    assert torch.allclose(found[2], mean.expand_as(found[2]), atol=1e-6) and found[3].std() > 0


def refused(edit, model, x, match):
    with edit, pytest.raises(InterjectionError, match=match):
        model(x)


class Folding(nn.Module):
    """Folds an image into rows, so that any dimension may be that of the channels."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x):
        rows = self.conv(x).flatten(2)
        return rows.mean(-1)


def test_where_the_channels_cannot_be_known_the_error_advises_what_works():
    model, x = Folding(), torch.randn(8, 3, 4, 4)
    refused(byname.ablate(model, "forward.rows", channels=1), model, x, r"use patch\(model, 'forward.rows', f\)")
    with byname.patch(model, "forward.rows", at(1, 1, torch.zeros_like)):
        assert not model(x)[:, 1].any()
    refused(
        byname.ablate(model, "conv.weight", channels=1), model, x, r"is a parameter, which has no channels; use pat"
    )
    refused(byname.ablate(model, "conv", channels=8), model, x, r"no 8 in channels=: there are 8 channels")
    refused(byname.ablate(model, "conv", channels=1, features=2), model, x, "as another argument does")
    refused(byname.ablate(model.conv, "forward", features=1), model.conv, x[0], "use channels=")
    refused(byname.ablate(model.conv, "forward", positions=1), model.conv, x[0], "use patch")
    with pytest.raises(BadArgumentError, match="channels= takes an int, a slice"):
        byname.ablate(model, "conv", channels="red")
    for path in ("conv", "forward.rows"):
        with byname.ablate(model, path):
            assert not model(x).any()


def test_channels_of_plain_features_are_the_last():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU()).eval()
    for path in ("0", "1", "2"):
        for x in (torch.randn(6, 4), torch.randn(3, 4)):
            with byname.ablate(model, path, channels=[0, -1]):
                found = model(x)
            assert torch.equal(found, by_hook(model, path, at(-1, [0, -1], torch.zeros_like), x))
    with byname.ablate(model[0], "forward", channels=1):
        assert model[0](torch.randn(4))[1] == 0
