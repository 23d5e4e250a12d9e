"""The recipes on encoders, whose prompts are padded: what they compute is what hooks written by hand compute.

BERT and its kind mix the heads beside the attention, in ``attention.output.dense``.
"""

import pytest
import torch
from causal import hooked, pre_hooked, transformers

import byname
from byname.errors import InterjectionError

LAYER = {
    "Bert": "bert.encoder.layer",
    "Roberta": "roberta.encoder.layer",
    "Electra": "electra.encoder.layer",
    "DistilBert": "distilbert.transformer.layer",
}
IDS = torch.tensor([[5, 9, 2, 7, 3], [8, 4, 6, 1, 1]])
GIVEN = {"input_ids": IDS, "attention_mask": (IDS != 1).long()}
OTHER = {**GIVEN, "input_ids": torch.tensor([[5, 9, 8, 7, 3], [8, 4, 2, 1, 1]])}


def every_encoder(test):
    return pytest.mark.grid(fast=2)(pytest.mark.parametrize("kind", LAYER)(test))


def encoder(kind, attention="eager"):
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
    if kind == "DistilBert":
        sizes = {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48}
    config = getattr(transformers, f"{kind}Config")(**sizes, vocab_size=64, pad_token_id=1)
    config.initializer_range, config._attn_implementation = 0.2, attention
    return getattr(transformers, f"{kind}ForMaskedLM")(config).eval()


def places(kind, layer):
    """The attention of a layer, and the module that mixes its heads."""
    own = f"{LAYER[kind]}.{layer}.attention"
    return (own, f"{own}.out_lin") if kind == "DistilBert" else (f"{own}.self", f"{own}.output.dense")


@every_encoder
@pytest.mark.parametrize("head", range(4))
def test_a_head_is_ablated_where_it_is_mixed(kind, head):
    model = encoder(kind)
    _, mixing = places(kind, 1)
    chosen = slice(8 * head, 8 * head + 8)

    def without(value):
        value = value.clone()
        value[..., chosen] = 0
        return value

    with pre_hooked(model.get_submodule(mixing), without):
        expected = model(**GIVEN).logits
    with byname.ablate(model, f"{mixing}.input", heads=head):
        assert torch.equal(model(**GIVEN).logits, expected)
    assert not torch.equal(model(**GIVEN).logits, expected)


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "Electra"])
@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("attention.output.dense", "use `.*attention.output.dense.input`"),
        ("attention.output.LayerNorm.input", "use `.*attention.output.dense.input`"),
        ("output.dense.input", "cannot tell which .* side by side in `.*attention.output.dense.input`"),
    ],
)
def test_what_is_mixed_or_is_no_attention_is_not_split_into_heads(kind, path, why):
    model = encoder(kind)
    with (
        byname.ablate(model, f"{LAYER[kind]}.0.{path}", heads=1),
        pytest.raises(InterjectionError, match=why),
    ):
        model(**GIVEN)


@every_encoder
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_patterns_leave_padding_out_and_are_those_of_the_model(kind, attention):
    expected = encoder(kind)(**GIVEN, output_attentions=True).attentions
    torch.manual_seed(0)
    model, select = encoder(kind, attention), byname.select
    where = select.softmax if attention == "eager" else select.attention.pattern
    seen = byname.capture(model, where, attention=None if attention == "eager" else "explicit")(**GIVEN)
    assert len(seen) == len(expected) == 3
    for pattern, weights in zip(seen.values(), expected, strict=True):
        torch.testing.assert_close(pattern, weights, atol=1e-6, rtol=1e-5)
        assert not pattern[1, ..., 3:].any()


@every_encoder
def test_activation_patching(kind):
    model = encoder(kind)
    place = f"{LAYER[kind]}.1"
    clean = byname.capture(model, place)(**GIVEN)
    value = clean[place] if isinstance(clean[place], torch.Tensor) else clean[place][0]
    place = place if value is clean[place] else f"{place}[0]"
    for at in range(5):

        def restored(own, at=at):
            return torch.cat([own[:, :at], value[:, at : at + 1], own[:, at + 1 :]], 1)

        with hooked(model.get_submodule(f"{LAYER[kind]}.1"), restored):
            expected = model(**OTHER).logits
        with byname.patch(model, place, value[:, at], positions=at):
            assert torch.equal(model(**OTHER).logits, expected)


@every_encoder
def test_a_probe_of_the_positions_that_are_not_padding(kind):
    """A function of the value says which positions are samples."""
    model, real = encoder(kind), GIVEN["attention_mask"].bool()
    found = []
    with model.get_submodule(places(kind, 1)[1]).register_forward_hook(lambda _, __, output: found.append(output)):
        model(**GIVEN)
    units = byname.analyse.DeadUnits(fires=lambda value: (value > 0) & real[..., None])
    with byname.observe(model, places(kind, 1)[1], units):
        model(**GIVEN)
    (figures,) = units.result().values()
    fired = ((found[0] > 0) & real[..., None]).any(1)
    assert torch.equal(figures["fired"], fired.sum(0)) and figures["dead"] == (~fired.any(0)).sum()
