"""Moments and covariances of hard data against numpy in long double."""

import numpy as np
import pytest
import torch
from grid import added
from hypothesis import given, settings
from hypothesis import strategies as st

from byname.analyse import Covariance, Moments, Variance
from byname.errors import BadArgumentError

ROWS = 3000


def first(values, away):
    values[0] += away
    return values


def drift(values, reach):
    return values + np.linspace(0, reach, len(values))[:, None]


HARD = {
    "plain": lambda x: x,
    "large offset": lambda x: x + 1e7,
    "first sample far away": lambda x: first(x, 1000.0),
    "first sample extremely far away": lambda x: first(x, 1e9),
    "first batch far away": lambda x: np.concatenate([x[:40] + 1e5, x[40:]]),
    "far away and offset": lambda x: first(x, 1000.0) + 1e7,
    "drift": lambda x: drift(x, 100.0),
    "drift and offset": lambda x: drift(x, 100.0) - 1e7,
    "jump": lambda x: np.concatenate([x[:2900], x[2900:] + 1e6]),
    "constant until the end": lambda x: np.where(np.arange(len(x))[:, None] < 2900, 0.1, x),
    "skewed": lambda x: np.exp(3 * x),
}


def wanted(values, weights=None):
    """Mean, variance (ddof=1), skewness and excess kurtosis, in long double."""
    exact = values.astype(np.longdouble)
    times = np.ones(len(values), np.longdouble) if weights is None else weights.astype(np.longdouble)
    count = times.sum()
    mean = (times[:, None] * exact).sum(0) / count
    second, third, fourth = ((times[:, None] * (exact - mean) ** order).sum(0) / count for order in (2, 3, 4))
    return mean, second * count / (count - 1), third / second**1.5, fourth / second**2 - 3


def close(found, expected):
    mean, variance, skewness, kurtosis = expected
    spread = np.sqrt(variance)
    assert (np.abs(found.mean().numpy() - mean) <= 1e-8 * spread + 1e-12 * np.abs(mean)).all()
    assert (np.abs(found.variance().numpy() / variance - 1) <= 1e-10).all()
    assert (np.abs(found.skewness().numpy() - skewness) <= 1e-8 * np.maximum(1, np.abs(skewness))).all()
    assert (np.abs(found.kurtosis().numpy() - kurtosis) <= 1e-9 * (3 + kurtosis)).all()


@pytest.mark.grid(fast=4)
@pytest.mark.parametrize("size", [1, 5, 64, 3000])
@pytest.mark.parametrize("kind", HARD)
def test_hard_data_has_the_moments_of_long_double(kind, size):
    values = HARD[kind](np.random.default_rng(0).standard_normal((ROWS, 3)))
    batches = torch.from_numpy(values).split(size)
    close(added(Moments(), batches), wanted(values))
    parts = [added(Moments(), batches[start::3]) for start in range(3)]
    if all(one.begun for one in parts):
        close(parts[1].merge(parts[0]).merge(parts[2]), wanted(values))


@settings(max_examples=60)
@given(st.data())
def test_any_scales_batches_weights_and_merges_give_the_moments_of_long_double(draw):
    rng = np.random.default_rng(draw.draw(st.integers(0, 2**32)))
    values = HARD[draw.draw(st.sampled_from(sorted(HARD)))](rng.standard_normal((ROWS, 2)))
    values = values * 10.0 ** draw.draw(st.integers(-6, 6))
    values = values[rng.permutation(ROWS)] if draw.draw(st.booleans()) else values
    weights = rng.choice([1e-6, 1.0, 3.0], ROWS) if draw.draw(st.booleans()) else None
    ends = sorted(draw.draw(st.lists(st.integers(0, ROWS), max_size=6)))
    parts, chosen = [Moments(), Moments()], rng.integers(0, 2, len(ends) + 1)
    for low, high, number in zip([0, *ends], [*ends, ROWS], chosen, strict=True):
        for part in np.array_split(np.arange(low, high), rng.integers(1, 30)):
            parts[number].add(values[part], None if weights is None else weights[part])
    close(parts[0].merge(parts[1]), wanted(values, weights))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int32, torch.uint8, torch.bool])
