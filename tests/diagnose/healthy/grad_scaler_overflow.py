"""A scale that starts too high: the scaler sees infinite gradients, skips the step and lowers the scale, as it should."""

import torch
from torch import nn

torch.manual_seed(12)


class AmpTrainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=2)

    def step(self, x, y):
        self.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            prediction = self.model(x)
            loss = nn.functional.mse_loss(prediction.float(), y)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.item()


trainer = AmpTrainer(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)))
x = torch.randn(16, 4)
y = 30 * x.sum(1, keepdim=True)
losses, scales = [], []
for _ in range(10):
    losses.append(trainer.step(x, y))
    scales.append(trainer.scaler.get_scale())

FINAL = [*trainer.model.parameters(), torch.tensor(losses), torch.tensor(scales)]
