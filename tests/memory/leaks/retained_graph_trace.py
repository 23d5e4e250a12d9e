# cause: retained-graph
# name: agent.trace
# count: 16
# bytes: 8 * (12 * 85 * 4 + 12 * 55 * 4)
# mended 1: self.trace = torch.tanh(self.encode(x)) + self.trace.detach()
# A trace over the observations that is never cut. Each step adds the observation, saved by the layer, and a tanh.
import torch
from torch import nn


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(85, 55)
        self.trace = torch.zeros(12, 55)

    def forward(self, x):
        self.trace = torch.tanh(self.encode(x)) + self.trace  #: 1
        return self.trace


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(self, x):
        self.optimizer.zero_grad()
        loss = self.model(x).mean()
        loss.backward(retain_graph=True)
        self.optimizer.step()


agent = Agent()
trainer = Trainer(agent)


def step(i):
    trainer.step(torch.randn(12, 85))
