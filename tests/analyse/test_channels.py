"""Which dimension is taken for the channels is said where it may be another."""

import pytest
import torch
from torch import nn

import byname
from byname.analyse import (
    ClassVersusRest,
    DeadUnits,
    Evaluation,
    FeatureStatistics,
    LinearProbe,
    Outliers,
    PerClass,
    Rank,
    Several,
    Spectrum,
)
from byname.errors import BadArgumentError

EVERY = [FeatureStatistics, DeadUnits, Outliers, Rank, Spectrum]
every = pytest.mark.parametrize("make", EVERY)


def observed(model, analyser, *values, where="1"):
    """The handle, after these values have gone through the model."""
    with byname.observe(model, where, analyser) as handle:
        for value in values:
            model(value)
    return handle


def mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU())


def test_dead_units_of_tokens_are_counted_among_the_features():
    model, values = mlp(), torch.randn(16, 5, 6)
    with torch.no_grad():
        model[0].bias[:3] = -50.0
    told, right, tokens = DeadUnits(), DeadUnits(channel_dim=-1), DeadUnits(channel_dim=1)
    handle = observed(model, told, values)
    assert observed(model, right, values).notes == () == right.result().notes
    assert (right.result()["1"]["dead"], right.result()["1"]["total"]) == (3, 8)
    assert (told.result()["1"]["dead"], told.result()["1"]["total"]) == (3, 8)
    observed(model, tokens, values)
    assert tokens.result()["1"]["total"] == 5
    note = (
        "`1`: the last dimension, of 8, was taken for the channels of values of shape (16, 5, 8), as in the "
        "modules around it (Linear); channel_dim= takes another"
    )
    assert handle.notes == (note,) == told.result().notes
    assert str(told.result()).endswith(note) and note in told.result()._repr_html_()


@every
def test_every_analyser_of_channels_says_so_and_none_where_it_is_known(make):
    tokens, images, flat = torch.randn(4, 5, 6), torch.randn(4, 3, 7, 7), torch.randn(4, 6)
    assert len(observed(mlp(), one := make(), tokens, tokens).notes) == 1 == len(one.result().notes)
    convolution = nn.Sequential(nn.Identity(), nn.Conv1d(5, 2, 3))
    norm, relus = nn.Sequential(nn.Identity(), nn.BatchNorm1d(5)), nn.Sequential(nn.ReLU(), nn.ReLU())
    for model, value in ((convolution, tokens), (norm, tokens), (relus, images), (mlp(), flat)):
        assert observed(model, one := make(), value).notes == () == one.result().notes
    for dim in (1, -1):
        assert observed(mlp(), one := make(channel_dim=dim), tokens).notes == () == one.result().notes
    last = nn.Sequential(nn.Identity(), nn.Linear(6, 2))
    for value in (tokens, tokens[None]):
        assert observed(last, one := make(), value).notes == () == one.result().notes
        assert channels(one.result()["1"]) == 2


def channels(figures):
    """How many channels an analyser has seen."""
    if "dimension" in figures:
        return figures["dimension"]
    known = ("channel_mean", "fired", "channel_max_abs", "values", "spectrum")
    return next(len(figures[name]) for name in known if name in figures)


@every
def test_what_no_module_tells_is_said_to_be_a_guess(make):
    (note,) = observed(nn.Sequential(nn.ReLU()), one := make(), torch.randn(4, 3, 5), where="0").notes
    assert "dimension 1, of 3, was assumed" in note and "no module of the model shows it" in note
    assert channels(one.result()["0"]) == 3


@every
def test_what_the_modules_contradict_is_refused(make):
    """Scores of attention, (batch, tokens, tokens) and by heads: their last dimension are no features."""

    class Scores(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x):
            scores = self.q(x) @ self.k(x).mT
            heads = scores[:, None]
            return heads

    for where in ("forward.scores", "forward.heads"):
        with pytest.raises(BadArgumentError, match="the modules around it do not show which .* channel_dim=-1"):
            observed(Scores(), make(), torch.randn(2, 5, 6), where=where)
        assert observed(Scores(), make(channel_dim=-1), torch.randn(2, 5, 6), where=where).notes == ()


