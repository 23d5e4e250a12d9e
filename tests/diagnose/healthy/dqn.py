"""Deep Q-learning with a replay buffer and a target network."""

import random
from collections import deque, namedtuple

import torch
from torch import nn

torch.manual_seed(18)
random.seed(18)
Transition = namedtuple("Transition", "state action reward next_state done")


class Line:
    """Walk left or right on a line of seven places; the right end pays."""

    def reset(self):
        self.place = 3
        return self.observe()

    def observe(self):
        return nn.functional.one_hot(torch.tensor(self.place), 7).float()

    def step(self, action):
        self.place = max(0, min(6, self.place + (1 if action == 1 else -1)))
        return self.observe(), float(self.place == 6), self.place in (0, 6)


policy_net = nn.Sequential(nn.Linear(7, 16), nn.ReLU(), nn.Linear(16, 2))
target_net = nn.Sequential(nn.Linear(7, 16), nn.ReLU(), nn.Linear(16, 2))
target_net.load_state_dict(policy_net.state_dict())
optimizer = torch.optim.AdamW(policy_net.parameters(), lr=1e-2, amsgrad=True)
memory = deque(maxlen=100)


def select_action(state, epsilon=0.3):
    if random.random() < epsilon:
        return random.randrange(2)
    with torch.no_grad():
        return policy_net(state).argmax().item()


def optimize(batch_size=8, gamma=0.9):
    if len(memory) < batch_size:
        return
    batch = Transition(*zip(*random.sample(memory, batch_size), strict=True))
    q = policy_net(torch.stack(batch.state)).gather(1, torch.tensor(batch.action).unsqueeze(1)).squeeze(1)
    with torch.no_grad():
        best = target_net(torch.stack(batch.next_state)).max(1).values
    expected = torch.tensor(batch.reward) + gamma * best * (1 - torch.tensor(batch.done).float())
    loss = nn.functional.smooth_l1_loss(q, expected)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()


env = Line()
state = env.reset()
for step in range(40):
    action = select_action(state)
    next_state, reward, done = env.step(action)
    memory.append(Transition(state, action, reward, next_state, done))
    state = env.reset() if done else next_state
    optimize()
    if step % 10 == 0:
        target_net.load_state_dict(policy_net.state_dict())

FINAL = [*policy_net.parameters(), *target_net.parameters()]
