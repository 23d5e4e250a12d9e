"""LBFGS with a strong Wolfe line search fits a small regression; the closure is called many times a step."""

import torch
from torch import nn

torch.manual_seed(25)
x = torch.linspace(-2, 2, 20).unsqueeze(1)
y = torch.sin(2 * x)
model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)).double()
x, y = x.double(), y.double()
optimizer = torch.optim.LBFGS(model.parameters(), lr=1, max_iter=5, history_size=4, line_search_fn="strong_wolfe")
trace = []


def closure():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    if loss.requires_grad:
        loss.backward()
    trace.append(loss.item())
    return loss


for epoch in range(4):
    optimizer.step(closure)
with torch.no_grad():
    final_loss = closure()

FINAL = [*model.parameters(), torch.tensor(trace), final_loss]
