"""Numbers of byname in trackers of experiments: TensorBoard read back, others against their own offline modes."""

import importlib.machinery
import json
import math
import os
import sqlite3
import sys
import types

import pytest
import torch
from torch import nn

import byname
from byname.errors import BadArgumentError, NotInstalledError, RecordingWarning
from byname.plug import live, mlflow, send, tensorboard, trackio, wandb


class Kept:
    def __init__(self):
        self.logged, self.notes = [], []

    def log(self, values, step):
        self.logged += [(step, name, value) for name, value in values.items()]

    def note(self, title, text, step):
        self.notes.append((step, title, text))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))


def test_a_recording_is_sent_from_memory_and_from_its_file(model, tmp_path):
    values = []
    with byname.record(model, ["1", "0.weight.grad"], to=tmp_path / "run.h5") as recorder:
        for _ in range(3):
            model(torch.randn(5, 3)).sum().backward()
            values.append(model[0].weight.grad.double().clone())
        during = Kept()
        count = send(recorder, during)
    after, opened = Kept(), Kept()
    assert count == send(str(tmp_path / "run.h5"), after) == len(after.logged) == 3 * 2 * 4
    with byname.open(tmp_path / "run.h5") as recording:
        send(recording, opened)
    assert sorted(during.logged) == sorted(after.logged) == sorted(opened.logged)
    sent = {(step, name): value for step, name, value in after.logged}
    for step, gradient in enumerate(values):
        of_torch = gradient.mean(), gradient.std(correction=0), gradient.min(), gradient.max()
        for figure, value in zip(("mean", "std", "min", "max"), of_torch, strict=True):
            assert sent[step, f"0.weight.grad/{figure}"] == pytest.approx(value.item(), rel=1e-12, abs=1e-12)


def test_evaluation_calls_and_ranks_are_kept_apart():
    kept = Kept()
    series = byname.Series(
        "x",
        [1, 2.5, True, None],
        [0, 0, 1, 2],
        [0, 0, 1, 0],
        [0, 1, 0, 0],
        ["train", "train", "eval", "train"],
        [()] * 4,
    )
    assert send(series, kept) == 3
    assert kept.logged == [(0, "x/call0/rank0", 1.0), (0, "x/call1/rank0", 2.5), (1, "eval/x/call0/rank1", 1.0)]


def test_values_are_sent_while_they_come_and_the_recording_is_as_without(model):
    kept, inputs = Kept(), torch.randn(4, 5, 3)
    with byname.record(model, "forward", every=2, reduce="mean", on_value=live(kept)) as watched:
        for one in inputs:
            model(one)
    with byname.record(model, "forward", every=2, reduce="mean") as plain:
        for one in inputs:
            model(one)
    assert [(step, name) for step, name, _ in kept.logged] == [
        (step, f"forward/{figure}") for step in (0, 2) for figure in ("mean", "std", "min", "max")
    ]
    assert [*watched.results["forward"].values] == [*plain.results["forward"].values]
    assert torch.is_grad_enabled()


def test_a_tracker_that_fails_ends_no_training(model):
    class Fails:
        def log(self, values, step):
            raise ConnectionError("no network")

    with pytest.warns(RecordingWarning, match="ConnectionError: no network") as told:
        with byname.record(model, "forward", on_value=live(Fails())) as recorder:
            for _ in range(3):
                model(torch.randn(5, 3))
    assert len(told) == 1 and recorder.results["forward"].iterations == [0, 1, 2]


def test_a_whole_number_that_no_float_holds_is_not_sent_and_ends_no_training():
    class Huge(nn.Module):
        def forward(self, x):
            seed = 10**400  # noqa: F841 - a place
            return x

    model, kept = Huge(), Kept()
    with byname.record(model, ["forward.seed", "forward.x"], on_value=live(kept)) as recorder:
        model(torch.tensor(2.0))
    assert kept.logged == [(0, "forward.x", 2.0)]
    assert send(recorder, Kept()) == 1


def test_figures_of_analysers_and_evaluations(model):
    units, kept = byname.analyse.DeadUnits(), Kept()
    handle = byname.observe(model, "1", units)
    evaluation = byname.analyse.Evaluation(units, [torch.randn(6, 3)])
    evaluation.take(model, step=7)
    send(evaluation, kept)
    handle.remove()
    other = byname.analyse.DeadUnits()
    with byname.observe(model, "1", other):
        model(torch.randn(6, 3))
    send(other.result(), kept, step=9)
    assert {(step, name) for step, name, _ in kept.logged} >= {(7, "1/dead"), (7, "1/total"), (9, "1/dead")}
    assert {name: value for step, name, value in kept.logged if step == 7}["1/total"] == 4


def test_findings_and_memory(model):
    kept = Kept()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    findings = byname.check(model(torch.ones(2, 3)).sum(), model=model, optimizer=optimizer)
    assert send(findings, kept, step=3) >= 1
    assert (3, "findings/not-in-optimizer", 1.0) in kept.logged
    assert [title for _, title, _ in kept.notes] == [f"findings/{one.cause}" for one in findings]
    census = byname.census()
    send(census, kept, step=4)
    sent = {name: value for step, name, value in kept.logged if step == 4}
    assert sent["memory/bytes"] == census.bytes and "memory/parameter" in sent


