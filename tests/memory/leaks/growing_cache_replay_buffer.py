# cause: growing-cache
# name: agent.replay[*]['observation']
# count: 8
# bytes: 8 * (3 * 40 * 40 * 4)
# cause: growing-cache
# name: agent.replay[*]['logits']
# count: 8
# bytes: 8 * (5 * 4)
# mended 1: self.replay[:] = [{"observation": observation, "logits": logits}]
# A replay buffer without a limit: each part of an entry is a pattern of its own.
import torch
from torch import nn


class Agent:
    def __init__(self):
        self.policy = nn.Sequential(nn.Flatten(), nn.Linear(3 * 40 * 40, 5))
        self.replay = []

    @torch.no_grad()
    def act(self, observation):
        logits = self.policy(observation)
        self.remember(observation, logits)
        return logits.argmax().item()

    def remember(self, observation, logits):
        self.replay.append({"observation": observation, "logits": logits})  #: 1


agent = Agent()


def step(i):
    agent.act(torch.rand(1, 3, 40, 40))
