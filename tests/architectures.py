"""Which models of transformers are byname tried on? Tiny ones, of random weights, made from their configurations."""

import dataclasses
import functools

import pytest
import torch

_SMALL = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
_TEXT = {**_SMALL, "vocab_size": 32}
_CAUSAL = {**_TEXT, "num_key_value_heads": 1, "pad_token_id": 0}
_PICTURE = {**_SMALL, "image_size": 8, "patch_size": 4, "num_channels": 3}
_BART = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "vocab_size": 32}  # fmt: skip
_SOUND = {**_TEXT, "conv_dim": [8, 8], "conv_stride": [4, 2], "conv_kernel": [4, 2], "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}  # fmt: skip

TEXTS = {
    "gpt2": {"n_embd": 8, "n_layer": 2, "n_head": 2, "vocab_size": 32, "n_positions": 16},
    "bert": _TEXT,
    "llama": _CAUSAL,
    "t5": {"d_model": 8, "num_layers": 2, "num_heads": 2, "d_kv": 4, "d_ff": 16, "vocab_size": 32},
    "mistral": _CAUSAL,
    "gpt_neox": _TEXT,
    "opt": {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 16, "vocab_size": 32, "word_embed_proj_dim": 8},
    "distilbert": {"dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 16, "vocab_size": 32},
    "roberta": {**_TEXT, "max_position_embeddings": 20},
    "mixtral": {**_CAUSAL, "num_local_experts": 2},
    "mamba": {"hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 32, "state_size": 4},
    "qwen2": _CAUSAL,
    "bart": _BART,
    "albert": {**_TEXT, "embedding_size": 4},
    "electra": {**_TEXT, "embedding_size": 4},
    "deberta-v2": {**_TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 4},
    "bloom": {"hidden_size": 8, "n_layer": 2, "n_head": 2, "vocab_size": 32},
    "falcon": {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 32},
    "phi": _CAUSAL,
    "gemma2": {**_CAUSAL, "head_dim": 4},
    "xlnet": {"d_model": 8, "n_layer": 2, "n_head": 2, "d_inner": 16, "vocab_size": 32},
    "olmoe": {**_CAUSAL, "num_experts": 2, "num_experts_per_tok": 1},
    "fnet": _TEXT,
    "mamba2": {"hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 32, "state_size": 4, "num_heads": 4, "head_dim": 4, "n_groups": 1, "expand": 2, "chunk_size": 4},
    "rwkv": {"hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 32, "use_cache": False},
}  # fmt: skip

PICTURES = {
    "vit": _PICTURE,
    "deit": _PICTURE,
    "dinov2": _PICTURE,
    "beit": {**_PICTURE, "use_relative_position_bias": True},
    "convnext": {"hidden_sizes": [4, 8], "depths": [1, 1], "num_stages": 2, "patch_size": 2},
    "resnet": {"embedding_size": 4, "hidden_sizes": [4, 8], "depths": [1, 1], "layer_type": "basic"},
    "swin": {"image_size": 8, "patch_size": 2, "embed_dim": 4, "depths": [1, 1], "num_heads": [1, 2], "window_size": 2},
    "segformer": {"hidden_sizes": [4, 8], "depths": [1, 1], "num_encoder_blocks": 2, "num_attention_heads": [1, 2], "sr_ratios": [2, 1], "patch_sizes": [3, 3], "strides": [2, 2], "mlp_ratios": [2, 2]},
}  # fmt: skip

SOUNDS = {
    "wav2vec2": _SOUND,
    "hubert": _SOUND,
}

OTHERS = {
    "whisper": {**_BART, "num_mel_bins": 4, "max_source_positions": 8, "max_target_positions": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
    "clip": {"projection_dim": 4, "text_config": {**_TEXT, "max_position_embeddings": 8, "eos_token_id": 2}, "vision_config": _PICTURE},
}  # fmt: skip

NAMES = [*TEXTS, *PICTURES, *SOUNDS, *OTHERS]


def architecture(name, **options):
    """The model, and an example of its keyword arguments."""
    transformers = pytest.importorskip("transformers")
    settings = {**TEXTS, **PICTURES, **SOUNDS, **OTHERS}[name]
    config = transformers.AutoConfig.for_model(name, **settings)
    return transformers.AutoModel.from_config(config, **options), _inputs(name, config)


def _inputs(name, config):
    ids = torch.tensor([[1, 2, 3, 4]])
    if name in PICTURES:
        side = PICTURES[name].get("image_size", 16)
        return {"pixel_values": torch.randn(2, 3, side, side)}
    if name in SOUNDS:
        return {"input_values": torch.randn(1, 160)}
    if name == "whisper":
        return {"input_features": torch.randn(1, 4, 16), "decoder_input_ids": ids}
    if name == "clip":
        return {"input_ids": ids, "pixel_values": torch.randn(2, 3, 8, 8)}
    return {"input_ids": ids, "decoder_input_ids": ids} if config.is_encoder_decoder else {"input_ids": ids}


@functools.cache
def cache_word():
    """The keyword and the item of an output under which this version of transformers has the keys and values."""
    from transformers.modeling_outputs import BaseModelOutputWithPast

    names = {field.name for field in dataclasses.fields(BaseModelOutputWithPast)}
    return "cache" if "cache" in names else "past_key_values"
