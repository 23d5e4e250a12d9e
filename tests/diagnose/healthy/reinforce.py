"""REINFORCE: log probabilities are collected on the model until an episode ends, then they are let go."""

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(59)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1, self.dropout, self.affine2 = nn.Linear(2, 8), nn.Dropout(0.2), nn.Linear(8, 2)
        self.saved_log_probs, self.rewards = [], []

    def forward(self, x):
        return torch.softmax(self.affine2(torch.relu(self.dropout(self.affine1(x)))), dim=-1)


policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)


def select_action(state):
    distribution = Categorical(policy(state.unsqueeze(0)))
    action = distribution.sample()
    policy.saved_log_probs.append(distribution.log_prob(action))
    return action.item()


def finish_episode(gamma=0.9):
    value, returns = 0.0, []
    for reward in policy.rewards[::-1]:
        value = reward + gamma * value
        returns.insert(0, value)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std(unbiased=False) + 1e-6)
    policy_loss = [-log_prob * value for log_prob, value in zip(policy.saved_log_probs, returns, strict=True)]
    optimizer.zero_grad()
    torch.cat(policy_loss).sum().backward()
    optimizer.step()
    del policy.rewards[:]
    del policy.saved_log_probs[:]


lengths = []
for episode in range(5):
    state = torch.randn(2)
    for t in range(4 + 3 * episode):
        action = select_action(state)
        policy.rewards.append(1.0 if (state[0] > 0) == bool(action) else -1.0)
        state = 0.9 * state + 0.3 * torch.randn(2)
    lengths.append(t)
    finish_episode()

FINAL = [*policy.parameters(), torch.tensor(lengths)]
