"""Snapshots of analysers during a training, which is as without them."""

import gc
import random
import signal
import weakref
from collections import OrderedDict

import numpy
import pytest
import torch
import torch.nn.functional as F
from largest import Largest, LargestGradient
from torch import nn

import byname
from byname.analyse import Evaluation, PerClass, Record, Schedule
from byname.errors import BadArgumentError


class Net(nn.Module):
    """Has everything that a forward changes."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(8, 3)
        self.seen = 0
        self.register_buffer("total", torch.zeros(8))

    def forward(self, x):
        self.seen += 1
        hidden = self.dropout(self.norm(self.first(x)).relu() + random.random() + numpy.random.rand())
        self.total += hidden.detach().sum(0)
        return self.head(hidden)


def pairs(batches=3, size=8, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(size, 4, generator=generator), torch.randint(3, (size,), generator=generator))
        for _ in range(batches)
    ]


def entropy(output, batch):
    return F.cross_entropy(output, batch[1])


def seeded_net():
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)
    return Net()


def trained(model, after_step=lambda: None, epochs=2):
    """The state, optimizer included, after a training on shuffled data."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = torch.utils.data.TensorDataset(*(torch.cat(parts) for parts in zip(*pairs(4), strict=True)))
    for _ in range(epochs):
        for x, y in torch.utils.data.DataLoader(data, batch_size=8, shuffle=True):
            optimizer.zero_grad(set_to_none=False)
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            after_step()
    moments = [optimizer.state[one]["momentum_buffer"] for one in model.parameters()]
    return [*model.state_dict().values(), *moments, torch.get_rng_state(), torch.tensor(model.seen)]


def observed(analyser, where, model=None, **options):
    model = seeded_net() if model is None else model
    handle = byname.observe(model, where, analyser)
    return model, handle, Evaluation(analyser, options.pop("loader", pairs()), **options)


@pytest.mark.parametrize("mode", ["eval", "train", "keep"])
@pytest.mark.parametrize("backward", [None, entropy])
def test_training_is_bitwise_the_same_as_without(mode, backward):
    plain = trained(seeded_net())
    analyser = Largest() if backward is None else LargestGradient()
    model, _, evaluation = observed(analyser, ["norm", "head"], mode=mode, backward=backward)
    with evaluation.during(model, every=3) as snapshots:
        watched = trained(model, snapshots.step)
    assert all(torch.equal(one, other) for one, other in zip(plain, watched, strict=True))
    assert [(one.event, one.step) for one in evaluation.records] == [
        ("start", 0),
        ("batch", 3),
        ("batch", 6),
        ("end", 8),
    ]


@pytest.mark.parametrize(
    ("options", "steps", "events"),
    [
        ({"every": 5}, 10, ["start 0", "batch 5", "batch 10"]),
        ({"at": (10,)}, 10, ["start 0", "scheduled 10"]),
        ({"every": 5, "at": (5, 10)}, 10, ["start 0", "scheduled 5", "scheduled 10"]),
        ({"every": 5, "end": False}, 10, ["start 0", "batch 5", "batch 10"]),
        ({"every": 5}, 11, ["start 0", "batch 5", "batch 10", "end 11"]),
        ({}, 0, ["start 0"]),
        ({"start": False}, 0, ["end 0"]),
        ({"every": 1, "start": False}, 1, ["batch 1"]),
    ],
)
def test_one_state_of_the_model_is_evaluated_once(options, steps, events):
    model, _, evaluation = observed(Largest(), "norm")
    for epoch in range(2):  # each training has its own
        with evaluation.during(model, epoch=epoch, **options) as snapshots:
            for _ in range(steps):
                snapshots.step()
        taken = [f"{one.event} {one.step}" for one in evaluation.records if one.epoch == epoch]
        assert taken == events
    frame = evaluation.records.to_pandas()
    assert len(frame[frame.epoch == 0].pivot(index="step", columns="path", values="largest")) == len(events)


def step(model):
    with torch.no_grad():
        model.head.weight.add_(1)


def put_through_data(model):
    model.head.weight.data.mul_(2)  # as an average of weights is often put in place


def load(model):
    model.load_state_dict(seeded_net().state_dict())


def replace_a_parameter(model):
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())


def run_in_training(model):
    model.train()(pairs()[0][0])


