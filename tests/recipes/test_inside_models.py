"""What the recipes of docs/recipes/model-internals.md compute is what hooks written by hand compute."""

from contextlib import ExitStack

import pytest
import torch
from causal import HEADS, IDS, LAYERS, OTHER, WIDTH, causal, every_kind, first, hooked, kept, pre_hooked

import byname


def gap(logits):
    return logits[0, -1, 7] - logits[0, -1, 11]


def by_hooks(lm, ids):
    """What each layer returns, its gradient of a difference of logits, and the logits."""
    found = {}
    with ExitStack() as stack:
        for number, layer in enumerate(lm.layers):
            keep = lambda _, __, output, number=number: found.update({number: first(output)})  # noqa: E731
            stack.enter_context(layer.register_forward_hook(keep))
        logits = lm(ids)
    gradients = torch.autograd.grad(gap(logits), [*found.values()])
    return {number: value.detach() for number, value in found.items()}, gradients, logits.detach()


@every_kind
def test_the_logit_lens(kind):
    lm = causal(kind)
    values, _, logits = by_hooks(lm, IDS)
    places = lm.residuals()
    seen = byname.capture(lm.model, places)(IDS)
    norm, head = lm.module(lm.kind.norm), lm.model.lm_head
    for number, place in enumerate(places):
        assert torch.equal(head(norm(seen[place])), head(norm(values[number])))
    assert torch.equal(head(norm(seen[places[-1]])), logits)


@every_kind
def test_integrated_gradients_of_a_layer_are_those_of_the_formula_and_complete(kind):
    lm, steps, layer = causal(kind), 64, 1
    place = lm.residuals()[layer]
    value = byname.capture(lm.model, place)(IDS)[place]
    baseline = byname.capture(lm.model, place)(OTHER)[place]
    alphas = (torch.arange(steps) + 0.5) / steps
    between = (baseline + alphas[:, None, None] * (value - baseline)).requires_grad_()
    with byname.patch(lm.model, place, between):
        logits = lm(IDS.expand(steps, -1))[:, -1]
        (gradients,) = torch.autograd.grad((logits[:, 7] - logits[:, 11]).sum(), between)
    attribution = (value - baseline)[0] * gradients.mean(0)

    expected = torch.zeros_like(attribution)
    for alpha in alphas:
        point = (baseline + alpha * (value - baseline)).detach().requires_grad_()
        whole = lambda _, __, output, point=point: (point, *output[1:]) if isinstance(output, tuple) else point  # noqa: E731
        with lm.layers[layer].register_forward_hook(whole):
            (gradient,) = torch.autograd.grad(gap(lm(IDS)), point)
        expected += (value - baseline)[0] * gradient[0] / steps
    torch.testing.assert_close(attribution, expected, atol=1e-5, rtol=1e-4)
    with torch.no_grad():
        whole = gap(lm(IDS)) - gap(lm(OTHER))
    assert attribution.sum().item() == pytest.approx(whole.item(), rel=0.02, abs=5e-3)


@every_kind
def test_patterns_of_attention_are_those_that_the_model_returns(kind):
    lm = causal(kind)
    expected = lm.model(IDS, output_attentions=True).attentions
    assert len(expected) == LAYERS
    place = f"{lm.kind.layers}.*.{lm.kind.attention}[1]"
    seen = byname.capture(lm.model, place)(IDS)
    assert [*map(torch.equal, seen.values(), expected)] == [True] * LAYERS
    weights = byname.capture(lm.model, byname.select.softmax)(IDS)
    assert [*map(torch.equal, weights.values(), expected)] == [True] * LAYERS


@every_kind
def test_patterns_of_a_kernel_are_those_of_the_model_without_one(kind):
    if kind == "Bloom":
        pytest.skip("it has no other attention")
    expected = causal(kind).model(IDS, output_attentions=True).attentions
    torch.manual_seed(0)
    lm = causal(kind, "sdpa")
    seen = byname.capture(lm.model, byname.select.attention.pattern, attention="explicit")(IDS)
    assert len(seen) == LAYERS
    for pattern, weights in zip(seen.values(), expected, strict=True):
        torch.testing.assert_close(pattern, weights, atol=1e-6, rtol=1e-5)


