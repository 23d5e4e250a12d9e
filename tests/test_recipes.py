"""What the recipes compute is what hooks written by hand compute, on several architectures."""

import pytest
import torch
from torch import nn

import byname

transformers = pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def gpt2():
    config = transformers.GPT2Config(
        n_embd=32, n_layer=4, n_head=4, vocab_size=64, n_positions=32, bos_token_id=0, eos_token_id=0
    )
    config.initializer_range, config._attn_implementation = 0.2, "eager"
    model = transformers.GPT2LMHeadModel(config).eval()
    return model, model.transformer.h, "transformer.h"


def of(name):
    def make():
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4}
        config = getattr(transformers, f"{name}Config")(**sizes, vocab_size=64, num_key_value_heads=2, pad_token_id=0)
        model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
        return model, model.model.layers, "model.layers"

    return make


MODELS = {"GPT2": gpt2, "Llama": of("Llama"), "Qwen2": of("Qwen2"), "Mistral": of("Mistral"), "Gemma": of("Gemma")}
models = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
IDS, OTHER = torch.tensor([[5, 9, 2, 7, 1]]), torch.tensor([[5, 9, 3, 7, 1]])


def first(output):
    return output[0] if isinstance(output, tuple) else output


def with_first(output, value):
    return (value, *output[1:]) if isinstance(output, tuple) else value


def path_of(model, path):
    """The place of the residual stream behind a layer, which some models return in a tuple."""
    seen = byname.capture(model, path)(IDS)[path] if path else None
    return path if isinstance(seen, torch.Tensor) else f"{path}[0]"


def by_hooks(model, layers, ids):
    """What each layer returns, and its gradient of a logit."""
    kept = {}
    hooks = [
        layer.register_forward_hook(lambda _, __, output, number=number: kept.update({number: first(output)}))
        for number, layer in enumerate(layers)
    ]
    logits = model(ids).logits
    for hook in hooks:
        hook.remove()
    gradients = torch.autograd.grad(logits[0, -1, 7] - logits[0, -1, 11], [*kept.values()])
    return {number: value.detach() for number, value in kept.items()}, gradients, logits.detach()


@models
def test_what_layers_give_and_their_gradients(make):
    model, layers, where = make()
    values, gradients, logits = by_hooks(model, layers, IDS)
    paths = [path_of(model, f"{where}.{number}") for number in range(4)]
    with byname.capture(model, [*paths, *(f"{path}.grad" for path in paths)]) as seen:
        output = model(IDS).logits
        (output[0, -1, 7] - output[0, -1, 11]).backward()
    assert torch.equal(output, logits)
    for number, path in enumerate(paths):
        assert torch.equal(seen[path], values[number]) and torch.equal(seen[f"{path}.grad"], gradients[number])


@models
def test_activation_patching_and_attribution_patching(make):
    model, layers, where = make()
    clean, _, _ = by_hooks(model, layers, IDS)
    dirty, gradients, _ = by_hooks(model, layers, OTHER)
    for number in range(4):
        path = path_of(model, f"{where}.{number}")
        captured = byname.capture(model, path)(IDS)
        for position in range(5):

            def put(_, __, output, number=number, position=position):
                value = first(output).clone()
                value[:, position] = clean[number][:, position]
                return with_first(output, value)

            hook = layers[number].register_forward_hook(put)
            expected = model(OTHER).logits
            hook.remove()
            with byname.patch(model, path, captured, positions=position):
                assert torch.equal(model(OTHER).logits, expected)
        with byname.capture(model, [path, f"{path}.grad"]) as seen:
            logits = model(OTHER).logits
            (logits[0, -1, 7] - logits[0, -1, 11]).backward()
        change = ((captured[path] - seen[path]) * seen[f"{path}.grad"]).sum(-1)
        assert torch.equal(change, ((clean[number] - dirty[number]) * gradients[number]).sum(-1))


@models
def test_steering_and_skipping_in_generate(make):
    model, layers, where = make()
    settings = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    direction = torch.randn(32)

    def steer(_, __, output):
        value = first(output).clone()
        value[:, -1] += 2 * direction
        return with_first(output, value)

    hook = layers[1].register_forward_hook(steer)
    expected = model.generate(IDS, **settings)
    hook.remove()
    with byname.steer(model, path_of(model, f"{where}.1"), direction, scale=2, positions=-1):
        assert torch.equal(model.generate(IDS, **settings), expected)