def statistics(model, where, *inputs, **named):
    features = FeatureStatistics()
    with byname.observe(model, where, features), torch.no_grad():
        model(*inputs, **named)
    return features.result()


def by_hand(value, dim):
    return value.double().movedim(dim, 0).flatten(1).mean(1)


@pytest.mark.parametrize("name", ["GPT2", "Llama", "Bert", "ViT", "T5Encoder"])
def test_transformers_have_their_hidden_size_everywhere(name):
    transformers = pytest.importorskip("transformers")
    sizes = {
        "GPT2": {"n_embd": 24, "n_layer": 2, "n_head": 2, "vocab_size": 31, "n_positions": 16},
        "T5Encoder": {"d_model": 24, "d_ff": 40, "d_kv": 12, "num_layers": 2, "num_heads": 2, "vocab_size": 31},
    }
    usual = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2}
    usual |= {"vocab_size": 31} if name != "ViT" else {"image_size": 8, "patch_size": 4, "num_channels": 3}
    config = getattr(transformers, f"{name.removesuffix('Encoder')}Config")(**sizes.get(name, usual))
    model = getattr(transformers, f"{name}Model")(config).eval()
    given = torch.randn(2, 3, 8, 8) if name == "ViT" else torch.randint(31, (2, 7))
    seen = byname.capture(model, "**")(given)
    whole = [path for path, value in seen.items() if isinstance(value, torch.Tensor) and value.ndim == 3]
    found = statistics(model, whole, given)
    for path in whole:
        assert len(found[path]["channel_mean"]) in (2, 24, 40, 72, 96), path  # 2: T5 embeds a number for each head
        assert torch.allclose(found[path]["channel_mean"], by_hand(seen[path], -1), atol=1e-6), path
    assert len(whole) > 15


def test_a_convolutional_net_with_a_head_has_channels_everywhere():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.relu = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()

        def forward(self, x):
            both = torch.cat([x, self.relu(self.norm(self.conv(x)))], 1)
            return both[:, 2:6]

    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), Block(), nn.Flatten(), nn.Linear(4 * 36, 5)).eval()
    images = torch.randn(2, 3, 8, 8)
    for where in ("0", "1", "2", "2.conv", "2.relu", "2.forward.both", "input", "4"):
        seen = byname.capture(model, where)(images)[where]
        found = statistics(model, where, images)[where]
        assert torch.allclose(found["channel_mean"], by_hand(seen, 1), atol=1e-6), where


@every
@pytest.mark.parametrize("around", [lambda one: one, PerClass, ClassVersusRest, Several])
def test_what_is_said_goes_with_states_merges_and_snapshots(make, around):
    saved, loaded, empty = (around(make()) for _ in range(3))
    saved.targets = torch.tensor([0, 0, 0, 0])
    model, value = mlp(), torch.randn(4, 5, 6)
    observed(model, saved, value)
    loaded.load_state_dict(saved.state_dict())
    (note,) = saved.result().notes
    assert loaded.result().notes == empty.merge(saved).result().notes == saved.reduce().result().notes == (note,)
    again = around(make())
    handle = byname.observe(model, "1", again)
    assert Evaluation(again, [(value, saved.targets)]).take(model).result.notes == (note,) == handle.notes


@every
def test_another_number_of_channels_advises_only_what_was_not_given(make):
    for dim, shapes, advised in ((None, ((4, 3, 5), (4, 2, 5)), True), (-1, ((4, 3, 5), (4, 3, 6)), False)):
        kept, first = make(channel_dim=dim), torch.randn(shapes[0])
        observed(nn.Sequential(nn.Identity()), kept, first, where="0")
        before = str(kept.result())
        with pytest.raises(BadArgumentError, match=r"there were \d channels before, and there are \d now") as told:
            observed(nn.Sequential(nn.Identity()), kept, torch.randn(shapes[1]), where="0")
        assert ("channel_dim" in str(told.value)) == advised
        assert str(kept.result()) == before


