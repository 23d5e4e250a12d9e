# cause: modified-in-place
# culprits: self.critic[2].weight
# kind: error
# mended 2: pass
# A parameter is changed between forward and backward, but by the program itself and not by an optimizer.
import torch
from torch import nn


class Wasserstein:
    def __init__(self):
        self.critic = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
        self.optimizer = torch.optim.RMSprop(self.critic.parameters(), lr=1e-3)

    def clip(self, bound=0.01):
        with torch.no_grad():
            for parameter in self.critic.parameters():
                parameter.clamp_(-bound, bound)  #: 2

    def step(self, real, fake):
        loss = self.score(fake) - self.score(real)
        self.clip()
        self.optimizer.zero_grad()
        loss.backward()  #: 3
        self.optimizer.step()

    def score(self, sample):
        return self.critic(sample).mean()  #: 1


torch.manual_seed(0)
wasserstein = Wasserstein()
for _ in range(2):
    wasserstein.step(torch.randn(4, 3), torch.randn(4, 3))
