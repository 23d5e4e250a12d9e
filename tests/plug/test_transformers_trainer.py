"""Snapshots while the real Trainer of transformers trains."""

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from largest import Largest, LargestGradient
from processes import run_forked
from torch import nn

import byname
from byname.analyse import Evaluation, PerClass
from byname.errors import RecordingWarning

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from byname.plug.transformers import EvaluationCallback, RecordCallback  # noqa: E402


class Model(nn.Module):
    def __init__(self, fails_at=None):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
        self.fails_at = fails_at
        self.calls = 0

    def forward(self, x, labels=None):
        self.calls += 1
        if self.training and self.calls == self.fails_at:
            raise ZeroDivisionError
        logits = self.net(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def rows(count=24):
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(count, 4, generator=generator), torch.randint(3, (count,), generator=generator)
    return [{"x": one, "labels": label} for one, label in zip(x, y, strict=True)]


def loss_of(output, batch):
    return output["loss"]


def train(folder, model, callbacks=(), **options):
    """Two epochs of six batches; the state, and the random state after it."""
    settings = {"num_train_epochs": 2, "max_grad_norm": 0.5, "seed": 3, **options}
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        learning_rate=0.01,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        logging_strategy="no",
        **settings,
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=rows(), callbacks=[*callbacks])
    trainer.remove_callback(transformers.PrinterCallback)
    loss = trainer.train().training_loss
    moments = [one["exp_avg"] for one in trainer.optimizer.state.values()]
    return [*model.state_dict().values(), *moments, torch.tensor([loss, model.calls]), torch.get_rng_state()]


def watched(*, backward=None, fails_at=None, **options):
    torch.manual_seed(0)
    model = Model(fails_at)
    analyser = PerClass(Largest()) if backward is None else LargestGradient()
    byname.observe(model, ["net.1", "net.4"], analyser)
    loader = torch.utils.data.DataLoader(rows(), batch_size=8)
    evaluation = Evaluation(analyser, loader, backward=backward)
    return model, evaluation, EvaluationCallback(evaluation, **options)


def times(evaluation):
    return [(one.event, one.epoch, one.batch, one.step) for one in evaluation.records]


@pytest.mark.grid(fast=1)
@pytest.mark.parametrize("backward", [None, loss_of])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_training_is_bitwise_the_same_with_snapshots(tmp_path, backward, accumulate):
    torch.manual_seed(0)
    plain = train(tmp_path, Model(), gradient_accumulation_steps=accumulate)
    model, evaluation, callback = watched(backward=backward, every=2)
    states = train(tmp_path, model, [callback], gradient_accumulation_steps=accumulate)
    assert all(torch.equal(one, other) for one, other in zip(plain, states, strict=True))
    assert len(evaluation.records) == 1 + 6 // accumulate
    for one in evaluation.records:
        figures = one.result["net.1"]
        assert 24 == (sum(each["samples"] for each in figures.values()) if backward is None else figures["samples"])


def test_snapshots_are_taken_after_steps_of_the_optimizer(tmp_path):
    model, evaluation, callback = watched(every=4, at=(3,))
    train(tmp_path, model, [callback])
    assert times(evaluation) == [
        ("start", 0, None, 0),
        ("scheduled", 0, 2, 3),
        ("batch", 0, 3, 4),
        ("batch", 1, 1, 8),
        ("batch", 1, 5, 12),
    ]  # and none at the end, which is the same state


@pytest.mark.grid(fast=1)
@pytest.mark.parametrize(
    ("count", "expected"),
    [
        ("step", [("batch", 0, 5, 2), ("batch", 1, 5, 4)]),
        ("batch", [("batch", 0, 1, 0), ("batch", 0, 3, 1), ("batch", 0, 5, 2), ("batch", 1, 1, 2), ("batch", 1, 3, 3), ("batch", 1, 5, 4)]),
    ],
)  # fmt: skip
def test_steps_and_batches_differ_where_gradients_are_accumulated(tmp_path, count, expected):
    model, evaluation, callback = watched(every=2, start=False, end=False, count=count)
    train(tmp_path, model, [callback], gradient_accumulation_steps=4)  # of six batches: the second step has two
    assert times(evaluation) == expected


def test_a_training_that_raises_has_no_snapshot_at_its_end_and_leaves_the_analyser_off(tmp_path):
    model, evaluation, callback = watched(fails_at=4, every=2)
    with pytest.raises(ZeroDivisionError):
        train(tmp_path, model, [callback])
    assert times(evaluation) == [("start", 0, None, 0), ("batch", 0, 1, 2)]
    assert not evaluation.analyser.enabled
    for observation in evaluation.analyser.observations:
        observation.handle.remove()
    gone = weakref.ref(model)
    del model, observation
    gc.collect()
    assert gone() is None, "the callback keeps it, which was not told of the end"


def test_a_training_that_stops_early_has_one(tmp_path):
    model, evaluation, callback = watched()
    train(tmp_path, model, [callback], max_steps=7)
    assert times(evaluation) == [("start", 0, None, 0), ("end", 1, None, 7)]


def test_without_transformers_there_is_a_clear_error():
    words = run_forked("""
        import sys

        sys.modules["transformers"] = None
        try:
            import byname.plug.transformers
        except ImportError as error:
            print(type(error).__name__, error)
    """)
    assert " ".join(words).startswith(
        "NotInstalledError byname.plug.transformers needs transformers: pip install transformers"
    )


@pytest.mark.grid(fast=1)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_training_is_bitwise_the_same_recorded_and_each_batch_is_an_iteration(tmp_path, accumulate):
    torch.manual_seed(0)
    plain = train(tmp_path, Model(), gradient_accumulation_steps=accumulate)
    torch.manual_seed(0)
    recording = RecordCallback(["net.4", "net.0.weight.grad"], to=tmp_path / "run.h5")
    states = train(tmp_path, Model(), [recording], gradient_accumulation_steps=accumulate)
    assert all(torch.equal(one, other) for one, other in zip(plain, states, strict=True))
    with byname.open(tmp_path / "run.h5") as found:
        assert found.complete
        assert found["net.4"].iterations == [*range(12)] and found["net.0.weight.grad"].iterations == [*range(12)]
        assert found["net.4"].shapes[0] == (4, 3)


def test_a_training_that_fails_leaves_a_closed_recording_and_no_hook(tmp_path):
    model = Model(fails_at=5)
    with pytest.raises(ZeroDivisionError), RecordCallback("net.4", to=tmp_path / "run.h5") as recording:
        train(tmp_path, model, [recording])
    assert not any(module._forward_hooks for module in model.modules())
    with byname.open(tmp_path / "run.h5") as found:
        assert found["net.4"].iterations == [0, 1, 2, 3]
        assert not found.complete and "by a ZeroDivisionError" in found.missing[0]


def test_a_recording_without_a_training_says_so(tmp_path):
    with pytest.warns(RecordingWarning, match="no training ran"), RecordCallback("net.4", to=tmp_path / "run.h5"):
        pass
    assert not [*tmp_path.iterdir()]
