"""Is the training bit for bit the same while it is recorded, and is nothing left behind, whatever happens?"""

import gc
import random
import threading
import warnings
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from beside import state
from torch import nn
from torch.utils.checkpoint import checkpoint

import byname
from byname.errors import RecordingWarning


class Attending(nn.Module):
    """Locals, an operation, a nested value, dropout; one part may run under a checkpoint."""

    def __init__(self, checkpointed):
        super().__init__()
        self.qkv, self.drop, self.proj = nn.Linear(6, 18), nn.Dropout(0.2), nn.Linear(6, 6)
        self.checkpointed = checkpointed

    def mixed(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = torch.softmax(q @ k.transpose(-1, -2), -1)
        scores = self.drop(scores)
        return scores @ v

    def forward(self, x):
        m = checkpoint(self.mixed, x, use_reentrant=False) if self.checkpointed else self.mixed(x)
        cache = {"k": [m, float(m.detach().sum())], "n": len(x)}
        return x + self.proj(cache["k"][0])


class Net(nn.Module):
    """Two blocks between two layers, with running statistics and an activation in place."""

    def __init__(self, checkpointed=False):
        super().__init__()
        self.embed, self.norm = nn.Linear(3, 6), nn.BatchNorm1d(6)
        self.blocks = nn.ModuleList(Attending(checkpointed) for _ in range(2))
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        h = self.norm(self.embed(x))
        for block in self.blocks:
            h = block(h)
            h += 0.5
        h = torch.relu_(h)
        return self.head(h)


EVERYWHERE = [
    "**", "**.forward.*", "blocks.*.mixed.*", "blocks.0.softmax", "blocks.*.matmul_1", "blocks.*.forward.cache['k'][1]",
    "embed.weight", "norm.running_mean", "norm.num_batches_tracked", "**.weight.grad", "**.bias.grad",
    "blocks.*.mixed.scores.grad", "forward.h.grad", "embed.grad", "blocks.0.softmax.grad", "forward.x", "relu_",
]  # fmt: skip

MODELS = {
    "plain": lambda: Net(),
    "checkpointed": lambda: Net(checkpointed=True),
}
OPTIMIZERS = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
}


class Trained:
    """All that a training leaves behind, to the bit."""

    def __init__(self, make, optimizer, *, autocast=False, steps=6):
        torch.manual_seed(11), random.seed(12), np.random.seed(13)
        self.model = make()
        self.optimizer = OPTIMIZERS[optimizer](self.model)
        self.autocast, self.steps = autocast, steps
        self.losses = []

    def train(self):
        for step in range(self.steps):
            self.optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
                loss = self.model(torch.randn(5, 3)).float().square().mean()
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.detach())
            if step % 2:
                self.model.eval()
                with torch.no_grad():
                    self.losses.append(self.model(torch.randn(4, 3)).float().sum())
                self.model.train()
        return self

    def left(self):
        optimized = self.optimizer.state_dict()
        moments = [
            one for kept in optimized["state"].values() for one in kept.values() if isinstance(one, torch.Tensor)
        ]
        gradients = [parameter.grad for parameter in self.model.parameters()]
        tensors = [*self.model.state_dict().values(), *moments, *gradients, *self.losses, torch.get_rng_state()]
        return [tensor.clone() for tensor in tensors], random.getstate(), np.random.get_state()[1].tolist()


def assert_same(one, other):
    assert len(one[0]) == len(other[0])
    assert [at for at, pair in enumerate(zip(one[0], other[0])) if not torch.equal(*pair)] == []
    assert one[1:] == other[1:]


