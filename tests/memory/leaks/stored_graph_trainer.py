# cause: stored-graph
# name: trainer.history[*]['loss']
# steps: 10
# count: 10
# bytes: 10 * (32 * 120 * 4 + 32 * 200 * 4 + 3 * (32 * 10 * 4))
# mended 1: self.history.append({"epoch": epoch, "loss": loss.item()})
# Each loss keeps the batch, the hidden layer (once, though relu and the second layer save it), output and target, itself:
# the mean of the squared errors is one number in a storage that still has room for all of them.
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(120, 200)
        self.fc2 = nn.Linear(200, 10)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x)))


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters())
        self.history = []

    def fit(self, x, target):
        self.model.train()
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(x), target)
        loss.backward()
        self.optimizer.step()

    def validate(self, epoch, x, target):
        self.model.eval()
        loss = F.mse_loss(self.model(x), target)
        self.history.append({"epoch": epoch, "loss": loss})  #: 1


trainer = Trainer(Model())


def step(epoch):
    trainer.fit(torch.randn(32, 120), torch.randn(32, 10))
    trainer.validate(epoch, torch.randn(32, 120), torch.randn(32, 10))
