"""Data parallel training with a world of one, as a script runs on a laptop."""

import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.manual_seed(52)


def train(model, steps):
    model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    total = torch.zeros(())
    for _ in range(steps):
        x = torch.randn(6, 4)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), x.cumsum(1)[:, :2])
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        total += mean / dist.get_world_size()
    return model.module, total


with tempfile.TemporaryDirectory() as folder:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    try:
        model, total = train(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)), steps=4)
    finally:
        dist.destroy_process_group()

FINAL = [*model.parameters(), *model.buffers(), total]
