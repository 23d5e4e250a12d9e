"""Mixed precision on the processor: bfloat16 autocast, with the scaler that a script for both devices carries along."""

import torch
from torch import nn

torch.manual_seed(11)
device = "cpu"
use_scaler = device == "cuda"

model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 8), nn.ReLU(), nn.Linear(8, 3)).to(
    device
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler(device, enabled=use_scaler)


def train_step(x, y):
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(device_type=device, dtype=torch.bfloat16):
        logits = model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    return loss.detach(), norm


for step in range(5):
    loss, norm = train_step(torch.randn(6, 2, 8), torch.randint(3, (6,)))

FINAL = [*model.parameters(), loss, norm]
