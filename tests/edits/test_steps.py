"""Does an edit with steps= hold for these steps of generate, and these iterations, and no others, as hooks by hand do?"""

import copy
import functools
import pickle

import pytest
import torch
from tiny import gpt2, llama, t5, untouched
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    BartConfig,
    BloomConfig,
    FalconConfig,
    Gemma2Config,
    GPTNeoXConfig,
    MambaConfig,
    OPTConfig,
    Qwen2Config,
)

import byname
from byname.errors import BadArgumentError, InterjectionError, NothingSeenWarning

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 32, "pad_token_id": 0}
GENERATED = {"max_new_tokens": 5, "pad_token_id": 0, "eos_token_id": None, "return_dict_in_generate": True}
GENERATED |= {"output_logits": True}


def causal(config, **more):
    def make():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config(**{**SIZES, **more})).eval(), torch.randint(3, 32, (2, 5))

    return make


def bart():
    torch.manual_seed(0)
    config = BartConfig(d_model=16, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2, vocab_size=32)
    config.update({"decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "pad_token_id": 0})
    config.update({"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": None})
    return AutoModelForSeq2SeqLM.from_config(config).eval(), torch.randint(3, 32, (2, 5))


INNER = {"intermediate_size": 16, "max_position_embeddings": 32}
MODELS = {
    "gpt2": (gpt2, "transformer.h.1"),
    "llama": (llama, "model.layers.1.mlp"),
    "neox": (causal(GPTNeoXConfig, **INNER), "gpt_neox.layers.1.mlp"),
    "qwen2": (causal(Qwen2Config, **INNER, num_key_value_heads=1), "model.layers.0.self_attn.o_proj"),
    "gemma2": (causal(Gemma2Config, **INNER, num_key_value_heads=1, head_dim=8), "model.layers.1.mlp"),
    "opt": (causal(OPTConfig, ffn_dim=16, word_embed_proj_dim=16), "model.decoder.layers.0.fc2"),
    "bloom": (causal(BloomConfig, n_layer=2, n_head=2), "transformer.h.1.mlp"),
    "falcon": (causal(FalconConfig), "transformer.h.1.mlp"),
    "mamba": (causal(MambaConfig, state_size=4), "backbone.layers.1.mixer"),
    "t5": (t5, "decoder.block.1.layer.2"),
    "bart": (bart, "model.decoder.layers.1.fc2"),
}
STEPS = {"prompt": lambda step: step == 0, 2: lambda step: step == 2, range(1, 3): lambda step: step in (1, 2)}


def by_hand(model, path, held, **options):
    """Generates with plain hooks that zero what a module returns, in the forwards that a function of their number says."""
    count = [-1]

    def begins(*_):
        count[0] += 1

    def zeroed(module, args, output):
        return output * 0 if held(count[0]) else None

    hooks = [model.register_forward_pre_hook(begins), model.get_submodule(path).register_forward_hook(zeroed)]
    try:
        return model.generate(**options)
    finally:
        for hook in hooks:
            hook.remove()


def same(one, other):
    logits = all(torch.equal(a, b) for a, b in zip(one.logits, other.logits, strict=True))
    return torch.equal(one.sequences, other.sequences) and logits


@pytest.mark.grid(fast=6)
@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_steps_of_generate_are_those_by_hooks(name, cache):
    make, path = MODELS[name]
    model, ids = make()
    options = {"input_ids": ids, "use_cache": cache, "do_sample": False, **GENERATED}
    plain, results = model.generate(**options), []
    for steps, held in STEPS.items():
        expected = by_hand(model, path, held, **options)
        with byname.patch(model, path, lambda part: part * 0, steps=steps):
            found = [model.generate(**options) for _ in range(2)]  # each call of generate begins anew
        with byname.patch(model, path, lambda part: part * 0, steps=held if steps != "prompt" else range(1)):
            found.append(model.generate(**options))
        assert all(same(one, expected) for one in found)
        results.append(expected)
    assert same(model.generate(**options), plain)
    assert not any(same(one, plain) for one in results)


@pytest.mark.parametrize(
    "options",
    [{"num_beams": 3, "do_sample": False}, {"do_sample": True, "top_k": 0}, {"num_return_sequences": 2, "top_k": 0}],
)
def test_beams_and_samples(options):
    model, ids = gpt2()
    options = {"input_ids": ids, "do_sample": True, **GENERATED, **options}
    for steps, held in STEPS.items():
        torch.manual_seed(1)
        expected = by_hand(model, "transformer.h.1", held, **options)
        torch.manual_seed(1)
        with byname.patch(model, "transformer.h.1", lambda part: part * 0, steps=steps):
            assert same(model.generate(**options), expected)


def test_with_an_assistant_a_step_is_a_forward_of_the_model_of_the_edit():
    (model, ids), (assistant, _) = gpt2(), gpt2()
    options = {"input_ids": ids[:1], "assistant_model": assistant, "do_sample": False, **GENERATED}
    for steps, held in STEPS.items():
        expected = by_hand(model, "transformer.h.1", held, **options)
        with byname.patch(model, "transformer.h.1", lambda part: part * 0, steps=steps):
            assert same(model.generate(**options), expected)


def test_a_patch_of_the_prompt_at_a_position_that_later_steps_lack():
    model, ids = gpt2()
    clean = byname.capture(model, "transformer.h.1")(ids.flip(1))
    options = {"input_ids": ids, "do_sample": False, **GENERATED}
    with byname.patch(model, "transformer.h.1", clean, positions=4), pytest.raises(InterjectionError, match="no 4 in"):
        model.generate(**options)
    with byname.patch(model, "transformer.h.1", clean, positions=4, steps="prompt"):
        found = model.generate(**options)

    def change(module, args, output):
        if output.shape[1] == 5:
            output = output.clone()
            output[:, 4] = clean["transformer.h.1"][:, 4]
        return output

    hook = model.transformer.h[1].register_forward_hook(change)
    assert same(found, model.generate(**options))
    hook.remove()


def test_the_encoder_runs_in_the_prompt():
    model, ids = t5()
    options = {"input_ids": ids, "do_sample": False, **GENERATED}
    with byname.ablate(model, "encoder.block.0[0]", steps="prompt"):
        found = model.generate(**options)
    with byname.ablate(model, "encoder.block.0[0]"):
        assert same(model.generate(**options), found)
    never = pytest.warns(NothingSeenWarning, match="no value passed there with steps=1")
    with never, byname.ablate(model, "encoder.block.0[0]", steps=1):
        assert same(model.generate(**options), byname.edited(model).generate(**options))


class Counting(nn.Module):
    """A small language model with a generate of its own, as in nanoGPT."""

    def __init__(self):
        super().__init__()
        self.embed, self.block, self.head = nn.Embedding(8, 4), nn.Linear(4, 4), nn.Linear(4, 8)

    def forward(self, ids):
        return self.head(self.block(self.embed(ids)))

    @torch.no_grad()
    def generate(self, ids, steps):
        for _ in range(steps):
            ids = torch.cat([ids, self(ids)[:, -1:].argmax(-1)], 1)
        return ids


IDS = torch.tensor([[1, 2, 3]])


def heard(model, where="block", **options):
    """The steps that a steering by zero was asked about."""
    steps = []
    return steps, byname.steer(model, where, torch.zeros(4), steps=lambda step: steps.append(step) or True, **options)


def test_any_generate_counts_anew_and_iterations_are_those_of_record():
    model = Counting().eval()
    same_as_before = untouched(model)
    steps, handle = heard(model)
    with handle, byname.record(model, "block") as rec:
        model(IDS)
        model.generate(IDS, 3)
        model(IDS)
        model.train()(IDS)
        model(IDS)
        model.eval()(IDS)
        model.generate(IDS, 2)
    assert steps == [0, 0, 1, 2, 4, 0, 1, 5, 0, 1]
    series = rec.results["block"]
    assert [*zip(series.modes, series.iterations, strict=True)][4:8] == [
        ("eval", 4),
        ("train", 0),
        ("train", 1),
        ("eval", 5),
    ]
    assert same_as_before() and "generate" not in model.__dict__


def test_the_prompt_is_no_forward_outside_of_generate():
    model = Counting()
    with byname.ablate(model, "block", steps="prompt"):
        assert torch.equal(model(IDS), byname.edited(model)(IDS))
        found = model.generate(IDS, 2)
    assert found[0, 3] == model.head.bias.argmax() and found[0, 4] == model(found[:, :4])[0, -1].argmax()


@pytest.mark.parametrize("steps", [3, range(2, 4), [1, 4], lambda step: step % 2])
def test_iterations_of_a_training_are_those_by_hooks(steps):
    held = steps if callable(steps) else (lambda step: step == steps) if steps == 3 else steps.__contains__

    def trained(attach):
        torch.manual_seed(0)
        model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)), torch.randn(6, 8, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        undo = attach(model)
        for batch in x:
            optimizer.zero_grad()
            model(batch).square().sum().backward()
            optimizer.step()
        undo()
        return [*model.parameters()]

    for path, hooked in (("0", "register_forward_hook"), ("0.grad", "register_full_backward_hook")):

        def by_hooks(model, hooked=hooked):
            count, layer = [-1], model[0] if hooked == "register_forward_hook" else model[1]

            def begins(*_):
                count[0] += 1

            def change(module, inputs, output):
                if not held(count[0]):
                    return None
                return output * 0 if hooked == "register_forward_hook" else tuple(one * 0 for one in inputs)

            hooks = [model.register_forward_pre_hook(begins), getattr(layer, hooked)(change)]
            return lambda: [hook.remove() for hook in hooks]

        expected = trained(by_hooks)
        found = trained(lambda model, path=path: byname.patch(model, path, lambda one: one * 0, steps=steps).remove)
        assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize(
    ("edit", "limits"),
    [
        (lambda model: byname.patch(model, "1", torch.zeros(3), steps=[1, 2]), r"steps=\[1, 2\]"),
        (lambda model: byname.skip(model, "1", steps=1), "steps=1"),
        (lambda model: byname.skip(model, "1", steps=1, channels=0), "steps=1"),
        (lambda model: byname.ablate(model, ["0", "1"], call=2, steps=0), "call=2 and steps=0"),
    ],
)
def test_an_edit_of_steps_or_calls_that_never_come_says_so(edit, limits):
    layer, x = nn.Linear(3, 3), torch.ones(1, 3)
    model = nn.Sequential(layer, nn.Tanh(), layer)
    with pytest.warns(NothingSeenWarning, match=f"`1`: no value passed there with {limits}$"), edit(model) as handle:
        model(x)
    assert handle.notes[-1].endswith("`1`: no value passed there with " + limits.replace("\\", ""))
    with byname.ablate(model, "0", call=1), byname.skip(model, "1", steps=0):  # these come
        model(x)


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, x):
        return self.second(checkpoint(lambda x: self.first(x).square(), x, use_reentrant=False))


