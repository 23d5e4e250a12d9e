"""Weights are averaged over the last epochs, and batch norm is fitted anew to the average."""

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn

torch.manual_seed(67)
model = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
averaged = AveragedModel(model)
scheduler = SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)
data = list(torch.randn(4, 8, 3))

for epoch in range(4):
    for x in data:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
        optimizer.step()
    if epoch >= 2:
        averaged.update_parameters(model)
        scheduler.step()
update_bn(data, averaged)

FINAL = [*model.parameters(), *model.buffers(), *averaged.parameters(), *averaged.buffers()]
