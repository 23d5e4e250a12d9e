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


def test_dead_units_of_tokens_are_counted_among_the_features_or_a_note_says_what_was_counted():
    model, values = mlp(), torch.randn(16, 5, 6)
    with torch.no_grad():
        model[0].bias[:3] = -50.0
    told, right = DeadUnits(), DeadUnits(channel_dim=-1)
    handle = observed(model, told, values)
    assert observed(model, right, values).notes == () == right.result().notes
    assert (right.result()["1"]["dead"], right.result()["1"]["total"]) == (3, 8)
    assert told.result()["1"]["total"] == 5
    note = (
        "`1`: dimension 1, of 5, was taken for the channels of values of shape (16, 5, 8): for (batch, tokens, features) "
        "give channel_dim=-1, for (batch, channels, length) channel_dim=1"
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
    note = "the features of a Linear are the last"
    assert note in observed(last, make(), tokens).notes[0] and note in observed(last, make(), tokens[None]).notes[0]


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
        with pytest.raises(BadArgumentError, match=r"there were \d channels before, and are \d now") as told:
            observed(nn.Sequential(nn.Identity()), kept, torch.randn(shapes[1]), where="0")
        assert ("channel_dim" in str(told.value)) == advised
        assert str(kept.result()) == before


@pytest.mark.parametrize("make", [Rank, Spectrum])
def test_rows_of_samples_that_change_their_width_are_advised_to_be_positions(make):
    model = nn.Sequential(nn.Identity())
    with pytest.raises(BadArgumentError, match='columns; .* rows="positions" has a column for each channel'):
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
    assert "features=" not in positions and "(N, length, channels) these are channel_dim=-1" in positions
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
    assert "observed on no model now" in units.result().notes[0]
    with byname.observe(model, "1", units):
        assert "nothing was seen at `1`: no forward of this Sequential ran" in units.result().notes[0]
        units.enabled = False
        assert "it is off" in str(units.result())
        units.enabled = True
        model(torch.randn(2, 6))
        assert units.result().notes == ()
        units.reset()
        assert "or was reset" in units.result().notes[0]