def test_the_second_run_of_a_checkpoint_is_of_the_step_of_the_first():
    model, x = Checkpointed(), torch.randn(2, 3, requires_grad=True)
    edit = functools.partial(byname.patch, model, "first", lambda part: part * 2, steps=1)
    with edit():
        for factor in (1, 2, 1):
            model.zero_grad()
            model(x).sum().backward()
            inner = (
                2 * factor**2 * nn.functional.linear(x, model.first.weight, model.first.bias) * model.second.weight
            )  # of (factor * first) squared
            assert torch.allclose(model.first.bias.grad, inner.sum(0))
        losses = model(x).sum() + model(x).sum()
        losses.backward()
    with edit():
        losses = model(x).sum() + model(x).sum()
        with pytest.raises(InterjectionError, match="a backward of several forwards"):
            losses.backward()


def test_a_skip_holds_for_steps_and_for_channels():
    model, ids = gpt2()
    options = {"input_ids": ids, "use_cache": False, "do_sample": False, **GENERATED}
    layer, whole = model.transformer.h[1], model.transformer.h[1].forward
    count = [-1]
    hook = model.register_forward_pre_hook(lambda *_: count.__setitem__(0, count[0] + 1))
    layer.forward = lambda x, *args, **kwargs: x if count[0] in (1, 2) else whole(x, *args, **kwargs)
    expected = model.generate(**options)
    hook.remove()
    del layer.forward
    with byname.skip(model, "transformer.h.1", steps=range(1, 3)):
        assert same(model.generate(**options), expected)

    def change(module, args, output):
        output = output.clone()
        output[..., [0, 3]] = args[0][..., [0, 3]]
        return output

    hook = layer.register_forward_hook(change)
    expected = model(ids).logits
    hook.remove()
    with byname.skip(model, "transformer.h.1", channels=[0, 3]):
        assert torch.equal(model(ids).logits, expected)
    with pytest.raises(BadArgumentError, match=r"returns a tuple and has no channels; use patch\(..., channels=\)"):
        byname.skip(model, "transformer.h.1.attn", channels=1)
    with byname.patch(model, "transformer.h.1.attn[0]", lambda part: part * 0, channels=1):
        assert not byname.capture(model, "transformer.h.1.attn[0]")(ids)["transformer.h.1.attn[0]"][..., 1].any()
    with byname.skip(model, "transformer.h.1", lambda x, *args, **kwargs: x * 2, channels=[0, 3], steps=1):
        assert torch.equal(model(ids).logits, byname.edited(model)(ids).logits)
        assert not torch.equal(model(ids).logits, expected)