@every_kind
def test_heads_before_they_are_mixed(kind):
    lm, given = causal(kind), []
    with ExitStack() as stack:
        for layer in range(LAYERS):
            keep = lambda _, args: given.append(args[0].clone())  # noqa: E731
            stack.enter_context(lm.module(lm.heads(layer)).register_forward_pre_hook(keep))
        lm(IDS)
    places = [lm.heads(layer) for layer in range(LAYERS)]
    seen = byname.capture(lm.model, places)(IDS)
    assert all(torch.equal(seen[place], value) for place, value in zip(places, given, strict=True))


def test_the_pattern_times_the_values_is_what_the_heads_give():
    lm = causal("GPT2")
    places = ["transformer.h.2.attn[1]", "transformer.h.2.attn.c_attn", "transformer.h.2.attn.c_proj.input"]
    pattern, qkv, mixed = (byname.capture(lm.model, places)(IDS)[place] for place in places)
    values = qkv.split(WIDTH, -1)[2].unflatten(-1, (HEADS, 8)).transpose(1, 2)
    assert torch.allclose((pattern @ values).transpose(1, 2).flatten(2), mixed, atol=1e-6)


@every_kind
def test_direct_logit_attribution_adds_up_to_the_logit(kind):
    lm, token = causal(kind), 7
    sources = [f"{lm.kind.layers}.0.input", *(each(n) for n in range(LAYERS) for each in (lm.attended, lm.down))]
    last = f"{lm.kind.norm}.input"
    seen = byname.capture(lm.model, [*sources, last])(IDS)
    parts, final = [seen[place].reshape(-1, WIDTH)[-1] for place in sources], seen[last][0, -1]
    torch.testing.assert_close(sum(parts), final, atol=1e-4, rtol=1e-5)
    norm, head = lm.module(lm.kind.norm), lm.model.lm_head
    weight = 1 + norm.weight if kind == "Gemma" else norm.weight
    constant = head.weight[token] @ norm.bias if hasattr(norm, "bias") else 0
    constant = constant + (head.bias[token] if head.bias is not None else 0)
    if hasattr(norm, "bias"):  # a layer norm, which takes the mean away
        parts = [part - part.mean() for part in parts]
        scale = (final.var(correction=0) + norm.eps).rsqrt()
    else:
        scale = (final.square().mean() + getattr(norm, "variance_epsilon", getattr(norm, "eps", None))).rsqrt()
    total = sum(part @ (head.weight[token] * weight * scale) for part in parts) + constant
    torch.testing.assert_close(total, seen.output.logits[0, -1, token], atol=1e-4, rtol=1e-4)


@every_kind
def test_what_layers_give_and_their_gradients(kind):
    lm = causal(kind)
    values, gradients, logits = by_hooks(lm, IDS)
    places = lm.residuals()
    with byname.capture(lm.model, [*places, *(f"{place}.grad" for place in places)]) as seen:
        output = lm(IDS)
        gap(output).backward()
    assert torch.equal(output, logits)
    for number, place in enumerate(places):
        assert torch.equal(seen[place], values[number]) and torch.equal(seen[f"{place}.grad"], gradients[number])


@every_kind
def test_attribution_patching(kind):
    lm = causal(kind)
    clean, _, _ = by_hooks(lm, IDS)
    dirty, gradients, _ = by_hooks(lm, OTHER)
    places = lm.residuals()
    captured = byname.capture(lm.model, places)(IDS)
    with byname.capture(lm.model, [*places, *(f"{place}.grad" for place in places)]) as seen:
        gap(lm(OTHER)).backward()
    for number, place in enumerate(places):
        change = ((captured[place] - seen[place]) * seen[f"{place}.grad"]).sum(-1)
        assert torch.equal(change, ((clean[number] - dirty[number]) * gradients[number]).sum(-1))


