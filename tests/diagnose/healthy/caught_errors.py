"""A Gaussian process whose Cholesky factor may fail: the error is caught and jitter is added; an own exception ends it early."""

import torch
from torch import nn

torch.manual_seed(61)
CAUGHT = []


class Converged(Exception):
    pass


class Kernel(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_length, self.log_scale = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))
        self.log_noise = nn.Parameter(torch.tensor(-2.0))

    def forward(self, x):
        distance = (x - x.t()).square()
        return self.log_scale.exp() * torch.exp(-0.5 * distance / self.log_length.exp() ** 2)


def safe_cholesky(matrix, jitter):
    while True:
        try:
            return torch.linalg.cholesky(matrix + jitter * torch.eye(len(matrix)))
        except torch.linalg.LinAlgError as error:
            CAUGHT.append(error)
            jitter = max(10 * abs(jitter), 1e-6)


def train(kernel, x, y):
    optimizer = torch.optim.Adam(kernel.parameters(), lr=0.05)
    for step in range(20):
        factor = safe_cholesky(
            kernel(x) + kernel.log_noise.exp() * torch.eye(len(x)), jitter=-1.0 if step == 2 else 1e-6
        )
        alpha = torch.cholesky_solve(y, factor)
        loss = 0.5 * (y * alpha).sum() + factor.diagonal().log().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 6:
            raise Converged(loss.item())


kernel = Kernel()
x = torch.linspace(0, 3, 10).unsqueeze(1)
try:
    train(kernel, x, torch.sin(2 * x))
except Converged as end:
    CAUGHT.append(end)

FINAL = [*kernel.parameters(), torch.tensor(len(CAUGHT)), torch.tensor(CAUGHT[-1].args[0])]