def test_channels_of_a_module_that_works_in_place_are_skipped():
    model, x = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(inplace=True)), torch.randn(2, 3, 5, 5)
    with torch.no_grad(), byname.skip(model, "1", channels=2):
        found = model(x)
        expected = model[0](x)
        expected[:, [0, 1, 3]] = expected[:, [0, 1, 3]].relu()
    assert torch.equal(found, expected)


def test_what_does_not_fit_is_refused():
    model, ids = gpt2()
    for steps in ("all", -1, 1.5, True, range(0), [-1, 2], {}):
        with pytest.raises(BadArgumentError, match="the number of a step from 0, a range or another sequence"):
            byname.ablate(model, "lm_head", steps=steps)
    with pytest.raises(
        BadArgumentError, match="GPT2Model has no generate; attach the edit to the model that generates"
    ):
        byname.ablate(model.transformer, "h.0", steps="prompt")
    with byname.ablate(model.transformer, "h.0", steps=0), pytest.raises(InterjectionError, match="to a part of it"):
        model.generate(ids, **GENERATED)
    with (
        pytest.raises(InterjectionError, match="outside of a forward of GPT2"),
        byname.ablate(model, "lm_head", steps=0),
    ):
        model.lm_head(torch.zeros(1, 8))


def test_attached_in_the_middle_of_generate_it_does_not_know_the_step():
    model, handles = Counting(), []
    hook = model.register_forward_hook(lambda *_: handles.append(byname.ablate(model, "block", steps=0)))
    with pytest.raises(InterjectionError, match="attached while it ran"):
        model.generate(IDS, 3)
    hook.remove()
    for handle in handles:
        handle.remove()
    steps, handle = heard(model)
    with handle:
        model.generate(IDS, 2)
    assert steps == [0, 1] and "generate" not in model.__dict__


