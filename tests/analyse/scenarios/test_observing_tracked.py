"""What a tracker notes is the same with analysers beside the program and without."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import byname
from byname.analyse import DeadUnits, LinearProbe, Outliers

TARGETS = torch.tensor([0, 1, 0, 1])


def a_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def outliers_and_dead_units(model):
    yield byname.observe(model, nn.Linear, Outliers())
    yield byname.observe(model, nn.ReLU, DeadUnits())


def gradients_parameters_and_operations(model):
    yield byname.observe(model, "0.grad", Outliers())
    yield byname.observe(model, ["0.weight", "0.weight.grad"], Outliers())
    yield byname.observe(model, "1.relu", DeadUnits())


def a_probe_with_an_optimizer_of_its_own(model):
    probe = LinearProbe(classes=2)
    probe.targets = TARGETS
    yield byname.observe(model, "1", probe)


def a_recording(model):
    yield byname.record(model, ["*", "0.weight", "0.weight.grad", "1.relu", "forward.input"])


def noted(contexts, enter):
    """What is noted of three steps: calls, changes, cuts, tensors made and optimizer steps."""
    model = a_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with contextlib.ExitStack() as entered:
        seen = entered.enter_context(enter())
        for one in contexts(model):
            entered.enter_context(one)
        for _ in range(3):
            optimizer.zero_grad()
            F.mse_loss(model(torch.randn(4, 4)), torch.zeros(4, 2)).backward()
            optimizer.step()
    return [
        (
            len(log.calls),
            len(log.changes),
            len(log.detaches),
            len(log.tensor_records),
            len(log.steps),
            len(log.grad_reads),
        )
        for log in seen.logs
    ]


@pytest.mark.parametrize("enter", [byname.track, lambda: byname.track(allocations=True)])
@pytest.mark.parametrize(
    "contexts",
    [
        outliers_and_dead_units,
        gradients_parameters_and_operations,
        a_probe_with_an_optimizer_of_its_own,
        a_recording,
    ],
)
def test_what_byname_computes_beside_the_program_is_not_noted_as_the_programs(contexts, enter):
    assert noted(contexts, enter) == noted(lambda model: (), enter)


def test_what_an_interjection_computes_is_the_programs():
    def changed(model):
        yield byname.interject(model, "0", lambda name, module, value: value * 2)

    ((plain, *_),), ((with_it, *_),) = noted(lambda model: (), byname.track), noted(changed, byname.track)
    assert with_it == plain + 3
