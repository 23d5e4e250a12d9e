"""Proximal policy optimization: several epochs over one rollout whose log probabilities were detached."""

import torch
from torch import nn
from torch.distributions import Normal

torch.manual_seed(20)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, 8), nn.Tanh())
        self.mean, self.value = nn.Linear(8, 1), nn.Linear(8, 1)
        self.log_std = nn.Parameter(torch.zeros(1))

    def forward(self, observation):
        features = self.trunk(observation)
        return Normal(self.mean(features), self.log_std.exp()), self.value(features).squeeze(-1)


def rollout(policy, length=16):
    observations = torch.randn(length, 3)
    distribution, values = policy(observations)
    actions = distribution.sample()
    rewards = -(actions.squeeze(-1) - observations.sum(1)).abs()
    advantages = (rewards - values).detach()
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    return observations, actions, distribution.log_prob(actions).sum(-1).detach(), rewards, advantages


def update(policy, optimizer, batch, clip=0.2):
    observations, actions, old_log_probs, returns, advantages = batch
    for _ in range(3):
        for index in torch.randperm(len(observations)).split(8):
            distribution, values = policy(observations[index])
            ratio = (distribution.log_prob(actions[index]).sum(-1) - old_log_probs[index]).exp()
            surrogate = torch.min(ratio * advantages[index], ratio.clamp(1 - clip, 1 + clip) * advantages[index])
            loss = (
                -surrogate.mean()
                + 0.5 * (values - returns[index]).square().mean()
                - 0.01 * distribution.entropy().mean()
            )
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            optimizer.step()


policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3, eps=1e-5)
for iteration in range(2):
    update(policy, optimizer, rollout(policy))

FINAL = list(policy.parameters())