@pytest.mark.parametrize("make", [Rank, Spectrum])
def test_rows_of_samples_that_change_their_width_are_advised_to_be_positions(make):
    model = nn.Sequential(nn.Identity())
    with pytest.raises(BadArgumentError, match='columns, .* rows="positions" has a column for each channel'):
        observed(model, make(rows="samples"), torch.randn(4, 3, 5), torch.randn(4, 3, 6), where="0")
    assert observed(model, make(rows="samples"), torch.randn(4, 3, 5), where="0").notes == ()


def failed(value, targets, **options):
    probe = LinearProbe(9, **options)
    probe.targets = targets
    with pytest.raises(BadArgumentError) as told:
        observed(nn.Sequential(nn.Identity()), probe, value, where="0")
    return str(told.value)


def test_a_probe_advises_only_what_was_not_given():
    value, each = torch.randn(8, 10, 32), torch.randint(9, (8, 10))
    flat = failed(value, each)
    assert "features='positions'" in flat and "channel_dim=-1" in flat
    positions = failed(value, each, features="positions")
    assert "features=" not in positions and "(N, length, channels) give channel_dim=-1" in positions
    given = failed(value, each[:4], features="positions", channel_dim=-1)
    assert "features=" not in given and "channel_dim" not in given
    assert "features=" not in failed(value[:, 0], each)
    assert "features='pool'" in failed(value, each[:, 0], limit=10)
    assert "features='pool'" not in failed(value, each[:, 0], limit=10, features="pool")
    probe = LinearProbe(9, features="positions", channel_dim=-1)
    probe.targets = each
    assert observed(nn.Sequential(nn.Identity()), probe, value, where="0").notes == ()
    assert probe.result()["0"]["samples"] == 80


def test_a_probe_of_pooled_tokens_says_what_was_taken_for_the_features():
    value, targets = torch.randn(8, 10, 32), torch.arange(8)
    for features, dim, notes in (("pool", None, 1), ("pool", -1, 0), ("pool", 1, 0), (None, None, 0)):
        probe, again = (LinearProbe(9, features=features, channel_dim=dim) for _ in range(2))
        probe.targets = targets
        handle = observed(nn.Sequential(nn.Identity()), probe, value, where="0")
        assert len(handle.notes) == len(probe.result().notes) == notes
        again.load_state_dict(probe.state_dict())
        assert again.result().notes == probe.result().notes


@pytest.mark.parametrize("dim", [None, -1])
@pytest.mark.parametrize("flat_first", [True, False])
@pytest.mark.parametrize("merged", [True, False])
def test_shapes_that_a_note_tells_are_those_that_came(dim, flat_first, merged):
    flat, wide = torch.randn(4, 8), torch.randn(4, 5, 8) if dim else torch.randn(4, 8, 5)
    values = (flat, wide) if flat_first else (wide, flat)
    model, whole = nn.Sequential(nn.Identity()), FeatureStatistics(channel_dim=dim)
    if merged:
        for value in values:
            observed(model, part := FeatureStatistics(channel_dim=dim), value, where="0")
            whole.merge(part)
    else:
        observed(model, whole, *values, where="0")
    shapes = {str(tuple(value.shape[1:])) for value in values}
    note = whole.result()["0"]["note"]
    assert set(note.partition("such as ")[2].split(" and ")) == shapes


def test_an_empty_result_says_why():
    model, units = mlp(), DeadUnits()
    assert "observes no model now" in units.result().notes[0]
    with byname.observe(model, "1", units):
        assert "nothing was seen at `1`: no forward of this Sequential ran" in units.result().notes[0]
        units.enabled = False
        assert "it is disabled" in str(units.result())
        units.enabled = True
        model(torch.randn(2, 6))
        assert units.result().notes == ()
        units.reset()
        assert "or reset" in units.result().notes[0]


def test_values_by_heads_have_the_heads_as_channels():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=24, n_layer=1, n_head=3, vocab_size=31, n_positions=16)
    config._attn_implementation = "eager"
    model = transformers.GPT2Model(config).eval()
    ids = torch.randint(31, (2, 7))
    for where in ("h.0.attn[1]", "h.0.attn.forward.query_states@-1"):
        value = byname.capture(model, where)(ids)[where]
        figures = statistics(model, where, ids)[where]
        assert value.shape[1] == 3 and torch.allclose(figures["channel_mean"], by_hand(value, 1), atol=1e-6)