@pytest.mark.parametrize("change", [step, put_through_data, load, replace_a_parameter, run_in_training])
def test_a_model_that_was_changed_after_the_last_step_is_evaluated_at_the_end(change):
    model, _, evaluation = observed(Largest(), "norm")
    with evaluation.during(model, every=2) as snapshots:
        for _ in range(4):
            step(model)
            snapshots.step()
        change(model)
    assert [(one.event, one.step) for one in evaluation.records][-2:] == [("batch", 4), ("end", 4)]


def test_looking_at_a_model_after_the_last_step_changes_nothing():
    model = nn.Sequential(OrderedDict(norm=nn.BatchNorm1d(4), head=nn.Linear(4, 3)))
    model, _, evaluation = observed(Largest(), "norm", model)
    with evaluation.during(model, every=2) as snapshots:
        for _ in range(2):
            step(model)
            snapshots.step()
        model.eval()(pairs()[0][0]).sum().backward()
        model.train()
    assert [(one.event, one.step) for one in evaluation.records] == [("start", 0), ("batch", 2)]


def test_a_snapshot_has_the_figures_of_the_loader_in_eval_mode_and_of_nothing_else():
    model, _, evaluation = observed(Largest(), "norm")
    trained(model)
    for _ in range(2):
        result = evaluation.take(model).result
        with torch.no_grad():
            model.eval()
            outputs = [model.norm(model.first(x)).double().numpy() for x, _ in evaluation.loader]
            model.train()
        assert result["norm"] == {"samples": 24, "largest": float(numpy.concatenate(outputs).max())}


def test_per_class_takes_its_targets_from_the_loader():
    analyser = PerClass(Largest())
    model, _, evaluation = observed(analyser, "forward.x")
    result = evaluation.take(model).result["forward.x"]
    x, y = (torch.cat(parts).numpy() for parts in zip(*evaluation.loader, strict=True))
    assert result == {
        label: {"samples": int((y == label).sum()), "largest": float(x[y == label].max())} for label in range(3)
    }
    assert analyser.targets is None


def test_targets_that_are_a_path_of_the_model_stay():
    class Labelled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.ReLU()

        def forward(self, x, targets):
            return self.inner(x)

    analyser = PerClass(Largest())
    analyser.targets = "forward.targets"
    model, _, evaluation = observed(analyser, "inner", Labelled(), prepare=lambda batch: ((*batch,), None))
    assert set(evaluation.take(model).result["inner"]) == {0, 1, 2}
    assert analyser.targets == "forward.targets"


@pytest.mark.parametrize("returns", [True, False])
def test_gradients_are_those_of_each_batch(returns):
    def backward(output, batch):
        loss = entropy(output, batch)
        if returns:
            return loss
        loss.backward()

    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    model, _, evaluation = observed(LargestGradient(), ["0", "2.weight"], model, backward=backward)
    result = evaluation.take(model).result
    found = {"0": [], "2.weight": []}
    for x, y in evaluation.loader:
        hidden = model[0](x)
        loss = F.cross_entropy(model[2](hidden.relu()), y)
        gradients = torch.autograd.grad(loss, [hidden, model[2].weight])
        for path, gradient in zip(found, gradients, strict=True):
            found[path].append(gradient.double().numpy())
    for path, gradients in found.items():
        together = numpy.concatenate(gradients)
        assert result[path] == {"samples": len(together), "largest": float(together.max())}


def facts(model):
    """What must not change, each as something that can be compared."""
    return {
        "modes": [one.training for one in model.modules()],
        "flags": [one.requires_grad for one in model.parameters()],
        "grads": [id(one.grad) for one in model.parameters()],
        "gradients": [None if one.grad is None else one.grad.tolist() for one in model.parameters()],
        "grad versions": [None if one.grad is None else one.grad._version for one in model.parameters()],
        "state": [(id(one), one._version, one.tolist()) for one in (*model.parameters(), *model.buffers())],
        "attributes": {name: one for name, one in vars(model).items() if type(one) in (int, bool)},
        "hooks": [len(one._forward_hooks) + len(one._forward_pre_hooks) for one in model.modules()],
        "tensor hooks": [one._post_accumulate_grad_hooks or one._backward_hooks for one in model.parameters()],
        "random": (torch.get_rng_state().tolist(), random.getstate(), numpy.random.get_state()[1].tolist()),
        "grad mode": torch.is_grad_enabled(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled()),
        "signals": signal.getsignal(signal.SIGINT),
    }


