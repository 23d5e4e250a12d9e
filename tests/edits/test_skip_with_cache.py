"""skip() while keys and values are cached: a step with the cache gives what the whole sequence gives without."""

import pytest
import torch
from architectures import cache_word
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig

import byname

CACHE = cache_word()
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
WITHOUT = {"vocab_size": 64, "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0, "initializer_range": 0.3}
CONFIGS = {
    "transformer.h": lambda: GPT2Config(n_embd=32, n_layer=3, n_head=4, **WITHOUT),
    "model.layers": lambda: LlamaConfig(**SIZES, **WITHOUT, num_key_value_heads=2),
    "model.layers.": lambda: MistralConfig(**SIZES, **WITHOUT, num_key_value_heads=2, sliding_window=4),
}
IDS = torch.randint(1, 64, (2, 6), generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([[0, 0, 0, 1, 1, 1], [1] * 6])
NEXT = torch.tensor([[3], [7]])


@pytest.fixture(params=[*CONFIGS])
def model(request):
    torch.manual_seed(0)
    found = AutoModelForCausalLM.from_config(CONFIGS[request.param]()).eval()
    found.layers_at = request.param.rstrip(".")
    return found


def logits(model, ids, **options):
    settings = {"max_new_tokens": 5, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    return torch.stack(model.generate(ids, **settings, **options).logits)


@pytest.mark.grid(fast=10)
@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("options", [{}, {"attention_mask": MASK}, {"num_beams": 2}], ids=["plain", "padded", "beams"])
@pytest.mark.parametrize("cache", [None, "static"])
def test_generate_with_a_cache_gives_what_it_gives_without(model, layer, options, cache):
    plain = logits(model, IDS, use_cache=False, **options)
    with byname.skip(model, f"{model.layers_at}.{layer}"):
        whole = logits(model, IDS, use_cache=False, **options)
        cached = logits(model, IDS, cache_implementation=cache, **options)
    assert torch.allclose(cached, whole, atol=1e-4)
    assert not torch.allclose(whole, plain, atol=1e-2)


@pytest.mark.parametrize("several", [False, True])
def test_steps_of_ones_own_know_their_positions(model, several):
    following = torch.cat([NEXT, NEXT + 1], 1) if several else NEXT
    layers = [f"{model.layers_at}.{layer}" for layer in (0, 2)]
    with byname.skip(model, layers):
        whole = model(torch.cat([IDS, following], 1)).logits[:, IDS.shape[1] :]
        cache = model(IDS, use_cache=True)[CACHE]
        assert [cache.get_seq_length(layer) for layer in range(3)] == [6, 6, 6]
        assert torch.allclose(model(following, **{CACHE: cache}).logits, whole, atol=1e-4)


def test_a_skipped_attention_keeps_the_length_too(model):
    name = "attn" if "h" in model.layers_at.split(".") else "self_attn"
    path = f"{model.layers_at}.0.{name}"
    with byname.skip(model, path, lambda hidden_states, **options: (hidden_states, None)):
        whole = model(torch.cat([IDS, NEXT], 1)).logits[:, -1]
        cache = model(IDS, use_cache=True)[CACHE]
        assert torch.allclose(model(NEXT, **{CACHE: cache}).logits[:, -1], whole, atol=1e-4)


def test_a_function_that_fills_the_cache_itself_is_left_to_it(model):
    layer = model.get_submodule(f"{model.layers_at}.0")
    with byname.skip(model, f"{model.layers_at}.0", type(layer).forward.__get__(layer)):
        cache = model(IDS, use_cache=True)[CACHE]
    plain = model(IDS, use_cache=True)[CACHE]
    assert torch.equal(cache.layers[0].keys, plain.layers[0].keys)


def test_a_cache_that_has_keys_already_gets_zeros_of_their_shape(model):
    cache = model(IDS, use_cache=True)[CACHE]
    before = cache.layers[0].keys.clone()
    with byname.skip(model, f"{model.layers_at}.0"):
        model(NEXT, **{CACHE: cache})
    after = cache.layers[0].keys
    assert after.shape[:2] == before.shape[:2]
    assert not after[:, :, -1].any()
    assert cache.get_seq_length() == 7


def test_without_a_cache_there_is_none(model):
    with byname.skip(model, f"{model.layers_at}.0"):
        assert CACHE not in model(IDS, use_cache=False)
