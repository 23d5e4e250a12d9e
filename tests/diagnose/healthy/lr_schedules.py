"""Warm-up, then cosine decay; a second scheduler watches the validation loss."""

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, ReduceLROnPlateau, SequentialLR

torch.manual_seed(27)


def validate(model, x, y):
    model.eval()
    with torch.no_grad():
        loss = nn.functional.l1_loss(model(x), y)
    model.train()
    return loss


def train(model, data, validation, epochs=6):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    warmup = LinearLR(optimizer, start_factor=0.1, total_iters=2)
    schedule = SequentialLR(optimizer, [warmup, CosineAnnealingLR(optimizer, T_max=4)], milestones=[2])
    plateau = ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    best, best_state, rates = float("inf"), None, []
    for _ in range(epochs):
        for x, y in data:
            optimizer.zero_grad(set_to_none=False)
            nn.functional.mse_loss(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            optimizer.step()
        schedule.step()
        loss = validate(model, *validation)
        plateau.step(loss)
        rates.append(optimizer.param_groups[0]["lr"])
        if loss < best:
            best = loss
            best_state = {key: value.clone() for key, value in model.state_dict().items()}
    model.load_state_dict(best_state)
    return rates


inputs = torch.randn(24, 3)
targets = inputs @ torch.tensor([[1.0], [-2.0], [0.5]])
model = nn.Sequential(nn.Linear(3, 6), nn.SiLU(), nn.Dropout(0.1), nn.Linear(6, 1))
rates = train(model, list(zip(inputs[:16].split(8), targets[:16].split(8), strict=True)), (inputs[16:], targets[16:]))
FINAL = [*model.parameters(), torch.tensor(rates)]