def frozen_in_part():
    model = seeded_net()
    entropy(model(torch.randn(8, 4)), (None, torch.zeros(8, dtype=torch.long))).backward()
    model.first.bias.requires_grad_(False)
    model.head.weight.grad = None
    model.norm.eval()
    return model


def interrupted(*_):
    signal.raise_signal(signal.SIGINT)


def failing(*_):
    raise RuntimeError("no such batch")


@pytest.mark.parametrize("backward", [None, entropy])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(("what", "error"), [(None, None), (failing, RuntimeError), (interrupted, KeyboardInterrupt)])
def test_everything_is_as_before_also_after_an_exception(backward, autocast, what, error):
    model = frozen_in_part()
    calls = []

    def prepare(batch):
        calls.append(batch)
        if what is not None and len(calls) == 2:
            what()
        return batch

    analyser = Largest() if backward is None else LargestGradient()
    model, handle, evaluation = observed(analyser, ["norm", "head.weight"], model, prepare=prepare, backward=backward)
    before = facts(model)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast), torch.set_grad_enabled(not autocast):
        inside = facts(model)
        if error is None:
            evaluation.take(model)
        else:
            with pytest.raises(error):
                evaluation.take(model)
        assert facts(model) == inside
    assert facts(model) == before
    assert not handle.enabled
    assert not analyser.enabled
    assert len(analyser.result()) == 0
    assert len(evaluation.records) == (error is None)
    calls.clear()
    what = None
    assert evaluation.take(model).result["norm"]["samples"] == 24


def test_generators_of_the_loader_go_on_as_before():
    data = torch.utils.data.TensorDataset(torch.randn(8, 4))
    generator = torch.Generator().manual_seed(3)
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True, generator=generator)
    seen = []
    model, _, evaluation = observed(
        Largest(), "norm", loader=loader, prepare=lambda batch: seen.append(batch) or batch[0]
    )
    before = generator.get_state()
    evaluation.take(model), evaluation.take(model)
    assert torch.equal(generator.get_state(), before)
    assert torch.equal(seen[0][0], seen[2][0])


def test_a_snapshot_between_forward_and_backward_changes_no_gradient():
    x, y = pairs(1)[0]
    gradients = []
    for snapshot in (False, True):
        model, _, evaluation = observed(LargestGradient(), "head", backward=entropy, mode="train")
        loss = F.cross_entropy(model(x), y)
        if snapshot:
            evaluation.take(model)
        loss.backward()
        gradients.append([one.grad for one in model.parameters()])
    assert all(map(torch.equal, *gradients))


def test_what_autocast_keeps_under_no_grad_is_not_used_in_training():
    x, y = pairs(1)[0]
    model, _, evaluation = observed(Largest(), "head")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        evaluation.take(model)
        F.cross_entropy(model(x), y).backward()
    assert all(one.grad is not None for one in model.parameters())


def test_an_optimizer_that_steps_in_backward_does_not_step():
    model, _, evaluation = observed(LargestGradient(), ["head", "head.weight.grad"], backward=entropy)
    stepped = []
    model.head.weight.register_post_accumulate_grad_hook(lambda weight: stepped.append(weight.grad.clone()))
    evaluation.take(model)
    assert not stepped
    entropy(model(pairs()[0][0]), pairs()[0]).backward()
    assert len(stepped) == 1


def test_a_backward_that_trains_is_an_error():
    model = seeded_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def backward(output, batch):
        entropy(output, batch).backward()
        optimizer.step()

    _, _, evaluation = observed(LargestGradient(), "head", model, backward=backward)
    with pytest.raises(BadArgumentError, match=r"changed 6 parameters in place, such as first.weight"):
        evaluation.take(model)


def test_a_loss_with_parameters_of_its_own_keeps_their_gradients():
    scale = nn.Parameter(torch.tensor(2.0))
    scale.grad = torch.tensor(5.0)
    before = scale.grad
    model, _, evaluation = observed(LargestGradient(), "head", backward=lambda out, batch: scale * entropy(out, batch))
    assert evaluation.take(model).result["head"]["largest"] > 0
    assert scale.grad is before
    assert scale.grad == 5