@pytest.mark.grid(fast=2)
@pytest.mark.parametrize("to_file", [False, True], ids=["memory", "file"])
@pytest.mark.parametrize("autocast", [False, True], ids=["", "autocast"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_training_is_bit_for_bit_the_same(make, optimizer, autocast, to_file, tmp_path):
    wanted = Trained(make, optimizer, autocast=autocast).train().left()
    trained = Trained(make, optimizer, autocast=autocast)
    before = state(trained.model)
    to = tmp_path / "run.h5" if to_file else None
    with byname.record(trained.model, EVERYWHERE, to=to, mode="both") as recorder:
        trained.train()
    assert_same(wanted, trained.left())
    assert len(recorder.results) > 40
    assert state(trained.model) == before


OPTIONS = {
    "every value": {"on_change": False},
    "mean": {"reduce": "mean"},
    "several": {"reduce": ("mean", "std", "norm", "min", "max", "histogram")},
    "function": {"reduce": lambda value: value.sum() if isinstance(value, torch.Tensor) else None},
    "low": {"dtype": torch.float16},
    "seldom": {"every": 3},
    "windows": {"gather_every": 2},
    "steps": {"count": "step"},
    "callbacks": {
        "on_value": lambda path, value, iteration: None,
        "before_gather": lambda path, series: None,
        "after_gather": lambda path, series: None,
        "at_end": lambda path, series: None,
    },
}


@pytest.mark.grid(fast=4)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_training_is_the_same_with_every_option(options):
    places = [path for path in EVERYWHERE if "cache" not in path] if "reduce" in options else EVERYWHERE
    wanted = Trained(MODELS["checkpointed"], "adam").train().left()
    trained = Trained(MODELS["checkpointed"], "adam")
    with byname.record(trained.model, places, mode="both", **options) as recorder:
        trained.train()
    assert_same(wanted, trained.left())
    assert len(recorder.results) > 40


def test_counting_an_optimizers_steps_leaves_the_optimizer_as_it_was():
    wanted = Trained(MODELS["plain"], "adam").train().left()
    trained = Trained(MODELS["plain"], "adam")
    optimizer = trained.optimizer
    before = dict(vars(optimizer)), {key: list(value) for key, value in vars(optimizer).items() if "hooks" in key}
    with byname.record(trained.model, EVERYWHERE, count=optimizer):
        trained.train()
    assert_same(wanted, trained.left())
    after = dict(vars(optimizer)), {key: list(value) for key, value in vars(optimizer).items() if "hooks" in key}
    assert before[0].keys() == after[0].keys()
    assert before[1] == after[1]
    assert all(one is after[0][key] for key, one in before[0].items() if key != "state")


def test_values_that_a_callback_changes_in_place_are_not_those_of_the_model():
    def spoil(path, value, iteration):
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value.detach().clone().zero_()

    wanted = Trained(MODELS["plain"], "sgd").train().left()
    trained = Trained(MODELS["plain"], "sgd")
    with byname.record(trained.model, ["**", "forward.h"], on_value=spoil):
        trained.train()
    assert_same(wanted, trained.left())


def test_stored_values_are_copies_that_no_one_shares():
    model = nn.Linear(2, 2)
    with byname.record(model, ["weight", "forward"], on_change=False) as recorder:
        output = model(torch.ones(1, 2))
        recorder.flush()
        recorder.results["weight"].values[0].zero_()
    assert bool(model.weight.any())
    with torch.no_grad():
        model.weight.fill_(7)
        output.fill_(7)
    assert not (recorder.results["forward"].values[0] == 7).any()


# What is left

WAYS = ["nothing", "forward raises", "callback raises", "ctrl-c", "exit", "body raises"]


class Stopped(Exception):
    """What a test raises."""


class Failing(nn.Module):
    """Raises what it is told to, in the middle of its forward."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(2, 2)
        self.register_buffer("seen", torch.zeros(()))
        self.raised = None

    def forward(self, x):
        h = self.lin(x)
        if self.raised is not None:
            raise self.raised
        return torch.softmax(h, -1)


def raising(way):
    def callback(path, value, iteration):
        if way == "callback raises" and iteration == 3:
            raise Stopped

    return callback


ERRORS = {"forward raises": Stopped, "ctrl-c": KeyboardInterrupt, "exit": SystemExit}


def run_until(way, model, optimizer):
    for step in range(6):
        if step == 3 and way in ERRORS:
            model.raised = ERRORS[way]()
        model(torch.ones(1, 2)).square().sum().backward()
        optimizer.step()
        if step == 3 and way == "body raises":
            raise Stopped


def everything_open():
    gc.collect()
    files = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sorted(threading.enumerate(), key=id), [file for file in files if "run" in Path(file).name]


PLACES = ["lin", "forward.h", "softmax", "lin.weight", "lin.weight.grad", "forward.h.grad", "seen"]


@pytest.mark.grid(fast=8)
@pytest.mark.parametrize("to_file", [False, True], ids=["memory", "file"])
@pytest.mark.parametrize("count", ["forward", "optimizer"])
@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_left_whatever_ends_the_recording(way, count, to_file, tmp_path):
    model = Failing()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 2)).square().sum().backward()
    before, around, hooks = (
        state(model),
        everything_open(),
        {key: list(value) for key, value in vars(optimizer).items() if "hooks" in key},
    )
    keys = list(vars(optimizer))
    to = tmp_path / "run.h5" if to_file else None
    options = {"count": optimizer} if count == "optimizer" else {}
    try:
        with byname.record(model, PLACES, to=to, on_value=raising(way), **options) as recorder:
            run_until(way, model, optimizer)
    except (Stopped, KeyboardInterrupt, SystemExit):
        pass
    raised, model.raised = model.raised, None
    del raised
    assert state(model) == before
    assert everything_open() == around
    assert {key: list(value) for key, value in vars(optimizer).items() if "hooks" in key} == hooks
    assert list(vars(optimizer)) == keys
    assert sorted(file.name for file in tmp_path.iterdir()) == (["run.h5"] if to_file else [])
    stored = byname.open(to)["lin"] if to_file else recorder.results["lin"]
    whole = 6 if way == "nothing" else 3
    assert list(stored.iterations)[:whole] == list(range(whole))
    assert sum(1 for _ in stored.values) == len(stored.iterations)
    model(torch.ones(1, 2)).square().sum().backward()
    assert len(recorder.results["lin"]) == len(stored)


@pytest.mark.parametrize("way", WAYS[1:])
def test_a_recording_that_an_error_ended_opens_and_has_all_before_it(way, tmp_path):
    model = Failing()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises((Stopped, KeyboardInterrupt, SystemExit)) as caught:
        with byname.record(model, PLACES, to=tmp_path / "run.h5", on_value=raising(way)):
            run_until(way, model, optimizer)
    with byname.open(tmp_path / "run.h5") as recording:
        (sentence,) = recording.missing
        assert not recording.complete
        assert caught.type.__name__ in sentence
        assert "not closed" not in sentence
        assert [iteration for iteration in recording["lin.weight.grad"].iterations if iteration < 3] == [0, 1, 2]
        assert [iteration for iteration in recording["lin"].iterations if iteration < 3] == [0, 1, 2]


def test_an_error_in_a_callback_names_the_path_and_the_model_stays_usable():
    model = Failing()
    with byname.record(model, "lin", on_value=raising("callback raises")) as recorder:
        for _ in range(3):
            model(torch.ones(1, 2))
        with pytest.raises(Stopped) as caught:
            model(torch.ones(1, 2))
        assert "lin" in str(caught.value) + "".join(caught.value.__notes__)
        for _ in range(3):
            model(torch.ones(1, 2))
    assert [iteration for iteration in recorder.results["lin"].iterations if iteration != 3] == [0, 1, 2, 4, 5, 6]


@pytest.mark.parametrize("moment", ["before_gather", "after_gather", "at_end"])
def test_an_error_in_a_callback_on_a_series_surfaces_and_nothing_is_left(moment, tmp_path):
    def callback(path, series):
        raise Stopped

    model = Failing()
    before, around = state(model), everything_open()
    with pytest.raises(Stopped) as caught:
        with byname.record(model, "lin", to=tmp_path / "run.h5", gather_every=4, **{moment: callback}):
            for _ in range(6):
                model(torch.ones(1, 2))
    assert "lin" in str(caught.value) + "".join(getattr(caught.value, "__notes__", ()))
    del caught
    assert (state(model), everything_open()) == (before, around)
    byname.open(tmp_path / "run.h5").close()


def test_closing_twice_and_using_without_with_leave_nothing():
    model = Failing()
    before = state(model)
    recorder = byname.record(model, PLACES)
    model(torch.ones(1, 2))
    with pytest.warns(RecordingWarning, match="no backward reached"):
        recorder.close()
    assert state(model) == before
    recorder.close()
    model(torch.ones(1, 2))
    assert list(recorder.results["lin"].iterations) == [0]


def test_a_refused_recording_leaves_nothing(tmp_path):
    model = Failing()
    before = state(model)
    for options in ({"every": 0}, {"mode": "never"}, {"to": tmp_path / "none" / "run.h5"}, {"reduce": "meen"}):
        with pytest.raises((byname.BynameError, OSError)):
            byname.record(model, PLACES, **options)
    with pytest.raises(byname.BynameError):
        byname.record(model, [*PLACES, "nowhere"], to=tmp_path / "run.h5")
    assert state(model) == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("to_file", [False, True], ids=["memory", "file"])
def test_no_tensor_of_the_program_is_kept_alive_while_recording(to_file, tmp_path, no_collection):
    alive = []

    class Remembering(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(2, 2)

        def forward(self, x):
            h = self.lin(x)
            cache = {"k": [h * 2]}
            alive.extend(weakref.ref(tensor) for tensor in (x, h, cache["k"][0]))
            return h.relu()

    model, to = Remembering(), tmp_path / "run.h5" if to_file else None
    places = [
        "lin",
        "forward.x",
        "forward.h",
        "forward.cache",
        "forward.cache['k'][0]",
        "relu",
        "forward.h.grad",
        "lin.weight.grad",
    ]
    with byname.record(model, places, to=to, on_change=True) as recorder:
        for _ in range(5):
            model(torch.ones(1, 2)).square().sum().backward()
            model.zero_grad(set_to_none=True)
        assert [ref() for ref in alive if ref() is not None] == []
    assert len(recorder.results["forward.h"]) == 5


def test_the_graph_is_not_kept_alive(no_collection):
    model = Net()
    with byname.record(model, EVERYWHERE):
        loss = model(torch.randn(5, 3)).sum()
        held = Stopped()
        loss.register_hook(lambda gradient, held=held: None)  # lives as long as the graph
        graph = weakref.ref(held)
        loss.backward()
        del loss, held
        assert graph() is None


def test_a_recorder_that_is_dropped_without_close_says_nothing_and_keeps_no_training_from_ending():
    model = Failing()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        recorder = byname.record(model, "lin")
        model(torch.ones(1, 2))
        del recorder
        gc.collect()
        assert model(torch.ones(1, 2)).shape == (1, 2)
