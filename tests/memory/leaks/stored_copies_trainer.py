# cause: stored-copies
# name: trainer.checkpoints[*]['model']['fc.weight']
# count: 8
# bytes: 8 * (24 * 37 * 4)
# cause: stored-copies
# name: trainer.checkpoints[*]['optimizer']['state'][*]['exp_avg']
# count: 8
# bytes: 8 * (24 * 37 * 4)
# cause: stored-copies
# name: trainer.checkpoints[*]['optimizer']['state'][*]['exp_avg_sq']
# count: 8
# bytes: 8 * (24 * 37 * 4)
# cause: stored-copies
# name: trainer.checkpoints[*]['optimizer']['state'][*]['step']
# count: 8
# bytes: 8 * 4
# mended 1: self.checkpoints = {epoch: copy.deepcopy(state)}
# Checkpoints by epoch, of model and optimizer; Adam has two averages and a count for the parameter.
import copy

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(37, 24, bias=False)

    def forward(self, x):
        return self.fc(x).square().mean()


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters())
        self.checkpoints = {}

    def fit(self, x):
        self.optimizer.zero_grad()
        self.model(x).backward()
        self.optimizer.step()

    def save(self, epoch):
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        self.checkpoints[epoch] = copy.deepcopy(state)  #: 1


trainer = Trainer(Net())


def step(epoch):
    trainer.fit(torch.randn(8, 37))
    trainer.save(epoch)