def test_what_has_no_numbers_is_refused():
    for thing in (3, None, [1, 2], torch.ones(2), {"a": 1}):
        with pytest.raises(BadArgumentError, match="cannot be sent"):
            send(thing, Kept())
    for join in (live, lambda tracker: send([], tracker)):
        with pytest.raises(BadArgumentError, match=r"`object` has no method log.*plug\.tensorboard\(writer=...\)"):
            join(object())


def test_tensorboard_is_written_and_read_back(model, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with tensorboard(tmp_path / "runs") as tracker:
        with byname.record(model, "forward", reduce="norm", on_value=live(tracker)) as recorder:
            for _ in range(4):
                model(torch.randn(5, 3))
        send(recorder, tracker)
        optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
        send(byname.check(model(torch.ones(2, 3)).sum(), model=model, optimizer=optimizer), tracker, step=4)
    read = EventAccumulator(str(tmp_path / "runs"))
    read.Reload()
    norms = [(one.step, one.value) for one in read.Scalars("forward")]
    expected = [(step, float(value)) for step, value in enumerate(recorder.results["forward"].values)]
    assert [step for step, _ in norms] == [step for step, _ in expected]
    assert [value for _, value in norms] == pytest.approx([value for _, value in expected])
    assert len(read.Scalars("forward/mean")) == 4
    assert any("findings" in tag for tag in read.Tags()["tensors"])
    with pytest.raises(BadArgumentError, match="both"):
        tensorboard(tmp_path, writer=tracker)


@pytest.mark.slow
def test_wandb_keeps_the_numbers_offline(tmp_path, monkeypatch):
    real = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = real.init(mode="offline", dir=tmp_path, project="byname")
    run.log({"loss": 1.0})
    wandb().log({"x": 2.5}, 7)
    assert run.summary["x"] == 2.5 and run.summary["byname/iteration"] == 7
    run.finish()


@pytest.mark.slow
def test_mlflow_keeps_the_numbers_in_a_folder(tmp_path, monkeypatch):
    real = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    real.set_tracking_uri((tmp_path / "runs").as_uri())
    with real.start_run() as run:
        mlflow().log({"blocks[0]/mean": 2.5}, 7)
        mlflow(run.info.run_id).log({"blocks[0]/mean": 3.5}, 8)
    history = real.MlflowClient().get_metric_history(run.info.run_id, "blocks_0_/mean")
    assert [(one.step, one.value) for one in history] == [(7, 2.5), (8, 3.5)]


def test_a_run_of_wandb_is_given_its_iterations_as_an_axis(monkeypatch):
    calls = []
    run = types.SimpleNamespace(
        define_metric=lambda name, **how: calls.append((name, how)), log=lambda values: calls.append(values)
    )
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(run=None))
    with pytest.raises(BadArgumentError, match=r"wandb\.init"):
        wandb()
    tracker = wandb(run)
    tracker.log({"x": 1.0}, 3)
    tracker.log({"x": 2.0}, 4)
    axis = "byname/iteration"
    assert calls == [(axis, {"hidden": True}), ("x", {"step_metric": axis}), {"x": 1.0, axis: 3}, {"x": 2.0, axis: 4}]


@pytest.mark.slow
def test_trackio_keeps_the_numbers_in_a_database(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    real = pytest.importorskip("trackio")
    real.init(project="numbers", name="run", embed=False)
    with trackio() as tracker:
        tracker.log({"layers.0.x": 2.5, "nan": math.nan}, 7)
    real.finish()
    with sqlite3.connect(next(tmp_path.rglob("numbers.db"))) as database:
        ((step, kept),) = database.execute("select step, metrics from metrics")
    assert step == 7 and json.loads(kept) == {"layers.0.x": 2.5, "nan": "NaN"}


def test_a_run_of_trackio_is_given_the_numbers_and_their_iteration():
    calls = []
    run = types.SimpleNamespace(log=lambda values, step: calls.append((step, values)))
    trackio(run).log({"x": 1.0, "y": math.inf}, 3)
    assert calls == [(3, {"x": 1.0, "y": math.inf})]


@pytest.mark.parametrize("make", [tensorboard, wandb, mlflow, trackio])
def test_a_tracker_that_is_not_installed_is_named_with_the_line_that_installs_it(make, monkeypatch):
    for module in ("tensorboard", "torch.utils.tensorboard", "wandb", "mlflow", "trackio"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(NotInstalledError, match=f"pip install {make.__name__}$") as raised:
        make()
    assert isinstance(raised.value, ImportError) and os.sep not in str(raised.value)


@pytest.mark.parametrize("make", [wandb, mlflow, trackio])
def test_a_folder_in_which_a_tracker_keeps_its_runs_is_not_the_tracker(make, monkeypatch, tmp_path):
    (tmp_path / make.__name__).mkdir()
    monkeypatch.delitem(sys.modules, make.__name__, raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])  # nothing is installed
    monkeypatch.setattr(sys, "meta_path", [one for one in sys.meta_path if one is importlib.machinery.PathFinder])
    with pytest.raises(NotInstalledError, match=f"needs {make.__name__}: pip install {make.__name__}$"):
        make()
    sys.modules.pop(make.__name__, None)