def test_embeddings_that_are_renormalised_get_their_weights_back():
    model = nn.Sequential(nn.Embedding(4, 3, max_norm=0.1), nn.Linear(3, 2))
    weights, version = model[0].weight.detach().clone(), model[0].weight._version
    model, _, evaluation = observed(Largest(), "0", model, loader=[torch.tensor([0, 1, 2])])
    assert evaluation.take(model).result["0"]["largest"] <= 0.1
    assert torch.equal(model[0].weight, weights)
    assert model[0].weight._version == version


def test_a_model_that_changes_its_input_changes_no_batch_of_the_loader():
    model = nn.Sequential(nn.ReLU(inplace=True))
    loader = [torch.tensor([[-1.0, 2.0]])]
    model, _, evaluation = observed(Largest(), "forward.input", model, loader=loader)
    evaluation.take(model)
    assert loader[0].tolist() == [[-1.0, 2.0]]


def test_recorders_and_other_analysers_are_told_nothing_and_interjections_act():
    model = seeded_net()
    other, gradients = Largest(), LargestGradient()
    x, y = pairs(1, size=5)[0]
    with (
        byname.record(model, ["norm", "head", "head.weight.grad", "head.grad"], mode="both") as recorder,
        byname.observe(model, "norm", other),
        byname.observe(model, ["head.weight", "head"], gradients),
        byname.interject(model, "norm", lambda name, module, value: value * 0 + 7),
    ):
        F.cross_entropy(model(x), y).backward()
        before = other.result()["norm"], gradients.result()["head.weight"], gradients.result()["head"]
        for mode in ("eval", "train"):
            _, _, evaluation = observed(LargestGradient(), ["norm", "head"], model, backward=entropy, mode=mode)
            evaluation.take(model)
            _, _, evaluation = observed(Largest(), "norm", model, mode=mode)
            assert evaluation.take(model).result["norm"] == {"samples": 24, "largest": 7.0}
        assert (other.result()["norm"], gradients.result()["head.weight"], gradients.result()["head"]) == before
        F.cross_entropy(model(x), y).backward()
    assert other.result()["norm"]["samples"] == 10
    for path in ("norm", "head", "head.weight.grad", "head.grad"):
        assert recorder.results[path].iterations == [0, 1], path


@pytest.mark.parametrize(
    ("loader", "targets"),
    [
        ([torch.ones(2, 4)], None),
        ([[torch.ones(2, 4)]], None),
        ([(torch.ones(2, 4), torch.tensor([1, 2]))], [1, 2]),
        ([[torch.ones(2, 4), [1, 2]]], [1, 2]),
        ([(torch.ones(2, 4), ["cat", "dog"])], None),
        ([{"x": torch.ones(2, 4), "labels": torch.tensor([1, 2])}], [1, 2]),
        ([{"x": torch.ones(2, 4), "labels": torch.ones(2)}], None),
        ((torch.ones(2, 4),), None),
    ],
)
def test_a_batch_is_a_tensor_a_pair_or_keyword_arguments(loader, targets):
    seen = []

    class Model(nn.Module):
        def forward(self, x, labels=None):
            return x + 1

    class Noting(Largest):
        def take(self, kept, sample):
            super().take(kept, sample)
            seen.append(None if sample.targets is None else sample.targets.tolist())

    model, _, evaluation = observed(Noting(), "forward.x", Model(), loader=loader)
    assert evaluation.take(model).result["forward.x"] == {"samples": 2, "largest": 1.0}
    assert seen == [targets]


@pytest.mark.parametrize(
    ("prepare", "figures"),
    [
        (lambda batch: batch["x"], {"a": 1.0}),
        (lambda batch: {"a": batch["x"], "b": batch["y"]}, {"a": 1.0, "b": 2.0}),
        (lambda batch: ((batch["x"], batch["y"]), None), {"a": 1.0, "b": 2.0}),
        (lambda batch: (batch["x"], batch["z"]), {"a": 1.0}),
        (lambda batch: (batch["x"], batch["y"], True), {"a": 1.0, "b": 2.0}),
    ],
)
def test_prepare_says_what_the_model_is_called_with(prepare, figures):
    class Model(nn.Module):
        def forward(self, a, b=None, flag=False):
            return a

    batch = {"x": torch.ones(2, 3), "y": torch.full((2, 3), 2.0), "z": torch.tensor([0, 1])}
    model, _, evaluation = observed(Largest(), ["forward.a", "forward.b"], Model(), loader=[batch], prepare=prepare)
    result = evaluation.take(model).result
    assert {path.removeprefix("forward."): one["largest"] for path, one in result.items()} == figures


