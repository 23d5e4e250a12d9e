"""Figures of features, outliers, ranks and spectra are those of numpy and scipy on all data at once."""

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn

import byname
from byname.analyse import (
    ClassVersusRest,
    DeadUnits,
    FeatureStatistics,
    NameList,
    Outliers,
    PerClass,
    Rank,
    Several,
    Spectrum,
)
from byname.errors import BadArgumentError, NoMatchError

TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool]


def passed(analyser, batches):
    """The analyser after these values have passed the output of a module."""
    model = nn.Sequential(nn.Identity())
    with byname.observe(model, "0", analyser):
        for batch in batches:
            model(batch)
    return analyser


def figures_of(analyser, batches):
    return passed(analyser, batches).result()["0"]


def whole(batches):
    return np.concatenate([batch.double().numpy() for batch in batches])


def by_channel(values):
    return np.moveaxis(values, 1, -1).reshape(-1, values.shape[1])


def batches_of(shape, dtype=torch.float32, sizes=(3, 1, 8)):
    scale = torch.arange(1, shape[0] + 1).reshape(-1, *[1] * (len(shape) - 1))
    return [((torch.randn(size, *shape) * scale + 3).relu() * 2).to(dtype) for size in sizes]


def close(found, wanted, rtol=1e-9):
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=rtol, atol=1e-12)


SHAPES = [(5,), (4, 6), (3, 5, 5), (2, 3, 2, 2)]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_features_and_channels(shape, dtype):
    batches = batches_of(shape, dtype)
    figures = figures_of(FeatureStatistics(), batches)
    values = whole(batches)
    channels = by_channel(values)
    close(figures["mean"], values.mean(0))
    close(figures["variance"], values.var(0, ddof=1))
    close(figures["channel_mean"], channels.mean(0))
    close(figures["channel_variance"], channels.var(0, ddof=1))
    close(figures["sparsity"], (values == 0).mean())
    close(figures["channel_sparsity"], (channels == 0).mean(0))
    assert figures["mean"].shape == shape
    assert figures["mean"].dtype is torch.float64
    assert type(figures["sparsity"]) is float
    assert (figures["samples"], figures["nans"]) == (12, 0)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_outliers(shape, dtype):
    batches = batches_of(shape, dtype)
    figures = figures_of(Outliers(), batches)
    values = whole(batches)
    channels = by_channel(values)
    varies = channels.var(0) > 0
    close(figures["max_abs"], np.abs(values).max())
    close(figures["channel_max_abs"], np.abs(channels).max(0))
    close(figures["kurtosis"], scipy.stats.kurtosis(values.ravel()))
    close(figures["channel_kurtosis"][torch.tensor(varies)], scipy.stats.kurtosis(channels[:, varies]))
    assert figures["channel_kurtosis"].isnan().tolist() == (~varies).tolist()
    at = figures["max_abs_sample"]
    assert at == np.abs(values).reshape(len(values), -1).max(1).argmax()
    assert np.abs(values[at, figures["max_abs_channel"]]).max() == figures["max_abs"]