class Streaming(Counting):
    def generate(self, ids):
        yield self(ids)


def test_a_generate_that_yields_is_refused():
    model = Streaming()
    with byname.ablate(model, "block", steps=0), pytest.raises(InterjectionError, match="or generate yields"):
        next(model.generate(IDS))


def test_copies_and_views_generate_for_themselves():
    model = Counting()
    with byname.ablate(model, "block", steps="prompt"):
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301
            assert "generate" not in other.__dict__
            assert torch.equal(other.generate(IDS, 3), byname.edited(model).generate(IDS, 3))
    steps = []
    view = byname.edited(
        model, lambda one: byname.steer(one, "block", torch.zeros(4), steps=lambda step: steps.append(step))
    )
    view.generate(IDS, 2)
    assert steps == [0, 1]
    model.generate(IDS, 2)
    assert steps == [0, 1]


def test_an_error_in_generate_leaves_nothing_open():
    model = Counting()
    with byname.patch(model, "block", lambda part: part.missing, steps=1) as handle:
        with pytest.raises(AttributeError):
            model.generate(IDS, 3)
        assert torch.equal(model(IDS), byname.edited(model)(IDS))
        with pytest.raises(AttributeError):
            model.generate(IDS, 3)
        handle.enabled = False
        model.generate(IDS, 3)
