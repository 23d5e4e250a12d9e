"""Families select what they should on models of many kinds: the modules of those classes, and each call of attention."""

import pytest
import torch
from causal import IDS, KINDS, LAYERS, causal, every_kind
from torch import nn

import byname
from byname import select
from byname.errors import NoMatchError


def found(lm, selector):
    """What `points` finds with an example, which is what a capture finds in the first forward."""
    paths = byname.points(lm.model, selector, example=IDS).paths
    assert sorted(byname.capture(lm.model, selector)(IDS)) == sorted(paths)
    return set(paths)


def of_class(lm, *names):
    return {path for path, module in lm.model.named_modules() if type(module).__name__.endswith(names)}


@every_kind
def test_norms_linear_layers_and_embeddings_are_the_modules_of_those_classes(kind):
    lm = causal(kind)
    assert found(lm, select.norm) == of_class(lm, "LayerNorm", "RMSNorm")
    assert found(lm, select.linear) == of_class(lm, "Linear", "Conv1D")
    embeddings = {path for path, module in lm.model.named_modules() if isinstance(module, nn.Embedding)}
    assert found(lm, select.embedding) == embeddings
    assert lm.kind.norm in found(lm, select.norm) and lm.kind.embedding in embeddings


@every_kind
def test_activations_are_those_of_the_mlps_and_the_softmax_of_the_attention(kind):
    lm = causal(kind)
    own = {lm.activation(layer) for layer in range(LAYERS)}
    softmax = {f"{lm.kind.layers}.{layer}.{lm.kind.attention}.softmax" for layer in range(LAYERS)}
    assert found(lm, select.activation) == own | softmax
    assert found(lm, select.softmax) == softmax
    with pytest.raises(NoMatchError):
        found(lm, select.tanh)


@pytest.mark.grid(fast=2)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "Bloom"])  # it has no other attention
def test_each_call_of_a_kernel_is_one_attention(kind):
    lm = causal(kind, "sdpa")
    kernel = "scaled_dot_product_attention"
    expected = {f"{lm.kind.layers}.{layer}.{lm.kind.attention}.{kernel}" for layer in range(LAYERS)}
    assert found(lm, select.attention) == expected
    with pytest.raises(NoMatchError, match="the softmax is inside `scaled_dot_product_attention`"):
        found(lm, select.softmax)
    for part in ("scores", "pattern"):
        seen = byname.capture(lm.model, getattr(select.attention, part), attention="explicit")(IDS)
        assert set(seen) == {f"{path}.{part}" for path in expected}


@every_kind
def test_the_scores_of_an_attention_that_is_written_in_python_are_said_to_be_there(kind):
    lm = causal(kind)
    softmax = f"{lm.kind.layers}.0.{lm.kind.attention}.softmax"
    handle = byname.attach(lm.model, select.attention.scores, lambda event: None, attention="explicit")
    with handle, pytest.raises(NoMatchError, match=f"computes attention in Python, and `{softmax}` is its pattern"):
        lm(IDS)
    pattern = byname.capture(lm.model, softmax)(IDS)[softmax]
    torch.testing.assert_close(pattern.sum(-1), torch.ones(pattern.shape[:-1]))


@every_kind
@pytest.mark.parametrize("example", [None, IDS], ids=["online", "example"])
def test_the_pattern_of_an_attention_that_is_written_in_python_is_that_of_its_softmax(kind, example):
    lm = causal(kind)
    attentions = lm.model(IDS, output_attentions=True).attentions
    seen = byname.capture(lm.model, select.attention.pattern, attention="explicit", example=example)(IDS)
    assert [*seen] == [f"{lm.kind.layers}.{layer}.{lm.kind.attention}.softmax" for layer in range(LAYERS)]
    for value, expected in zip(seen.values(), attentions, strict=True):
        torch.testing.assert_close(value.to(expected.dtype), expected)
    with byname.ablate(lm.model, select.attention.pattern, attention="explicit", example=example):
        assert not byname.capture(lm.model, [*seen])(IDS)[[*seen][0]].any()