@every_kind
def test_path_patching(kind):
    """Head 1 of layer 0, through the MLP of layer 2 alone."""
    lm = causal(kind)
    own = slice(8, 16)
    held = [
        each(n) for n in range(LAYERS) for each in (lm.attended, lm.down) if each(n) not in (lm.attended(0), lm.down(2))
    ]
    with kept({place: lm.module(place) for place in [*held, lm.down(2)]}) as clean:
        lm(IDS)
    with lm.module(lm.heads(0)).register_forward_pre_hook(lambda _, args: head.append(args[0].clone())):
        head = []
        lm(OTHER)

    def put(value):
        return torch.cat([value[..., :8], head[0][..., own], value[..., 16:]], -1)

    with ExitStack() as stack:
        stack.enter_context(pre_hooked(lm.module(lm.heads(0)), put))
        for place in held:
            stack.enter_context(hooked(lm.module(place), lambda _, place=place: clean[place][0].clone()))
        through = stack.enter_context(kept({0: lm.module(lm.down(2))}))[0]
        lm(IDS)
    with hooked(lm.module(lm.down(2)), lambda _: through[0].clone()):
        expected = lm(IDS)
    other = byname.capture(lm.model, lm.heads(0))(OTHER)
    whole = byname.capture(lm.model, held)(IDS)
    with byname.patch(lm.model, lm.heads(0), other, heads=1), byname.patch(lm.model, held, whole):
        ours = byname.capture(lm.model, lm.down(2))(IDS)
    assert not torch.equal(ours[lm.down(2)], clean[lm.down(2)][0]), "the head reaches the MLP"
    with byname.patch(lm.model, lm.down(2), ours):
        assert torch.equal(lm(IDS), expected)


@every_kind
def test_causal_tracing(kind):
    lm = causal(kind)
    clean, _, _ = by_hooks(lm, IDS)
    noise = torch.randn(2, WIDTH)
    places = lm.residuals()
    captured = byname.capture(lm.model, places)(IDS)

    def noisy(value):
        return torch.cat([value[:, :1], value[:, 1:3] + 0.5 * noise, value[:, 3:]], 1)

    for layer, place in enumerate(places):
        for at in range(5):

            def restored(value, layer=layer, at=at):
                return torch.cat([value[:, :at], clean[layer][:, at : at + 1], value[:, at + 1 :]], 1)

            with hooked(lm.module(lm.kind.embedding), noisy), hooked(lm.layers[layer], restored):
                expected = lm(IDS)
            with (
                byname.patch(lm.model, lm.kind.embedding, lambda part: part + 0.5 * noise, positions=[1, 2]),
                byname.patch(lm.model, place, captured, positions=at),
            ):
                assert torch.equal(lm(IDS), expected)


@every_kind
def test_shapes_on_the_meta_device_are_those_of_a_run(kind):
    lm = causal(kind)
    places = [*lm.residuals(), *(lm.activation(layer) for layer in range(LAYERS))]
    expected = [value.shape for value in byname.capture(lm.model, places)(IDS).values()]
    lm.model.config.pad_token_id = None  # else GPT-2 asks the ids whether there is padding, and these have no values
    large = type(lm.model)(lm.model.config).to("meta").eval()
    seen = byname.capture(large, places)(IDS.to("meta"))
    assert [value.shape for value in seen.values()] == expected
    assert all(value.is_meta for value in seen.values())


@every_kind
def test_stopping_early(kind):
    lm = causal(kind)
    place = lm.residual(1)
    expected = by_hooks(lm, IDS)[0][1]
    with kept(dict(enumerate(lm.layers))) as ran:
        early = byname.capture(lm.model, place, stop=True)(IDS)
    assert torch.equal(early[place], expected)
    assert [len(values) for values in ran.values()] == [1, 1, 0, 0]
