"""Growth is what goes on growing: not what comes once, stops, or belongs to each parameter of an optimizer."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import byname
from byname import Growth


@pytest.mark.slow
def test_what_comes_once_or_stops_growing_is_no_growth():
    best, cache, history = {}, {}, []
    with byname.growth() as growth:
        for step in range(12):
            cache.setdefault(step % 4, torch.ones(100))
            if step == 6:
                best["weight"] = torch.ones(1000)
            history.append(torch.ones(10))
            growth.mark()
    assert [row.name for row in growth] == ["history[*]"]


@pytest.mark.slow
def test_the_state_of_a_parameter_that_is_used_late_is_no_growth():
    used_at = [nn.Linear(3, 3) for _ in range(10)]
    optimizer = torch.optim.Adam([one for layer in used_at for one in layer.parameters()])
    x = torch.ones(2, 3)
    with byname.growth() as growth:
        for layer in used_at:
            layer(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            growth.mark()
    assert [row.name for row in growth] == []


def test_the_steps_that_lbfgs_remembers_are_no_growth():
    layer, x = nn.Linear(3, 3), torch.randn(20, 3)
    optimizer = torch.optim.LBFGS(layer.parameters(), lr=0.1, max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = (layer(x).sin() - x).square().sum()
        loss.backward()
        return loss

    with byname.growth() as growth:
        for _ in range(8):
            optimizer.step(closure)
            growth.mark()
    assert [row.name for row in growth] == []


def test_the_states_of_optimizers_that_are_made_anew_and_kept_are_growth():
    layer, optimizers = nn.Linear(3, 3), []
    with byname.growth() as growth:
        for _ in range(5):
            optimizers.append(torch.optim.Adam(layer.parameters()))
            layer(torch.ones(2, 3)).sum().backward()
            optimizers[-1].step()
            growth.mark()
    assert {(row.name, row.cause) for row in growth} == {
        ("optimizers[*].state[*]['exp_avg']", "stored-optimizer"),
        ("optimizers[*].state[*]['exp_avg_sq']", "stored-optimizer"),
        ("optimizers[*].state[*]['step']", "stored-optimizer"),
    }


@pytest.mark.slow
def test_state_of_parameters_that_are_gone_is_growth():
    optimizer = torch.optim.Adam([torch.ones(3, requires_grad=True)])
    with byname.growth() as growth:
        for _ in range(8):
            fresh = torch.ones(3, requires_grad=True)
            optimizer.param_groups[0]["params"][:] = [fresh]
            (fresh * 2).sum().backward()
            optimizer.step()
            growth.mark()
    assert (
        sum(row.bytes for row in growth) >= 7 * 2 * 12
    )  # no variable leads to these parameters: their rows have no name


def trained(after, length=lambda step: 1, steps=12):
    """The growth over steps of a training, each followed by `after(step, loss)`, which keeps or drops what it likes."""
    layer = nn.Linear(4, 4)
    with byname.growth() as growth:
        for step in range(steps):
            value = torch.ones(2, 4)
            for _ in range(length(step)):
                value = layer(value)
            loss = value.square().mean()
            loss.backward()
            after(step, loss)
            growth.mark()
    return growth


@pytest.mark.slow
def test_a_running_total_grows_by_nodes_though_backward_has_freed_what_they_saved():
    total = torch.zeros(())

    def add(_, loss):
        nonlocal total
        total = total + loss

    (row,) = trained(add).rows()
    assert (row["name"], row["cause"], row["count"], row["bytes"]) == ("total", "retained-graph", 0, 0)
    assert "loss.item()" in row["remedy"]


@pytest.mark.slow
def test_the_title_speaks_of_a_graph_only_where_it_is_a_graph_that_grows():
    total, parts = torch.zeros(()), [torch.ones(64)]

    def add(_, loss):
        nonlocal total
        total = total + loss

    assert "a graph became longer" in str(trained(add))

    def split(step, _):
        parts[:] = torch.ones(64).chunk(2 + step)  # a new block of the old size

    growth = trained(split, steps=6)
    assert [(row.name, row.count, row.bytes) for row in growth] == [("parts[*]", 6, 0)]
    assert "graph" not in str(growth)


@pytest.mark.slow
def test_the_nodes_of_a_running_total_are_counted():
    total = torch.zeros(())

    def add(_, loss):
        nonlocal total
        total = total + loss

    def count(node, seen):
        if node is not None and node not in seen:
            seen.add(node)
            for below, _ in node.next_functions:
                count(below, seen)
        return len(seen)

    first = []
    (row,) = trained(lambda step, loss: (add(step, loss), first.append(count(total.grad_fn, set())))).rows()
    assert f"its graph became longer by {first[-1] - first[0]} nodes" in row["remedy"]


@pytest.mark.slow
def test_a_graph_that_is_longer_each_time_but_new_is_no_growth():
    last = None

    def keep(_, loss):
        nonlocal last
        last = loss

    assert trained(keep, length=lambda step: 1 + step).rows() == []


@pytest.mark.slow
def test_a_total_that_begins_anew_soon_is_no_growth():
    total = torch.zeros(())

    def add(step, loss):
        nonlocal total
        total = loss if step % 3 == 0 else total + loss

    assert trained(add).rows() == []


@pytest.mark.slow
def test_a_total_of_an_epoch_is_told_after_it_began_anew():
    total = torch.zeros(())

    def add(step, loss):
        nonlocal total
        total = loss if step % 10 == 0 else total + loss

    assert [row.name for row in trained(add)] == ["total"]


def doubled(steps):
    return [step for step in range(1, steps + 1) if step & (step - 1) == 0]


def seen_at(looks, size):
    """What `byname census --growth` finds in a list of `size(step)` tensors that it looks at after these steps."""
    kept, now = [], 0
    growth = Growth(False, 3, lambda: now, "step")
    for now in looks:
        kept += [torch.ones(4) for _ in range(size(now) - len(kept))]
        if now == looks[0]:
            growth.__enter__()
        else:
            growth.mark()
    growth.end()
    return growth


@pytest.mark.slow
@pytest.mark.parametrize(
    "looks",
    [doubled(600), doubled(5000), range(10, 151, 10), range(200, 601, 200)],
)
def test_a_container_that_is_full_is_no_growth_whatever_the_distances_of_the_looks(looks):
    for bound in (4, 50, 103, 416):
        if bound <= looks[-1] * 0.7:
            assert seen_at(looks, lambda step: min(step, bound)).rows() == [], bound  # noqa: B023


@pytest.mark.grid(fast=1)
@pytest.mark.parametrize("looks", [doubled(600), doubled(20), range(10, 151, 10), range(200, 601, 200)])
@pytest.mark.parametrize("period", [1, 3])
def test_what_goes_on_growing_is_found_whatever_the_distances_of_the_looks(looks, period):
    growth = seen_at(looks, lambda step: step // period)
    assert [row.name for row in growth] == ["kept[*]"]
    if period == 1:
        assert growth.rows()[0]["a_mark"] == "+1"
        assert "a step" in str(growth)


@pytest.mark.slow
def test_what_is_added_once_an_epoch_is_found():
    for period in (40, 90, 180):
        assert [row.name for row in seen_at(doubled(600), lambda step: step // period)] == ["kept[*]"], period  # noqa: B023


class Probe(nn.Module):
    pass


def test_attributes_and_buffers_with_a_new_number_each_time_are_one_place():
    notes, probe, weight = SimpleNamespace(), Probe(), torch.ones(3, requires_grad=True)
    with byname.growth() as growth:
        for step in range(5):
            setattr(notes, f"loss_{step}", weight.exp().sum())
            probe.register_buffer(f"mean{step}", torch.ones(9))
            growth.mark()
    found = {row.name: (row.count, row.cause) for row in growth}
    assert found == {"notes.loss_*": (5, "stored-graph"), "probe.mean*": (5, "growing-cache")}


def test_the_state_that_is_carried_on_is_named_and_not_the_loss_that_is_computed_from_it():
    layer, x = nn.Linear(8, 8), torch.ones(4, 8)
    queue = torch.zeros(16, 8)
    with byname.growth() as growth:
        for _ in range(6):
            loss = (layer(x) @ queue.T).exp().mean()  # noqa: F841 - it is alive at the mark
            queue = torch.cat([layer(x).tanh(), queue])[:16]
            growth.mark()
    assert [(row.name, row.cause) for row in growth] == [("queue", "retained-graph")]


def test_gradients_in_a_list_are_no_copies_of_parameters():
    model, history = nn.Sequential(nn.Linear(4, 4)), []
    with byname.growth() as growth:
        for _ in range(5):
            model.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            history.append({name: one.grad for name, one in model.named_parameters()})
            growth.mark()
    assert {row.cause for row in growth} == {"growing-cache"}
    assert all("norm().item()" in row.remedy for row in growth)


class Metric:
    """A metric as torchmetrics has them."""

    def __init__(self):
        self.values = []

    def update(self, value):
        self.values.append(value)

    def compute(self):
        return torch.stack(self.values).mean()

    def reset(self):
        self.values.clear()


def test_a_metric_is_reset_rather_than_bounded():
    accuracy = Metric()
    with byname.growth() as growth:
        for step in range(5):
            accuracy.update(torch.tensor(float(step)))
            growth.mark()
    (row,) = growth.rows()
    assert row["remedy"].startswith("call .reset() of the Metric")


def test_an_iterator_that_repeats_its_batches_keeps_them():
    batches = itertools.cycle(torch.ones(10) * step for step in range(100))
    with byname.growth() as growth:
        for _ in range(5):
            next(batches)
            growth.mark()
    (row,) = growth.rows()
    assert "batches" in row["name"] and row["cause"] == "growing-cache" and "itertools.cycle keeps" in row["remedy"]


class Accelerator:
    """As that of accelerate: it keeps what it has prepared until it is told to free it."""

    def __init__(self):
        self._models, self._optimizers = [], []

    def prepare(self, model, optimizer):
        self._models.append(model)
        self._optimizers.append(optimizer)

    def free_memory(self):
        self._models, self._optimizers = [], []


def test_what_an_accelerator_has_prepared_is_to_be_freed_by_it():
    accelerator = Accelerator()
    with byname.growth() as growth:
        for _ in range(5):
            model = torch.nn.Linear(8, 1)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            accelerator.prepare(model, optimizer)
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
            growth.mark()
    assert growth.rows() and all(".free_memory() of the Accelerator" in row["remedy"] for row in growth.rows())


def test_results_that_a_module_keeps_for_its_loss_are_to_be_emptied_and_those_of_a_list_are_not():
    policy, losses = torch.nn.Linear(4, 2), []
    policy.saved_log_probs = []
    with byname.growth() as growth:
        for _ in range(5):
            policy.saved_log_probs.append(policy(torch.ones(3, 4)).log_softmax(-1))
            losses.append(policy(torch.ones(3, 4)).sum())
            growth.mark()
    remedies = {row["name"]: row["remedy"] for row in growth.rows()}
    assert remedies["policy.saved_log_probs[*]"].endswith("empty the list after its backward")
    assert "empty the list" not in remedies["losses[*]"]
