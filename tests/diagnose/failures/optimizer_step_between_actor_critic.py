# cause: optimizer-step-between
# culprits: actor[2].weight
# kind: error
# mended 2: pass
import torch
from torch import nn


def update(actor, critic, actor_optimizer, critic_optimizer, observation):
    logits = actor(observation)  #: 1
    log_probability = logits.log_softmax(dim=-1)
    advantage = critic(observation).squeeze(-1)
    actor_loss = -(log_probability[:, 0] * advantage.detach()).mean()
    entropy_loss = (log_probability.exp() * log_probability).sum(-1).mean()
    critic_loss = advantage.square().mean()

    actor_optimizer.zero_grad()
    actor_loss.backward(retain_graph=True)
    actor_optimizer.step()  #: 2

    critic_optimizer.zero_grad()
    critic_loss.backward()
    critic_optimizer.step()

    entropy_loss.backward()  #: 3


torch.manual_seed(0)
actor = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
update(
    actor,
    critic,
    torch.optim.Adam(actor.parameters()),
    torch.optim.Adam(critic.parameters()),
    torch.randn(5, 4),
)
