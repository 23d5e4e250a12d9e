"""Is what the example on digits says of its model true? Compared with numpy and scikit-learn."""

import sys
from copy import deepcopy
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

PATH = Path(__file__).parents[3] / "examples" / "probe_digits.py"


@pytest.fixture(scope="module")
def example():
    spec = spec_from_file_location("probe_digits", PATH)
    module = sys.modules["probe_digits"] = module_from_spec(spec)  # its dataclasses look for it there
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules["probe_digits"]


@pytest.fixture(scope="module")
def told(example):
    """A short training: the model before and after it, the data, and the snapshots."""
    torch.manual_seed(0)
    data, model = example.load(), example.Digits()
    before = deepcopy(model)
    torch.manual_seed(1)
    story = example.train(model, data, epochs=2, at=())
    return before, model, data, story


def values(model, images):
    """What the variables of the forward hold, computed without byname."""
    with torch.no_grad():
        edges = model.conv1(images).relu()
        shapes = model.conv2(edges).relu()
        parts = model.fc1(shapes.flatten(1)).relu()
        whole = model.fc2(parts).relu()
    return {f"forward.{name}": value for name, value in locals().items() if isinstance(value, torch.Tensor)}


@pytest.mark.slow
def test_snapshots_change_nothing_in_the_training(example, told):
    before, model, data, _ = told
    twin = deepcopy(before)
    torch.manual_seed(1)
    assert len([*example.steps(twin, data, too_fast=example.TOO_FAST, epochs=2)]) == 44
    for name, value in twin.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name


@pytest.mark.grid(fast=1)
@pytest.mark.parametrize("which", [0, -1], ids=["start", "end"])
def test_dead_units_and_ranks_are_those_of_numpy(example, told, which):
    before, model, data, story = told
    found = story.inside[which].result
    for place, value in values((before, model)[which], data.images).items():
        if place not in example.HIDDEN:
            continue
        array = value.numpy()
        fired = (array > 0).reshape(*array.shape[:2], -1).any(2).sum(0)
        assert found[place]["fired"].tolist() == fired.tolist()
        assert found[place]["dead"] == len(example.dead(story.inside[which], place)) == (fired == 0).sum()
        rows = np.moveaxis(array, 1, -1).reshape(-1, array.shape[1])
        assert abs(found[place]["rank"] - np.linalg.matrix_rank(rows)) <= 1  # float32 is on the edge of the tolerance
        own = np.linalg.eigvalsh(np.cov(rows.T.astype(np.float64)))[::-1]
        np.testing.assert_allclose(found[place]["eigenvalues"], own, rtol=1e-8, atol=1e-10 * own[0])


@pytest.mark.slow
def test_probes_read_about_what_logistic_regression_reads(example, told):
    _, model, data, story = told
    train, test = values(model, data.images), values(model, data.test_images)
    found = story.probes[-1].result
    for place in ("forward.images", "forward.whole"):
        plain = LogisticRegression(solver="newton-cholesky").fit(train[place].flatten(1).numpy(), data.labels.numpy())
        score = plain.score(test[place].flatten(1).numpy(), data.test_labels.numpy())
        assert abs(found[place]["accuracy"] - score) < 0.04
        assert found[place]["scored"] == "held out"
        assert found[place]["samples"] == example.TEST


def test_sentences_have_the_numbers_of_the_model(example, told):
    _, model, data, story = told
    alone = example.DeadUnits()
    with example.byname.observe(model, example.HIDDEN, alone):
        values_seen = model(data.images)
    assert len(values_seen) == len(data.images)
    sentences = [*example.told_of_units(story.inside, alone.result())]
    silent = {
        place: (value > 0).flatten(2).any(2) if value.ndim > 2 else value > 0
        for place, value in values(model, data.images).items()
    }
    gone = (~silent["forward.parts"].any(0)).nonzero().flatten().tolist()
    assert gone
    assert sentences[0].startswith(f"`parts` has most dead units: {len(gone)} of 64 ")
    assert sentences[0].endswith(f": {', '.join(map(str, gone))}.")
    assert sentences[2].endswith(f"{len(gone)} of its units are dead.")
    reads = [*example.told_of_probes(story.probes)]
    worst = min(story.probes[0].result[place]["accuracy"] for place in example.HIDDEN)
    assert reads[0].startswith(f"Before the training a probe reads {worst:.1%} ")
    assert any("the same in all snapshots" in sentence for sentence in reads)


def test_a_picture_is_drawn(example, told, tmp_path):
    *_, story = told
    example.draw(story, tmp_path / "new" / "digits.png")
    assert (tmp_path / "new" / "digits.png").read_bytes().startswith(b"\x89PNG")
