"""What the recipes of docs/recipes/generation.md compute is what hooks written by hand compute."""

import torch
from architectures import cache_word
from causal import HEADS, IDS, OTHER, WIDTH, causal, every_kind, hooked, kept, with_first

import byname

SETTINGS = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
KEYS = {"Bloom": "key_layer", "Falcon": "key_layer"}
"""What the keys are called in the forward of an attention; else ``key_states``."""


@every_kind
def test_each_step_of_generate_is_an_iteration(kind):
    lm = causal(kind)
    with kept({"layer": lm.layers[3], "head": lm.model.lm_head}) as expected:
        tokens = lm.model.generate(IDS, **SETTINGS)
    place = lm.residual(3)
    with byname.record(lm.model, [place, "lm_head"]) as rec:
        assert torch.equal(lm.model.generate(IDS, **SETTINGS), tokens)
    for path, values in ((place, expected["layer"]), ("lm_head", expected["head"])):
        found = rec.results[path].values
        assert len(found) == len(values) == tokens.shape[1] - 5 > 1
        assert all(torch.equal(torch.as_tensor(one), value) for one, value in zip(found, values, strict=True))
    assert [step[0, -1].argmax().item() for step in rec.results["lm_head"].values] == tokens[0, 5:].tolist()


@every_kind
def test_steering(kind):
    lm, direction = causal(kind), torch.randn(WIDTH)

    def steered(value):
        return torch.cat([value[:, :-1], value[:, -1:] + 2 * direction], 1)

    with hooked(lm.layers[1], steered):
        expected = lm.model.generate(IDS, **SETTINGS, output_logits=True, return_dict_in_generate=True)
    with byname.steer(lm.model, lm.residual(1), direction, scale=2, positions=-1):
        found = lm.model.generate(IDS, **SETTINGS, output_logits=True, return_dict_in_generate=True)
    assert torch.equal(found.sequences, expected.sequences)
    assert [*map(torch.equal, found.logits, expected.logits)] == [True] * (expected.sequences.shape[1] - 5)


@every_kind
def test_keys_are_those_of_the_cache(kind):
    lm = causal(kind)
    attention = f"{lm.kind.layers}.2.{lm.kind.attention}"
    place = f"{attention}.forward.{KEYS.get(kind, 'key_states')}"
    seen = byname.capture(lm.model, place)(IDS)
    cached = seen.output[cache_word()]
    keys = cached.layers[2].keys if hasattr(cached, "layers") else cached[2][0]
    same = [value for value in seen.calls(place) if value.shape == keys.shape and torch.equal(value, keys)]
    assert same, "an assignment of the variable is what the cache got"


def test_keys_of_gpt2_before_they_are_split_into_heads():
    lm = causal("GPT2")
    seen = byname.capture(lm.model, "transformer.h.0.attn.c_attn")(IDS)
    _, key, _ = seen["transformer.h.0.attn.c_attn"].split(WIDTH, dim=2)
    cached = seen.output[cache_word()]
    keys = cached.layers[0].keys if hasattr(cached, "layers") else cached[0][0]
    assert torch.equal(key.unflatten(-1, (HEADS, 8)).transpose(1, 2), keys)


@every_kind
def test_a_value_of_one_prompt_in_another_by_its_row(kind):
    lm, prompts = causal(kind), torch.cat([IDS, OTHER])
    with hooked(lm.layers[2], lambda value: value[[0, 0]]):
        expected = lm(prompts)
    with byname.interject(lm.model, lm.residual(2), lambda name, module, value: value[[0, 0]]):
        found = lm(prompts)
    assert torch.equal(found, expected) and not torch.equal(found, lm(prompts))


@every_kind
def test_prompts_of_two_lengths_padded_on_the_right_are_each_as_alone(kind):
    lm = causal(kind)
    prompts = torch.tensor([[5, 9, 2, 7, 1], [5, 9, 3, 0, 0]])
    place = lm.residual(2)
    seen = byname.capture(lm.model, place)(prompts, attention_mask=(prompts != 0).long())[place]
    for row, length in enumerate((5, 3)):
        alone = byname.capture(lm.model, place)(prompts[row : row + 1, :length])[place]
        torch.testing.assert_close(seen[row : row + 1, :length], alone, atol=1e-5, rtol=1e-4)


@every_kind
def test_without_some_layers(kind):
    lm = causal(kind)
    returned = byname.capture(lm.model, f"{lm.kind.layers}.1")(IDS)[f"{lm.kind.layers}.1"]

    def unchanged(hidden_states, *args, **kwargs):
        return with_first(returned, hidden_states)

    def hook(_, args, kwargs, output):
        return with_first(output, args[0] if args else kwargs["hidden_states"])

    handles = [lm.layers[n].register_forward_hook(hook, with_kwargs=True) for n in (1, 2)]
    expected = lm.model.generate(IDS, **SETTINGS)
    for handle in handles:
        handle.remove()
    value = unchanged if isinstance(returned, tuple) else "input"
    with byname.skip(lm.model, [f"{lm.kind.layers}.1", f"{lm.kind.layers}.2"], value):
        with kept(dict(enumerate(lm.layers))) as ran:
            found = lm.model.generate(IDS, **SETTINGS)
    assert torch.equal(found, expected) and len(ran[0]) == expected.shape[1] - 5
    assert not torch.equal(found, lm.model.generate(IDS, **SETTINGS))
