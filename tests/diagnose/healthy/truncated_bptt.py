"""An RNN over one long sequence: the hidden state goes on, its history is cut after every chunk."""

import math

import torch
from torch import nn

torch.manual_seed(3)


class Forecaster(nn.Module):
    def __init__(self, hidden_size=6):
        super().__init__()
        self.rnn = nn.GRU(1, hidden_size, num_layers=2)
        self.out = nn.Linear(hidden_size, 1)

    def forward(self, x, hidden):
        features, hidden = self.rnn(x, hidden)
        return self.out(features), hidden


def chunks(series, length):
    for start in range(0, len(series) - length, length):
        yield series[start : start + length], series[start + 1 : start + length + 1]


series = torch.tensor([math.sin(0.3 * t) for t in range(61)]).view(-1, 1, 1)
model = Forecaster()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
loss_fn = nn.MSELoss()

hidden = torch.zeros(2, 1, 6)
running = 0.0
for x, y in chunks(series, 10):
    hidden = hidden.detach()
    optimizer.zero_grad()
    prediction, hidden = model(x, hidden)
    loss = loss_fn(prediction, y)
    loss.backward()
    optimizer.step()
    running += loss.item()

FINAL = [*model.parameters(), hidden.detach(), torch.tensor(running)]
