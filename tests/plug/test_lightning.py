"""Snapshots while the real Lightning trains."""

import pytest
import torch
import torch.nn.functional as F
from largest import Largest, LargestGradient
from processes import run_forked
from torch import nn

import byname
from byname.analyse import Evaluation, Schedule
from byname.errors import BadArgumentError, RecordingWarning

lightning = pytest.importorskip("lightning.pytorch")

from byname.plug.lightning import EvaluationCallback, RecordCallback  # noqa: E402

pytestmark = [  # of Lightning 2.6 itself
    pytest.mark.filterwarnings("ignore:GPU available but not used:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
]


class Module(lightning.LightningModule):
    def __init__(self, fails_at=None):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
        self.fails_at = fails_at

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, number):
        if self.fails_at == number:
            raise ZeroDivisionError
        loss = entropy(self(batch[0]), batch)
        self.log("loss", loss, on_epoch=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


def entropy(output, batch):
    return F.cross_entropy(output.float(), batch[1])


def data():
    generator = torch.Generator().manual_seed(1)
    return torch.utils.data.TensorDataset(
        torch.randn(24, 4, generator=generator), torch.randint(3, (24,), generator=generator)
    )


def make_trainer(callbacks, **options):
    return lightning.Trainer(
        max_epochs=2,
        callbacks=[*callbacks],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def fit(module, callbacks=(), **options):
    """Trains for two epochs of six batches; the state, and the random state after it."""
    torch.manual_seed(5)
    trainer = make_trainer(callbacks, **options)
    loader = torch.utils.data.DataLoader(data(), batch_size=4, shuffle=True)
    trainer.fit(module, loader)
    moments = [one["momentum_buffer"] for one in trainer.optimizers[0].state.values()]
    return [*module.state_dict().values(), *moments, trainer.callback_metrics["loss_epoch"], torch.get_rng_state()]


def watched(*, backward=None, fails_at=None, schedule=None, where=("net.1", "net.4"), **options):
    torch.manual_seed(0)
    module = Module(fails_at)
    analyser = Largest() if backward is None else LargestGradient()
    byname.observe(module, where, analyser)
    evaluation = Evaluation(analyser, torch.utils.data.DataLoader(data(), batch_size=8), backward=backward)
    return module, evaluation, EvaluationCallback(evaluation, schedule, **options)


def plain(**options):
    torch.manual_seed(0)
    return fit(Module(), **options)


def times(evaluation):
    return [(one.event, one.epoch, one.batch, one.step) for one in evaluation.records]


@pytest.mark.parametrize("backward", [None, entropy])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_training_is_bitwise_the_same_with_snapshots(backward, accumulate):
    options = {"accumulate_grad_batches": accumulate, "gradient_clip_val": 0.5}
    module, evaluation, callback = watched(backward=backward, every=2)
    states = fit(module, [callback], **options)
    assert all(torch.equal(one, other) for one, other in zip(plain(**options), states, strict=True))
    assert all(one.result["net.1"]["samples"] == 24 for one in evaluation.records)
    assert len(evaluation.records) == 1 + 6 // accumulate


def test_snapshots_are_taken_after_steps_of_the_optimizer():
    module, evaluation, callback = watched(every=4, at=(3,), count="step")
    fit(module, [callback])
    assert times(evaluation) == [
        ("start", 0, None, 0),
        ("scheduled", 0, 2, 3),
        ("batch", 0, 3, 4),
        ("batch", 1, 1, 8),
        ("batch", 1, 5, 12),
    ]  # and none at the end, which is the same state


@pytest.mark.parametrize(
    ("count", "expected"),
    [("step", [("batch", 0, 3, 2), ("batch", 1, 1, 4), ("batch", 1, 5, 6)]),
     ("batch", [("batch", 0, 1, 1), ("batch", 0, 3, 2), ("batch", 0, 5, 3), ("batch", 1, 1, 4), ("batch", 1, 3, 5), ("batch", 1, 5, 6)])],
)  # fmt: skip
def test_steps_and_batches_differ_where_gradients_are_accumulated(count, expected):
    module, evaluation, callback = watched(schedule=Schedule(start=False, every=2, end=False), count=count)
    fit(module, [callback], accumulate_grad_batches=2)
    assert times(evaluation) == expected


def test_a_training_that_raises_has_no_snapshot_at_its_end_and_leaves_the_analyser_off():
    module, evaluation, callback = watched(fails_at=3, every=2)
    with pytest.raises(ZeroDivisionError):
        fit(module, [callback])
    assert times(evaluation) == [("start", 0, None, 0), ("batch", 0, 1, 2)]
    assert not evaluation.analyser.enabled


def test_an_error_in_a_snapshot_is_raised_and_training_flags_are_as_before():
    def backward(output, batch):
        raise ZeroDivisionError

    module, evaluation, callback = watched(backward=backward, at=(2,), start=False)
    with pytest.raises(ZeroDivisionError):
        fit(module, [callback])
    assert all(one.training for one in module.modules())


def test_a_snapshot_runs_in_the_precision_of_the_training():
    class Types(Largest):
        def take(self, kept, sample):
            super().take(kept, sample)
            types.add(sample.value.dtype)

    types = set()
    module, evaluation, callback = watched()
    evaluation = Evaluation(Types(), [data()[:8]])
    byname.observe(module, "net.4", evaluation.analyser)
    with_it = fit(module, [EvaluationCallback(evaluation, every=3)], precision="bf16-mixed")
    assert types == {torch.bfloat16}
    assert all(torch.equal(one, other) for one, other in zip(plain(precision="bf16-mixed"), with_it, strict=True))


def test_the_network_alone_can_be_run():
    module, evaluation, _ = watched()
    fit(module, [EvaluationCallback(evaluation, end=False, model=module.net)])
    assert times(evaluation) == [("start", 0, None, 0)]


def test_another_count_is_refused():
    with pytest.raises(BadArgumentError, match="count is one of 'step', 'batch', not 'epoch'"):
        watched(count="epoch")


def test_without_lightning_there_is_a_clear_error():
    words = run_forked("""
        import sys

        sys.modules["lightning"] = sys.modules["pytorch_lightning"] = None
        try:
            import byname.plug.lightning
        except ImportError as error:
            print(type(error).__name__, error)
    """)
    assert " ".join(words) == "NotInstalledError byname.plug.lightning needs lightning: pip install lightning"


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_training_is_bitwise_the_same_recorded_and_each_batch_is_an_iteration(tmp_path, accumulate):
    torch.manual_seed(0)
    recording = RecordCallback(["net.4", "net.0.weight.grad"], to=tmp_path / "run.h5")
    states = fit(Module(), [recording], accumulate_grad_batches=accumulate)
    expected = plain(accumulate_grad_batches=accumulate)
    assert all(torch.equal(one, other) for one, other in zip(expected, states, strict=True))
    with byname.open(tmp_path / "run.h5") as found:
        assert found.complete
        assert found["net.4"].iterations == [*range(12)] and found["net.0.weight.grad"].iterations == [*range(12)]


def test_a_training_that_fails_leaves_a_closed_recording_and_no_hook(tmp_path):
    module = Module(fails_at=4)
    recording = RecordCallback("net.4", to=tmp_path / "run.h5")
    with pytest.raises(ZeroDivisionError):
        fit(module, [recording])
    assert not any(one._forward_hooks for one in module.modules())
    with byname.open(tmp_path / "run.h5") as found:
        assert found["net.4"].iterations == [0, 1, 2, 3]
        assert not found.complete and "by a ZeroDivisionError" in found.missing[0]


def test_a_recording_without_a_training_says_so(tmp_path):
    recording = RecordCallback("net.4", to=tmp_path / "run.h5")
    with pytest.warns(RecordingWarning, match="no training ran"):
        make_trainer([recording]).predict(Module(), torch.utils.data.DataLoader(torch.randn(8, 4)))
    assert not [*tmp_path.iterdir()]


def test_a_count_of_iterations_is_refused():
    with pytest.raises(BadArgumentError, match="counts training batches"):
        RecordCallback("net.4", count="forward")
