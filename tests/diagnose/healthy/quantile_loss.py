"""A forecast of three quantiles by the pinball loss; the middle one also gets a penalty where the quantiles cross."""

import torch
from torch import nn

torch.manual_seed(55)


class PinballLoss(nn.Module):
    def __init__(self, quantiles):
        super().__init__()
        self.register_buffer("quantiles", torch.tensor(quantiles))

    def forward(self, predictions, target):
        errors = target.unsqueeze(1) - predictions
        return torch.max((self.quantiles - 1) * errors, self.quantiles * errors).sum(1).mean()


class Forecaster(nn.Module):
    def __init__(self, window=5, quantiles=3):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(window, 8), nn.Hardswish(), nn.Linear(8, quantiles))

    def forward(self, x):
        return self.net(x)


def crossing(predictions):
    return torch.relu(predictions[:, :-1] - predictions[:, 1:]).mean()


series = torch.randn(60).cumsum(0)
windows = series.unfold(0, 6, 1)
windows = (windows - windows.mean()) / windows.std()
model, criterion = Forecaster(), PinballLoss([0.1, 0.5, 0.9])
optimizer = torch.optim.NAdam(model.parameters(), lr=1e-2)
for epoch in range(2):
    for batch in windows[torch.randperm(len(windows))].split(16):
        predictions = model(batch[:, :-1])
        loss = criterion(predictions, batch[:, -1]) + 0.1 * crossing(predictions)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

FINAL = [*model.parameters(), loss.detach()]