def test_a_batch_of_three_parts_asks_for_prepare():
    model, _, evaluation = observed(Largest(), "norm", loader=[(1, 2, 3)])
    with pytest.raises(BadArgumentError, match="gave a tuple of 3; .*prepare=lambda"):
        evaluation.take(model)


@pytest.mark.parametrize(
    ("loader", "said"),
    [((one for one in pairs()), "a generator can be iterated only once"), (iter([]), "list_iterator"), (3, "a int does not"),
     (torch.ones(2, 3), "a Tensor does not"), ({"x": 1}, "a dict does not")],
)  # fmt: skip
def test_what_cannot_be_iterated_again_is_refused(loader, said):
    with pytest.raises(BadArgumentError, match=said):
        Evaluation(Largest(), loader)


def test_bad_arguments_are_refused():
    with pytest.raises(BadArgumentError, match=r"Largest is a class, not an instance; did you mean Largest\(\)\?"):
        Evaluation(Largest, pairs())
    with pytest.raises(BadArgumentError, match="mode is one of 'eval', 'train', 'keep', not 'test'"):
        Evaluation(Largest(), pairs(), mode="test")


def test_an_empty_loader_is_an_error():
    model, _, evaluation = observed(Largest(), "norm", loader=[])
    with pytest.raises(BadArgumentError, match="the list gave no batch"):
        evaluation.take(model)


def test_an_analyser_that_is_not_on_the_model_is_an_error():
    evaluation = Evaluation(Largest(), pairs())
    with pytest.raises(BadArgumentError, match="does not observe this Net, it observes no model"):
        evaluation.take(seeded_net())
    model, handle, evaluation = observed(Largest(), "norm")
    with pytest.raises(BadArgumentError, match=r"does not observe this Linear, it observes another Net"):
        evaluation.take(nn.Linear(4, 3))
    handle.remove()
    with pytest.raises(BadArgumentError, match="it observes no model, or was removed"):
        evaluation.take(model)


def test_the_handle_need_not_be_kept_and_a_removed_observation_keeps_no_model():
    analyser, model = Largest(), seeded_net()
    evaluation = Evaluation(analyser, pairs())
    byname.observe(model, "norm", analyser)
    gc.collect()
    assert evaluation.take(model).result["norm"]["samples"] == 24
    gc.collect()
    assert evaluation.take(model).result["norm"]["samples"] == 24
    analyser, model = Largest(), seeded_net()
    handle = byname.observe(model, "norm", analyser)
    analyser.enabled = False
    gone = weakref.ref(model)
    handle.remove()
    del model
    gc.collect()
    assert gone() is None


def test_it_may_be_observed_on_a_part_or_on_what_the_model_is_part_of():
    whole = nn.Sequential(seeded_net())
    for observed_on, where, path in ((whole[0], "norm", "norm"), (whole, "0.norm", "0.norm")):
        _, _, evaluation = observed(Largest(), where, observed_on)
        for model in (whole, whole[0]):
            assert evaluation.take(model).result[path]["samples"] == 24


def test_a_snapshot_inside_of_a_snapshot_is_an_error():
    model, _, evaluation = observed(Largest(), "norm", prepare=lambda batch: evaluation.take(model))
    with pytest.raises(BadArgumentError, match="already taking a snapshot"):
        evaluation.take(model)


def test_no_tensor_of_a_pass_stays_alive():
    alive = []

    def prepare(batch):
        alive.extend(map(weakref.ref, batch))
        return batch

    model, _, evaluation = observed(PerClass(Largest()), ["norm", "head"], prepare=prepare)
    evaluation.take(model)
    assert len(alive) == 6
    assert [one() for one in alive] == [None] * 6


def test_a_loop_that_raises_has_no_snapshot_at_its_end():
    model, _, evaluation = observed(Largest(), "norm")
    with pytest.raises(ZeroDivisionError), evaluation.during(model, at=(1,), epoch=4) as snapshots:
        assert snapshots.step(batch=0) == evaluation.records[1]
        assert snapshots.step() is None
        raise ZeroDivisionError
    assert [(one.event, one.epoch, one.batch, one.step) for one in evaluation.records] == [
        ("start", 4, None, 0),
        ("scheduled", 4, 0, 1),
    ]


