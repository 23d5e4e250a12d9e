"""What is kept stays on the device of the data, and is the same there as on the CPU."""

import pytest
import torch
from every_statistic import EVERY
from torch import nn

import byname
from byname.analyse import (
    DeadUnits,
    Evaluation,
    FeatureStatistics,
    GradientStatistics,
    LinearProbe,
    Several,
    Similarity,
)

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from tensors_in(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors_in(one)


@pytest.mark.parametrize("name", sorted(EVERY))
def test_a_statistic_of_data_on_a_gpu_is_that_on_the_cpu_and_stays_there(name):
    every = EVERY[name]
    there, here = every.make(), every.make()
    for seed in range(4):
        batch = every.batch(50, seed=seed)
        here.add(*batch)
        there.add(*(one.cuda() for one in batch))
    assert there.device.type == "cuda"
    told = dict(there.reduce().merge(every.make()).to("cpu").state_dict())
    assert all(one.device.type == "cpu" for one in tensors_in(told))
    for figure, wanted in every.told(here).items():
        found = every.told(there)[figure]
        for one, other in zip(tensors_in([found]), tensors_in([wanted]), strict=True):
            torch.testing.assert_close(one.cpu(), other, rtol=1e-9, atol=1e-12, equal_nan=True)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def looked_into(device):
    model, batches = net().to(device), torch.randn(5, 20, 6, generator=torch.Generator().manual_seed(1)).to(device)
    labels = (batches.sum(-1) > 0).long()
    features, gradients, similarity = Several(FeatureStatistics(), DeadUnits()), GradientStatistics(), Similarity()
    probe = LinearProbe(3)
    with (
        byname.observe(model, "*", features),
        byname.observe(model, "**.weight", gradients),
        byname.observe(model, "*", similarity),
        byname.observe(model, "1", probe),
    ):
        for x, y in zip(batches, labels, strict=True):
            probe.targets = y
            nn.functional.cross_entropy(model(x), y).backward()
    return [analyser.result() for analyser in (features, gradients, similarity, probe)]


def test_analysers_on_a_gpu_find_what_they_find_on_the_cpu():
    for there, here in zip(looked_into("cuda"), looked_into("cpu"), strict=True):
        assert there.rows()
        for row, wanted in zip(there.rows(), here.rows(), strict=True):
            numbers = {key: value for key, value in wanted.items() if isinstance(value, float)}
            assert {key: row[key] for key in numbers} == pytest.approx(numbers, rel=1e-4, abs=1e-6, nan_ok=True)


def test_a_snapshot_leaves_random_state_and_gradients_of_a_gpu_alone():
    model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(), nn.ReLU()).cuda()
    units = GradientStatistics()
    byname.observe(model, "**.weight", units)
    evaluation = Evaluation(units, [torch.randn(8, 6)], backward=lambda output, batch: output.sum(), mode="train")
    model(torch.randn(8, 6, device="cuda")).sum().backward()
    before, grad = torch.cuda.get_rng_state(), model[0].weight.grad
    values = grad.clone()
    record = evaluation.take(model)
    assert record.result["0.weight"]["norm"] > 0
    assert torch.equal(torch.cuda.get_rng_state(), before)
    assert model[0].weight.grad is grad
    assert torch.equal(grad, values)
