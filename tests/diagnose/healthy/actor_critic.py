"""Actor and critic share a trunk of features each, have an optimizer each, and the advantage is detached for the actor."""

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(19)


class Agent(nn.Module):
    def __init__(self, observations=4, actions=3, width=8):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(observations, width), nn.Tanh(), nn.Linear(width, actions))
        self.critic = nn.Sequential(nn.Linear(observations, width), nn.Tanh(), nn.Linear(width, 1))

    def act(self, observation):
        policy = Categorical(logits=self.actor(observation))
        action = policy.sample()
        return action, policy.log_prob(action), policy.entropy(), self.critic(observation).squeeze(-1)


def discounted(rewards, gamma=0.95):
    returns, running = [], 0.0
    for reward in reversed(rewards):
        running = reward + gamma * running
        returns.insert(0, running)
    return torch.tensor(returns)


agent = Agent()
opt_actor = torch.optim.Adam(agent.actor.parameters(), lr=1e-2)
opt_critic = torch.optim.Adam(agent.critic.parameters(), lr=2e-2)
for episode in range(4):
    log_probs, entropies, values, rewards = [], [], [], []
    observation = torch.randn(4)
    for _ in range(3 + 2 * episode):
        action, log_prob, entropy, value = agent.act(observation)
        log_probs.append(log_prob)
        entropies.append(entropy)
        values.append(value)
        rewards.append(1.0 if action.item() == observation[:3].argmax().item() else 0.0)
        observation = torch.randn(4)
    returns, values = discounted(rewards), torch.stack(values)
    advantage = returns - values
    actor_loss = -(torch.stack(log_probs) * advantage.detach()).mean() - 0.01 * torch.stack(entropies).mean()
    critic_loss = advantage.pow(2).mean()
    opt_actor.zero_grad()
    actor_loss.backward()
    opt_actor.step()
    opt_critic.zero_grad()
    critic_loss.backward()
    opt_critic.step()

FINAL = list(agent.parameters())