def ranks_of(matrix, eps):
    values = np.linalg.svd(matrix, compute_uv=False)
    shares = values / values.sum()
    return {
        "rank": np.linalg.matrix_rank(matrix, tol=values.max() * max(matrix.shape) * eps),
        "stable_rank": (values**2).sum() / values.max() ** 2,
        "effective_rank": np.exp(scipy.stats.entropy(shares)),
        "dimension": matrix.shape[1],
        "samples": len(matrix),
    }


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("centred", [False, True], ids=["raw", "centred"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_ranks_against_numpy(shape, centred, dtype):
    batches = batches_of(shape, dtype)
    eps = torch.finfo(dtype).eps if dtype.is_floating_point else np.finfo(float).eps
    for rows, matrix in (("positions", by_channel(whole(batches))), ("samples", whole(batches).reshape(12, -1))):
        figures = figures_of(Rank(rows=rows, centred=centred), batches)
        wanted = ranks_of(matrix - matrix.mean(0) if centred else matrix, eps)
        assert {name: figures[name] for name in wanted} == pytest.approx(wanted, rel=1e-9)
        assert type(figures["rank"]) is int


@pytest.mark.parametrize("rank", [0, 1, 2, 7])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize("sizes", [(1,), (2, 3), (40, 1, 60)], ids=str)
def test_the_rank_of_data_that_fill_few_dimensions(sizes, dtype, rank):
    basis = torch.randint(-4, 5, (rank, 9), dtype=torch.int64)
    batches = [(torch.randint(-4, 5, (size, rank)) @ basis).to(dtype) for size in sizes]
    matrix = whole(batches)
    exact = np.linalg.matrix_rank(matrix)
    figures = figures_of(Rank(), batches)
    assert figures["rank"] == exact
    centred = figures_of(Rank(centred=True), batches)
    assert centred["rank"] == np.linalg.matrix_rank(matrix - matrix.mean(0), tol=1e-9)
    assert np.isnan(figures["stable_rank"]) == (exact == 0)


def test_the_rank_of_a_direction_far_below_the_others_is_seen():
    scales = 10.0 ** -torch.arange(0, 13, 2, dtype=torch.float64)
    batches = [torch.randn(n, 7, dtype=torch.float64) * scales for n in (5, 50, 200)]
    assert figures_of(Rank(), batches)["rank"] == 7
    assert figures_of(Rank(), [batch.float() for batch in batches])["rank"] == np.linalg.matrix_rank(
        whole([batch.float() for batch in batches]).astype(np.float32)
    )


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_spectrum_is_that_of_the_covariance(shape, dtype):
    batches = batches_of(shape, dtype)
    for rows, matrix in (("positions", by_channel(whole(batches))), ("samples", whole(batches).reshape(12, -1))):
        figures = figures_of(Spectrum(rows=rows), batches)
        wanted = np.linalg.eigvalsh(np.atleast_2d(np.cov(matrix.T)))[::-1].clip(0)
        np.testing.assert_allclose(figures["eigenvalues"].numpy(), wanted, rtol=1e-8, atol=1e-12 * wanted.max())
        np.testing.assert_allclose(figures["explained"].numpy(), wanted / wanted.sum(), rtol=1e-8, atol=1e-12)
        close(figures["participation_ratio"], wanted.sum() ** 2 / (wanted**2).sum())
        assert figures["eigenvalues"].dtype is torch.float64


def test_every_analyser_of_channels_takes_tokens_as_samples():
    model, values = nn.Sequential(nn.Linear(8, 6), nn.ReLU()), torch.randn(4, 5, 8)
    tokens = FeatureStatistics(samples="tokens"), Outliers(samples="tokens"), Rank(samples="tokens")
    whole = Spectrum(samples="batch")
    with byname.observe(model, "1", whole):
        model(values)
    for one in tokens:
        byname.observe(model, "1", one)
    with torch.no_grad():
        rows = np.concatenate([model(part).double().reshape(-1, 6).numpy() for part in (values, values[:, :2])])
    features, outliers, rank = (one.result()["1"] for one in tokens)
    assert features["samples"] == outliers["samples"] == rank["samples"] == 28 and "note" not in features
    np.testing.assert_allclose(features["mean"], rows.mean(0), rtol=1e-9)
    np.testing.assert_allclose(features["variance"], rows.var(0, ddof=1), rtol=1e-9)
    assert outliers["max_abs"] == np.abs(rows).max() and whole.result()["1"]["dimension"] == 30


@pytest.mark.parametrize(
    "layer", [nn.Linear(6, 4), nn.Conv2d(3, 5, 2), nn.Embedding(7, 3), nn.BatchNorm1d(4)], ids=repr
)
def test_a_weight_is_its_own_matrix_as_it_is_now(layer):
    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return x

    model, rank, spectrum = Holder(), Rank(centred=True), Spectrum()
    both = Several(rank, spectrum)
    with byname.observe(model, "layer.weight", both):
        model(torch.ones(1))
        with torch.no_grad():
            layer.weight.copy_(torch.randn_like(layer.weight))
        model(torch.ones(1))
    figures = both.result()["layer.weight"]
    matrix = layer.weight.detach().double().reshape(len(layer.weight), -1).numpy()
    wanted = ranks_of(matrix, torch.finfo(torch.float32).eps)
    for name in ("rank", "stable_rank", "effective_rank"):
        assert figures[name] == pytest.approx(wanted[name], rel=1e-9)
    close(figures["eigenvalues"], np.linalg.svd(matrix, compute_uv=False) ** 2)


LAYOUTS = {
    "channels_last": lambda x: x.to(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "expanded": lambda x: x[:1].expand(x.shape),
    "strided": lambda x: x.repeat(1, 2, 1, 2)[:, ::2, :, ::2],
    "requires grad": lambda x: x.requires_grad_(),
    "inference": lambda x: inference(x),
    "no position": lambda x: x[:, :, :0],
}


@torch.inference_mode()
def inference(value):
    return value.clone()


ANALYSERS = [FeatureStatistics, DeadUnits, Outliers, Rank, Spectrum, NameList]


def equal(one, other, rtol=1e-8):
    """Whether figures are the same, in whatever dicts they lie."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            equal(one[key], other[key], rtol)
    elif isinstance(one, torch.Tensor | float):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=rtol, atol=1e-9)
    else:
        assert one == other
    return True


@pytest.mark.parametrize("analyser", ANALYSERS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.filterwarnings("ignore:.*NaN.*")
def test_figures_do_not_depend_on_the_layout(analyser, layout):
    batches = [LAYOUTS[layout](batch) for batch in batches_of((3, 4, 5))]
    plain = [batch.detach().clone(memory_format=torch.contiguous_format) for batch in batches]
    assert equal(figures_of(analyser(), batches), figures_of(analyser(), plain))


@pytest.mark.parametrize("analyser", ANALYSERS[:-1])
def test_sequences_have_their_channels_last(analyser):
    batches = [torch.randn(n, length, 3) for n, length in ((2, 4), (1, 7), (5, 2))]
    other = [batch.movedim(-1, 1) for batch in batches]
    sequences, images = figures_of(analyser(channel_dim=-1), batches), figures_of(analyser(), other)
    assert sequences.pop("note", None) is None or images.pop("note")
    assert (sequences.pop("channel_dim"), images.pop("channel_dim")) == (-1, 1)
    assert equal(sequences, images)


@pytest.mark.parametrize("analyser", ANALYSERS[:-1])
def test_the_result_says_which_dimension_the_channels_are(analyser):
    model, found = nn.Sequential(nn.Conv2d(3, 6, 3), nn.Flatten(2), nn.LayerNorm(9), nn.Linear(9, 2)), analyser()
    with torch.no_grad(), byname.observe(model, ["0", "2", "3.weight"], found):
        model(torch.randn(4, 3, 5, 5))
    figures = found.result()
    assert (figures["0"]["channel_dim"], figures["2"]["channel_dim"]) == (1, -1)


@pytest.mark.parametrize("analyser", [*ANALYSERS, lambda: Several(*(one() for one in ANALYSERS))])
def test_parts_put_together_saved_and_loaded_are_the_whole(analyser):
    batches = batches_of((3, 4), sizes=(5, 1, 8, 2))
    parts = [passed(analyser(), batches[:1]), passed(analyser(), batches[1:3]), passed(analyser(), batches[3:])]
    kept = analyser()
    kept.load_state_dict(parts[0].merge(parts[1]).merge(parts[2]).state_dict())
    assert equal(kept.result()["0"], figures_of(analyser(), batches))
    assert equal(kept.reduce().result()["0"], kept.result()["0"])


@pytest.mark.parametrize("analyser", ANALYSERS)
def test_classes_apart_and_against_the_rest(analyser):
    batches = batches_of((3, 4), sizes=(9, 6))
    targets = [torch.arange(len(batch)) % 3 for batch in batches]
    each, versus = PerClass(analyser()), ClassVersusRest(analyser())
    model = nn.Sequential(nn.Identity())
    with byname.observe(model, "0", each), byname.observe(model, "0", versus):
        for batch, classes in zip(batches, targets, strict=True):
            each.targets = versus.targets = classes
            model(batch)
    for label in range(3):
        of_class = [batch[classes == label] for batch, classes in zip(batches, targets, strict=True)]
        assert equal(each.result()["0"][label], figures_of(analyser(), of_class))
        assert equal(versus.result()["0"][label]["class"], figures_of(analyser(), of_class))
        others = [b[c == other] for other in range(3) if other != label for b, c in zip(batches, targets, strict=True)]
        assert equal(versus.result()["0"][label]["rest"], figures_of(analyser(), others))


@pytest.mark.parametrize("analyser", ANALYSERS)
def test_one_analyser_observes_two_models(analyser):
    one, other, both = nn.Sequential(nn.Identity()), nn.Sequential(nn.Identity()), analyser()
    first, second = batches_of((3, 4)), batches_of((3, 4))
    with byname.observe(one, "0", both, label="one"), byname.observe(other, "0", both, label="other"):
        for here, there in zip(first, second, strict=True):
            one(here)
            other(there)
    assert equal(both.result()["one.0"], figures_of(analyser(), first))
    assert equal(both.result()["other.0"], figures_of(analyser(), second))


def test_features_are_given_up_where_samples_change_their_shape():
    batches = [torch.randn(2, 3, size) for size in (4, 6, 4, 5)]
    for kept in (
        passed(FeatureStatistics(), batches),
        passed(FeatureStatistics(), batches[:1]).merge(passed(FeatureStatistics(), batches[1:])),
        passed(FeatureStatistics(), batches[:2]).merge(passed(FeatureStatistics(), batches[2:3] + batches[3:])),
    ):
        figures = kept.result()["0"]
        channels = np.concatenate([by_channel(batch.double().numpy()) for batch in batches])
        assert "mean" not in figures
        assert "(3, 4) and (3, 6)" in figures["note"]
        close(figures["channel_mean"], channels.mean(0))
        close(figures["channel_variance"], channels.var(0, ddof=1))


def test_nan_is_left_out_and_counted():
    values = torch.randn(20, 3, 4)
    values[3, 1, 2] = values[4, :, 1] = values[:, 2, 3] = torch.nan
    batches = [*values.split(7)]
    array = values.double().numpy()
    channels = by_channel(array)
    figures = figures_of(FeatureStatistics(), batches)
    assert figures["nans"] == figures_of(Outliers(), batches)["nans"] == np.isnan(array).sum()
    np.testing.assert_allclose(figures["channel_mean"].numpy(), np.nanmean(channels, 0))
    np.testing.assert_allclose(figures["channel_variance"].numpy(), np.nanvar(channels, 0, ddof=1))
    assert figures["mean"].isnan().sum() == 1
    assert figures["mean"][1, 2] == pytest.approx(np.nanmean(array[:, 1, 2]))
    outliers = figures_of(Outliers(), batches)
    assert outliers["max_abs"] == pytest.approx(np.nanmax(np.abs(array)))
    assert outliers["kurtosis"] == pytest.approx(scipy.stats.kurtosis(array.ravel(), nan_policy="omit"))
    known = channels[~np.isnan(channels).any(1)]
    rank = figures_of(Rank(), batches)
    assert rank["samples"] == len(known)
    assert rank["effective_rank"] == pytest.approx(ranks_of(known, 1e-7)["effective_rank"])


def test_infinity_is_a_magnitude_and_no_rank():
    batches = [torch.tensor([[1.0, 2.0], [-torch.inf, 3.0]]), torch.tensor([[1.0, 4.0]])]
    outliers, rank, spectrum = (figures_of(one, batches) for one in (Outliers(), Rank(), Spectrum()))
    assert (outliers["max_abs"], outliers["max_abs_sample"], outliers["max_abs_channel"]) == (np.inf, 1, 0)
    assert np.isnan(outliers["kurtosis"])
    assert outliers["channel_kurtosis"][1] == pytest.approx(scipy.stats.kurtosis([2, 3, 4]))
    assert all(np.isnan(rank[name]) for name in ("rank", "stable_rank", "effective_rank"))
    assert spectrum["eigenvalues"].isnan().all()


def test_the_first_of_equal_magnitudes_is_told_by_its_sample_and_the_channel_in_it():
    outliers = figures_of(Outliers(), [torch.tensor([[0.0, -3.0, 3.0]]), torch.tensor([[3.0, 0.0, 0.0]])])
    assert (outliers["max_abs_sample"], outliers["max_abs_channel"]) == (0, 1)


def test_what_is_not_defined_is_nan():
    nothing = [torch.zeros(0, 3)]
    features, outliers = figures_of(FeatureStatistics(), nothing), figures_of(Outliers(), nothing)
    assert features["mean"].isnan().all()
    assert np.isnan(features["sparsity"])
    assert np.isnan(outliers["max_abs"])
    assert (outliers["max_abs_sample"], outliers["max_abs_channel"]) == (None, None)
    assert np.isnan(outliers["kurtosis"])
    assert figures_of(Rank(), nothing)["rank"] == 0
    assert figures_of(Spectrum(), [torch.ones(1, 3)])["eigenvalues"].isnan().all()
    constant = [torch.full((7, 2), 0.1), torch.full((3, 2), 0.1)]
    assert np.isnan(figures_of(Outliers(), constant)["kurtosis"])
    assert np.isnan(figures_of(Spectrum(), constant)["participation_ratio"])


def test_figures_are_right_far_from_zero():
    batches = [torch.randn(n, 3, 5, dtype=torch.float64) + 1e7 for n in (1, 30, 4)]
    values = whole(batches)
    # the reference from values less their offset, which is exact
    channels = by_channel(values - 1e7)
    features, outliers = figures_of(FeatureStatistics(), batches), figures_of(Outliers(), batches)
    close(features["channel_variance"], channels.var(0, ddof=1), rtol=1e-8)
    assert outliers["kurtosis"] == pytest.approx(scipy.stats.kurtosis(channels.ravel()), rel=1e-7)
    spectrum = figures_of(Spectrum(), batches)
    np.testing.assert_allclose(spectrum["eigenvalues"].numpy(), np.linalg.eigvalsh(np.cov(channels.T))[::-1], rtol=1e-8)


@pytest.mark.parametrize("analyser", [FeatureStatistics, Outliers, Rank, Spectrum])
def test_another_number_of_channels_is_refused_and_nothing_is_taken(analyser):
    first = [torch.randn(4, 3)]
    kept = passed(analyser(), first)
    with pytest.raises(BadArgumentError, match="channel_dim=-1"):
        passed(kept, [torch.randn(2, 5)])
    assert equal(kept.result()["0"], figures_of(analyser(), first))


@pytest.mark.parametrize("analyser", ANALYSERS[:-1])
@pytest.mark.parametrize("value", [torch.tensor(1.0), torch.randn(2, 3, dtype=torch.complex64)], ids=["0-d", "complex"])
def test_what_has_no_samples_or_no_order_is_refused_and_leaves_no_place(analyser, value):
    kept = analyser()
    with pytest.raises(BadArgumentError, match=r"sample|complex"):
        passed(kept, [value])
    assert kept.paths == ()


@pytest.mark.parametrize("analyser", [FeatureStatistics, DeadUnits, Outliers, Rank, Spectrum])
def test_a_channel_that_is_none_is_refused(analyser):
    with pytest.raises(BadArgumentError, match="sample"):
        analyser(channel_dim=0)
    with pytest.raises(BadArgumentError, match=r"channel_dim=4"):
        passed(analyser(channel_dim=4), [torch.ones(2, 3, 4)])
    with pytest.raises(BadArgumentError, match=r"channel_dim=-3"):
        passed(analyser(channel_dim=-3), [torch.ones(2, 3, 4)])


@pytest.mark.parametrize("analyser", ANALYSERS[:-1])
@pytest.mark.parametrize("around", [lambda one: one, PerClass, ClassVersusRest, Several])
def test_figures_of_other_channels_are_not_put_together(analyser, around):
    one, other = around(analyser()), around(analyser(channel_dim=-1))
    for each in (one, other):
        each.targets = torch.zeros(5, dtype=torch.int64)
        passed(each, [torch.randn(5, 3, 3)])
    with pytest.raises(BadArgumentError, match="channel_dim"):
        one.merge(other)


@pytest.mark.parametrize("analyser", [Rank, Spectrum])
def test_rows_are_positions_or_samples(analyser):
    with pytest.raises(BadArgumentError, match="positions"):
        analyser(rows="pixels")


def test_float8_is_computed_with():
    values = torch.randn(6, 3).to(torch.float8_e4m3fn)
    assert equal(figures_of(Outliers(), [values]), figures_of(Outliers(), [values.float()]))
    assert equal(figures_of(FeatureStatistics(), [values]), figures_of(FeatureStatistics(), [values.float()]))


def test_samples_that_come_flat_at_first_and_with_positions_later_have_no_figures_of_features():
    flat, wide = torch.randn(4, 3), torch.randn(4, 3, 5)
    model = nn.Sequential(nn.Identity())
    together, apart = FeatureStatistics(), [FeatureStatistics(), FeatureStatistics()]
    with byname.observe(model, "0", together):
        model(flat), model(wide)
    for analyser, batch in zip(apart, (flat, wide)):
        with byname.observe(model, "0", analyser):
            model(batch)
    pooled = np.concatenate([flat.numpy(), wide.movedim(1, 2).reshape(-1, 3).numpy()]).astype(np.float64)
    for found in (together.result()["0"], apart[0].merge(apart[1]).result()["0"]):
        assert "mean" not in found
        assert "no figures of features" in found["note"]
        np.testing.assert_allclose(found["channel_mean"], pooled.mean(0), rtol=1e-12)


@pytest.mark.parametrize("scale", [1e-120, 1e120, 1e200])
def test_a_kurtosis_of_all_that_leaves_the_range_of_numbers_is_not_told(scale):
    model, outliers = nn.Sequential(nn.Identity()), Outliers()
    with byname.observe(model, "0", outliers):
        model(torch.randn(50, 3, dtype=torch.float64) * scale)
    assert np.isnan(outliers.result()["0"]["kurtosis"])


def test_a_channel_of_tiny_values_does_not_hide_the_kurtosis_of_all():
    values = torch.randn(50, 3, dtype=torch.float64)
    values[:, 1] *= 1e-120
    model, outliers = nn.Sequential(nn.Identity()), Outliers()
    with byname.observe(model, "0", outliers):
        model(values)
    expected = scipy.stats.kurtosis(values.flatten().numpy())
    assert outliers.result()["0"]["kurtosis"] == pytest.approx(expected, rel=1e-9)


def test_targets_of_which_there_is_no_path_are_refused_and_change_nothing():
    model, units = nn.Sequential(nn.ReLU()), PerClass(DeadUnits())
    with byname.observe(model, "0", units) as handle:
        units.targets = torch.tensor([0, 1])
        with pytest.raises(NoMatchError, match="nothing"):
            units.targets = "forward.nothing"
        model(torch.ones(2, 3))
        assert list(units.result()["0"]) == [0, 1]
    elsewhere = PerClass(DeadUnits())
    elsewhere.targets = "forward.nothing"
    with pytest.raises(NoMatchError, match="nothing"):
        byname.observe(model, "0", elsewhere)
    assert handle.removed
    assert not elsewhere.watching
    assert not model[0]._forward_hooks


def test_which_of_two_models_runs_first_makes_no_difference_to_the_names():
    models, features = [nn.Sequential(nn.Identity()) for _ in range(3)], FeatureStatistics()
    for model in models:
        byname.observe(model, "0", features)
    for number in (1, 2, 0):
        models[number](torch.full((2, 1), float(number)))
    found = {path: figures["mean"].item() for path, figures in features.result().items()}
    assert found == {"0": 0.0, "model2.0": 1.0, "model3.0": 2.0}


def test_targets_that_are_no_numbers_are_refused_in_words():
    with pytest.raises(BadArgumentError, match=r"a tensor or list of class numbers, or a path of the model, not \['a'"):
        byname.analyse.PerClass(FeatureStatistics()).targets = ["a", "b"]
