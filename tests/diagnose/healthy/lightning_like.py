"""The user writes a task with a training step; a library's trainer does the rest."""

import torch
from minilightning import Task, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(47)


class Classify(Task):
    def __init__(self, features=4, classes=3):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(features, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, classes))
        self.criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]))

    def training_step(self, batch):
        x, y = batch
        return self.criterion(self.net(x), y)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)


def data():
    x = torch.randn(32, 4)
    return DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=4, shuffle=True)


task = Classify()
trainer = Trainer(epochs=2, accumulate=2, clip=1.0)
trainer.fit(task, data())

FINAL = [*task.parameters(), *task.buffers(), torch.tensor(trainer.metrics)]