@pytest.mark.parametrize("channel", [None, 1, -1])
def test_types_are_taken_as_they_are(dtype, channel):
    values = (torch.randn(40, 3, 7) * 4 + 8).abs().to(dtype)
    found = added(Moments(channel=channel), values.split(1))
    exact = values.double().numpy()
    rows = (
        exact.reshape(40, -1) if channel is None else np.moveaxis(exact, channel, -1).reshape(-1, exact.shape[channel])
    )
    if dtype is not torch.bool:
        expected = [one.reshape(found.mean().shape) for one in wanted(rows)]
        close(found, expected)
    assert found.mean().flatten().tolist() == pytest.approx(rows.mean(0).tolist(), rel=1e-12)


def test_weights_between_batches_without_weights_count_as_repetition():
    values = np.random.default_rng(1).standard_normal((900, 2)) + 5
    times = np.where(np.arange(900) % 30 < 15, 1, np.arange(900) % 3)
    found = Moments()
    for start in range(0, 900, 15):
        part = slice(start, start + 15)
        found.add(values[part], None if start % 30 == 0 else times[part])
    close(found, wanted(values, times))


def test_values_that_are_equal_in_all_batches_never_vary():
    value = float(torch.tensor(0.1))
    found = added(Moments(), [torch.full((size, 2), 0.1) for size in (1, 4, 900, 0, 3, 20)])
    found.add(torch.full((7, 2), 0.1), torch.rand(7)).add([[float("nan"), value]])
    found.merge(added(Moments(), [torch.full((50, 2), 0.1)]))
    assert found._about_mean()[1][2].tolist() == [0, 0]
    assert found.variance().tolist() == [0, 0] and found.mean().tolist() == [value] * 2
    assert Variance().add(torch.full((9, 2, 70), 0.1)).pooled(0).variance().tolist() == [0, 0]


def test_nothing_new_is_kept_and_the_pivot_moves_once_the_count_has_grown_much():
    found = Variance().add(torch.randn(4, 3))
    before = tensors_of(found)
    values = [one.clone() for one in before]
    for _ in range(15):
        found.add(torch.randn(4, 3))
    assert sum(map(torch.equal, before, values)) == 1
    found.add(torch.randn(4, 3))
    assert not any(map(torch.equal, before, values))
    assert all(one is kept for one, kept in zip(tensors_of(found), before, strict=True))


def tensors_of(found):
    kept = [one for value in vars(found).values() for one in (value if isinstance(value, list) else [value])]
    return [one for one in kept if torch.is_tensor(one)]


def test_a_state_of_another_layout_is_refused_in_one_sentence():
    found = Variance().add(torch.randn(4, 3))
    once = ("_counts", "_shift", "_mean", "_squares")  # as byname wrote it before there were power sums
    state = {**{name: one for name, one in found.state_dict().items() if name[0] != "_"}, **dict.fromkeys(once)}
    for other in (state, {**found.state_dict(), "_more": 1}):
        with pytest.raises(BadArgumentError, match="the state of a Variance is a dict of"):
            found.load_state_dict(other)
    assert found.count == 4


@pytest.mark.grid(fast=4)
@pytest.mark.parametrize("size", [1, 5, 64, 3000])
@pytest.mark.parametrize("kind", HARD)
def test_hard_data_has_the_covariance_of_long_double(kind, size):
    values = HARD[kind](np.random.default_rng(0).standard_normal((ROWS, 3)))
    exact = values.astype(np.longdouble)
    far = exact - exact.mean(0)
    expected = far.T @ far / (ROWS - 1)
    batches = torch.from_numpy(values).split(size)
    halves = [added(Covariance(), batches[start::2]) for start in range(2)]
    merged = halves[0] if size == ROWS else halves[1].merge(halves[0])
    spread = np.sqrt(np.diag(expected))
    for found in (added(Covariance(), batches), merged):
        assert (np.abs(found.covariance().numpy() - expected) <= 1e-10 * np.outer(spread, spread)).all()
        assert (np.abs(found.variance().numpy() / np.diag(expected) - 1) <= 1e-10).all()