def test_direct_logit_attribution_adds_up_to_the_logit():
    model, _, _ = gpt2()
    seen = byname.capture(
        model, ["transformer.drop", "transformer.h.*.attn[0]", "transformer.h.*.mlp", "transformer.ln_f.input"]
    )(IDS)
    norm, token = model.transformer.ln_f, 7
    final = seen["transformer.ln_f.input"][0, -1]
    direction = model.lm_head.weight[token] * norm.weight / (final.var(correction=0) + norm.eps).sqrt()
    parts = [value[0, -1] for path, value in seen.items() if path != "transformer.ln_f.input"]
    total = sum((part - part.mean()) @ direction for part in parts) + model.lm_head.weight[token] @ norm.bias
    assert torch.allclose(total, seen.output.logits[0, -1, token], atol=1e-5)


def test_heads_before_they_are_mixed_are_those_of_the_attention():
    model, _, _ = gpt2()
    places = ["transformer.h.2.attn[1]", "transformer.h.2.attn.c_attn", "transformer.h.2.attn.c_proj.input"]
    seen = byname.capture(model, places)(IDS)
    pattern, qkv, mixed = (seen[place] for place in places)
    values = qkv.split(32, -1)[2].unflatten(-1, (4, 8)).transpose(1, 2)
    assert torch.allclose((pattern @ values).transpose(1, 2).flatten(2), mixed, atol=1e-6)


def test_path_patching_is_what_hooks_compute():
    model, layers, _ = gpt2()
    kept = {}

    def keep(name):
        return lambda _, given, output: kept.__setitem__(name, (given[0].detach(), first(output).detach()))

    def run(ids, hooks):
        handles = [hook() for hook in hooks]
        try:
            return model(ids).logits
        finally:
            for handle in handles:
                handle.remove()

    run(OTHER, [lambda: layers[0].attn.c_proj.register_forward_hook(keep("head"))])
    sources = [
        (f"{n}.{kind}", module)
        for n, layer in enumerate(layers)
        for kind, module in (("attn", layer.attn), ("mlp", layer.mlp))
    ]
    run(IDS, [lambda name=name, module=module: module.register_forward_hook(keep(name)) for name, module in sources])
    head = kept["head"][0]

    def put_head(_, given):
        value = given[0].clone()
        value[..., 8:16] = head[..., 8:16]
        return (value,)

    frozen = [
        lambda name=name, module=module: module.register_forward_hook(
            lambda _, __, output: with_first(output, kept[name][1])
        )
        for name, module in sources
        if name not in ("0.attn", "2.mlp")
    ]
    through = {}
    run(
        IDS,
        [
            *frozen,
            lambda: layers[0].attn.c_proj.register_forward_pre_hook(put_head),
            lambda: layers[2].mlp.register_forward_hook(lambda _, __, output: through.update(mlp=output.detach())),
        ],
    )
    expected = run(IDS, [lambda: layers[2].mlp.register_forward_hook(lambda *_: through["mlp"])])
    captured = byname.capture(model, "transformer.h.0.attn.c_proj.input")(OTHER)
    whole = byname.capture(model, ["transformer.h.*.attn[0]", "transformer.h.*.mlp"])(IDS)
    held = [path for path in whole if path not in ("transformer.h.0.attn[0]", "transformer.h.2.mlp")]
    with byname.patch(model, "transformer.h.0.attn.c_proj.input", captured, heads=1), byname.patch(model, held, whole):
        ours = byname.capture(model, "transformer.h.2.mlp")(IDS)
    with byname.patch(model, "transformer.h.2.mlp", ours):
        assert torch.equal(model(IDS).logits, expected)


def test_an_autoencoder_in_the_place_of_a_value():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    sparse, x = nn.Linear(8, 8), torch.randn(5, 4)
    expected = model[2](sparse(model[1](model[0](x))))
    with byname.patch(model, "1", sparse):
        assert torch.equal(model(x), expected)
