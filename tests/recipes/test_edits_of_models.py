"""What the tasks of docs/edits.md compute is what hooks written by hand compute, on models of many kinds."""

import pytest
import torch
from causal import HEADS, IDS, LAYERS, OTHER, WIDTH, causal, every_kind, hooked, kept, pre_hooked
from torch.utils.flop_counter import FlopCounterMode

import byname
from byname.errors import InterjectionError

BATCHES = [torch.tensor([[3, 8, 1, 6, 2], [9, 9, 4, 1, 5]]), torch.tensor([[7, 1, 1, 2, 8], [4, 6, 3, 3, 9]])]
OWN = WIDTH // HEADS


def put(value, at, new):
    """The value with other features of one head."""
    return torch.cat([value[..., : at * OWN], new, value[..., (at + 1) * OWN :]], -1)


def given_to_mixing(lm, layer, batches):
    found = []
    module = lm.module(lm.heads(layer))
    with module.register_forward_pre_hook(lambda _, args: found.append(args[0].clone())), torch.no_grad():
        for ids in batches:
            lm(ids)
    return torch.cat(found)


@every_kind
def test_activation_patching_over_layers_and_positions(kind):
    lm = causal(kind)
    with kept(dict(enumerate(lm.layers))) as clean:
        lm(IDS)
    for layer, place in enumerate(lm.residuals()):
        captured = byname.capture(lm.model, place)(IDS)
        for at in range(5):

            def restored(value, layer=layer, at=at):
                return torch.cat([value[:, :at], clean[layer][0][:, at : at + 1], value[:, at + 1 :]], 1)

            with hooked(lm.layers[layer], restored):
                expected = lm(OTHER)
            with byname.patch(lm.model, place, captured, positions=at):
                assert torch.equal(lm(OTHER), expected)


@every_kind
def test_a_head_is_zero(kind):
    lm = causal(kind)
    for layer in range(LAYERS):
        for head in range(HEADS):
            with pre_hooked(lm.module(lm.heads(layer)), lambda value, at=head: put(value, at, 0 * value[..., :OWN])):
                expected = lm(IDS)
            with byname.ablate(lm.model, lm.heads(layer), heads=head):
                assert torch.equal(lm(IDS), expected)


@every_kind
def test_a_head_is_the_mean_of_a_reference(kind):
    lm = causal(kind)
    mean = given_to_mixing(lm, 1, BATCHES).double().mean((0, 1)).float()[2 * OWN : 3 * OWN]
    with pre_hooked(lm.module(lm.heads(1)), lambda value: put(value, 2, mean.expand(*value.shape[:-1], OWN))):
        expected = lm(IDS)
    with byname.ablate(lm.model, lm.heads(1), "mean", heads=2, reference=BATCHES):
        torch.testing.assert_close(lm(IDS), expected, atol=1e-6, rtol=1e-5)


@every_kind
def test_a_head_is_that_of_another_sample(kind):
    lm = causal(kind)
    reference = given_to_mixing(lm, 1, BATCHES)[..., 2 * OWN : 3 * OWN]
    outputs = []
    for sample in reference:
        with pre_hooked(lm.module(lm.heads(1)), lambda value, new=sample: put(value, 2, new[None])):
            outputs.append(lm(IDS))
    with byname.ablate(lm.model, lm.heads(1), "resample", heads=2, reference=BATCHES):
        found = lm(IDS)
    assert sum(torch.allclose(found, one, atol=1e-6) for one in outputs) == 1


@every_kind
def test_heads_that_are_mixed_already_are_refused(kind):
    lm = causal(kind)
    with (
        byname.ablate(lm.model, lm.attended(1), heads=1),
        pytest.raises(InterjectionError, match=r"has mixed them; use `.*\.input`"),
    ):
        lm(IDS)


@pytest.mark.parametrize("kind", ["Llama", "Gemma", "Phi"])
@pytest.mark.parametrize("name", ["k_proj", "v_proj"])
def test_heads_of_keys_and_values_are_fewer(kind, name):
    lm = causal(kind)
    place = f"{lm.kind.layers}.1.self_attn.{name}"
    with hooked(lm.module(place), lambda value: torch.cat([value[..., :OWN], 0 * value[..., OWN:]], -1)):
        expected = lm(IDS)
    with byname.ablate(lm.model, place, heads=1):
        assert torch.equal(lm(IDS), expected)
    with byname.ablate(lm.model, place, heads=2), pytest.raises(InterjectionError, match="2"):
        lm(IDS)


@every_kind
def test_an_edited_view_beside_the_model(kind):
    lm = causal(kind)
    before = lm(IDS)
    with hooked(lm.module(lm.down(1)), torch.zeros_like):
        expected = lm(IDS)
    view = byname.edited(lm.model, lambda view: byname.ablate(view, lm.down(1)))
    assert torch.equal(view(IDS).logits, expected) and torch.equal(lm(IDS), before)
    assert {id(one) for one in view.parameters()} == {id(one) for one in lm.model.parameters()}


@every_kind
def test_what_each_module_costs(kind):
    lm = causal(kind)
    with FlopCounterMode(display=False) as counter:
        lm(IDS)
    totals = byname.summary(lm.model, IDS).totals
    assert totals["flops"] == counter.get_total_flops()
    assert totals["parameters"] == sum(parameter.numel() for parameter in lm.model.parameters())