def test_schedule():
    schedule = Schedule(every=4, at=[9, 3, 3])
    assert schedule == Schedule(every=4, at=(3, 9))
    assert [step for step in range(1, 13) if schedule.due(step)] == [3, 4, 8, 9, 12]
    assert [schedule.due(4, 2), schedule.due(7, 4), schedule.due(10, 7)] == ["scheduled", None, "scheduled"]
    assert [Schedule().due(step) for step in range(1, 10)] == [None] * 9


@pytest.mark.parametrize("wrong", [{"every": 0}, {"every": 1.5}, {"at": (0,)}, {"at": 3}, {"at": ("1",)}])
def test_a_schedule_with_no_such_step_is_refused(wrong):
    with pytest.raises(BadArgumentError, match="every|at"):
        Schedule(**wrong)


def test_records_are_rows_and_a_frame():
    model, _, evaluation = observed(PerClass(Largest()), ["norm", "head"])
    record = evaluation.take(model, "start", 0, 1, 2)
    assert isinstance(record, Record)
    evaluation.take(model, "mine", step=3)
    rows = evaluation.records.rows()
    assert len(rows) == 2 * 2 * 3
    assert rows[0] == {
        "event": "start", "epoch": 0, "batch": 1, "step": 2, "path": "norm", "class": 0, **record.result["norm"][0]
    }  # fmt: skip
    frame = evaluation.records.to_pandas()
    assert list(frame["step"].unique()) == [2, 3]
    assert str(evaluation.records).startswith("Evaluation of PerClass: 2 snapshots\nevent")
    assert repr(evaluation) == str(evaluation.records)


def test_a_compiled_model_runs_eagerly_for_a_snapshot_and_compiled_afterwards():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    compilations = []

    def compiler(graph, example):
        compilations.append(graph)
        return graph.forward

    compiled = torch.compile(model, backend=compiler)
    model, _, evaluation = observed(Largest(), "1", compiled, loader=[torch.ones(2, 3)])
    before = compiled(torch.ones(2, 3))
    assert evaluation.take(compiled).result["1"]["samples"] == 2
    assert torch.equal(compiled(torch.ones(2, 3)), before)
    assert len(compilations) == 1


def test_a_loader_that_another_loop_is_in_the_middle_of_is_refused_if_that_would_lose_its_place():
    loader = torch.utils.data.DataLoader(torch.arange(24.0).reshape(6, 4), num_workers=1, persistent_workers=True)
    model, _, evaluation = observed(Largest(), "norm", loader=loader)
    assert evaluation.take(model).result["norm"]["samples"] == 6
    seen = []
    for number, batch in enumerate(loader):
        seen.append(float(batch[0, 0]))
        if number == 2:
            with pytest.raises(BadArgumentError, match="another loop is iterating this DataLoader"):
                evaluation.take(model)
    assert seen == [0, 4, 8, 12, 16, 20]
    assert evaluation.take(model).result["norm"]["samples"] == 6


def test_a_probe_in_evaluation_keeps_what_it_learnt_and_one_in_training_begins_anew():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 6, generator=generator)
    y = (x[:, 0] > 0).long()
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU())
    probe = byname.analyse.LinearProbe(2)
    handle = byname.observe(model, "1", probe)
    for _ in range(60):
        probe.targets = y
        model(x)
    weight, _ = probe.weights("1")
    evaluation = Evaluation(probe.eval(), [(x[:100], y[:100]), (x[100:], y[100:])])
    records = [evaluation.take(model) for _ in range(2)]
    assert [record.result["1"]["scored"] for record in records] == ["held out"] * 2
    assert [record.result["1"]["samples"] for record in records] == [200, 200]
    wanted = (model[1](model[0](x)).detach().double() @ weight.T.double() + probe.weights("1")[1].double()).argmax(1)
    assert (
        records[0].result["1"]["accuracy"] == records[1].result["1"]["accuracy"] == float((wanted == y).double().mean())
    )
    assert torch.equal(probe.weights("1")[0], weight)
    probe.train()
    assert [evaluation.take(model).result["1"]["steps"] for _ in range(2)] == [2, 2]
    handle.remove()


def test_gradients_need_a_backward():
    for analyser in (byname.analyse.GradientStatistics(), LargestGradient()):
        with pytest.raises(BadArgumentError, match="takes gradients, and a snapshot has none without backward="):
            Evaluation(analyser, pairs())
        assert analyser.enabled
